"""The life of a prompt: where it went, what was tried, what it cost, and why it was or was not trained.

Rule 1: the fate is what the last event says; a prompt that is not settled is where the State has it.
Rule 2: tokens are those of its Commits: generated counts every finished attempt, trained the one that was selected.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Admit,
    Borrow,
    Cancel,
    Commit,
    Dispatch,
    Divert,
    Drop,
    Event,
    Evict,
    Exhaust,
    Filter,
    Finish,
    Fork,
    Late,
    Repay,
    Replace,
    Requeue,
    Retry,
    Select,
    Shrink,
    Stamp,
    Stop,
    Train,
)
from rollog.replay.state import Group, Place, State
from rollog.replay.story import Answer, Fact, losses, note
from rollog.replay.wording import counted

NEVER = "never_handed_out"
TRAINED = "trained"


@dataclass(slots=True)
class PromptStory:
    """Follows one prompt. ``fate``: how it was settled; None while it is not. ``instead``: what its step did then."""

    prompt: int
    facts: list[Fact] = field(default_factory=list)
    row: int | None = None
    epoch: int | None = None
    attempts: int = 0
    generated: int = 0
    held: int = 0
    fate: str | None = None
    why: str = ""
    instead: str = ""
    role: str = ""
    step: int | None = None
    staleness: int | None = None
    loan: int | None = None
    left_over: int = 0

    def follow(self, state: State, entry: Entry) -> None:
        """Take the next entry; ``state`` is the State before it."""
        for prompt, how in losses(state, entry.events):
            if prompt == self.prompt:
                self.fate, self.why = how.partition(" ")[0], how
        note(self.facts, entry, [text for event in entry.events for text in self._of(state, event)])

    def _of(self, state: State, event: Event) -> Iterator[str]:
        me, group = self.prompt, state.groups.get(self.prompt)
        match event:
            case Admit() | Divert() if me in event.prompts:
                self.row, self.epoch = event.rows[event.prompts.index(me)], me // state.num_rows
                yield self._came(state, event)
            case Stamp() if me in event.prompts:
                yield f"meant for step {event.step}"
            case Dispatch() if event.prompt == me:
                self.attempts = event.attempt
                yield f"attempt {event.attempt} sent, weights v{event.weights}"
            case Retry() if event.prompt == me:
                self.held = 0
                yield f"attempt {event.attempt} failed ({event.kind.value}): {event.error}"
            case Commit() if event.prompt == me:
                self.generated, self.held = self.generated + event.tokens, event.tokens
                made = f"v{event.born}" if event.born == event.done else f"v{event.born}..v{event.done}"
                yield (
                    f"committed by {event.worker}: {counted(event.rollouts, 'rollout')}, "
                    f"{counted(event.tokens, 'token')}, reward {event.reward_mean:.3f}, weights {made}"
                )
            case Filter() if event.prompt == me:
                yield self.why
            case Drop() if event.prompt == me:
                yield f"given up ({event.kind.value}): {event.error}"
            case Cancel() if event.prompt == me:
                yield f"attempt {event.attempt} cancelled: {event.reason}"
            case Requeue() if me in event.prompts:
                self.held = 0
                yield "waits again, for another attempt"
            case Evict() if me in event.prompts:
                self.fate, self.why = "evicted", f"evicted, {event.reason.value}"
                yield f"evicted ({event.reason.value}){_age(state, group)}"
            case Replace() | Borrow() | Repay() | Shrink():
                yield from self._moved(state, event)
            case Select() if me in event.prompts:
                assert group is not None
                assert group.finished is not None
                self.step, self.staleness = event.step, event.step - group.finished.born
                yield f"selected for step {event.step}, staleness {self.staleness}"
            case Train() if event.step == self.step:
                again = self.fate == TRAINED
                self.fate = TRAINED
                yield f"trained again in step {event.step}" if again else f"trained in step {event.step}"
            case Fork() if group is not None and group.place is Place.IN_FLIGHT:
                yield f"waits again: the run {event.run} was forked here"
            case Late() if event.prompt == me:
                yield f"late {event.what}, no effect"
            case Stop() if event.prompt == me:
                yield f"stopped the run: {event.detail}"
            case Finish() if me in event.left:
                yield f"not settled when the run ended ({event.reason.value})"
            case Exhaust():
                self.left_over = event.left
            case _:
                return

    def _came(self, state: State, event: Admit | Divert) -> str:
        if isinstance(event, Divert):
            self.role = "a spare"
            return "put into the reserve, as a spare"
        assert state.rules is not None
        self.role = ""
        unstamped = "" if state.rules.sampler == "in_order" else f" ({state.rules.sampler}: no stamp)"
        return f"admitted in batch {event.batch}{unstamped}"

    def _moved(self, state: State, event: Replace | Borrow | Repay | Shrink) -> Iterator[str]:
        """Who stands in for whom, and who owes."""
        me = self.prompt
        match event:
            case Replace() if event.spare == me:
                self.role = f"the spare that replaced prompt {event.dropped}"
                yield f"replaces prompt {event.dropped} (replacement {event.nth})"
            case Replace() if event.dropped == me:
                owed = state.groups[me].loan
                debt = "" if owed is None else f" and owes loan {owed}"
                self.instead = f"Prompt {event.spare} replaced it in step {event.step}{debt}."
                yield f"prompt {event.spare} replaces it in step {event.step}{debt}"
            case Borrow() if event.prompt == me:
                self.loan = event.loan
                self.role = f"lent by step {event.lender} in place of prompt {event.dropped} (loan {event.loan})"
                yield (
                    f"lent by step {event.lender} to step {event.borrower}, in place of prompt {event.dropped}: "
                    f"loan {event.loan}, prompt {event.spare} owes"
                )
            case Borrow() if event.spare == me:
                self.role = f"the spare that owed loan {event.loan}"
                yield f"owes loan {event.loan}: step {event.lender} lent prompt {event.prompt} to step {event.borrower}"
            case Borrow() if event.dropped == me:
                self.instead = (
                    f"Step {event.lender} lent prompt {event.prompt} to step {event.borrower} in its place "
                    f"(loan {event.loan})."
                )
                yield f"step {event.lender} lends prompt {event.prompt} in its place: loan {event.loan}"
            case Repay() if event.prompt == me:
                yield f"repays loan {event.loan}"
            case Repay() if event.loan == self.loan:
                yield f"loan {event.loan} repaid by prompt {event.prompt}"
            case Shrink() if event.prompt == me:
                unpaid = "" if event.loan is None else f", loan {event.loan} cannot be paid"
                self.instead = f"Step {event.step} closes one group short{unpaid}."
                yield f"step {event.step} closes one group short{unpaid}"
            case _:
                return

    def told(self, state: State) -> Answer:
        """What came of the prompt."""
        group = state.groups.get(self.prompt)
        known = self.row is not None
        trained = self.held if self.fate == TRAINED else 0
        fate = group.place.value if group is not None else self.fate if known else NEVER
        cost = f"{counted(self.attempts, 'attempt')}, {counted(self.generated, 'token')} generated, {trained:,} trained"
        return Answer(
            known=known,
            verdict=f"{self._name()} {self._fate(state, group)}",
            cost=cost if known else "",
            details={
                "prompt": self.prompt,
                "row": self.row,
                "epoch": self.epoch,
                "fate": fate,
                "step": self.step if group is None else group.step,
                "staleness": self.staleness,
                "attempts": self.attempts,
                "tokens_generated": self.generated,
                "tokens_trained": trained,
            },
        )

    def _name(self) -> str:
        return f"prompt {self.prompt}" + ("" if self.row is None else f" (row {self.row}, epoch {self.epoch})")

    def _fate(self, state: State, group: Group | None) -> str:
        if self.row is None:
            return f"was never handed out: {self._beyond(state)}."
        if group is not None:
            ended = "" if state.finish is None else f" The run has ended ({state.finish.value})."
            return f"is not trained yet: {_whereabouts(group)}.{ended}"
        if self.fate == TRAINED:
            role = f", {self.role}" if self.role else ""
            return f"was trained in step {self.step}, staleness {self.staleness}{role}."
        return f"was never trained: {self.why}. {self.instead}".rstrip()

    def _beyond(self, state: State) -> str:
        if state.exhausted and self.prompt < state.handed_out + self.left_over:
            return f"the last {counted(self.left_over, 'prompt')} of the data fill no step"
        return f"the run has handed out {counted(state.handed_out, 'prompt')}, from 0 on"


def _age(state: State, group: Group | None) -> str:
    """Why an evicted group is too old, where weights had made it."""
    if group is None or group.finished is None:
        return f": trainer at v{state.version}"
    assert state.rules is not None
    staleness, bound = state.version - group.finished.born, state.rules.lookahead
    return f": trainer at v{state.version}, staleness {staleness}" + (f" > {bound}" if staleness > bound else "")


def _whereabouts(group: Group) -> str:
    step = "" if group.step is None else f" for step {group.step}"
    match group.place:
        case Place.WAITING:
            return f"waiting to be sent{step}"
        case Place.RESERVE:
            return "in the reserve, a spare"
        case Place.IN_FLIGHT:
            return f"in flight{step}, attempt {group.attempt}, weights v{group.weights}"
        case Place.BACKING_OFF:
            return f"backing off{step} after attempt {group.attempt}"
        case Place.BUFFER:
            return f"finished, in the buffer{step}"
        case Place.SELECTED:
            return f"selected{step}, which is not trained"
