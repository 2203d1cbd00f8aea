"""The three users of the server: what each may do, and that their entries survive a restart.

What a worker may not do on a shared server stands in test_redis_log_faults.py.
"""

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import servers
from rollog.events.connection import Address, Patience, ServerSaid
from rollog.events.errors import ServerRefused
from rollog.events.log import Outbox
from rollog.events.redis_desk import RedisDesk
from rollog.events.server import start
from rollog.events.server_settings import settings_check


@pytest.fixture(params=servers.ALL)
def program(request: pytest.FixtureRequest) -> Path:
    """The program of each server in turn, also in the quick run: the rights differ between them."""
    return servers.program_of(request.param)


def test_what_scripts_wrote_and_who_may_what_is_the_same_after_a_restart(
    run_folder: Path, program: Path, writer: Any, log_of: Any, kill: Any
) -> None:
    """Redis replays what scripts wrote as the default user, which is off."""
    start(run_folder, binary=program)
    pen = writer(log_of(run_folder))
    orders = [pen.dispatch(prompt) for prompt in (1, 2, 3)]
    pen.log.put_lease("controller", 1, "a")
    with closing(RedisDesk(Address.embedded(run_folder, "worker"), "run")) as desk:
        assert desk.take("w", 1, 0) == orders[0]
    pen.log.hand_over(Outbox(orders=tuple(orders)))
    before = list(pen.log.read())
    for _ in range(2):
        kill(run_folder)
        start(run_folder, binary=program)
        assert list(pen.log.read()) == before
        assert sorted(pen.log.leases().by_key) == ["controller", "p:1"]
    with closing(RedisDesk(Address.embedded(run_folder, "worker"), "run")) as desk:
        assert list(desk.take_up_to(9, "w", 1, 0)) == orders[1:]
        with pytest.raises(ServerSaid, match="NOPERM"), closing(worker_of(run_folder)) as worker:
            worker.call("XADD", "{run}:log", "9-0", "payload", "x")
    pen.say()
    assert pen.log.head().offset == 4


def worker_of(run_folder: Path) -> Any:
    return Address.embedded(run_folder, "worker").connect()


def test_a_default_user_without_permissions_is_refused_before_a_restart_loses_what_scripts_wrote(
    run_folder: Path, program: Path, writer: Any, log_of: Any, kill: Any
) -> None:
    """Switched off it loses nothing. Without permissions a Redis comes back without the entries, a Valkey with them."""
    facts = start(run_folder, binary=program).facts
    pen = writer(log_of(run_folder))
    pen.log.append(pen.window(3))
    with closing(Address.embedded(run_folder, "controller").connect()) as connection:
        connection.call("ACL", "SETUSER", "default", "resetkeys", "-@all")
        connection.call("ACL", "SAVE")
        with pytest.raises(ServerRefused, match=r"put the line `user default off ~\* &\* \+@all`"):
            settings_check(connection)
    with pytest.raises(ServerRefused, match="the default user may not do everything"):
        start(run_folder, binary=program)
    kill(run_folder)
    with subprocess.Popen([program, run_folder / "log" / "server.conf"]) as by_hand:  # not by rollog, which mends it
        with closing(Address.embedded(run_folder, "controller").connect()) as connection:
            found = Patience(20).insist(lambda: connection.call("XLEN", "{run}:log"))
        by_hand.kill()
    assert found == {"redis": 0, "valkey": 3}[facts.name]


def test_only_the_password_opens_the_server(run_folder: Path, program: Path) -> None:
    start(run_folder, binary=program)
    socket = run_folder / "log" / "server.sock"
    for user, password in [(None, None), ("default", None), ("default", ""), ("worker", "guess"), ("nobody", "guess")]:
        with (
            closing(Address(socket=socket, user=user, password=password).connect()) as stranger,
            pytest.raises(ServerRefused, match="user and password") as refused,
        ):
            stranger.call("PING")
        assert "guess" not in str(refused.value)


def test_the_controller_may_not_empty_the_server(run_folder: Path, program: Path) -> None:
    start(run_folder, binary=program)
    with closing(Address.embedded(run_folder, "controller").connect()) as controller:
        for command in [("FLUSHALL",), ("FLUSHDB",), ("SWAPDB", 0, 1), ("REPLICAOF", "h", 1)]:
            with pytest.raises(ServerSaid, match="NOPERM"):
                controller.call(*command)
