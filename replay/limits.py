"""What the settings in force allowed: room, floors, budgets, and who lends.

Rule 1: an entry is judged by the settings that the log itself records up to it (Start, Configure), never by a plan.
Rule 2: a lowered limit takes nothing back: what stood above it may stay, and only what is begun later is judged.
Rule 3: a setting that is null, or that an older log lacks, is not judged: how it is derived is not the log's to say.

    in flight    <= flow.max_inflight_prompts after a Dispatch; a spare sent in the entry in which an attempt ended
                    may take the room that this attempt had
    open groups  <= flow.max_buffered_groups after an Admit; the batch that completes a partial step passes no gate
    closed step  >= ceil(prompts_per_step x failure.min_step_fraction) groups, an IEEE double product, until the data
                    is exhausted; under compaction prompts_per_step, always
    requeues, spares tried in one place, data drops of the run, infra drops in a row <= failure.max_...
    a loan       comes from the furthest later step with a finished group: of those the one dispatched first
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rollog.events.vocabulary import Admit, Borrow, Dispatch, Drop, Event, FailureKind, Filter, Replace, Requeue, Select
from rollog.replay.state import Place, State

ROOM: Final = "no more in flight and open than there is room for"
FLOOR: Final = "no step closed below its floor"
BUDGETS: Final = "requeues, replacements and drops within their budgets"
LENDER: Final = "each loan from the furthest later step, its first group"

LIMITS: Final = (ROOM, FLOOR, BUDGETS, LENDER)

Break = tuple[str, str]
"""A law, and how it is broken."""


def exceeded(state: State, events: Sequence[Event], in_flight: int, cursor: int) -> Iterator[Break]:
    """How one entry exceeds what it was allowed. ``state``: after it. ``in_flight``, ``cursor``: before it."""
    for event in events:
        match event:
            case Dispatch():
                yield from _in_flight(state, events, in_flight)
            case Admit() if event.batch != cursor:
                yield from _within(state, ROOM, "flow.max_buffered_groups", state.num_open(), "groups open")
            case Select() if event.last and event.step in state.steps:
                yield from _floor(state, event)
            case Requeue():
                for group in (state.groups[prompt] for prompt in event.prompts if prompt in state.groups):
                    what = f"times that prompt {group.prompt} was handed out again"
                    yield from _within(state, BUDGETS, "failure.max_requeues", group.requeues, what)
            case Replace():
                yield from _replacements(state, event)
            case Borrow():
                yield from _replacements(state, event)
                yield from _lender(state, event)
            case Drop(kind=FailureKind.DATA):
                yield from _within(state, BUDGETS, "failure.max_skipped_prompts", state.skipped, "prompts skipped")
            case Drop(kind=FailureKind.INFRA):
                name = "failure.max_consecutive_dropped_prompts"
                yield from _within(state, BUDGETS, name, state.consecutive_drops, "prompts dropped in a row")
            case _:
                pass


def _in_flight(state: State, events: Sequence[Event], before: int) -> Iterator[Break]:
    """An attempt that ended with its prompt leaves its room to the spare, above a lowered limit too."""
    name = "flow.max_inflight_prompts"
    now = state.count(Place.IN_FLIGHT)
    if now > before or not any(isinstance(event, (Drop, Filter)) for event in events):
        yield from _within(state, ROOM, name, now, "prompts in flight")


def _floor(state: State, event: Select) -> Iterator[Break]:
    size, fraction = _limit(state, "grpo.prompts_per_step"), _limit(state, "failure.min_step_fraction")
    if size is None or fraction is None:
        return
    taken = state.steps[event.step].taken
    if _compacts(state):
        if taken != size:
            yield FLOOR, f"step {event.step} closes with {taken} groups, under compaction it needs {size}"
        return
    floor = math.ceil(size * fraction)
    if taken < floor and not state.exhausted:
        yield FLOOR, f"step {event.step} closes with {taken} groups, failure.min_step_fraction={fraction} asks {floor}"


def _replacements(state: State, event: Replace | Borrow) -> Iterator[Break]:
    what = f"spares tried for prompt {event.dropped}"
    yield from _within(state, BUDGETS, "failure.max_replacement_attempts", event.nth, what)


def _lender(state: State, event: Borrow) -> Iterator[Break]:
    """What was lent stands at the borrower's step by now; no group that is left may come before it."""
    best, lent = state.ready.furthest_after(event.borrower), state.groups.get(event.prompt)
    if best is None or lent is None:
        return
    other = state.groups[best]
    step = -1 if other.step is None else other.step
    if (step, -other.slot) > (event.lender, -lent.slot):
        yield LENDER, f"step {event.lender} lends prompt {lent.prompt}, and prompt {best} of step {step} comes first"


def _within(state: State, law: str, name: str, have: int, what: str) -> Iterator[Break]:
    limit = _limit(state, name)
    if limit is not None and have > limit:
        yield law, f"{have} {what}, {name}={limit}"


def _compacts(state: State) -> bool:
    section = state.settings.get("compaction")
    return isinstance(section, dict) and section.get("enabled") is True


def _limit(state: State, name: str) -> float | None:
    """A setting by its dotted name; None when nothing is set that is a number (null, ``unlimited``)."""
    section, key = name.split(".")
    held = state.settings.get(section)
    value = held.get(key) if isinstance(held, dict) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


__all__ = ("BUDGETS", "FLOOR", "LENDER", "LIMITS", "ROOM", "Break", "exceeded")
