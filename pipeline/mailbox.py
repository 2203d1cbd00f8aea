"""Results, lost leases, due times, dead processes and signals become inputs.

Order matters in one place: whoever is judged dead may have reported just before. So a judgement is made first, then the
results stream is read to its end, and the answers are put before the judgement: by then the state knows better.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from rollog.events.codec import unpack_message
from rollog.events.errors import MalformedMessage
from rollog.events.log import Delivery, Lease, Log
from rollog.events.messages import Result
from rollog.events.vocabulary import Role
from rollog.pipeline.inputs import (
    Answer,
    Input,
    LeaseLost,
    MemoryShort,
    Overdue,
    Sealed,
    StopAsked,
    TrainerGone,
    WorkerGone,
)
from rollog.pipeline.settings import Flow
from rollog.pipeline.stalls import Watchdog
from rollog.replay.state import Place, SavedCheckpoint, State

HUNG_AFTER_LEASES = 3
"""A generator without a sign of life for so many lease lengths is ended; its orders were given again after one."""

MAX_BLOCK_S = 1.0
"""A signal that arrives while the mailbox waits is noticed after this long at the latest."""


class Launcher(Protocol):
    """Starts and watches the workers' processes."""

    def reconcile(self, state: State) -> Sequence[WorkerGone]:
        """Start what the state asks for and is not there; returns the workers found dead since the last call."""
        ...

    def end(self, worker: str) -> None:
        """End a worker whose process is there and shows no sign of life; ``reconcile`` reports it then."""
        ...

    def close(self, *, kill: bool) -> None:
        """Wait for the workers to leave, or end them."""
        ...


class Checkpoints(Protocol):
    """The checkpoints on disk."""

    def whole(self, state: State) -> Sequence[SavedCheckpoint]:
        """Those that are whole and belong to this log. Raises when one of this log is not on it."""
        ...


class Archive(Protocol):
    """Moves old entries off the server."""

    def next(self, state: State) -> Sealed | None:
        """A stretch of the log that lies in a segment now, and of which the log does not say so yet."""
        ...


class Mailbox:
    """Where everything from outside arrives. Keeps no state but how far it has read, and what it saw last and when."""

    def __init__(
        self, log: Log, launcher: Launcher, checkpoints: Checkpoints, flow: Flow, archive: Archive | None = None
    ) -> None:
        self._log = log
        self._archive = archive
        self._launcher = launcher
        self._checkpoints = checkpoints
        self._flow = flow
        self._read_to: str | None = None
        self._judged_at = float("-inf")
        self._watchdog = Watchdog(flow.stall_timeout_s)
        self._pressure = False
        self._signals: deque[StopAsked] = deque()

    def start_after(self, result_id: str | None) -> None:
        """Read results after this one: the last that the log answered."""
        self._read_to, self._judged_at = result_id, float("-inf")
        self._watchdog, self._pressure = Watchdog(self._flow.stall_timeout_s), False

    def signal(self, stop: StopAsked) -> None:
        """Called from a signal handler: nothing but an append to a deque."""
        self._signals.append(stop)

    def wait(self, state: State, until: float | None, now: float) -> Sequence[Input]:
        """The next inputs, in the order in which they are to be decided; empty when only time has passed.

        ``until``: wall time at which the caller wants to be asked again.
        """
        inputs: list[Input] = []
        while self._signals:
            inputs.append(self._signals.popleft())
        if self._archive is not None and (sealed := self._archive.next(state)) is not None:
            inputs.append(sealed)
        judgements = list(self._judge(state, now))
        tick_s = self._flow.lease_s / 3
        block_s = min(MAX_BLOCK_S, tick_s, *([] if until is None else [max(0.0, until - now)]))
        if inputs or judgements:
            block_s = 0.0
        inputs += [self._answer(delivery) for delivery in self._read(block_s)]
        while judgements and (more := self._read(0.0)):
            inputs += [self._answer(delivery) for delivery in more]
        return inputs + judgements

    def _read(self, block_s: float) -> Sequence[Delivery]:
        deliveries = self._log.results(self._read_to, block_s)
        if deliveries:
            self._read_to = deliveries[-1].id
        return deliveries

    @staticmethod
    def _answer(delivery: Delivery) -> Answer:
        try:
            message = unpack_message(delivery.body)
        except MalformedMessage:
            return Answer(id=delivery.id, result=None)
        return Answer(id=delivery.id, result=message if isinstance(message, Result) else None)

    def _judge(self, state: State, now: float) -> Iterator[Input]:
        """Dead processes at once; everything else every third of a lease's length."""
        gone = list(self._launcher.reconcile(state))
        if not gone and 0 <= now - self._judged_at < self._flow.lease_s / 3:  # below 0: the clock was set back
            return
        self._judged_at = now
        self._log.put_lease("controller", state.epoch, "controller")
        leases = self._log.leases()
        dead = {worker.worker for worker in gone}
        yield from gone
        for group in state.at(Place.IN_FLIGHT):
            lease = leases.by_key.get(f"p:{group.prompt}")
            if lease is None or lease.number != group.attempt:
                continue
            if not lease.done and (lease.worker in dead or self._stale(lease, leases.now)):
                yield LeaseLost(prompt=group.prompt, attempt=group.attempt, worker=lease.worker)
            elif leases.now - lease.began > self._flow.rollout_timeout_s:  # also if done: its result was taken away
                ran_s = leases.now - lease.began
                yield Overdue(prompt=group.prompt, attempt=group.attempt, worker=lease.worker, ran_s=ran_s)
        for name, worker in state.workers.items():
            sign = leases.by_key.get(f"worker:{name}")
            hangs = sign is not None and leases.now - sign.refreshed > HUNG_AFTER_LEASES * self._flow.lease_s
            if worker.role is Role.GENERATOR and hangs:
                self._launcher.end(name)
        before, self._pressure = self._pressure, self._log.pressure()
        if self._pressure and not before:
            yield MemoryShort()
        if (stalled := self._watchdog.look(state, leases, self._pressure)) is not None:
            yield stalled
        ranks = [lease for key, lease in leases.by_key.items()
                 if key.startswith("rank:") and lease.number == state.generation]  # fmt: skip
        if ranks and state.finish is None:
            stale = [lease for lease in ranks if self._stale(lease, leases.now)]
            if any(worker.role is Role.TRAINER for worker in gone):
                reason = "; ".join(worker.reason for worker in gone if worker.role is Role.TRAINER)
            elif stale:
                reason = f"the lease of {stale[0].worker} is {leases.now - stale[0].refreshed:.0f} s old"
            else:
                return
            yield TrainerGone(generation=state.generation, reason=reason, whole=tuple(self._checkpoints.whole(state)))

    def _stale(self, lease: Lease, now: float) -> bool:
        return now - lease.refreshed > self._flow.lease_s
