"""Real servers, and a proxy between a client and a server that loses, delays and cuts what it carries."""

import itertools
import os
import select
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import servers
from proxy import Proxy
from rollog.events.codec import seal
from rollog.events.connection import SOCKET_TIMEOUT_S, Address
from rollog.events.file_log import GrowingLog
from rollog.events.log import Desk, Entry, Head, Log, Outbox, Pen
from rollog.events.memory_log import MemoryServer
from rollog.events.messages import Order
from rollog.events.reading import mark_of
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.events.server import EmbeddedServer, is_running, start
from rollog.events.server_settings import server_info
from rollog.events.vocabulary import Dispatch, Event, Note

RUNS = itertools.count(1)
T = TypeVar("T", RedisLog, RedisDesk)


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[str], EmbeddedServer]]:
    """``running(name)``: one private server of each kind, for all tests that leave it as they found it."""
    found: dict[str, EmbeddedServer] = {}
    with ExitStack() as stack:

        def one(name: str) -> EmbeddedServer:
            if name not in found:
                program = servers.program_of(name)
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollog-")))
                found[name] = start(folder, binary=program)
                stack.callback(found[name].shutdown)
            return found[name]

        yield one


@pytest.fixture(params=servers.OTHERS_LONG)
def server(request: pytest.FixtureRequest, running: Callable[[str], EmbeddedServer]) -> EmbeddedServer:
    """A server of each kind in turn."""
    return running(request.param)


@pytest.fixture(params=servers.OTHERS_LONG)
def program(request: pytest.FixtureRequest) -> Path:
    """The program of each server in turn."""
    return servers.program_of(request.param)


@pytest.fixture
def serve(program: Path) -> Callable[..., EmbeddedServer]:
    """``serve(run_folder)``: start or adopt the run's own server, of each kind in turn."""
    return partial(start, binary=program)


@dataclass
class Store:
    """A fresh log, as many connections to it as a test wants, and what a person with a client could see.

    ``segments``: where its logs look for entries that they do not hold.
    """

    kind: str
    log: Callable[[], Log]
    desk: Callable[[], Desk]
    segments: Path
    run: str = ""


@pytest.fixture(params=["memory", *servers.ALL])
def store(request: pytest.FixtureRequest, tmp_path: Path, running: Callable[[str], EmbeddedServer]) -> Iterator[Store]:
    """The same tests for the store in memory and for every server."""
    opened: list[RedisLog | RedisDesk] = []
    segments = tmp_path / "segments"
    segments.mkdir()

    def kept(connection: T) -> T:
        opened.append(connection)
        return connection

    if request.param == "memory":
        memory = MemoryServer(clock=lambda: 1_000.0, archive=GrowingLog(segments))
        yield Store("memory", memory.log, memory.desk, segments)
    else:
        server, run = running(request.param), f"contract-{next(RUNS)}"
        yield Store(
            request.param,
            lambda: kept(RedisLog(server.address(), run, archive=GrowingLog(segments))),
            lambda: kept(RedisDesk(server.address("worker"), run)),
            segments,
            run,
        )
    for connection in opened:
        connection.close()


class Writer:
    """A controller that only writes: it seals entries after one another and appends them."""

    def __init__(self, log: Log, nonce: str = "first") -> None:
        self.log = log
        self.pen: Pen = log.open(nonce)
        self.head: Head = self.pen.head

    def sealed(self, *events: Event, input: str | None = None, time: float = 5.0) -> Entry:
        """The next entry, not yet appended."""
        entry = seal(
            offset=self.head.offset + 1,
            epoch=self.pen.epoch,
            time=time,
            input=input,
            events=events or [Note(what="test", text="x")],
            previous=self.head.digest,
        )
        self.head = Head(offset=entry.offset, digest=entry.digest)
        return entry

    def say(self, *events: Event, outbox: Outbox | None = None, time: float = 5.0) -> Entry:
        """Append one entry."""
        entry = self.sealed(*events, time=time)
        self.log.append([(entry, outbox or Outbox())])
        return entry

    def dispatch(self, prompt: int, attempt: int = 1, weights: int = 0, ended: Sequence[int] = ()) -> Order:
        """Append a Dispatch with its order."""
        entry = self.sealed(Dispatch(prompt=prompt, attempt=attempt, step=None, weights=weights))
        order = an_order(entry, prompt, attempt, weights)
        self.log.append([(entry, Outbox(orders=(order,), ended=tuple(ended)))])
        return order

    def window(self, size: int) -> list[tuple[Entry, Outbox]]:
        """Sealed entries, each with an order of its own, not yet appended."""
        made = []
        for _ in range(size):
            prompt = self.head.offset + 1
            entry = self.sealed(Dispatch(prompt=prompt, attempt=1, step=None, weights=0))
            made.append((entry, Outbox(orders=(an_order(entry, prompt),))))
        return made


def an_order(entry: Entry, prompt: int, attempt: int = 1, weights: int = 0) -> Order:
    """The order that this entry gives."""
    return Order(
        prompt=prompt, attempt=attempt, step=None, weights=weights, row=prompt, data_failures=0, cause=entry.cause
    )


@pytest.fixture
def writer() -> type[Writer]:
    """``writer(log, nonce)`` makes a writer."""
    return Writer


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run's folder whose path is too long for a socket; whatever server it has in the end is killed."""
    folder = tmp_path / ("long-" * 25) / "run"
    yield folder
    if is_running(folder):
        kill_server(folder)


@pytest.fixture
def kill() -> Callable[[Path], None]:
    """``kill(run_folder)``: SIGKILL its server and wait until it is gone."""
    return kill_server


def kill_server(run_folder: Path) -> None:
    """SIGKILL the server and wait until it is gone."""
    pid = server_pid(run_folder)
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([gone], [], [])
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, gone, os.WEXITED)
    os.close(gone)


@pytest.fixture
def pid_of() -> Callable[[Path], int]:
    """``pid_of(run_folder)``: its server's process."""
    return server_pid


def server_pid(run_folder: Path) -> int:
    connection = Address.embedded(run_folder, "controller").connect()
    try:
        return int(server_info(connection)["process_id"])
    finally:
        connection.close()


@pytest.fixture
def log_of() -> Iterator[Callable[..., RedisLog]]:
    """``log_of(run_folder)``: a controller's connection to the run ``run``, with its mark."""
    made: list[RedisLog] = []

    def connect(run_folder: Path, *, timeout_s: float = SOCKET_TIMEOUT_S, **options: Any) -> RedisLog:
        address = replace(Address.embedded(run_folder, "controller"), timeout_s=timeout_s)
        made.append(RedisLog(address, "run", mark=mark_of(run_folder), **options))
        return made[-1]

    yield connect
    for log in made:
        log.close()


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy in front of the shared server."""
    with tempfile.TemporaryDirectory(prefix="rollog-") as folder:
        socket_path = server.address().socket
        assert socket_path is not None
        made = Proxy(socket_path, Path(folder) / "proxy.sock")
        yield made
        made.close()
