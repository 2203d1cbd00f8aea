"""A server that is killed, stopped or emptied: what was acknowledged is there, or an error says what is not."""

import os
import signal
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rollog.events.connection import Address, Patience, ServerSaid
from rollog.events.errors import Fenced, LogUncertain, LostTail, ServerUnreachable


def hammer(run_folder: Path, serve: Any, writer: Any, kill: Any, log_of: Any, rounds: int) -> None:
    """Kill the server in the middle of windows; what was acknowledged must all be there, once."""
    serve(run_folder)
    log, acknowledged = log_of(run_folder, answer_within_s=0.0), []
    for number in range(rounds):
        pen, before = writer(log, f"nonce-{number}"), len(acknowledged)
        killer = threading.Timer(0.01 * (1 + number % 5), kill, [run_folder])
        killer.start()
        with suppress(LogUncertain):
            while True:
                window = pen.window(16)
                log.append(window)
                acknowledged += [entry for entry, _ in window]
        killer.join()
        serve(run_folder)
        new = acknowledged[before:]
        found = {entry.offset: entry for entry in log.read(pen.pen.head.offset + 1)}
        assert all(found[entry.offset] == entry for entry in new)
    present = list(log.read())
    assert [entry.offset for entry in present] == list(range(1, len(present) + 1))
    assert all(present[entry.offset - 1] == entry for entry in acknowledged)
    assert len(acknowledged) > rounds


def test_a_killed_server_keeps_every_acknowledged_entry(
    run_folder: Path, serve: Any, writer: Any, kill: Any, log_of: Any
) -> None:
    hammer(run_folder, serve, writer, kill, log_of, 4)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_killed_100_times_keeps_every_acknowledged_entry(
    run_folder: Path, serve: Any, writer: Any, kill: Any, log_of: Any
) -> None:
    hammer(run_folder, serve, writer, kill, log_of, 100)


def test_a_writer_that_can_start_its_server_again_does_not_notice_the_kill(
    run_folder: Path, serve: Any, writer: Any, kill: Any, log_of: Any
) -> None:
    serve(run_folder)
    log = log_of(run_folder, revive=lambda: serve(run_folder))
    pen = writer(log)
    for _ in range(3):
        window = pen.window(64)
        kill(run_folder)
        log.append(window)
    assert [entry.offset for entry in log.read()] == list(range(1, 193))


@pytest.mark.long
def test_a_server_that_was_stopped_for_seconds_gets_each_entry_once(
    run_folder: Path, serve: Any, writer: Any, log_of: Any
) -> None:
    """Longer than the 5 s after which an answer is given up: the window is sent again over a new connection."""
    server = serve(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    waker = threading.Timer(7.0, os.kill, [pid, signal.SIGCONT])
    waker.start()
    log.append(pen.window(64))
    pen.say()
    waker.join()
    assert [entry.offset for entry in log.read()] == list(range(1, 67))


def test_a_server_that_stays_stopped_leaves_the_writer_uncertain_and_the_next_one_finds_each_entry_once(
    run_folder: Path, serve: Any, writer: Any, log_of: Any
) -> None:
    server = serve(run_folder)
    log = log_of(run_folder, timeout_s=0.5, answer_within_s=0.1)
    pen = writer(log)
    pen.say()
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(LogUncertain, match=r"no answer for entries 2\.\.17"):
        log.append(pen.window(16))
    os.kill(server.pid, signal.SIGCONT)
    again = writer(log_of(run_folder), "second")
    assert again.head.offset in (1, 17)
    again.say()
    assert [entry.offset for entry in log.read()] == list(range(1, again.head.offset + 1))


def test_two_controllers_of_one_killed_server_the_older_stays_fenced(
    run_folder: Path, serve: Any, writer: Any, kill: Any, log_of: Any
) -> None:
    serve(run_folder)
    older, newer = writer(log_of(run_folder), "a"), writer(log_of(run_folder), "b")
    newer.say()
    kill(run_folder)
    serve(run_folder)
    with pytest.raises(Fenced, match="epoch 2 holds the pen"):
        older.say()
    newer.say()
    assert [entry.epoch for entry in newer.log.read()] == [2, 2]


def test_a_flushed_server_stops_the_writer(run_folder: Path, serve: Any, writer: Any, log_of: Any) -> None:
    serve(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    with closing(Address.embedded(run_folder, "controller").connect()) as admin:
        for command in ("FLUSHALL", "FLUSHDB"):
            with pytest.raises(ServerSaid, match="NOPERM"):
                admin.call(command)
        admin.call("ACL", "SETUSER", "controller", "+flushall")
        admin.call("FLUSHALL")
    with pytest.raises(LostTail, match="is gone"):
        pen.say()
    with pytest.raises(LostTail, match="It was emptied"):
        log.open("again")


def test_a_server_that_comes_back_empty_stops_the_writer(
    run_folder: Path, serve: Any, writer: Any, kill: Any, log_of: Any
) -> None:
    """Somebody deleted the server's data while it was down."""
    serve(run_folder)
    log = log_of(run_folder, revive=lambda: serve(run_folder))
    pen = writer(log)
    pen.say()
    kill(run_folder)
    for file in (run_folder / "log" / "appendonlydir").iterdir():
        file.unlink()
    with pytest.raises(LostTail, match="is gone"):
        pen.say()
    for accept_loss in (False, True):
        with pytest.raises(LostTail, match="It was emptied"):
            log_of(run_folder, accept_loss=accept_loss).open("again")


def test_a_second_server_that_somebody_starts_in_the_folder_is_found_behind_the_mark(
    run_folder: Path, serve: Any, writer: Any, log_of: Any, pid_of: Any
) -> None:
    """rollog never starts two, a hand can. The second takes the socket and does not see what the first acknowledges."""
    first = serve(run_folder)
    pen = writer(log_of(run_folder))
    pen.say(time=0.0)
    second = subprocess.Popen([serve.keywords["binary"], run_folder / "log" / "server.conf"])

    def second_answers() -> None:
        if pid_of(run_folder) != second.pid:
            raise ServerUnreachable("the socket is still the first one's")

    try:
        Patience(20).insist(second_answers)
        pen.say(time=10.0)
        with pytest.raises(LostTail, match="1 acknowledged entries are missing"):
            writer(log_of(run_folder), "newer")
    finally:
        second.kill()
        second.wait()
        os.kill(first.pid, signal.SIGKILL)
        os.waitpid(first.pid, 0)
    serve(run_folder)
    log = log_of(run_folder)
    assert [entry.offset for entry in log.read()] == [1, 2]
    writer(log, "third").say()
