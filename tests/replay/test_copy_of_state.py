"""``State.copy``: whoever folds on from a copy changes nothing of the State that it was taken from."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.histories import draw
from rollog.replay.plain import state_digest
from rollog.replay.projector import fold, fold_all
from rollog.replay.state import State


def changeable(value: Any) -> Iterator[int]:
    """Everything in a State that can be changed in place, by identity."""
    if is_dataclass(value) and not isinstance(value, type):
        if not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
            yield id(value)
        for each in fields(value):
            if each.name != "settings":
                yield from changeable(getattr(value, each.name))
        if isinstance(value, State):
            yield id(value.settings)  # its sections are never changed, but replaced
    elif isinstance(value, dict):
        yield id(value)
        for item in value.values():
            yield from changeable(item)
    elif isinstance(value, (list, tuple)):
        if isinstance(value, list):
            yield id(value)
        for item in value:
            yield from changeable(item)


@pytest.mark.parametrize("seed", [0, 3, 8])
def test_a_copy_is_the_same_state_and_shares_nothing_that_can_change(seed: int) -> None:
    history = draw(seed)
    entries = list(
        simulate(history.plan, history.num_rows, history.script, others=history.others).world.server.log().read()
    )
    state = State()
    for entry in entries:
        fold(state, entry)
        copy = state.copy()
        assert copy == state
        assert not {*changeable(copy)} & {*changeable(state)}, f"shared after entry {entry.offset}"


@pytest.mark.parametrize("seed", [0, 3, 8])
def test_what_is_folded_onto_a_copy_does_not_show_in_the_original(seed: int) -> None:
    history = draw(seed)
    entries = list(
        simulate(history.plan, history.num_rows, history.script, others=history.others).world.server.log().read()
    )
    state, end = State(), fold_all(entries)
    for entry in entries[:-1]:
        fold(state, entry)
        if entry.offset % 20 == 1:
            before = state_digest(state)
            assert fold_all(entries[entry.offset :], state.copy()) == end
            assert state_digest(state) == before
