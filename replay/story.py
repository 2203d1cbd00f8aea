"""What every answer of ``rollog why`` is made of: a story that follows the log, and the facts it rests on.

Rule 1: a story is told each entry with the State *before* it: what an event takes away still stands there.
Rule 2: a fact is one entry, in words that leave out the subject itself.
Rule 3: a story that has nothing to tell says so and what there is; it raises nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollog.events.log import Entry
from rollog.events.vocabulary import Drop, Event, Filter
from rollog.replay.state import State
from rollog.replay.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """An entry that a verdict rests on, and what it says. ``time``: wall time, seconds since 1970."""

    offset: int
    time: float
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``known``: whether the log knows the subject. ``parts``: lines that add up to the verdict. ``details``: plain."""

    known: bool
    verdict: str
    parts: tuple[str, ...] = ()
    cost: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Story(Protocol):
    """Follows a log for one subject."""

    facts: list[Fact]

    def follow(self, state: State, entry: Entry) -> None:
        """Take the next entry; ``state`` is the State before it."""

    def told(self, state: State) -> Answer:
        """What came of the subject; ``state`` is the State after the last entry."""


def note(facts: list[Fact], entry: Entry, texts: Iterable[str]) -> None:
    """Keep what an entry says of the subject, as one fact; nothing said is no fact."""
    if says := tuple(texts):
        facts.append(Fact(offset=entry.offset, time=entry.time, says=says))


def losses(state: State, events: Iterable[Event]) -> Iterator[tuple[int, str]]:
    """(prompt, how) of every prompt that these events of one entry give up or filter."""
    for event in events:
        if isinstance(event, Drop):
            tried = counted(state.groups[event.prompt].attempt, "attempt")
            yield event.prompt, f"dropped ({event.kind.value}, {tried})"
        elif isinstance(event, Filter):
            yield event.prompt, f"filtered ({event.reason.value})"
