"""A log, in memory or on a real server, on which every call can be the last thing that a controller does.

Rule 1: a death is an exception that no code of rollog catches. It comes before a call, after it took effect, or in the
        middle of a window: some of its entries have landed then.
Rule 2: an answer can stay out: the controller hears ``LogUncertain``, whatever has landed.
Rule 3: another controller can take the pen at any place in a window: the rest of it is fenced.
Rule 4: time passes only here, while the controller waits for results.
"""

from collections.abc import Sequence

from rollog.events.errors import LogUncertain
from rollog.events.log import Delivery, Entry, Log, Outbox, Pen, Shortening
from rollog.pipeline.simulation.world import World


class Death(BaseException):
    """The controller's process is gone, here and now."""


class FaultyLog:
    """A controller's connection that may fail as ``World.script`` says."""

    def __init__(self, world: World, log: Log) -> None:
        self._world, self._log = world, log
        self.head, self.read, self.leases, self.close = log.head, log.read, log.leases, log.close
        self.plant, self.end_leases, self.shortening = log.plant, log.end_leases, log.shortening

    def open(self, nonce: str) -> Pen:
        """Take the pen."""
        self._may_die()
        pen = self._log.open(nonce)
        self._may_die()
        return pen

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append a window, or a part of it."""
        script, rng = self._world.script, self._world.rng
        dies = self._world.strikes(script.controller_death_rate)
        uncertain = self._world.strikes(script.uncertain_rate)
        rival = self._world.strikes(script.rival_rate)
        landed = rng.randint(0, len(window)) if dies or uncertain or rival else len(window)
        self._log.append(window[:landed])
        if dies:
            raise Death
        if uncertain:
            raise LogUncertain("played: no answer in time")
        if rival:
            self._world.server.log().open(f"rival-{next(self._world.tick)}")
            self._log.append(window[landed:])

    def trim(self, last: int) -> Shortening:
        """Forget what is archived."""
        self._may_die()
        begun = self._log.trim(last)
        self._may_die()
        return begun

    def hand_over(self, outbox: Outbox) -> None:
        """Fill the new epoch's streams."""
        self._may_die()
        self._log.hand_over(outbox)
        self._may_die()

    def results(self, after: str | None, block_s: float) -> Sequence[Delivery]:
        """Let the world go on until there is a result."""
        self._may_die()
        found: Sequence[Delivery] = ()

        def some() -> bool:
            nonlocal found
            found = self._log.results(after, 0.0)
            return bool(found)

        self._world.run_for(block_s, some)
        return found

    def put_lease(self, key: str, number: int, worker: str) -> None:
        """Write a lease."""
        self._may_die()
        self._log.put_lease(key, number, worker)
        self._may_die()

    def pressure(self) -> bool:
        """Whether the server's memory runs short, really or in the play."""
        return self._world.now < self._world.pressed_until or self._log.pressure()

    def _may_die(self) -> None:
        if self._world.strikes(self._world.script.controller_death_rate / 4):
            raise Death
