"""The reading verbs on a real server: while it runs, as it writes, after a crash, and on somebody else's server."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builders import Decision, admitted, history, sent, steps
from rollog.events.connection import Address, Patience
from rollog.events.log import Outbox
from rollog.events.reading import mark_of
from rollog.events.redis_log import RedisLog
from rollog.events.server import is_running, shipped_binary, start
from rollog.events.server_settings import server_info
from rollog.replay.cli import app

WRITTEN: list[Decision] = [*steps(1), admitted(1)]
LATER: list[Decision] = [sent(2, weights=1), sent(3, weights=1)]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[Path, RedisLog]]:
    """A run with an embedded server and a controller that holds the pen and has written ``WRITTEN``."""
    folder = tmp_path / "demo"
    folder.mkdir()
    start(folder)
    log = RedisLog(Address.embedded(folder, "controller"), "demo", mark=mark_of(folder))
    log.open("first")
    log.append([(entry, Outbox()) for entry in history(*WRITTEN)])
    yield folder, log
    log.close()
    if is_running(folder):
        kill(folder)


def kill(folder: Path) -> None:
    """SIGKILL the server and wait until it is gone."""
    with closing(Address.embedded(folder, "controller").connect()) as connection:
        pid = int(server_info(connection)["process_id"])
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([gone], [], [])
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, gone, os.WEXITED)
    os.close(gone)


def rollog(*arguments: str | Path, exit_code: int = 0, url: str | None = None) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments], env={"TZ": "UTC", "ROLLOG_REDIS_URL": url})
    assert done.exit_code == exit_code, done.output
    return done.stdout if exit_code == 0 else done.stderr


@pytest.mark.parametrize("verb", ["status", "log", "show", "state", "verify"])
def test_reading_a_live_run_disturbs_nobody(demo: tuple[Path, RedisLog], verb: str) -> None:
    folder, log = demo
    before = log.head()

    assert rollog(verb, folder) != ""

    assert (log.head(), is_running(folder)) == (before, True)
    log.append([(entry, Outbox()) for entry in history(*WRITTEN, *LATER)[-2:]])  # the pen is still held
    assert log.head().offset == before.offset + 2


def test_a_live_log_is_followed_until_ctrl_c(demo: tuple[Path, RedisLog]) -> None:
    folder, log = demo
    command = [sys.executable, "-m", "rollog.replay.cli", "log", folder, "head..", "--oneline", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert "batch 1 admitted" in following.stdout.readline()
        log.append([(entry, Outbox()) for entry in history(*WRITTEN, *LATER)[-2:]])
        assert "prompt 2 attempt 1 sent" in following.stdout.readline()
        assert "prompt 3 attempt 1 sent" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        rest, complaints = following.communicate(timeout=20)

    assert (following.returncode, rest, complaints) == (0, "", "")


def test_after_a_crash_the_server_is_started_for_the_time_of_the_command(demo: tuple[Path, RedisLog]) -> None:
    folder, log = demo
    log.close()
    kill(folder)
    assert not is_running(folder)

    assert "@ 10" in rollog("status", folder)
    assert "ok      every prompt in exactly one place: 4 = 2 in a place + 2 settled" in rollog("verify", folder)
    assert not is_running(folder)


def test_what_is_no_address_is_usage_and_a_server_that_asks_for_a_password_refuses(demo: tuple[Path, RedisLog]) -> None:
    folder, _ = demo
    for address in ("http://localhost", "redis://u:p@"):
        assert "no server's address" in rollog("status", "demo", "--redis", address, exit_code=2)

    refused = rollog("status", "demo", "--redis", f"unix:{folder / 'log' / 'server.sock'}", exit_code=4)
    assert "server.sock" in refused


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[str]:
    """Somebody else's server, with the run ``demo`` on it and a password."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [shipped_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", tmp_path, "--save", ""]
    url = f"redis://:secret@127.0.0.1:{port}"
    with subprocess.Popen([*command, "--requirepass", "secret"], stdout=subprocess.DEVNULL) as server:
        with closing(Address.parse(url).connect()) as connection:
            Patience(20).insist(lambda: connection.call("PING"))
        with closing(RedisLog(Address.parse(url), "demo")) as log:
            log.open("first")
            log.append([(entry, Outbox()) for entry in history(*WRITTEN)])
        yield url
        server.terminate()


def test_a_run_on_a_server_is_read_by_its_url_or_the_environment(server_url: str, tmp_path: Path) -> None:
    assert "@ 10" in rollog("status", "demo", "--redis", server_url)
    assert "@ 10" in rollog("status", "demo", url=server_url)

    (tmp_path / "demo").mkdir()  # a run with a folder: its settings name the server, the environment the password
    without_password = f"redis://{server_url.partition('@')[2]}"
    (tmp_path / "demo" / "config.yaml").write_text(f"log: {{redis: '{without_password}'}}\n")
    assert "@ 10" in rollog("status", tmp_path / "demo", url=server_url)
    rollog("status", tmp_path / "demo", exit_code=4)


def test_a_run_that_the_server_does_not_hold_is_nowhere_and_no_password_is_told(server_url: str) -> None:
    complaint = rollog("status", "other", "--redis", server_url, exit_code=2)

    assert "the server holds no run named other" in complaint
    assert "secret" not in complaint
