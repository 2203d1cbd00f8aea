"""The end of the data, under every sampler: a step already begun closes with what there is; else a last short step, if
the floor allows it; else a checkpoint, and an end that names what is left. N = 4."""

from typing import Any

import pytest

from rollog.events.vocabulary import Exhaust, FailureKind, Finish, FinishReason, Save, Select, Stop
from rollog.pipeline.waiting import WaitFor
from rollog.replay.state import Place
from stage import Stage, small_plan

UNSTAMPED = ("windowed", "ready_first", "weight_fifo")


def ending(name: str, num_rows: int = 7, *, fraction: float = 0.5, window: int = 1, **flow: Any) -> Stage:
    """Data for one whole step and a rest; prompts are given up at their first failure."""
    failure = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited", "min_step_fraction": fraction}
    key = "lookahead" if name == "in_order" else "max_staleness"
    return Stage(small_plan(sampler={"name": name, key: window}, failure=failure, flow=flow), num_rows=num_rows)


@pytest.mark.parametrize("name", ["windowed", "ready_first"])
def test_what_is_left_and_reaches_the_floor_is_a_last_short_step(name: str) -> None:
    stage = ending(name, num_rows=8)
    stage.fail(0, FailureKind.DATA)
    stage.finish(1, 2, 3, 4)
    stage.train()
    stage.finish(5, 6, 7)

    assert stage.events(Select)[-1] == Select(step=1, chunk=0, prompts=(5, 6, 7), last=True)
    stage.train()
    stage.save()
    assert stage.events(Finish) == [Finish(reason=FinishReason.EXHAUSTED, left=())]


@pytest.mark.parametrize("name", ["windowed", "ready_first"])
def test_what_is_left_below_the_floor_is_not_trained_and_is_named(name: str) -> None:
    stage = ending(name, num_rows=8, fraction=0.9)
    stage.fail(0, FailureKind.DATA)
    stage.finish(1, 2, 3, 4)
    stage.train()
    stage.finish(5, 6, 7)
    assert stage.events(Save)[-1].version == 1
    assert stage.waits_for() is WaitFor.CHECKPOINT, "the end comes only when everything trained is durable"
    stage.save()

    assert stage.events(Finish) == [Finish(reason=FinishReason.EXHAUSTED, left=(5, 6, 7))]
    assert stage.events(Stop) == [], "the end of the data is no failure"


@pytest.mark.parametrize("name", UNSTAMPED)
def test_a_step_already_begun_closes_with_what_there_is_even_below_the_floor(name: str) -> None:
    stage = ending(name, num_rows=8, fraction=0.9, min_groups_for_streaming=1)
    stage.finish(0, 1, 2, 3)
    stage.train()
    stage.finish(4)
    assert stage.state.step(1).taken == 1
    stage.fail(5, FailureKind.DATA)
    stage.fail(6, FailureKind.DATA)
    assert not stage.state.step(1).closed
    stage.fail(7, FailureKind.DATA)

    assert stage.events(Select)[-1] == Select(step=1, chunk=1, prompts=(), last=True)
    stage.train()
    assert stage.steps[1] == (4,)


def test_weight_fifo_begins_its_last_step_when_no_order_of_the_oldest_weights_runs_so_it_always_closes() -> None:
    stage = ending("weight_fifo", num_rows=8, fraction=0.9)
    stage.finish(0, 1, 2, 3)
    stage.train()
    stage.finish(4, 5, 6)
    assert stage.state.step(1).chunks == [], "7 was sent with the same weights"
    stage.fail(7, FailureKind.DATA)

    chosen = [select for select in stage.events(Select) if select.step == 1]
    assert [(select.prompts, select.last) for select in chosen] == [((4, 5, 6), False), ((), True)]


def test_a_shrunk_last_step_of_in_order_is_as_long_as_its_target() -> None:
    stage = ending("in_order", num_rows=8)
    stage.finish(0, 1, 2, 3)
    stage.train()
    stage.fail(6, FailureKind.DATA)
    stage.finish(4, 5, 7)
    stage.train()
    stage.save()

    assert stage.steps[1] == (4, 5, 7)
    assert stage.events(Finish)[-1].left == ()


@pytest.mark.parametrize("name", ["in_order", *UNSTAMPED])
def test_prompts_that_fill_no_batch_are_never_handed_out(name: str) -> None:
    stage = ending(name, num_rows=7)
    stage.finish(0, 1, 2, 3)

    assert stage.events(Exhaust) == [Exhaust(left=3)]
    assert stage.state.handed_out == 4


@pytest.mark.parametrize("name", ["windowed", "ready_first"])
def test_the_last_step_waits_for_everything_that_still_runs_or_backs_off(name: str) -> None:
    stage = ending(name, num_rows=8)
    stage.finish(0, 1, 2, 3)
    stage.train()
    stage.finish(4, 5, 6)
    assert not stage.state.step(1).chunks
    stage.fail(7)
    assert stage.at(Place.BACKING_OFF) == [7]
    assert not stage.state.step(1).chunks
    stage.after(2)
    stage.finish(7)

    assert stage.events(Select)[-1].prompts == (4, 5, 6, 7)
