"""The make-up of a step: which groups it trained, whose they were, how stale, and what it lacked.

Rule 1: wanted = stamped or taken + spares + borrowed + short + missing: each group is counted under one of these.
        Short is what was lost on the way; missing is what the data, at its end, no longer had for a step once begun.
Rule 2: staleness is the step less the oldest weights that made the group, in versions.
Rule 3: the step waited from the moment at which the version was its own until its last group was committed (wall time
        of the entries, seconds).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from rollog.events.log import Entry
from rollog.events.vocabulary import Borrow, Commit, Event, Evict, Repay, Replace, Select, Shrink, Stamp, Train
from rollog.replay.state import OPEN_PLACES, State
from rollog.replay.story import Answer, Fact, losses, note
from rollog.replay.wording import counted, ordinals, words


class Origin(StrEnum):
    """How a group came to its step."""

    STAMPED = "stamped"
    """Its prompt was admitted for this step."""
    TAKEN = "taken"
    """Its prompt was meant for no step: the sampler took it from the buffer."""
    SPARE = "spare"
    """Its prompt stood in for one that was lost, or repays a group that was lent."""
    BORROWED = "borrowed"
    """Its prompt was stamped for a later step, which lent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A group of the step, selected for it. ``committed``: the offset of its Commit, at ``committed_at`` seconds."""

    prompt: int
    origin: Origin
    staleness: int
    rollouts: int
    rows: int
    tokens: int
    worker: str
    attempt: int
    committed: int
    committed_at: float


OPEN: Final = "still open"


@dataclass(slots=True)
class StepStory:
    """Follows one step."""

    step: int
    facts: list[Fact] = field(default_factory=list)
    began: float | None = None
    trained: int | None = None
    wanted: int = 0
    meant: bool = False
    groups: list[Made] = field(default_factory=list)
    short: list[int] = field(default_factory=list)
    gone: dict[int, str] = field(default_factory=dict)
    """How each prompt was lost for which something else came, or nothing."""
    spares: dict[int, str] = field(default_factory=dict)
    """What each spare of the step is for."""
    borrowed: dict[int, Borrow] = field(default_factory=dict)
    """By the prompt that came."""
    lent: dict[int, Borrow] = field(default_factory=dict)
    """By the prompt that went."""
    loans: dict[int, str] = field(default_factory=dict)
    """What became of each loan that the step gave or took."""
    _commits: dict[int, tuple[int, float]] = field(default_factory=dict)

    def follow(self, state: State, entry: Entry) -> None:
        """Take the next entry; ``state`` is the State before it."""
        if self.began is None and state.version == self.step:
            self.began = entry.time
        lost = dict(losses(state, entry.events))
        self.gone.update(lost)
        told = []
        for event in entry.events:
            if isinstance(event, Commit):
                self._commits[event.prompt] = (entry.offset, entry.time)
            elif isinstance(event, Train) and event.step == self.step and self.trained is None:
                assert state.rules is not None
                self.trained, self.wanted = entry.offset, state.rules.prompts_per_step
                self._forget_old_shortfalls(state)
            if self._is_about(state, event):
                told.append(words(event))
                self._take(state, event)
        if any(self._lost(state, prompt) for prompt in lost):
            told = [words(event) for event in entry.events if not isinstance(event, Commit)]
        note(self.facts, entry, told)

    def _lost(self, state: State, prompt: int) -> bool:
        return state.groups[prompt].step == self.step

    def _is_about(self, state: State, event: Event) -> bool:
        match event:
            case Stamp() | Replace() | Shrink() | Select() | Train():
                return event.step == self.step
            case Borrow():
                return self.step in (event.lender, event.borrower)
            case Repay():
                return event.loan in self.loans
            case Evict():
                return any(prompt in state.groups and self._lost(state, prompt) for prompt in event.prompts)
            case _:
                return False

    def _take(self, state: State, event: Event) -> None:
        match event:
            case Stamp():
                self.meant = True
            case Replace():
                self.spares[event.spare] = f"for prompt {event.dropped}, {self._how(event.dropped)}"
            case Borrow():
                self.loans[event.loan] = OPEN
                if event.borrower == self.step:
                    self.borrowed[event.prompt] = event
                else:
                    self.lent[event.prompt] = event
                    self.spares[event.spare] = f"for prompt {event.prompt}, lent to step {event.borrower}"
            case Repay():
                self.loans[event.loan] = f"repaid by prompt {event.prompt}"
            case Shrink():
                self.short.append(event.prompt)
                if event.loan is not None:
                    self.loans[event.loan] = "cannot be paid"
            case Select():
                self.groups += [self._made(state, prompt) for prompt in event.prompts]
            case _:
                pass

    def _made(self, state: State, prompt: int) -> Made:
        group = state.groups[prompt]
        finished = group.finished
        assert finished is not None
        if prompt in self.borrowed:
            origin = Origin.BORROWED
        elif prompt in self.spares:
            origin = Origin.SPARE
        else:
            origin = Origin.STAMPED if group.step is not None else Origin.TAKEN
        offset, at = self._commits[prompt]
        return Made(
            prompt=prompt,
            origin=origin,
            staleness=self.step - finished.born,
            rollouts=finished.rollouts,
            rows=finished.rows,
            tokens=finished.tokens,
            worker=finished.worker,
            attempt=group.attempt,
            committed=offset,
            committed_at=at,
        )

    def _forget_old_shortfalls(self, state: State) -> None:
        """A change of sampler ends what the step was short of: it is filled anew."""
        shortfall = state.step(self.step).shortfall
        self.short = self.short[len(self.short) - shortfall :]

    def told(self, state: State) -> Answer:
        """What came of the step."""
        if self.trained is None:
            self._forget_old_shortfalls(state)
        for loan, how in self.loans.items():
            if how == OPEN and loan not in state.loans:
                self.loans[loan] = "ended with the settings"
        known = self.meant or bool(self.groups) or self.step <= state.version
        return Answer(
            known=known,
            verdict=self._verdict(state, known),
            parts=tuple(self._parts(state)),
            details={
                "step": self.step,
                "trained_at": self.trained,
                "wanted": self.wanted if self.trained is not None else None,
                "groups": [asdict(each) | {"origin": each.origin.value} for each in self.groups],
                "staleness": {str(age): number for age, number in sorted(self._staleness().items())},
                "short": self.short,
                "missing": self._missing(),
                "borrowed": {str(prompt): each.lender for prompt, each in self.borrowed.items()},
                "lent": {str(prompt): each.borrower for prompt, each in self.lent.items()},
                "loans": {str(loan): how for loan, how in self.loans.items()},
                "waited_s": self._waited(),
            },
        )

    def _verdict(self, state: State, known: bool) -> str:
        name = f"step {self.step}"
        if not known:
            return f"{name} has not begun: the run stands at v{state.version}, nothing is meant for this step yet."
        there = counted(len(self.groups), "group")
        if self.trained is not None:
            less = f" of {self.wanted} wanted" if len(self.groups) != self.wanted else ""
            answers, rows = sum(each.rollouts for each in self.groups), sum(each.rows for each in self.groups)
            rollouts = counted(answers, "rollout") + (f" in {counted(rows, 'row')}" if rows > answers else "")
            tokens = counted(sum(each.tokens for each in self.groups), "token")
            moved = f"v{self.step} -> v{self.step + 1} (@{self.trained:,})"
            return f"{name} trained {there}{less}, {rollouts}, {tokens}, {moved}"
        places = Counter(group.place for group in state.groups.values() if group.step == self.step)
        waits = [f"{places[place]} {place.value.replace('_', ' ')}" for place in OPEN_PLACES if places[place]]
        return f"{name} is not trained yet: {', '.join([f'{there} selected', *waits])}."

    def _parts(self, state: State) -> Iterator[str]:
        """The groups by how they came, what is lacking, then ages and the wait."""
        by = {origin: [each.prompt for each in self.groups if each.origin is origin] for origin in Origin}
        if by[Origin.STAMPED]:
            yield f"{len(by[Origin.STAMPED])} stamped for step {self.step}: {ordinals(by[Origin.STAMPED])}"
        if by[Origin.TAKEN]:
            sampler = state.rules.sampler if state.rules else ""
            yield f"{len(by[Origin.TAKEN])} taken by {sampler}, which stamps nothing: {ordinals(by[Origin.TAKEN])}"
        for prompt in by[Origin.SPARE]:
            yield f"1 spare, prompt {prompt} {self.spares[prompt]}"
        for prompt in by[Origin.BORROWED]:
            terms = self.borrowed[prompt]
            because = f"because prompt {terms.dropped} was {self._how(terms.dropped)}"
            yield (
                f"1 borrowed from step {terms.lender}, prompt {prompt}, {because}; loan {terms.loan}, "
                f"{self.loans[terms.loan]}"
            )
        for prompt in self.short:
            yield f"1 short, because prompt {prompt} was {self._how(prompt)}"
        if missing := self._missing():
            yield f"{missing} missing: the step had begun, and the data was at its end"
        for prompt, terms in self.lent.items():
            yield f"lent to step {terms.borrower}: prompt {prompt}; loan {terms.loan}, {self.loans[terms.loan]}"
        if self.groups:
            ages = "   ".join(f"{age}: {number}" for age, number in sorted(self._staleness().items()))
            yield f"staleness of all {len(self.groups)}   {ages}"
        waited = self._waited()
        if waited is not None:
            last = max(self.groups, key=lambda each: each.committed)
            yield (
                f"waited {waited:.1f} s for the last group "
                f"(prompt {last.prompt}, {last.worker}, attempt {last.attempt})"
            )

    def _how(self, prompt: int) -> str:
        return self.gone.get(prompt, "given up")

    def _missing(self) -> int:
        return self.wanted - len(self.groups) - len(self.short) if self.trained is not None else 0

    def _staleness(self) -> Counter[int]:
        return Counter(each.staleness for each in self.groups)

    def _waited(self) -> float | None:
        """None before the last group is there."""
        if self.trained is None or self.began is None or not self.groups:
            return None
        return round(max(0.0, max(each.committed_at for each in self.groups) - self.began), 3)
