"""The laws that every State obeys, at every offset.

A law looks at one State and yields how it is broken. What only a history can show is in ``invariants``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rollog.replay.errors import BrokenInvariant
from rollog.replay.state import Place, State

ONE_PLACE: Final = "every prompt in exactly one place"


def _conservation(state: State) -> Iterator[str]:
    """Every ordinal handed out is in exactly one place."""
    if state.handed_out != len(state.groups) + state.settled():
        yield (
            f"{state.handed_out} prompts were handed out, but {len(state.groups)} are in a place "
            f"and {state.settled()} settled"
        )
    groups = state.groups
    for place, prompts in state.places.items():
        for prompt in prompts:
            if prompt not in groups or groups[prompt].place is not place:
                yield f"prompt {prompt} is listed at {place.value} and is not there"
    if sum(map(len, state.places.values())) != len(groups):
        yield "a prompt is in two places or in none"


def _standing(state: State) -> Iterator[str]:
    """The trainer never stands above the version, and below it only over recorded steps."""
    if not 0 <= state.standing <= state.version:
        yield f"the trainer stands at {state.standing} and the version is {state.version}"
    for step in range(state.standing, state.version):
        if not state.step(step).closed:
            yield f"step {step} must be trained again, and its selections are gone"


def _steps(state: State) -> Iterator[str]:
    """A step takes no more groups than its target, and selected groups wait for the step at hand."""
    selected: set[int] = set()
    for number, step in state.steps.items():
        if number < state.version:
            continue
        if step.taken > state.target(number):
            yield f"step {number} took {step.taken} groups, {state.target(number)} wanted"
        if step.closed and number > state.version:
            yield f"step {number} is closed before step {state.version} is trained"
        selected.update(member.prompt for member in step.members())
    if selected != state.places[Place.SELECTED].keys():
        yield f"the selections name {sorted(selected)}, the places {sorted(state.places[Place.SELECTED])}"


def _stamps(state: State) -> Iterator[str]:
    """in_order: each admitted step has its full number of prompts, finished, running, selected or given up."""
    if state.rules is None or state.rules.sampler != "in_order":
        return
    meant: dict[int, int] = {}
    filling, cursor = state.filling, state.cursor
    for group in state.groups.values():
        stamp = group.step
        if group.place is Place.RESERVE or group.place is Place.SELECTED:
            continue
        if stamp is None or not filling <= stamp <= cursor:
            yield f"prompt {group.prompt} ({group.place.value}) is stamped {stamp}"
            continue
        meant[stamp] = meant.get(stamp, 0) + 1
    for number in range(filling, cursor + 1):
        step, target = state.step(number), state.target(number)
        have = meant.get(number, 0) + step.taken
        lacks = number < cursor and have < target  # the last one is completed first
        if (lacks or have > target) and not step.closed:
            yield f"step {number} can never have its {target} groups: {have} are meant for it"


def _weights(state: State) -> Iterator[str]:
    """A group is born of weights at least as new as its order asked for, and never of weights to come."""
    version = state.version
    for group in state.groups.values():
        if group.weights > version:
            yield f"prompt {group.prompt} is ordered with weights {group.weights} at version {version}"
        made = group.finished
        if made is not None and not group.weights <= made.born <= made.done <= version:
            yield (
                f"prompt {group.prompt} was ordered with weights {group.weights}, made by {made.born} to "
                f"{made.done} at version {version}"
            )
    if state.published and max(state.published) > version:
        yield f"weights {max(state.published)} are published, the version is {version}"


def _loans(state: State) -> Iterator[str]:
    """Every open loan has a living spare that owes it, and the other way round."""
    owing = {group.loan: group.prompt for group in state.groups.values() if group.loan is not None}
    for loan, terms in state.loans.items():
        if owing.get(loan) != terms.spare:
            yield f"loan {loan} is owed by prompt {terms.spare}, which does not know of it"
    for loan, prompt in owing.items():
        if loan not in state.loans:
            yield f"prompt {prompt} owes loan {loan}, which is not open"


def _attempts(state: State) -> Iterator[str]:
    """A prompt in flight has an order; no other has."""
    for group in state.groups.values():
        if (group.order is not None) != (group.place is Place.IN_FLIGHT):
            yield f"prompt {group.prompt} is {group.place.value} and its order is {group.order}"


LAWS: Final[Mapping[str, Callable[[State], Iterator[str]]]] = {
    ONE_PLACE: _conservation,
    "the trainer stands at or below the version": _standing,
    "no step takes more than its target": _steps,
    "no stamped step can be stranded": _stamps,
    "no group older or newer than its order allows": _weights,
    "every loan has its debtor": _loans,
    "an order for each prompt in flight": _attempts,
}


def check(state: State) -> None:
    """Raise ``BrokenInvariant`` for the first law that does not hold."""
    for law, broken in LAWS.items():
        for how in broken(state):
            raise BrokenInvariant(state.offset, law, how)
