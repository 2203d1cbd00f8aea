"""A server that somebody else runs: reached by its address, refused as long as it would lose entries."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollog.events.connection import Address, Patience
from rollog.events.errors import ServerRefused
from rollog.events.reading import open_reader
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.events.server import shipped_binary
from rollog.events.server_settings import settings_check

SOUND = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
    "auto-aof-rewrite-percentage": "0",
    "requirepass": "a password",
}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Address]]:
    """``serve(settings)``: a server on a loopback port, started by hand."""
    running = []

    def started(settings: dict[str, str]) -> Address:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = [word for key, value in settings.items() for word in (f"--{key}", value)]
        command = [shipped_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", tmp_path, *arguments]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        secret = settings.get("requirepass", "")
        address = Address.parse(
            f"redis://:{secret.replace(' ', '%20')}@127.0.0.1:{port}/0" if secret else f"redis://127.0.0.1:{port}"
        )
        with closing(address.connect()) as connection:
            Patience(20).insist(lambda: connection.call("PING"))
        return address

    yield started
    for process in running:
        process.terminate()
        process.wait()


def test_a_server_as_it_comes_is_refused_with_every_line_that_mends_it(serve: Any) -> None:
    with closing(serve({}).connect()) as connection, pytest.raises(ServerRefused) as refused:
        settings_check(connection)
    for line in [
        "appendonly yes",
        "appendfsync always",
        'save ""',
        "maxmemory-policy noeviction",
        "auto-aof-rewrite-percentage 0",
    ]:
        assert (f"put the line `{line}`" in str(refused.value)) == (line != "maxmemory-policy noeviction")


def test_a_sound_server_keeps_the_log_and_its_address_shows_no_password(serve: Any, writer: Any) -> None:
    address: Address = serve(SOUND)
    with closing(address.connect()) as connection:
        assert settings_check(connection).name == "valkey"
    with closing(RedisLog(address, "run")) as log, closing(RedisDesk(address, "run")) as desk:
        order = writer(log).dispatch(1)
        assert desk.take("w", 1, 0) == order
        assert address.url is not None
        with open_reader(address.url, "run") as reader:
            assert list(reader.read()) == list(log.read())
    assert "password" not in str(address)
    with pytest.raises(ValueError, match="name one"), open_reader(address.url):
        pass


def test_a_wrong_password_is_refused_without_showing_it(serve: Any) -> None:
    address: Address = serve(SOUND)
    assert address.url is not None
    wrong = Address.parse(address.url.replace("a%20password", "guess"))
    with closing(RedisLog(wrong, "run")) as log, pytest.raises(ServerRefused, match="user and password") as refused:
        log.open("a")
    assert "guess" not in str(refused.value)
