"""The embedded server: private, one a folder, adopted when its starter died, never with settings that lose entries."""

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rollog.events import server as embedded
from rollog.events.connection import Address
from rollog.events.errors import ServerRefused, ServerUnreachable
from rollog.events.redis_log import RedisLog
from rollog.events.server import is_running, start
from rollog.events.server_settings import settings_check


def test_what_was_acknowledged_is_there_after_a_shutdown_and_a_new_start(
    run_folder: Path, writer: Any, log_of: Any
) -> None:
    server = start(run_folder)
    log = log_of(run_folder)
    log_entries = [writer(log).say() for _ in range(1)]
    server.shutdown()
    assert not is_running(run_folder)
    start(run_folder)
    log = log_of(run_folder)
    assert list(log.read()) == log_entries


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


def test_two_starts_give_one_server(run_folder: Path, serve: Any, pid_of: Any) -> None:
    first, second = serve(run_folder), serve(run_folder)
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


def test_a_second_server_cannot_open_the_folder_while_the_first_lives(run_folder: Path, kill: Any) -> None:
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


def test_an_orphan_is_adopted(run_folder: Path, writer: Any, pid_of: Any) -> None:
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
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite no"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_line_that_mends_it(
    run_folder: Path, serve: Any, setting: str, value: str, mend: str
) -> None:
    facts = serve(run_folder).facts
    connection = Address.embedded(run_folder, "controller").connect()
    connection.call("CONFIG", "SET", setting, value)
    with pytest.raises(ServerRefused, match=f"put the line `{mend}`"):
        settings_check(connection)
    if setting == "appendfsync":
        assert settings_check(connection, relaxed=True) == facts
    connection.call("CONFIG", "SET", setting, embedded.REQUIRED[setting])
    assert settings_check(connection) == facts
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
    with pytest.raises(ValueError, match="not a server's address"):
        Address.parse("localhost")
