"""The stall watchdog: does the run still move?

Rule 1: a run moves when a group is committed or a step is trained (also one that is trained again). Nothing
        else counts.
Rule 2: it is asked whether something is in flight or not: a run that waits for itself has nothing in flight.
Rule 3: a run that has ended is never a stall, nor is one that stops. But a failed run that cannot even end (its trainer
        hangs while the last checkpoint is due) goes on for no longer than a stall may last.
Rule 4: it keeps what it saw last and when, by the clock of the log's server. A new controller begins to count anew.
"""

from dataclasses import dataclass

from rollog.events.log import Leases
from rollog.pipeline.inputs import Progress, Running, Stalled
from rollog.pipeline.waiting import WaitFor
from rollog.replay.state import Place, State

NEVER = float("-inf")

AWAITED = {
    WaitFor.NOTHING: "nothing",
    WaitFor.RESULTS: "a generator's result",
    WaitFor.TRAINER: "the trainer's next step",
    WaitFor.CHECKPOINT: "the trainer's checkpoint",
    WaitFor.BACKOFF: "a failed prompt that backs off",
    WaitFor.GATE: "the trainer's next step, which opens the gate",
    WaitFor.CAPACITY: "room in the buffer",
    WaitFor.MEMORY: "memory of the log's server",
    WaitFor.DRAIN: "what runs while it stops",
}
"""What a run waits for, in the words of a stall."""


def progress(state: State) -> Progress:
    """What changes exactly when the run moves."""
    return (state.commits, state.version, state.standing)


@dataclass(slots=True)
class Watchdog:
    """Says once in every ``timeout_s`` (seconds) without progress that nothing moves."""

    timeout_s: float
    seen: tuple[Progress, bool] | None = None
    """Progress, and whether the run stops: what was seen last."""
    moved_at: float = NEVER
    due_at: float = NEVER

    def look(self, state: State, leases: Leases, pressure: bool) -> Stalled | None:
        """A stall, if it is time to say so. ``pressure``: of the server's memory."""
        now, seen = leases.now, (progress(state), state.stopping is not None)
        if seen != self.seen:
            self.seen, self.moved_at, self.due_at = seen, now, now + self.timeout_s
        if state.finish is not None or now <= self.due_at:
            return None
        self.due_at = now + self.timeout_s
        return Stalled(progress=seen[0], idle_s=now - self.moved_at, oldest=_oldest(state, leases), pressure=pressure)


def _oldest(state: State, leases: Leases) -> Running | None:
    """The prompt that was sent first of those in flight."""
    group = min(state.at(Place.IN_FLIGHT), key=lambda group: group.slot, default=None)
    if group is None:
        return None
    lease = leases.by_key.get(f"p:{group.prompt}")
    if lease is None or lease.number != group.attempt:
        return Running(prompt=group.prompt, attempt=group.attempt, worker=None, ran_s=0.0)
    return Running(prompt=group.prompt, attempt=group.attempt, worker=lease.worker, ran_s=leases.now - lease.began)


def in_words(stalled: Stalled, wait: WaitFor | None) -> str:
    """What a Stall says. ``wait``: what the run waits for; asked only when nothing is in flight."""
    idle = f"no group finished and no step trained for {stalled.idle_s:.0f} s; "
    oldest = stalled.oldest
    if oldest is None:
        return f"{idle}nothing is in flight, and the run waits for {AWAITED[wait or WaitFor.NOTHING]}"
    which = f"the oldest in flight is prompt {oldest.prompt}, attempt {oldest.attempt}"
    if oldest.worker is None:
        return f"{idle}{which}, which no generator has taken"
    return f"{idle}{which}, with {oldest.worker} for {oldest.ran_s:.0f} s"


__all__ = ("AWAITED", "Watchdog", "in_words", "progress")
