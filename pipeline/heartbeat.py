"""A worker's sign of life, from a thread of its own: a long forward pass or a slow reward must not look like death.

Rule 1: the thread owns its connection and shares nothing that is changed in place: what is held is one tuple that the
        worker replaces, what was lost comes back through a queue.
Rule 2: a lease that is gone is never taken again. Of an order: the worker aborts it. Of the process: somebody else has
        this worker's name, and it ends.
Rule 3: the thread also looks whether somebody steers: a worker that sees no controller for too long ends.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

from rollog.events.errors import ServerUnreachable
from rollog.events.log import Desk
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.run_folder import RunFolder

Claim = tuple[str, int]
"""(key of the lease, its number)."""

CONTROLLER: Final = "controller"


class Orphaned(PipelineError):
    """No server, or no controller, for longer than ``flow.worker_orphan_s``: the worker ends; resume the run."""


class Replaced(PipelineError):
    """Another process has this worker's name: this one ends."""


class Heartbeat:
    """Refreshes the leases of ``worker`` every third of ``lease_s`` seconds while it is entered.

    ``own``: the leases of the process itself. ``connect`` makes the thread's connection.
    """

    def __init__(
        self,
        connect: Callable[[], Desk],
        worker: str,
        own: tuple[Claim, ...],
        *,
        lease_s: float,
        orphan_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._worker = worker
        self._own = own
        self._lease_s = lease_s
        self._orphan_s = orphan_s
        self._clock = clock
        self._held: tuple[Claim, ...] = ()
        self._lost: SimpleQueue[Claim] = SimpleQueue()
        self._steered_at = clock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @classmethod
    def of(cls, plan: Plan, folder: RunFolder, worker: str, own: tuple[Claim, ...]) -> Self:
        """The heartbeat of one of a run's processes."""
        flow = plan.flow
        return cls(lambda: folder.desk(plan), worker, own, lease_s=flow.lease_s, orphan_s=flow.worker_orphan_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(self._lease_s)

    def hold(self, claims: Iterable[Claim]) -> None:
        """From now on refresh these besides the process's own."""
        self._held = tuple(claims)

    def lost(self) -> list[Claim]:
        """The held claims found gone since the last call. A claim that was let go meanwhile can be among them.

        Raises ``Replaced`` when the process's own is gone, ``Orphaned`` when nobody has steered for too long.
        """
        lost: list[Claim] = []
        while True:
            try:
                lost.append(self._lost.get_nowait())
            except Empty:
                break
        for key, number in lost:
            if (key, number) in self._own:
                raise Replaced(f"{self._worker}: its lease {key} (number {number}) is somebody else's or has ended")
        self.check_steered()
        return lost

    def check_steered(self) -> None:
        """Raises ``Orphaned`` when nobody has steered for too long."""
        alone_s = self._clock() - self._steered_at
        if alone_s > self._orphan_s:
            raise Orphaned(
                f"{self._worker}: no controller has been seen for {alone_s:.0f} s (flow.worker_orphan_s="
                f"{self._orphan_s:g}); it ends. `rollog resume` starts it again"
            )
        if not self._thread.is_alive() and not self._ending.is_set():
            raise PipelineError(f"{self._worker}: its heartbeat ended with an error, which stands above in this log")

    def _run(self) -> None:
        desk = self._connect()
        try:
            while not self._ending.is_set():
                # A server that is away counts towards being orphaned; the next beat connects again.
                with suppress(ServerUnreachable):
                    self._beat(desk)
                self._ending.wait(self._lease_s / 3)
        finally:
            desk.close()

    def _beat(self, desk: Desk) -> None:
        held = (*self._own, *self._held)
        gone = set(desk.refresh(self._worker, held)) if held else set()
        for claim in held:
            if claim[0] in gone:
                self._lost.put(claim)
        leases = desk.leases()
        controller = leases.by_key.get(CONTROLLER)
        if controller is not None and leases.now - controller.refreshed <= self._lease_s:
            self._steered_at = self._clock()
