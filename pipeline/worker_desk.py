"""How a worker speaks to the server: patiently, and across writer epochs.

Rule 1: a server that is gone for a while costs time only: the call is made again until the worker counts as orphaned.
        Every call can be repeated: a result that arrives twice is recognised by the controller.
Rule 2: a stream belongs to a writer epoch. When a new controller has taken the pen, its streams are read from their
        start; a blocked read does not notice that, so the epoch is asked for before every read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rollog.events.connection import pause
from rollog.events.errors import ServerUnreachable
from rollog.events.log import Desk, Leases
from rollog.events.messages import Notice, Order, Result, TrainMessage
from rollog.pipeline.heartbeat import Heartbeat

T = TypeVar("T")
M = TypeVar("M")

MAX_BLOCK_S = 2.0
"""A read waits this long at most, then the epoch is asked for again."""


class PatientDesk:
    """A ``Desk`` that asks again while the server is away. Raises ``Orphaned`` in the end."""

    def __init__(self, desk: Desk, heartbeat: Heartbeat) -> None:
        self._desk = desk
        self._heartbeat = heartbeat

    def epoch(self) -> int:
        """The writer epoch in force."""
        return self._again(self._desk.epoch)

    def take(self, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Order | None:
        """The first free order that fits."""
        return self._again(lambda: self._desk.take(worker, epoch, version, exactly=exactly))

    def take_up_to(self, most: int, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Sequence[Order]:
        """The first free orders that fit."""
        return self._again(lambda: self._desk.take_up_to(most, worker, epoch, version, exactly=exactly))

    def refresh(self, worker: str, claims: Sequence[tuple[str, int]]) -> Sequence[str]:
        """Refresh leases; returns those that are gone."""
        return self._again(lambda: self._desk.refresh(worker, claims))

    def report(self, result: Result, lease: str | None = None) -> None:
        """Put a result into the stream."""
        self._again(lambda: self._desk.report(result, lease))

    def report_all(self, results: Sequence[tuple[Result, str | None]]) -> None:
        """Put results into the stream."""
        self._again(lambda: self._desk.report_all(results))

    def train(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, TrainMessage]]:
        """Messages for trainer ranks."""
        return self._again(lambda: self._desk.train(epoch, after, block_s))

    def control(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, Notice]]:
        """Notices for everybody."""
        return self._again(lambda: self._desk.control(epoch, after, block_s))

    def leases(self) -> Leases:
        """All leases."""
        return self._again(self._desk.leases)

    def close(self) -> None:
        """Let go of the connection."""
        self._desk.close()

    def _again(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except ServerUnreachable:
                self._heartbeat.check_steered()
                pause()


@dataclass(slots=True)
class Reading(Generic[M]):
    """How far a worker has read one of the streams, ``read``: (epoch, after, block_s) -> items with their ids."""

    epoch_in_force: Callable[[], int]
    read: Callable[[int, str | None, float], Sequence[tuple[str, M]]]
    epoch: int = 0
    after: str | None = field(default=None)

    def next(self, block_s: float) -> list[M]:
        """What is new; waits up to ``block_s`` seconds (at most ``MAX_BLOCK_S``) for the first."""
        epoch = self.epoch_in_force()
        if epoch != self.epoch:
            self.epoch, self.after = epoch, None
        items = self.read(self.epoch, self.after, min(block_s, MAX_BLOCK_S))
        if items:
            self.after = items[-1][0]
        return [message for _, message in items]
