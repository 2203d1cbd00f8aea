"""An acknowledgement means an fsync: the server is watched while it answers.

strace writes down what the server does to its append-only file and to its clients. For each append the bytes must have
been written and synced, the sync finished and well, before the first byte of the answer is written.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import servers
from rollog.events.connection import Address, Patience
from rollog.events.errors import LogUncertain, ServerUnreachable
from rollog.events.messages import WorkerJoined
from rollog.events.redis_desk import RedisDesk
from rollog.events.server import is_running, start
from rollog.events.vocabulary import Role

CALLS = "write,writev,pwrite64,pwritev,sendto,sendmsg,fsync,fdatasync"
SYNCS = ("fsync", "fdatasync")


@pytest.fixture(params=servers.ALL)
def program(request: pytest.FixtureRequest) -> Path:
    """The program of each server in turn, also in the quick run: everything rests on this."""
    return servers.program_of(request.param)


@pytest.fixture
def traced(program: Path, tmp_path: Path) -> Any:
    """``traced(*options)``: a program that is the server under strace; its trace lies in ``tmp_path``."""
    strace = shutil.which("strace")
    if strace is None:
        assert os.environ.get("CI") != "true", "strace is missing; .ci/run installs it"
        pytest.skip("no strace on this machine (Debian: apt-get install strace)")

    def wrapped(*options: str) -> Path:
        script = tmp_path / "traced-server"
        flags = f"-D -f -y -s 64 -o {tmp_path / 'trace'} -e trace={CALLS} {' '.join(options)}"
        script.write_text(f'#!/bin/sh\nexec {strace} {flags} {program} "$@"\n')
        script.chmod(0o700)
        return script

    return wrapped


def calls(trace: Path) -> Iterator[tuple[str, str, str, str, str]]:
    """``(when, call, file, text, result)``: when it began and when it ended; threads are told apart."""
    begun: dict[str, tuple[str, str, str]] = {}
    for line in trace.read_text().splitlines():
        if began := re.match(r"(\d+) +(\w+)\(\d+<(.*?)>(.*)", line):
            thread, call, file, text = began.groups()
            begun[thread] = (call, file, text)
            yield "began", call, file, text, ""
        if (ended := re.match(r"(\d+) .*\) += (-?\d+)[^)]*$", line)) and (of := begun.pop(ended[1], None)):
            yield "ended", *of, ended[2]


def story(trace: Path) -> str:
    """What happened, a letter each: W an entry written to the append-only file, S a finished sync of it, A an answer.

    An answer counts from its first moment, a sync from its last. Other writes to the file are w.
    """
    letters = ""
    for when, call, file, text, result in calls(trace):
        if file.endswith(".incr.aof"):
            if call in SYNCS:
                letters += "S" if when == "ended" and result == "0" else ""
            elif when == "began":
                letters += "W" if "XADD" in text else "w"
        elif file.startswith(("socket:", "UNIX")) and when == "began":
            letters += "A"
    return letters


def unsynced_answers(letters: str) -> int:
    """How many answers began while something that was written was not synced."""
    return len(re.findall(r"(?<=[Ww])A", letters))


def write_entries(run_folder: Path, writer: Any, log_of: Any) -> int:
    """Entries one by one, a window, and a worker's result; returns how many calls waited for an answer."""
    pen = writer(log_of(run_folder))
    for _ in range(20):
        pen.say()
    pen.log.append(pen.window(64))
    with closing(RedisDesk(Address.embedded(run_folder, "worker"), "run")) as desk:
        desk.report(WorkerJoined(worker="w", role=Role.GENERATOR, machine={}))
    return 22


def ended(run_folder: Path) -> None:
    """Wait for the server's end and its tracer's: both hold the folder's lock."""

    def over() -> None:
        if is_running(run_folder):
            raise ServerUnreachable("somebody holds the lock still")

    Patience(30).insist(over)


def test_no_answer_is_written_before_what_it_acknowledges_is_synced(
    run_folder: Path, tmp_path: Path, traced: Any, writer: Any, log_of: Any
) -> None:
    server = start(run_folder, binary=traced())
    num_calls = write_entries(run_folder, writer, log_of)
    server.shutdown()
    ended(run_folder)
    seen = story(tmp_path / "trace")
    assert seen.count("WSA") >= num_calls
    assert unsynced_answers(seen) == 0


def test_a_relaxed_server_is_seen_answering_first(
    run_folder: Path, tmp_path: Path, traced: Any, writer: Any, log_of: Any
) -> None:
    """That the watching sees it when it happens: ``relaxed`` syncs once a second and answers at once."""
    server = start(run_folder, binary=traced(), relaxed=True)
    write_entries(run_folder, writer, log_of)
    server.shutdown()
    ended(run_folder)
    assert unsynced_answers(story(tmp_path / "trace")) > 0


def test_a_disk_that_fails_to_sync_acknowledges_nothing(
    run_folder: Path, tmp_path: Path, traced: Any, serve: Any, writer: Any, log_of: Any
) -> None:
    """From the sixteenth sync on the disk answers with an error; the server ends rather than answer."""
    start(run_folder, binary=traced("-e inject=fdatasync,fsync:error=EIO:when=16+"))
    log, acknowledged, said = log_of(run_folder, answer_within_s=0.0), [], ""
    pen = writer(log)
    try:
        while len(acknowledged) < 40:
            acknowledged.append(pen.say())
    except LogUncertain as error:
        said = str(error)
    ended(run_folder)
    assert re.search(r"no answer for entries .*server\.log may say why it ended", said)
    assert "fsync error" in (run_folder / "log" / "server.log").read_text()
    assert 0 < len(acknowledged) < 40
    serve(run_folder)
    found = list(log.read())
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) - len(acknowledged) in (0, 1)
    writer(log, "again").say()
