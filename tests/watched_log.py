"""A log that calls a hook around each of its calls: every place at which a controller can die.

Entries land one by one, so whatever the hook raises leaves a window half landed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollog.events.log import Delivery, Entry, Leases, Log, Outbox, Pen


class Moment(NamedTuple):
    """Where a call of the log stands: before it, or after it without its reply. ``offset``: of the entry or head."""

    when: str
    offset: int


Hook = Callable[[Moment], None]


class WatchedLog:
    """A log that lands its entries one by one and calls the hook around each, and around taking and using the pen."""

    def __init__(self, log: Log, hook: Hook) -> None:
        self._log, self._hook = log, hook
        self.head, self.read, self.pressure, self.close = log.head, log.read, log.pressure, log.close
        self.put_lease, self.end_leases = log.put_lease, log.end_leases

    def open(self, nonce: str) -> Pen:
        """Take the pen."""
        self._hook(Moment("before open", self.head().offset))
        pen = self._log.open(nonce)
        self._hook(Moment("after open", pen.head.offset))
        return pen

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append, entry by entry: whatever the hook raises leaves a part of the window behind."""
        for entry, outbox in window:
            self._hook(Moment("before append", entry.offset))
            self._log.append([(entry, outbox)])
            self._hook(Moment("after append", entry.offset))

    def hand_over(self, outbox: Outbox) -> None:
        """Fill the new epoch's streams."""
        self._hook(Moment("before hand-over", self.head().offset))
        self._log.hand_over(outbox)
        self._hook(Moment("after hand-over", self.head().offset))

    def results(self, after: str | None, block_s: float) -> Sequence[Delivery]:
        """What has arrived."""
        self._hook(Moment("before results", self.head().offset))
        return self._log.results(after, block_s)

    def leases(self) -> Leases:
        """All leases."""
        return self._log.leases()
