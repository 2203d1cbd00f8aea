"""A server that is killed, stopped, torn or emptied: what was acknowledged is there, or an error says what is not."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollog.events.connection import Address, ServerSaid
from rollog.events.errors import LogUncertain, LostTail
from rollog.events.server import start


def hammer(run_folder: Path, writer: Any, kill: Any, log_of: Any, rounds: int) -> None:
    """Kill the server in the middle of windows; what was acknowledged must all be there, once."""
    start(run_folder)
    log, acknowledged = log_of(run_folder, answer_within_s=0.0), []
    for number in range(rounds):
        pen = writer(log, f"nonce-{number}")
        killer = threading.Timer(0.01 * (1 + number % 5), kill, [run_folder])
        killer.start()
        with suppress(LogUncertain):
            while True:
                window = pen.window(16)
                log.append(window)
                acknowledged += [entry for entry, _ in window]
        killer.join()
        start(run_folder)
        present = {entry.offset: entry for entry in log.read()}
        assert sorted(present) == list(range(1, len(present) + 1))
        assert all(present[entry.offset] == entry for entry in acknowledged)
    assert len(acknowledged) > rounds


def test_a_killed_server_keeps_every_acknowledged_entry(run_folder: Path, writer: Any, kill: Any, log_of: Any) -> None:
    hammer(run_folder, writer, kill, log_of, 4)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_killed_100_times_keeps_every_acknowledged_entry(
    run_folder: Path, writer: Any, kill: Any, log_of: Any
) -> None:
    hammer(run_folder, writer, kill, log_of, 100)


def test_a_writer_that_can_start_its_server_again_does_not_notice_the_kill(
    run_folder: Path, writer: Any, kill: Any, log_of: Any
) -> None:
    start(run_folder)
    log = log_of(run_folder, revive=lambda: start(run_folder))
    pen = writer(log)
    for _ in range(3):
        window = pen.window(64)
        kill(run_folder)
        log.append(window)
    assert [entry.offset for entry in log.read()] == list(range(1, 193))


@pytest.mark.long
def test_a_server_that_was_stopped_for_seconds_gets_each_entry_once(run_folder: Path, writer: Any, log_of: Any) -> None:
    server = start(run_folder)
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


def test_a_torn_tail_is_found_by_the_mark(run_folder: Path, writer: Any, log_of: Any) -> None:
    server = start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    for second in range(3):
        pen.say(time=float(10 * second))
    server.shutdown()
    data = next((run_folder / "log" / "appendonlydir").glob("*.incr.aof"))
    whole = data.read_bytes()
    data.write_bytes(whole[:-400])
    start(run_folder)
    log = log_of(run_folder)
    with pytest.raises(LostTail, match="acknowledged entries are missing"):
        log.open("again")


def test_a_flipped_bit_in_the_data_folder_is_found(run_folder: Path, writer: Any, log_of: Any) -> None:
    """The append-only file has no checksum over its tail: the digest chain has to notice."""
    server = start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    server.shutdown()
    data = next((run_folder / "log" / "appendonlydir").glob("*.incr.aof"))
    whole = bytearray(data.read_bytes())
    whole[whole.index(b"\xa4what") + 6] ^= 1
    data.write_bytes(whole)
    start(run_folder)
    log = log_of(run_folder)
    with pytest.raises(Exception, match="restore it from an archive"):
        list(log.read())


def test_a_flushed_server_stops_the_writer(run_folder: Path, writer: Any, log_of: Any) -> None:
    start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    admin = Address.embedded(run_folder, "controller").connect()
    with pytest.raises(ServerSaid, match="NOPERM"):
        admin.call("FLUSHALL")
    admin.call("ACL", "SETUSER", "controller", "+flushall")
    admin.call("FLUSHALL")
    admin.close()
    with pytest.raises(LostTail, match="is gone"):
        pen.say()
    with pytest.raises(LostTail, match="It was emptied"):
        log.open("again")
