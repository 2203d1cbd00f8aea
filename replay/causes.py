"""Why an entry stands in the log: the earlier entries that its events rest on.

Rule 1: causes are read off the log alone, in one pass, with maps of what came last; no clock, no guess.
Rule 2: a cause is what the event is *about* (its prompt's order, its step's groups), not what opened a gate for it:
        else every entry would rest on all before it.

    Commit, Retry, Drop, Cancel <- the prompt's latest Dispatch or Retry     Dispatch <- what made the prompt wait
    Select <- Commits of its prompts    Train <- Selects of its step         Publish, Save <- Train of that version
    Checkpoint <- Save                  Load <- Publish                      Finish <- Stop, else the last Train
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Admit,
    Archive,
    Borrow,
    Cancel,
    Checkpoint,
    Commit,
    Configure,
    Dispatch,
    Divert,
    Drop,
    Event,
    Evict,
    Exhaust,
    Filter,
    Finish,
    Fork,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Open,
    Publish,
    Repay,
    Replace,
    Requeue,
    Resume,
    Retry,
    Save,
    Select,
    Shrink,
    Stall,
    Stamp,
    Start,
    Stop,
    Train,
)

Key = tuple[str, int | str | None]
"""What an entry can be the latest word on: ("prompt", 17), ("step", 9), ("version", 9), ("worker", "gen-0"), ..."""


@dataclass(slots=True)
class Causes:
    """Follows a log; ``of[offset]`` are the offsets of an entry's direct causes, ascending."""

    of: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _latest: dict[Key, int] = field(default_factory=dict)
    _selects: dict[int, list[int]] = field(default_factory=dict)

    def follow(self, entry: Entry) -> None:
        """Take the next entry."""
        found: set[int] = set()
        trained = any(isinstance(event, Train) for event in entry.events)
        for event in entry.events:
            if isinstance(event, Train):
                found.update(self._selects.get(event.step, ()))
            elif not (isinstance(event, Publish) and trained):  # the Train beside it says why
                found.update(self._latest[key] for key in _rests_on(event) if key in self._latest)
        self.of[entry.offset] = tuple(sorted(found))
        for event in entry.events:
            self._latest.update(dict.fromkeys(_speaks_of(event), entry.offset))
            if isinstance(event, Select):
                self._selects.setdefault(event.step, []).append(entry.offset)
            elif isinstance(event, Finish):
                self._latest.pop(("stop", None), None)  # the next Finish needs a Stop of its own

    def chain(self, offset: int) -> list[int]:
        """All entries that this one rests on, directly or not, ascending; itself not included."""
        reached: set[int] = set()
        ahead = [offset]
        while ahead:
            causes = self.of.get(ahead.pop(), ())
            ahead += [cause for cause in causes if cause not in reached]
            reached.update(causes)
        return sorted(reached)


def _each(kind: str, numbers: tuple[int, ...]) -> Iterator[Key]:
    return ((kind, number) for number in numbers)


def _rests_on(event: Event) -> Iterator[Key]:
    match event:
        case Stamp() | Evict() | Requeue() | Select():
            yield from _each("prompt", event.prompts)
        case Admit():  # a spare that is admitted was diverted before
            yield from _each("prompt", event.prompts)
        case Dispatch() | Retry() | Commit() | Drop() | Filter() | Cancel() | Shrink():
            yield ("prompt", event.prompt)
        case Late():
            yield ("prompt", event.prompt)
        case Replace():
            yield from _each("prompt", (event.dropped, event.spare))
        case Borrow():
            yield from _each("prompt", (event.dropped, event.spare, event.prompt))
        case Repay():
            yield from (("loan", event.loan), ("prompt", event.prompt))
        case Publish():
            yield from (("version", event.version), ("trainer", None))
        case Save():
            yield ("version", event.version)
        case Checkpoint():
            yield ("save", event.version)
        case Resume():
            yield ("checkpoint", event.version)
        case Load():
            yield from (("published", event.version), ("worker", event.worker))
        case Leave():
            yield ("worker", event.worker)
        case Configure():
            yield ("pen", None)
        case Open():
            yield from (("pen", None), ("end", None))
        case Stop():
            yield ("prompt", event.prompt)
        case Finish():
            yield from (("stop", None), ("durable", None), ("exhaust", None))
        case Train() | Start() | Fork() | Divert() | Join() | Exhaust() | Archive() | Stall() | Note():
            return


def _speaks_of(event: Event) -> Iterator[Key]:
    match event:
        case Admit() | Divert() | Evict() | Requeue() | Stamp():
            yield from _each("prompt", event.prompts)
        case Dispatch() | Retry() | Commit() | Drop() | Filter() | Cancel():
            yield ("prompt", event.prompt)
        case Replace():
            yield ("prompt", event.spare)
        case Borrow():
            yield from (("loan", event.loan), ("prompt", event.spare), ("prompt", event.prompt))
        case Train():
            yield ("version", event.step + 1)
        case Publish():
            yield ("published", event.version)
        case Save():
            yield ("save", event.version)
        case Checkpoint():
            yield from (("checkpoint", event.version), ("durable", None))
        case Start():
            yield from (("save", 0), ("trainer", None))
        case Resume():
            yield ("trainer", None)
        case Join() | Load() | Leave():
            yield ("worker", event.worker)
        case Open():
            yield ("pen", None)
        case Stop():
            yield ("stop", None)
        case Finish():
            yield ("end", None)
        case Exhaust():
            yield ("exhaust", None)
        case Late() | Select() | Shrink() | Repay() | Configure() | Fork() | Archive() | Stall() | Note():
            return
