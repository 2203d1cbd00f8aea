"""Every event that can stand in the log.

Rule 1: an event never changes. What happened later is another event.
Rule 2: a field holds an ordinal, a count, a digest, a name or a setting. Token arrays and text go to blobs.
Rule 3: the wire tag is chosen in ``TAGS`` at the end, never derived; the table only grows.
Rule 4: time, the writer and the answered result stand on the entry, so that a fold cannot see a clock.
Rule 5: a prompt is named by its ordinal and by nothing else; an attempt by (ordinal, attempt).

Digests are lower-case hexadecimal strings. Versions count trained steps. Durations end in ``_s`` (seconds).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class FailureKind(StrEnum):
    """Why an attempt, or in the end a prompt, was given up."""

    INFRA = "infra"
    """The machinery failed: a time-out, a lost connection. Counted per prompt, tried again after a backoff."""
    DATA = "data"
    """The prompt's own fault: its reward function raised. Counted per prompt, tried again at once with new tokens."""
    LOST = "lost"
    """The worker or the blob vanished. Nobody's fault: no budget, only a high limit."""
    USER = "user"
    """A person gave the prompt up (``--drop``)."""


class StopReason(StrEnum):
    """Who asked for the end of a run that has not reached its end."""

    INTERRUPT = "interrupt"
    """The first Ctrl-C."""
    REQUEST = "request"
    """``rollog stop``."""
    TERMINATE = "terminate"
    """SIGTERM or SIGUSR1: the machine is wanted back at once."""
    FAILED = "failed"
    """A budget ran out, a step fell below its floor, or a recorded selection cannot be read."""


class FinishReason(StrEnum):
    """Why nothing is decided any more."""

    MAX_STEPS = "max_steps"
    """The last step asked for is trained."""
    EXHAUSTED = "exhausted"
    """The data ended."""
    STOPPED = "stopped"
    """Asked to stop; can be resumed."""
    FAILED = "failed"
    """Stopped by itself; can be resumed once the cause is mended."""


class SaveReason(StrEnum):
    """Why a checkpoint is asked for."""

    PERIODIC = "periodic"
    """``checkpoint.every_steps`` has passed."""
    STOP = "stop"
    """The run stops and what it trained must be durable first."""
    END = "end"
    """The run ends and what it trained must be durable first."""


class EvictReason(StrEnum):
    """Why a prompt can no longer be selected."""

    STALE = "stale"
    """Made by weights that are too old for every step to come."""
    FORK = "fork"
    """The fork changed what a prompt or a group is."""


class FilterReason(StrEnum):
    """Why a finished group is useless."""

    EQUAL_REWARDS = "equal_rewards"
    """All advantages are zero."""
    RULE = "rule"
    """The user's rule refused it."""


