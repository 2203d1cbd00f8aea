"""A disk that is full, a memory that is full: the run stops with what to do, and what was acknowledged is there.

The disk is a small one in memory, where this user may mount one; a limit on the size of files does for the others.
"""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks import fill, make_room, small_disk
from rollog.events.connection import Address
from rollog.events.errors import DiskRefused, ServerRefused
from rollog.events.log import Outbox
from rollog.events.reading import mark_of, open_reader
from rollog.events.redis_log import RedisLog
from rollog.events.server import is_running, start
from rollog.events.vocabulary import Note
from server_files import last_file


@pytest.fixture
def disk(tmp_path: Path, kill: Callable[[Path], None]) -> Iterator[Path]:
    """A disk of 12 MiB; whatever server works on it in the end is killed."""
    with small_disk(tmp_path / "disk", "12m") as mounted:
        yield mounted
        for run in mounted.iterdir():
            if run.is_dir() and is_running(run):
                kill(run)


def test_a_full_disk_stops_the_writer_which_goes_on_when_there_is_room(
    disk: Path, serve: Any, writer: Any, log_of: Any
) -> None:
    run_folder = disk / "run"
    serve(run_folder)
    log, acknowledged, said = log_of(run_folder, revive=lambda: serve(run_folder)), [], ""
    pen = writer(log)
    fill(disk, leave=128 << 10)
    try:
        while True:
            acknowledged.append(pen.say(Note(what="n", text="x" * 10_000)))
    except DiskRefused as error:
        said = str(error)
    assert "make room, then rollog resume" in said
    assert len(acknowledged) > 4
    make_room(disk)
    serve(run_folder)
    found = list(log.read())
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) - len(acknowledged) in (0, 1)
    again = writer(log, "again")
    again.say()
    assert [entry.offset for entry in log.read()] == list(range(1, again.head.offset + 1))


def test_a_server_is_not_started_for_a_writer_on_a_full_disk_and_says_how_much_room_is_left(
    disk: Path, serve: Any, writer: Any, log_of: Any
) -> None:
    run_folder = disk / "run"
    server = serve(run_folder)
    writer(log_of(run_folder)).say()
    server.shutdown()
    fill(disk)
    with pytest.raises(DiskRefused, match=r"has 0 KiB left; the log's server needs 4,096: make room"):
        serve(run_folder)
    assert not is_running(run_folder)
    make_room(disk)
    serve(run_folder)
    assert log_of(run_folder).head().offset == 1


def test_a_run_on_a_full_disk_can_be_read(disk: Path, kill: Any, writer: Any, log_of: Any) -> None:
    run_folder = disk / "run"
    start(run_folder)
    entry = writer(log_of(run_folder)).say()
    kill(run_folder)
    fill(disk)
    with open_reader(run_folder, "run") as reader:
        assert list(reader.read()) == [entry]


def test_a_mark_that_cannot_be_written_stops_the_writer(disk: Path, run_folder: Path, serve: Any, writer: Any) -> None:
    """The log's disk has room, the run folder's has none."""
    serve(run_folder)
    with closing(RedisLog(Address.embedded(run_folder, "controller"), "run", mark=mark_of(disk))) as log:
        pen = writer(log)
        fill(disk)
        with pytest.raises(DiskRefused, match=r"the mark .* could not be written: .*; the disk is full: make room"):
            pen.say()
        assert log.head().offset == 1


def test_a_relaxed_server_refuses_on_a_full_disk_and_takes_the_entry_when_there_is_room(
    disk: Path, serve: Any, writer: Any
) -> None:
    run_folder = disk / "run"
    serve(run_folder, relaxed=True)
    address, window, said = Address.embedded(run_folder, "controller"), [], ""
    fill(disk, leave=64 << 10)
    with closing(RedisLog(address, "run", answer_within_s=0.5)) as log:
        pen = writer(log)
        try:
            while True:
                window = pen.window(16)
                log.append(window)
        except ServerRefused as error:
            said = str(error)
    assert "MISCONF" in said
    assert "It cannot write to its disk: make room" in said
    make_room(disk)
    with closing(RedisLog(address, "run")) as log:
        landed = log.open("first").head.offset + 1 - window[0][0].offset
        log.append(window[landed:])
        assert [entry.offset for entry in log.read()] == list(range(1, window[-1][0].offset + 1))


def test_a_file_that_may_not_grow_ends_the_server_and_a_new_one_goes_on(
    run_folder: Path, serve: Any, writer: Any, log_of: Any
) -> None:
    """A limit on the size of files refuses bytes as a full disk does, in the middle of an entry too."""
    server = serve(run_folder)
    log = log_of(run_folder, revive=lambda: serve(run_folder))
    pen = writer(log)
    pen.say()
    size = last_file(run_folder / "log" / "appendonlydir").stat().st_size
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 1_000, size + 1_000))
    window = pen.window(64)
    log.append(window)
    assert list(log.read(2)) == [entry for entry, _ in window]
    os.waitpid(server.pid, 0)


def test_a_full_memory_refuses_an_entry_whole_and_takes_it_after_a_restart_with_more(
    run_folder: Path, serve: Any, writer: Any, log_of: Any, kill: Any
) -> None:
    serve(run_folder, max_memory_bytes=6 << 20)
    log, acknowledged, said = log_of(run_folder, answer_within_s=0.2), [], ""
    pen = writer(log)
    entry = None
    try:
        while True:
            entry = pen.sealed(Note(what="n", text="x" * 60_000))
            log.append([(entry, Outbox())])
            acknowledged.append(entry)
    except ServerRefused as error:
        said = str(error)
    assert "Its memory is full: raise maxmemory" in said
    assert log.pressure()
    assert list(log.read()) == acknowledged
    kill(run_folder)
    serve(run_folder, max_memory_bytes=64 << 20)
    assert not log.pressure()
    log.append([(entry, Outbox())])
    assert list(log.read()) == [*acknowledged, entry]
    with closing(Address.embedded(run_folder, "controller").connect()) as connection:
        assert connection.call("CONFIG", "GET", "maxmemory-policy")[1] == b"noeviction"
