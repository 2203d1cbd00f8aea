"""What the State forgets and a person asks for: attempts, tokens, the last steps. Kept beside a fold.

Rule 1: every count adds up: attempts sent = finished + failed + lost + given up + cancelled + in flight, and
        tokens generated = trained + held + wasted.
Rule 2: ``follow`` is called before the entry is folded: what an event takes away still stands in the State then.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Cancel,
    Checkpoint,
    Commit,
    Dispatch,
    Drop,
    Event,
    Evict,
    FailureKind,
    Filter,
    Finish,
    Fork,
    Late,
    Open,
    Requeue,
    Retry,
    Stall,
    Train,
)
from rollog.replay.projector import fold
from rollog.replay.state import Place, State
from rollog.replay.writers import naming_the_writer

RECENT_STEPS = 8
"""Steps that the status screen draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One step as it was trained. ``reward_mean`` over its groups, ``tokens`` and ``seconds`` of the trainer.

    ``rows``: sequences with valid tokens; ``padding``: copies beside them, which fill up micro batches.
    ``rows_per_rollout``: number of rows -> how many rollouts have so many, of those for which the log says it.
    """

    step: int
    offset: int
    groups: int
    rollouts: int
    rows: int
    padding: int
    rows_per_rollout: dict[int, int]
    reward_mean: float
    loss: float
    tokens: int
    seconds: float
    logprob_gap: float | None


def follow_all(
    entries: Iterable[Entry], state: State | None = None, tally: "Tally | None" = None
) -> tuple[State, "Tally"]:
    """The State after these entries and the sums beside it; they go on from ``state`` and ``tally``, if given."""
    state, tally = state or State(), tally or Tally()
    for entry in naming_the_writer(entries):
        tally.follow(state, entry)
        fold(state, entry)
    return state, tally


@dataclass(slots=True, kw_only=True)
class Tally:
    """Running sums over a log. Tokens are those of the Commits."""

    began: float = 0.0
    """Wall time of the first entry, in seconds."""
    time: float = 0.0
    """Wall time of the last entry."""
    sent: int = 0
    finished: int = 0
    failed: int = 0
    lost: int = 0
    given_up: int = 0
    cancelled: int = 0
    late: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    tokens_wasted: int = 0
    stale_tokens: int = 0
    filtered_tokens: int = 0
    retrained: int = 0
    """Steps trained again after a trainer's death."""
    stalled: str | None = None
    """What a Stall says that nothing has followed."""
    row_counts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The rows of each rollout of the open groups in which one has several."""
    recent: deque[TrainedStep] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def follow(self, state: State, entry: Entry) -> None:
        """Count the next entry; ``state`` is the State before it."""
        self.time = entry.time
        if entry.offset == 1:
            self.began = entry.time
        committed = {event.prompt: event.tokens for event in entry.events if isinstance(event, Commit)}
        for event in entry.events:
            self._count(state, event, entry.offset, committed)

    def _count(self, state: State, event: Event, offset: int, committed: dict[int, int]) -> None:
        match event:
            case Dispatch():
                self.sent += 1
            case Commit():
                self.finished += 1
                if event.row_counts:
                    self.row_counts[event.prompt] = event.row_counts
                self.tokens_generated += event.tokens
                self.stalled = None
            case Retry():
                if _in_flight(state, event.prompt):
                    self.lost += event.kind is FailureKind.LOST
                    self.failed += event.kind is not FailureKind.LOST
                self._waste(state, (event.prompt,))
            case Drop():
                self.given_up += _in_flight(state, event.prompt)
                self._waste(state, (event.prompt,))
            case Cancel():
                self.cancelled += 1
            case Fork():
                self.cancelled += state.count(Place.IN_FLIGHT)
            case Filter():
                self.row_counts.pop(event.prompt, None)
                now = committed.get(event.prompt, 0)  # finished by this very entry: the State does not know it yet
                self.tokens_wasted += now
                self.filtered_tokens += now or self._waste(state, (event.prompt,))
            case Evict():
                self.stale_tokens += self._waste(state, event.prompts)
            case Requeue():
                self._waste(state, event.prompts)
            case Late():
                self.late += 1
            case Train():
                self.stalled = None
                self._train(state, event, offset)
            case Stall():
                self.stalled = f"{event.what}: {event.text}"
            case Open() | Finish() | Checkpoint():
                self.stalled = None
            case _:
                pass

    def _waste(self, state: State, prompts: Sequence[int]) -> int:
        """Tokens of finished groups that leave untrained."""
        groups = [state.groups.get(prompt) for prompt in prompts]
        for prompt in prompts:
            self.row_counts.pop(prompt, None)
        tokens = sum(group.finished.tokens for group in groups if group is not None and group.finished is not None)
        self.tokens_wasted += tokens
        return tokens

    def _train(self, state: State, event: Train, offset: int) -> None:
        if event.step < state.version:
            self.retrained += 1
            return
        members = list(state.step(event.step).members())
        made = [member.finished for member in members]
        counts = Counter[int]()
        for member in members:
            finished = member.finished
            one_each = (1,) * finished.rollouts if finished.rows == finished.rollouts else ()
            counts.update(self.row_counts.pop(member.prompt, one_each))
        self.tokens_trained += sum(each.tokens for each in made)
        self.recent.append(
            TrainedStep(
                step=event.step,
                offset=offset,
                groups=len(made),
                rollouts=sum(each.rollouts for each in made),
                rows=event.rows,
                padding=event.padding,
                rows_per_rollout=dict(sorted(counts.items())),
                reward_mean=sum(each.reward_mean for each in made) / len(made) if made else 0.0,
                loss=event.loss,
                tokens=event.tokens,
                seconds=event.seconds,
                logprob_gap=event.logprob_gap,
            )
        )


def _in_flight(state: State, prompt: int) -> bool:
    return prompt in state.places[Place.IN_FLIGHT]


def held_tokens(state: State) -> int:
    """Tokens of finished groups that are neither trained nor wasted."""
    return sum(group.finished.tokens for group in state.groups.values() if group.finished is not None)
