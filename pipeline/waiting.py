"""What a run can wait for. Waiting is an answer about the State; nothing here waits."""

from dataclasses import dataclass
from enum import StrEnum


class WaitFor(StrEnum):
    """What ends a wait."""

    NOTHING = "nothing"
    """The run is finished."""
    RESULTS = "results"
    """A generator's result: Commit, Retry or Drop."""
    TRAINER = "trainer"
    """The trainer's next step: Train."""
    CHECKPOINT = "checkpoint"
    """The trainer's checkpoint: Checkpoint."""
    BACKOFF = "backoff"
    """The time at which a failed prompt may be tried again."""
    GATE = "gate"
    """A version more: Train."""
    CAPACITY = "capacity"
    """A selection that frees room in the buffer: Select."""
    MEMORY = "memory"
    """The server's memory: results that are trimmed, an archive."""
    DRAIN = "drain"
    """What runs while the run stops: results, or the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing can be decided now. ``until``: wall time at which time alone changes that."""

    why: WaitFor
    until: float | None = None
