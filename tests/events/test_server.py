"""The embedded server: private, one a folder, adopted when its starter died, never with settings that lose entries."""

import fcntl
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollog.events import server as embedded
from rollog.events.connection import Address, ServerSaid
from rollog.events.errors import LogUncertain, LostTail, MissingEntry, ServerRefused, ServerUnreachable
from rollog.events.file_log import FileLog, seal_tail
from rollog.events.log import Outbox
from rollog.events.reading import mark_of, open_reader, segments_of
from rollog.events.redis_log import RedisLog
from rollog.events.server import is_running, start, start_for_reading
from rollog.events.server_settings import server_info, settings_check
from rollog.events.vocabulary import Finish, FinishReason


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run's folder whose path is too long for a socket; whatever server it has in the end is shut down."""
    folder = tmp_path / ("long-" * 25) / "run"
    yield folder
    if is_running(folder):
        kill(folder)


def pid_of(run_folder: Path) -> int:
    connection = Address.embedded(run_folder, "controller").connect()
    try:
        return int(server_info(connection)["process_id"])
    finally:
        connection.close()


def kill(run_folder: Path) -> None:
    """SIGKILL the server and wait until it is gone."""
    pid = pid_of(run_folder)
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([gone], [], [])
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, gone, os.WEXITED)
    os.close(gone)


def log_of(run_folder: Path, **options: Any) -> RedisLog:
    return RedisLog(Address.embedded(run_folder, "controller"), "run", mark=mark_of(run_folder), **options)


def test_what_was_acknowledged_is_there_after_a_shutdown_and_a_new_start(run_folder: Path, writer: Any) -> None:
    server = start(run_folder)
    log = log_of(run_folder)
    log_entries = [writer(log).say() for _ in range(1)]
    log.close()
    server.shutdown()
    assert not is_running(run_folder)
    start(run_folder)
    log = log_of(run_folder)
    assert list(log.read()) == log_entries
    log.close()


def test_only_its_owner_enters(run_folder: Path) -> None:
    start(run_folder)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [run_folder, *(run_folder / "log").iterdir()]}
    assert modes["run"] == 0o700
    assert modes["controller.password"] == modes["worker.password"] == modes["users.acl"] == 0o600
    assert modes["server.sock"] == 0o700
    nobody = Address(socket=run_folder / "log" / "server.sock").connect()
    with pytest.raises(ServerRefused, match="user and password"):
        nobody.call("PING")
    nobody.close()
    wrong = Address(socket=run_folder / "log" / "server.sock", user="worker", password="guess").connect()
    with pytest.raises(ServerRefused, match="user and password"):
        wrong.call("PING")
    wrong.close()
    assert "guess" not in repr(Address(user="worker", password="guess"))


def test_two_starts_give_one_server(run_folder: Path) -> None:
    first, second = start(run_folder), start(run_folder)
    assert (first.ours, second.ours) == (True, False)
    assert pid_of(run_folder) == first.pid
    second.shutdown()
    assert not is_running(run_folder)
    first.shutdown()


