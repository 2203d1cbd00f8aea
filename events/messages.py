"""What goes between the controller and its workers, beside the log.

Rule 1: a message is a frozen value in MessagePack, packed by the same codec as the events.
Rule 2: a message that asks for work names the entry that ordered it (offset, writer epoch, digest); the result
        echoes that name, so that no result can be taken for the answer to another order.
Rule 3: no arrays and no text of prompts or answers: they lie in blobs and in the data set.

Orders, chunks and notices are derived from the log and can be made again from its fold at any time. Results are not:
each waits in the results stream until exactly one entry has answered it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rollog.events.vocabulary import FailureKind, Role, SaveReason, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The entry that ordered something."""

    offset: int
    epoch: int
    digest: str


# --- controller to generators: the orders in flight -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Generate one group. ``data_failures`` goes into the rollouts' seeds; ``row`` is the row of the data set."""

    prompt: int
    attempt: int
    step: int | None
    weights: int
    row: int
    data_failures: int
    cause: Cause


# --- controller to trainer ranks: the train stream, in order ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Accumulate these groups for ``step``; after the last chunk take the optimizer step.

    ``prompts``, ``blobs``, ``rollouts``, ``rows`` and ``tokens`` run in parallel, one item per group.
    """

    generation: int
    step: int
    chunk: int
    last: bool
    prompts: tuple[int, ...]
    blobs: tuple[str, ...]
    rollouts: tuple[int, ...]
    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """Write a checkpoint of the weights ``version``."""

    generation: int
    version: int
    reason: SaveReason
    cause: Cause


# --- controller to everybody: the control stream ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWeights:
    """These weights are published. Attempts born of weights below ``oldest_useful`` are of no use to any step."""

    version: int
    file: str
    digest: str
    oldest_useful: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Doorbell:
    """There is a new order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGeneration:
    """The trainer's processes of an older generation end."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """There are so many generators now: the others take no new orders and leave."""

    generators: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The run has finished: workers leave."""

    reason: str


# --- workers to controller: the results stream ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDone:
    """A group is finished and its blob is durable."""

    prompt: int
    attempt: int
    cause: Cause
    blob: str
    born: int
    done: int
    rollouts: int
    rows: int
    tokens: int
    reward_mean: float
    reward_std: float
    worker: str
    refused: bool = False
    """By the user's filter rule."""
    row_counts: tuple[int, ...] = ()
    """The rows of each rollout; empty when each has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCancelled:
    """An attempt was ended because it was born of weights older than the oldest useful ones."""

    prompt: int
    attempt: int
    cause: Cause
    born: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed:
    """An attempt failed."""

    prompt: int
    attempt: int
    cause: Cause
    kind: FailureKind
    error: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReady:
    """A trainer generation stands at ``version`` by loading, and its weights lie ready."""

    generation: int
    version: int
    file: str
    digest: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One optimizer step is done. ``file`` and ``digest`` are empty when no new weights had to be published."""

    generation: int
    step: int
    loss: float
    grad_norm: float
    tokens: int
    rows: int
    padding: int
    seconds: float
    logprob_gap: float | None
    file: str
    digest: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDone:
    """A checkpoint is durable, its manifest last. ``manifest`` is its folder name, ``digest`` that of the manifest."""

    generation: int
    version: int
    manifest: str
    digest: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobUnreadable:
    """The trainer cannot read the blob of a recorded selection."""

    generation: int
    step: int
    prompt: int
    error: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker is there. ``machine``: threads, devices, library versions."""

    worker: str
    role: Role
    machine: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded:
    """A generator runs these weights."""

    worker: str
    version: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker goes by its own will."""

    worker: str
    role: Role
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Somebody asks the run to stop within ``within_s`` seconds."""

    reason: StopReason
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """Somebody asks for so many generators."""

    generators: int


Notice = NewWeights | Doorbell | NewGeneration | FleetSize | Ending
TrainMessage = Chunk | SaveOrder
Result = (
    GroupDone | GroupCancelled | GroupFailed | WeightsReady | StepDone | CheckpointDone | BlobUnreadable | WorkerJoined
    | WeightsLoaded | WorkerLeft | StopRequest | ScaleRequest
)  # fmt: skip
Message = Order | TrainMessage | Notice | Result

MESSAGE_TAGS: Final[Mapping[str, type[Message]]] = {
    "order": Order,
    "chunk": Chunk,
    "save_order": SaveOrder,
    "new_weights": NewWeights,
    "doorbell": Doorbell,
    "new_generation": NewGeneration,
    "fleet_size": FleetSize,
    "ending": Ending,
    "group_done": GroupDone,
    "group_failed": GroupFailed,
    "group_cancelled": GroupCancelled,
    "weights_ready": WeightsReady,
    "step_done": StepDone,
    "checkpoint_done": CheckpointDone,
    "blob_unreadable": BlobUnreadable,
    "worker_joined": WorkerJoined,
    "weights_loaded": WeightsLoaded,
    "worker_left": WorkerLeft,
    "stop_request": StopRequest,
    "scale_request": ScaleRequest,
}
"""Wire tag -> message type."""
