"""The life of a loan: which finished group moved between which steps, why, who owes it, and how the debt ended.

Rule 1: a debt has one debtor at a time; a spare that stands in for a debtor owes in its place.
"""

from dataclasses import dataclass, field

from rollog.events.log import Entry
from rollog.events.vocabulary import Borrow, Dispatch, Drop, Event, Filter, Repay, Replace, Retry, Shrink
from rollog.replay.state import State
from rollog.replay.story import Answer, Fact, losses, note
from rollog.replay.wording import words


@dataclass(slots=True)
class LoanStory:
    """Follows one loan."""

    loan: int
    facts: list[Fact] = field(default_factory=list)
    terms: Borrow | None = None
    because: str = ""
    debtor: int | None = None
    end: str | None = None

    def follow(self, state: State, entry: Entry) -> None:
        """Take the next entry; ``state`` is the State before it."""
        lost = dict(losses(state, entry.events))
        debtor = self.debtor
        for event in entry.events:
            if isinstance(event, Borrow) and event.loan == self.loan:
                self.terms, self.debtor = event, event.spare
                self.because = f"prompt {event.dropped} was {lost.get(event.dropped, 'given up')}"
        note(
            self.facts,
            entry,
            [words(event) for event in entry.events if self._ends_or_moves(event) or self._is_told(event, debtor)],
        )

    def _ends_or_moves(self, event: Event) -> bool:
        match event:
            case Repay() if event.loan == self.loan:
                self.end, self.debtor = f"repaid by prompt {event.prompt}", None
            case Shrink() if event.loan == self.loan:
                self.end, self.debtor = f"it cannot be paid, step {event.step} closes one group short", None
            case Replace() if event.dropped == self.debtor:
                self.debtor = event.spare
            case _:
                return False
        return True

    def _is_told(self, event: Event, debtor: int | None) -> bool:
        """The loan itself, and what becomes of whoever owed it before this entry, or owes it now."""
        match event:
            case Borrow():
                return event.loan == self.loan or event.dropped == debtor is not None
            case Drop() | Filter():
                return event.prompt == debtor or (self.terms is not None and event.prompt == self.terms.dropped)
            case Dispatch() | Retry():
                return self.debtor is not None and event.prompt == self.debtor
            case _:
                return False

    def told(self, state: State) -> Answer:
        """What came of the loan."""
        if self.terms is None:
            there = f"loans are numbered from 0, and {state.loans_made} were made"
            return Answer(known=False, verdict=f"loan {self.loan} was never made: {there}.")
        terms, end = self.terms, self.end or self._open(state)
        return Answer(
            known=True,
            verdict=(
                f"loan {self.loan}: step {terms.lender} lent prompt {terms.prompt} to step {terms.borrower}, because "
                f"{self.because}; {end}."
            ),
            details={
                "loan": self.loan,
                "prompt": terms.prompt,
                "lender": terms.lender,
                "borrower": terms.borrower,
                "dropped": terms.dropped,
                "spare": terms.spare,
                "open": self.loan in state.loans,
                "debtor": self.debtor if self.loan in state.loans else None,
            },
        )

    def _open(self, state: State) -> str:
        if self.loan not in state.loans or self.debtor is None:
            return "it ended with the settings"
        group = state.groups[self.debtor]
        return f"still open, owed by prompt {self.debtor} ({group.place.value.replace('_', ' ')})"
