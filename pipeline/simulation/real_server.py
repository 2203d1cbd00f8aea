"""A real server in a played world: everything that is kept is the server's, only time is the world's.

Rule 1: a lease stands on the server, but its moments are the virtual ones at which it was written and refreshed: the
        server's own clock would not see the hours that pass here in a second.
Rule 2: every connection that was opened is closed at the end; a controller that dies does not close its own.
Rule 3: a server that was started for it lies in a folder of its own and goes with it. On a server at an address, the
        run's keys are deleted at the end.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, cast

from rollog.events import server
from rollog.events.connection import Address
from rollog.events.keys import Keys
from rollog.events.log import Desk, Lease, Leases, Log
from rollog.events.messages import Order
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.pipeline.run_folder import UsedName
from rollog.pipeline.simulation.world import Clock, MakeServer

EMBEDDED: Final = "embedded"


class Moments(NamedTuple):
    """When a claim began and was last refreshed, in virtual seconds; a claim is a key with its number and worker."""

    number: int
    worker: str
    began: float
    refreshed: float


@dataclass(slots=True)
class RealServer:
    """``Server`` on a real one, for the run ``run``."""

    controller: Address
    worker: Address
    run: str
    clock: Clock
    moments: dict[str, Moments] = field(default_factory=dict)
    opened: list[RedisLog | RedisDesk] = field(default_factory=list)

    def log(self) -> Log:
        """A controller's connection."""
        log = RedisLog(self.controller, self.run)
        self.opened.append(log)
        return cast(Log, _TimedLog(log, self))

    def desk(self) -> Desk:
        """A worker's connection."""
        desk = RedisDesk(self.worker, self.run)
        self.opened.append(desk)
        return cast(Desk, _TimedDesk(desk, self))

    def claim(self, key: str, number: int, worker: str) -> None:
        """A lease was written or refreshed now."""
        now, had = self.clock(), self.moments.get(key)
        kept = had is not None and (had.number, had.worker) == (number, worker)
        began = had.began if had is not None and kept else now
        self.moments[key] = Moments(number, worker, began, now)

    def timed(self, leases: Leases) -> Leases:
        """The server's leases at the world's time."""
        return Leases(now=self.clock(), by_key={key: self._timed(lease) for key, lease in leases.by_key.items()})

    def _timed(self, lease: Lease) -> Lease:
        moments = self.moments[lease.key]
        return replace(lease, began=moments.began, refreshed=moments.refreshed)

    def close(self) -> None:
        """Let go of every connection."""
        for connection in self.opened:
            connection.close()

    def forget(self) -> None:
        """Delete the run's keys."""
        with closing(self.controller.connect()) as connection:
            keys = Keys(self.run)
            found: list[bytes] = connection.call("KEYS", keys.log.removesuffix("log").replace("{", "[{]") + "*")
            if found:
                connection.call("DEL", *found)


class _TimedLog:
    """A ``RedisLog`` whose leases live by the world's clock."""

    def __init__(self, log: RedisLog, real: RealServer) -> None:
        self._log, self._real = log, real
        self.head, self.read, self.open, self.append = log.head, log.read, log.open, log.append
        self.hand_over, self.results, self.end_leases = log.hand_over, log.results, log.end_leases
        self.pressure, self.plant, self.close = log.pressure, log.plant, log.close
        self.trim, self.shortening = log.trim, log.shortening

    def put_lease(self, key: str, number: int, worker: str) -> None:
        """Write it, and note when."""
        self._log.put_lease(key, number, worker)
        self._real.claim(key, number, worker)

    def leases(self) -> Leases:
        """All leases."""
        return self._real.timed(self._log.leases())


class _TimedDesk:
    """A ``RedisDesk`` whose leases live by the world's clock."""

    def __init__(self, desk: RedisDesk, real: RealServer) -> None:
        self._desk, self._real = desk, real
        self.epoch, self.report, self.train, self.control = desk.epoch, desk.report, desk.train, desk.control
        self.close = desk.close

    def take(self, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Order | None:
        """Take an order, and note when."""
        order = self._desk.take(worker, epoch, version, exactly=exactly)
        if order is not None:
            self._real.claim(f"p:{order.prompt}", order.attempt, worker)
        return order

    def refresh(self, worker: str, claims: Sequence[tuple[str, int]]) -> Sequence[str]:
        """Refresh leases, and note when."""
        gone = self._desk.refresh(worker, claims)
        for key, number in claims:
            if key not in gone:
                self._real.claim(key, number, worker)
        return gone

    def leases(self) -> Leases:
        """All leases."""
        return self._real.timed(self._desk.leases())


@contextmanager
def real_server(where: str, run: str) -> Iterator[Callable[[str], MakeServer]]:
    """Servers for runs whose names begin with ``run``: ``make(name)`` is for one run.

    ``where``: ``embedded`` or an address. Raises ``ServerUnreachable``, ``ServerRefused``, ``UsedName``.
    """
    made: list[RealServer] = []

    def make(controller: Address, worker: Address) -> Callable[[str], MakeServer]:
        def named(name: str) -> MakeServer:
            def at(clock: Clock) -> RealServer:
                one = RealServer(controller, worker, f"{run}-{name}", clock)
                if (head := one.log().head()).offset > 0:
                    one.close()
                    raise UsedName(
                        f"the server {controller} holds a log of the name {one.run} with {head.offset:,} entries. "
                        f"Choose another name (run=...) or another server."
                    )
                made.append(one)
                return one

            return at

        return named

    try:
        if where == EMBEDDED:
            with tempfile.TemporaryDirectory(prefix="rollog-simulate-") as folder:
                running = server.start(Path(folder), relaxed=True)  # nothing here outlives the simulation
                try:
                    yield make(running.address(), running.address("worker"))
                finally:
                    running.shutdown()
        else:
            address = Address.parse(where)
            try:
                yield make(address, address)
            finally:
                for one in made:
                    one.forget()
    finally:
        for one in made:
            one.close()
