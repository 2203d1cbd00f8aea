"""What a log means: the State and its parts.

Rule 1: the State is a fold of the log and of nothing else; only ``projector.fold`` changes it.
Rule 2: it keeps what is *not* settled, and four counts. However long the run, it stays a few kilobytes.
Rule 3: an ordinal below ``handed_out`` that stands nowhere here is settled: handed_out == len(groups) + counts.
Rule 4: no clock: time stands on entries. ``not_before`` and ``deadline`` are wall times that an event brought.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from rollog.events.log import GENESIS
from rollog.events.messages import Cause
from rollog.events.vocabulary import FailureKind, FinishReason, Role, StopReason
from rollog.replay.errors import BrokenHistory
from rollog.replay.ready import ReadyIndex


class Place(StrEnum):
    """Where an unsettled ordinal is: in exactly one of these."""

    WAITING = "waiting"
    """Admitted, no attempt running, none to wait for."""
    RESERVE = "reserve"
    """A spare: taken from the loader, not admitted."""
    IN_FLIGHT = "in_flight"
    """An order is out."""
    BACKING_OFF = "backing_off"
    """The last attempt failed; the next may start at ``not_before``."""
    BUFFER = "buffer"
    """Finished, not selected."""
    SELECTED = "selected"
    """Selected for a step that is not trained yet."""


OPEN_PLACES = (Place.WAITING, Place.IN_FLIGHT, Place.BACKING_OFF, Place.BUFFER)
"""The places that use up buffer capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a Commit says of a finished group."""

    blob: str
    born: int
    done: int
    rollouts: int
    rows: int
    tokens: int
    reward_mean: float
    reward_std: float
    worker: str


@dataclass(slots=True, kw_only=True)
class Group:
    """An unsettled prompt. ``slot`` orders groups by their latest Dispatch; 0 before the first."""

    prompt: int
    row: int
    place: Place
    step: int | None = None
    slot: int = 0
    attempt: int = 0
    weights: int = 0
    order: Cause | None = None
    infra_failures: int = 0
    data_failures: int = 0
    seed_failures: int = 0
    lost_attempts: int = 0
    last_failure: FailureKind | None = None
    not_before: float = 0.0
    finished: Finished | None = None
    nth: int = 0
    loan: int | None = None
    requeues: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One group of a selection, with all that training it again needs."""

    prompt: int
    finished: Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One chunk of a step, by the entry that selected it."""

    cause: Cause
    members: tuple[Member, ...]
    last: bool


@dataclass(slots=True, kw_only=True)
class Step:
    """A step that something is known of: its shortfall, and the chunks selected for it."""

    shortfall: int = 0
    chunks: list[Selection] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """Groups selected so far."""
        return sum([len(chunk.members) for chunk in self.chunks])

    @property
    def closed(self) -> bool:
        """Whether its last chunk is selected."""
        return bool(self.chunks) and self.chunks[-1].last

    def members(self) -> Iterable[Member]:
        """Its groups, chunk by chunk."""
        for chunk in self.chunks:
            yield from chunk.members


NOTHING_KNOWN: Final = Step()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A finished group that moved from the lender's step to the borrower's; ``spare`` owes the lender."""

    prompt: int
    lender: int
    borrower: int
    spare: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A durable checkpoint."""

    version: int
    manifest: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Published weights."""

    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that joined and has not left. ``version``: the weights that a generator runs."""

    role: Role
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A Stop that no Finish has answered yet, or that a Finish has and no Open after it."""

    reason: StopReason
    deadline: float
    prompt: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that the meaning of events depends on, read once out of ``State.settings``."""

    prompts_per_step: int
    rollouts_per_prompt: int
    lookahead: int
    sampler: str
    pinned: bool
    keep_last: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Rules":
        """Read them out of the settings that Start and Configure carry. Raises ``BrokenHistory`` if one is missing."""
        try:
            sampler = settings["sampler"]
            window = "lookahead" if sampler["name"] == "in_order" else "max_staleness"
            return cls(
                prompts_per_step=settings["grpo"]["prompts_per_step"],
                rollouts_per_prompt=settings["grpo"]["rollouts_per_prompt"],
                lookahead=sampler.get(window) or 0,
                sampler=sampler["name"],
                pinned=settings.get("determinism", "off") == "pinned",
                keep_last=settings["checkpoint"]["keep_last"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BrokenHistory(f"the settings lack what the fold needs: {error!r}") from None


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that is decided from. A fresh State is the fold of an empty log."""

    # where the log stands
    offset: int = 0
    digest: str = GENESIS
    archived: int = 0
    """The entries up to here lie in segments."""
    epoch: int = 0
    input: str | None = None
    # what the run is
    run: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    rules: Rules | None = None
    dataset: str = ""
    seed: int = 0
    num_rows: int = 0
    # prompts
    handed_out: int = 0
    slate_step: int = 0
    """Batches are counted from this step, which begins with the ordinal ``slate_prompt``: a fork may change their
    size."""
    slate_prompt: int = 0
    cursor: int = -1
    exhausted: bool = False
    slots: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    places: dict[Place, dict[int, None]] = field(default_factory=lambda: {place: {} for place in Place})
    ready: ReadyIndex = field(default_factory=ReadyIndex)
    trained: int = 0
    dropped: int = 0
    filtered: int = 0
    evicted: int = 0
    lost: int = 0
    """Admitted ordinals settled without training, since the sampler was chosen: the gate gives them back."""
    commits: int = 0
    # budgets
    skipped: int = 0
    consecutive_drops: int = 0
    # steps
    version: int = 0
    standing: int = 0
    generation: int = 0
    resumes_in_vain: int = 0
    stamps_made: bool = False
    steps: dict[int, Step] = field(default_factory=dict)
    loans: dict[int, Loan] = field(default_factory=dict)
    loans_made: int = 0
    loans_repaid: int = 0
    loans_forgiven: int = 0
    # weights and checkpoints
    published: dict[int, Weights] = field(default_factory=dict)
    saves: dict[int, Cause] = field(default_factory=dict)
    checkpoints: dict[int, SavedCheckpoint] = field(default_factory=dict)
    # workers
    workers: dict[str, Worker] = field(default_factory=dict)
    # the end
    stopping: Stopping | None = None
    finish: FinishReason | None = None

    @property
    def slate(self) -> tuple[int, int]:
        """The step from which batches are counted, and the ordinal that it begins with."""
        return self.slate_step, self.slate_prompt

    @property
    def filling(self) -> int:
        """The first step whose last chunk is not selected."""
        step = self.steps.get(self.version)
        return self.version + 1 if step is not None and step.closed else self.version

    def unpublished(self) -> list[int]:
        """Versions that orders may ask for and whose weights are not there: below the version only in a pinned fork."""
        if self.rules is None or not self.rules.pinned:
            return []
        oldest = max(0, self.version - self.rules.lookahead)
        return [version for version in range(oldest, self.version) if version not in self.published]

    @property
    def publish_from(self) -> int:
        """The first version that a trainer which begins now has to publish."""
        return min(self.unpublished(), default=self.version)

    def step(self, number: int) -> Step:
        """What is known of a step; an empty Step, which nobody changes, when nothing is."""
        return self.steps.get(number, NOTHING_KNOWN)

    def target(self, step: int) -> int:
        """Groups that the step closes with: prompts_per_step less its shortfall."""
        assert self.rules is not None
        return self.rules.prompts_per_step - self.step(step).shortfall

    def at(self, place: Place) -> list[Group]:
        """The groups at a place, in the order in which they came there."""
        groups = self.groups
        return [groups[prompt] for prompt in self.places[place]]

    def count(self, place: Place) -> int:
        """How many groups are at a place."""
        return len(self.places[place])

    def num_open(self) -> int:
        """Groups that use up buffer capacity."""
        return sum(len(self.places[place]) for place in OPEN_PLACES)

    def copy(self) -> "State":
        """A State of its own, for whoever folds on from here: what never changes is shared, all else is copied."""
        return replace(
            self,
            settings=dict(self.settings),  # its sections are copied by whoever changes them
            groups={prompt: replace(group) for prompt, group in self.groups.items()},
            places={place: dict(prompts) for place, prompts in self.places.items()},
            ready=self.ready.copy(),
            steps={number: Step(shortfall=s.shortfall, chunks=list(s.chunks)) for number, s in self.steps.items()},
            loans=dict(self.loans),
            published=dict(self.published),
            saves=dict(self.saves),
            checkpoints=dict(self.checkpoints),
            workers=dict(self.workers),
        )

    def settled(self) -> int:
        """How many ordinals are trained, dropped, filtered, or evicted for good."""
        return self.trained + self.dropped + self.filtered + self.evicted

    def oldest_kept_checkpoint(self) -> int:
        """Version of the oldest checkpoint that is kept; 0 while there is none."""
        return min(self.checkpoints, default=0)

    def oldest_kept_step(self) -> int:
        """The first step whose selections are kept: the trainer may begin with it again, or is on its way past it."""
        return min(self.oldest_kept_checkpoint(), self.standing)

    def newest_checkpoint(self) -> int | None:
        """Version of the newest durable checkpoint."""
        return max(self.checkpoints, default=None)

    def frontier(self) -> int:
        """The lowest ordinal handed out that is neither settled nor in the reserve. For people only."""
        return min((p for p, g in self.groups.items() if g.place is not Place.RESERVE), default=self.handed_out)

    def durable_frontier(self) -> int:
        """The frontier that counts as trained only what a checkpoint covers. For people only."""
        covered = self.newest_checkpoint() or 0
        trained_since = (m.prompt for number, step in self.steps.items() if number >= covered for m in step.members())
        return min(self.frontier(), min(trained_since, default=self.handed_out))