class Role(StrEnum):
    """What a worker does."""

    GENERATOR = "generator"
    """Turns orders into finished groups."""
    TRAINER = "trainer"
    """Turns selections into new weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first entry: the log describes itself. It also names the first trainer generation."""

    run: str
    config: Mapping[str, Any]
    dataset: str
    seed: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """The first own entry of a fork: in flight becomes waiting, standing becomes the checkpoint's version.

    ``offset``, ``digest``: of the parent's entry before it. ``dataset``, ``seed``, ``num_rows``: None is unchanged.
    """

    run: str
    parent: str
    offset: int
    digest: str
    changes: Mapping[str, Any]
    reason: str
    dataset: str | None = None
    seed: int | None = None
    num_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A controller took the pen. ``machine``: ranks, threads, devices, library versions."""

    epoch: int
    reason: str
    rollog: str
    machine: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Settings changed (dotted path -> new value), on resume or by ``rollog scale``; what follows stands beside it.

    ``cursor`` is where admission stands under the new settings.
    """

    changes: Mapping[str, Any]
    cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A new trainer generation begins, standing at ``version``; recorded steps from there are trained again.

    ``checkpoint`` names the manifest that it loads; empty: the model that the run began with.
    """

    version: int
    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """A batch was admitted, from the loader or (drain) out of the reserve. The cursor moves to ``batch``."""

    batch: int
    prompts: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divert:
    """A batch left the loader into the reserve."""

    prompts: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """These prompts are meant for ``step``."""

    prompts: tuple[int, ...]
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """A work order. A generator starts it with weights at least ``weights`` (pinned: exactly those)."""

    prompt: int
    attempt: int
    step: int | None
    weights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed; the prompt backs off until ``not_before`` (wall time, seconds since 1970)."""

    prompt: int
    attempt: int
    kind: FailureKind
    error: str
    not_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A finished group is in the buffer. ``born``, ``done``: oldest and newest weights that made it.

    ``row_counts``: the rows of each rollout, empty when each has one.
    """

    prompt: int
    attempt: int
    blob: str
    born: int
    done: int
    rollouts: int
    rows: int
    tokens: int
    reward_mean: float
    reward_std: float
    worker: str
    row_counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A result that nobody waits for, a prompt's or a trainer's. No effect; fields as far as known."""

    what: str
    prompt: int | None = None
    attempt: int | None = None
    step: int | None = None
    generation: int | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The prompt is given up."""

    prompt: int
    kind: FailureKind
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Finished, but useless; in one entry after its Commit."""

    prompt: int
    reason: FilterReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """The step will close one group short. ``loan``: because that debt cannot be paid."""

    step: int
    prompt: int
    loan: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """A spare stands in for the dropped prompt, for the same step; the ``nth`` replacement in this slot."""

    step: int
    dropped: int
    spare: int
    nth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrow:
    """The finished group ``prompt`` moves from step ``lender`` to ``borrower``; ``spare`` owes the lender."""

    loan: int
    prompt: int
    lender: int
    borrower: int
    dropped: int
    spare: int
    nth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repay:
    """The debt is paid: the spare's group landed, or a moved group took its place."""

    loan: int
    prompt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Too old to be selected."""

    prompts: tuple[int, ...]
    reason: EvictReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Ends an attempt only; the same entry says where the prompt goes."""

    prompt: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Back to waiting; attempt numbers and budgets go on."""

    prompts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """Groups leave the buffer for this step, as its ``chunk``-th chunk.

    Empty with ``last``: the step closes as it is.
    """

    step: int
    chunk: int
    prompts: tuple[int, ...]
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """One optimizer step is done. The version becomes step + 1 or, when trained again, only standing moves.

    ``logprob_gap``: mean absolute difference between the generator's and the trainer's logprobs (nats per token)
    on groups made by the trainer's own version, None when that could not be measured.
    """

    step: int
    generation: int
    loss: float
    grad_norm: float
    tokens: int
    rows: int
    padding: int
    seconds: float
    logprob_gap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Weights are ready for generators."""

    version: int
    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A generator runs these weights."""

    worker: str
    version: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Write a checkpoint of ``version``."""

    version: int
    reason: SaveReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights and optimizer of ``version`` are durable. ``manifest`` is the checkpoint's folder name."""

    version: int
    manifest: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The entries ``first``..``last`` now live in a segment file."""

    first: int
    last: int
    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A worker came."""

    worker: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A worker went."""

    worker: str
    role: Role
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaust:
    """The loader has nothing more; ``left`` prompts at its end are fewer than a batch and never handed out."""

    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """No new work; what runs may finish until ``deadline`` (wall time). ``prompt``: the one that stopped the run."""

    reason: StopReason
    deadline: float
    prompt: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over, or stopped; everything trained is durable. ``left``: the ordinals that stay unsettled."""

    reason: FinishReason
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A remark: nothing moved for a while, or the server is short of memory. Optional for readers."""

    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A remark. Optional for readers."""

    what: str
    text: str


Event = (
    Start | Fork | Open | Configure | Resume | Admit | Divert | Stamp | Dispatch | Retry | Commit | Late | Drop | Filter
    | Shrink | Replace | Borrow | Repay | Evict | Cancel | Requeue | Select | Train | Publish | Load | Save | Checkpoint
    | Archive | Join | Leave | Exhaust | Stop | Finish | Stall | Note
)  # fmt: skip

TAGS: Final[Mapping[str, tuple[type[Event], int]]] = {
    "start": (Start, 1),
    "fork": (Fork, 1),
    "open": (Open, 1),
    "configure": (Configure, 1),
    "resume": (Resume, 1),
    "admit": (Admit, 1),
    "divert": (Divert, 1),
    "stamp": (Stamp, 1),
    "dispatch": (Dispatch, 1),
    "retry": (Retry, 1),
    "commit": (Commit, 1),
    "late": (Late, 1),
    "drop": (Drop, 1),
    "filter": (Filter, 1),
    "shrink": (Shrink, 1),
    "replace": (Replace, 1),
    "borrow": (Borrow, 1),
    "repay": (Repay, 1),
    "evict": (Evict, 1),
    "cancel": (Cancel, 1),
    "requeue": (Requeue, 1),
    "select": (Select, 1),
    "train": (Train, 1),
    "publish": (Publish, 1),
    "load": (Load, 1),
    "save": (Save, 1),
    "checkpoint": (Checkpoint, 1),
    "archive": (Archive, 1),
    "join": (Join, 1),
    "leave": (Leave, 1),
    "exhaust": (Exhaust, 1),
    "stop": (Stop, 1),
    "finish": (Finish, 1),
    "stall": (Stall, 1),
    "note": (Note, 1),
}
"""Wire tag -> (event type, newest version of its fields). Append-only."""

OPTIONAL: Final = (Stall, Note)
"""Events that change no state; the writer marks them so that an older reader may skip them."""
