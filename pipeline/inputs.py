"""What can happen outside: everything that the controller takes decisions about arrives as one of these.

Rule 1: an input is a frozen fact. Whether a stream, a clock, a signal or a dead child told it does not matter.
Rule 2: an ``Answer`` carries the id of its result, and is answered by exactly one entry; the others by at most one.
"""

from dataclasses import dataclass

from rollog.events.messages import Result
from rollog.events.vocabulary import Role, StopReason
from rollog.replay.state import SavedCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A worker's result. None: its bytes were not a message."""

    id: str
    result: Result | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """Nobody has refreshed this attempt's lease for too long, or its worker's process is dead."""

    prompt: int
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """The attempt runs longer than a rollout may, whether or not its lease is fresh."""

    prompt: int
    attempt: int
    worker: str
    ran_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerGone:
    """The processes of this trainer generation are gone. ``whole``: the checkpoints on disk that belong to this log."""

    generation: int
    reason: str
    whole: tuple[SavedCheckpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker's process is gone."""

    worker: str
    role: Role
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobGone:
    """The blob of a buffered group is missing or broken."""

    prompt: int
    attempt: int
    error: str


Progress = tuple[int, int, int]
"""Groups committed, steps trained, where the trainer stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An attempt in flight. ``worker``: None if nobody has taken it. ``ran_s``: since it was taken, in seconds."""

    prompt: int
    attempt: int
    worker: str | None
    ran_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """Nothing has moved for ``idle_s`` seconds. ``progress``: what was seen; ``oldest``: what runs longest, if any."""

    progress: Progress
    idle_s: float
    oldest: Running | None
    pressure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShort:
    """The memory of the log's server is above four fifths of its limit, and was not when it was last looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The entries ``first``..``last`` lie in the segment ``file``, whose bytes have this digest, and were read back."""

    first: int
    last: int
    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """A signal asks the run to stop."""

    reason: StopReason
    within_s: float


Input = Answer | LeaseLost | Overdue | TrainerGone | WorkerGone | BlobGone | Stalled | MemoryShort | Sealed | StopAsked