def test_starts_at_the_same_moment_give_one_server(run_folder: Path) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(start(run_folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.ours for server in found) == [False, False, False, True]


def test_a_second_server_cannot_open_the_folder_while_the_first_lives(run_folder: Path) -> None:
    """Two servers on one data folder lose acknowledged entries; the inherited lock survives the starter."""
    orphaned(run_folder)
    lock = os.open(run_folder / "log" / "server.lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)
    kill(run_folder)
    assert not is_running(run_folder)


def orphaned(run_folder: Path) -> None:
    """A server whose starter died by SIGKILL."""
    script = f"""
import os, pathlib, signal
from rollog.events.server import start
start(pathlib.Path({str(run_folder)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", script], check=False)
    assert died.returncode == -signal.SIGKILL


def test_an_orphan_is_adopted(run_folder: Path, writer: Any) -> None:
    orphaned(run_folder)
    pid = pid_of(run_folder)
    server = start(run_folder)
    assert not server.ours
    assert pid_of(run_folder) == pid
    server.shutdown()
    assert not is_running(run_folder)


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(run_folder: Path) -> None:
    server = start(run_folder)
    assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.parametrize(
    ("setting", "value", "mend"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy noeviction"),
        ("appendfsync", "everysec", "appendfsync always"),
        ("appendonly", "no", "appendonly yes"),
        ("save", "60 1", 'save ""'),
        ("auto-aof-rewrite-percentage", "100", "auto-aof-rewrite-percentage 0"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_line_that_mends_it(
    run_folder: Path, setting: str, value: str, mend: str
) -> None:
    start(run_folder)
    connection = Address.embedded(run_folder, "controller").connect()
    connection.call("CONFIG", "SET", setting, value)
    with pytest.raises(ServerRefused, match=f"put the line `{mend}`"):
        settings_check(connection)
    if setting == "appendfsync":
        assert settings_check(connection, relaxed=True).name == "valkey"
    connection.call("CONFIG", "SET", setting, embedded.REQUIRED[setting])
    assert settings_check(connection).version.startswith("9.")
    connection.close()


def test_a_default_user_without_permissions_is_refused(run_folder: Path) -> None:
    """Redis 7.0 replays scripts as that user: every scripted entry would be lost at load."""
    start(run_folder)
    connection = Address.embedded(run_folder, "controller").connect()
    connection.call("ACL", "SETUSER", "default", "resetkeys", "-@all")
    with pytest.raises(ServerRefused, match=r"put the line `user default off ~\* &\* \+@all`"):
        settings_check(connection)
    connection.close()


def test_a_folder_of_another_server_is_refused(run_folder: Path) -> None:
    start(run_folder).shutdown()
    record = run_folder / "log" / "server.json"
    for wrote in [{"server": "valkey", "version": "99.0.0"}, {"server": "redis", "version": "7.0.15"}]:
        record.write_text(json.dumps(wrote))
        with pytest.raises(ServerRefused, match=f"was written by {wrote['server']} {wrote['version']}"):
            start(run_folder)
    record.write_text("{")
    with pytest.raises(ServerRefused, match="no record of a server"):
        start(run_folder)


def test_a_server_that_cannot_start_says_why(run_folder: Path) -> None:
    start(run_folder).shutdown()
    manifest = next((run_folder / "log" / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense\n")
    with pytest.raises(ServerRefused, match=r"ended at its start.*manifest"):
        start(run_folder)


def test_a_server_that_is_not_there_is_an_error_with_an_advice(run_folder: Path) -> None:
    with pytest.raises(ServerUnreachable, match="no server has served"):
        Address.embedded(run_folder, "worker")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = RedisLog(Address.parse(f"redis://:secret@127.0.0.1:{port}"), "run", answer_within_s=0.1)
    with pytest.raises(ServerUnreachable, match="start the server") as raised:
        log.open("a")
    assert "secret" not in str(raised.value)
    log.close()
    with pytest.raises(ValueError, match="not a server's address"):
        Address.parse("localhost")


# --- kills ------------------------------------------------------------------------------------------------------------


def hammer(run_folder: Path, writer: Any, rounds: int) -> None:
    """Kill the server in the middle of windows; what was acknowledged must all be there, once."""
    start(run_folder)
    log = log_of(run_folder, answer_within_s=0.0)
    known, acknowledged = 0, []
    for number in range(rounds):
        pen = writer(log, f"nonce-{number}")
        held = list(log.read(max(1, known), None))
        assert [entry.digest for entry in acknowledged[-len(held) :]] == [] or pen.head.offset >= known
        killer = threading.Timer(0.01 * (1 + number % 5), kill, [run_folder])
        killer.start()
        with suppress(LogUncertain, ServerUnreachable):
            while True:
                window = pen.window(16)
                log.append(window)
                acknowledged += [entry for entry, _ in window]
                known = acknowledged[-1].offset
        killer.join()
        start(run_folder)
        assert log.head().offset >= known
        present = {entry.offset: entry for entry in log.read()}
        assert all(present[entry.offset] == entry for entry in acknowledged)
    assert len(acknowledged) > rounds
    log.close()


def test_a_killed_server_keeps_every_acknowledged_entry(run_folder: Path, writer: Any) -> None:
    hammer(run_folder, writer, 4)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_killed_100_times_keeps_every_acknowledged_entry(run_folder: Path, writer: Any) -> None:
    hammer(run_folder, writer, 100)


def test_a_writer_that_can_start_its_server_again_does_not_notice_the_kill(run_folder: Path, writer: Any) -> None:
    start(run_folder)
    log = log_of(run_folder, revive=lambda: start(run_folder))
    pen = writer(log)
    for _ in range(3):
        window = pen.window(64)
        kill(run_folder)
        log.append(window)
    assert [entry.offset for entry in log.read()] == list(range(1, 193))
    log.close()


@pytest.mark.long
def test_a_server_that_was_stopped_for_seconds_gets_each_entry_once(run_folder: Path, writer: Any) -> None:
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
    log.close()


def test_a_torn_tail_is_found_by_the_mark(run_folder: Path, writer: Any) -> None:
    server = start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    for second in range(3):
        pen.say(time=float(10 * second))
    log.close()
    server.shutdown()
    data = next((run_folder / "log" / "appendonlydir").glob("*.incr.aof"))
    whole = data.read_bytes()
    data.write_bytes(whole[:-400])
    start(run_folder)
    log = log_of(run_folder)
    with pytest.raises(LostTail, match="acknowledged entries are missing"):
        log.open("again")
    log.close()


def test_a_flipped_bit_in_the_data_folder_is_found(run_folder: Path, writer: Any) -> None:
    """The append-only file has no checksum over its tail: the digest chain has to notice."""
    server = start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    log.close()
    server.shutdown()
    data = next((run_folder / "log" / "appendonlydir").glob("*.incr.aof"))
    whole = bytearray(data.read_bytes())
    whole[whole.index(b"\xa4what") + 6] ^= 1
    data.write_bytes(whole)
    start(run_folder)
    log = log_of(run_folder)
    with pytest.raises(Exception, match="restore it from an archive"):
        list(log.read())
    log.close()


def test_a_flushed_server_stops_the_writer(run_folder: Path, writer: Any) -> None:
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
    log.close()


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_run_is_read_while_it_runs_after_a_crash_and_when_it_is_sealed(run_folder: Path, writer: Any) -> None:
    server = start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    with open_reader(run_folder, "run") as reader:
        assert list(reader.read()) == list(log.read())
    assert is_running(run_folder)
    kill(run_folder)
    server.shutdown()
    with open_reader(run_folder, "run") as reader:
        assert [entry.offset for entry in reader.read()] == [1]
        assert is_running(run_folder)
    assert not is_running(run_folder)

    server = start(run_folder)
    pen = writer(log, "resumed")
    pen.say(Finish(reason=FinishReason.STOPPED, left=()))
    sealed = seal_tail(log, segments_of(run_folder), pen.pen.log_id)
    everything = list(log.read())
    server.shutdown()
    assert sealed is not None
    with open_reader(run_folder, "run") as reader:
        assert isinstance(reader, FileLog)
        assert list(reader.read()) == everything
    with open_reader(sealed.file) as reader:
        assert list(reader.read()) == everything
    assert not is_running(run_folder)

    start(run_folder)
    writer(log, "resumed again").say()
    log.close()
    kill(run_folder)
    with open_reader(run_folder, "run") as reader:
        assert [entry.offset for entry in reader.read()] == [1, 2, 3]


def test_a_server_that_only_readers_want_ends_with_the_last_of_them(run_folder: Path) -> None:
    start(run_folder).shutdown()
    with start_for_reading(run_folder), start_for_reading(run_folder) as second:
        assert not second.ours
    assert not is_running(run_folder)
    with start_for_reading(run_folder):
        start(run_folder)
    assert is_running(run_folder)


def test_where_no_log_is_the_reader_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingEntry, match="holds no log"), open_reader(tmp_path):
        pass
    assert not (tmp_path / "log").exists()


def test_entries_that_left_the_stream_are_read_from_the_segments(run_folder: Path, writer: Any) -> None:
    start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    log.append(pen.window(20))
    everything = list(log.read())
    seal_tail(log, segments_of(run_folder), pen.pen.log_id)
    log.append([(pen.sealed(), Outbox())])
    admin = Address.embedded(run_folder, "controller").connect()
    admin.call("XTRIM", "{run}:log", "MINID", "11-0")
    with pytest.raises(MissingEntry, match="neither in the stream"):
        list(log.read())
    with open_reader(run_folder, "run") as reader:
        assert list(reader.read())[:20] == everything
        assert list(reader.read(11, 12)) == everything[10:12]
        assert list(reader.read(4, 5)) == everything[3:5]
    admin.call("XTRIM", "{run}:log", "MAXLEN", 0)
    writer(log, "again").say()
    assert log.head().offset == 22
    admin.close()
    log.close()
