"""The reserve: whole batches that leave the data without becoming a step, and what becomes of them.

N = 3 throughout: without reserve, step s has the prompts 3s, 3s + 1, 3s + 2.
"""

from typing import Any

import pytest

from rollog.events.vocabulary import Admit, Dispatch, Divert, FailureKind, Finish, FinishReason, Replace, Shrink, Stamp
from rollog.pipeline.waiting import WaitFor
from rollog.replay.state import Place
from stage import Stage, small_plan

N = 3
REPLACES = {
    "on_dropped_prompt": "replace",
    "max_infra_attempts": 1,
    "max_consecutive_dropped_prompts": 100,
    "min_step_fraction": 0.1,
}


def run_with(*, mark: int = 1, attempts: int = 1, num_rows: int = 60, **sections: Any) -> Stage:
    """A run in which a prompt is given up at its first failure and a spare stands in."""
    failure = REPLACES | {"reserve_prompts": mark, "max_replacement_attempts": attempts} | sections.pop("failure", {})
    return Stage(small_plan(grpo={"prompts_per_step": N}, failure=failure, **sections), num_rows=num_rows)


def diverted(stage: Stage) -> list[tuple[int, ...]]:
    return [divert.prompts for divert in stage.events(Divert)]


# --- diverting --------------------------------------------------------------------------------------------------------


def test_the_first_batch_is_admitted_and_the_second_fills_the_reserve() -> None:
    stage = run_with()

    assert [type(e.events[0]) for e in stage.entries() if isinstance(e.events[0], Admit | Divert)] == [
        Admit,
        Divert,
        Admit,
    ]
    assert stage.events(Admit)[0].prompts == (0, 1, 2)
    assert diverted(stage) == [(3, 4, 5)]


def test_a_mark_of_1_refills_only_when_the_reserve_is_empty() -> None:
    stage = run_with()
    for number, prompt in enumerate((0, 1, 2)):
        assert stage.state.count(Place.RESERVE) == N - number
        assert len(diverted(stage)) == 1
        stage.fail(prompt)

    assert diverted(stage) == [(3, 4, 5), (9, 10, 11)]
    assert stage.at(Place.RESERVE) == [9, 10, 11]


def test_a_mark_above_n_diverts_two_batches_in_a_row() -> None:
    stage = run_with(mark=4)

    assert diverted(stage) == [(3, 4, 5), (6, 7, 8)]
    assert stage.at(Place.RESERVE) == [3, 4, 5, 6, 7, 8]


def test_diverting_burns_no_stamp_and_uses_up_no_capacity() -> None:
    stage = run_with(mark=4, sampler={"lookahead": 1})

    assert [(stamp.step, stamp.prompts) for stamp in stage.events(Stamp)] == [(0, (0, 1, 2)), (1, (9, 10, 11))]
    assert stage.state.cursor == 1
    assert stage.state.num_open() == stage.policy.capacity == 2 * N


def test_diverting_waits_for_neither_gate_nor_capacity() -> None:
    stage = run_with(sampler={"lookahead": 0})
    assert diverted(stage) == [(3, 4, 5)], "step 0 fills the window of K = 0"
    for prompt in (0, 1, 2):
        stage.fail(prompt)

    assert stage.waits_for() is WaitFor.GATE
    assert diverted(stage) == [(3, 4, 5), (6, 7, 8)]


def test_under_memory_pressure_nothing_is_diverted() -> None:
    stage = run_with(sampler={"lookahead": 0})
    stage.server.under_pressure = True
    for prompt in (0, 1, 2):
        stage.fail(prompt)

    assert diverted(stage) == [(3, 4, 5)]
    assert stage.waits_for(pressure=True) is WaitFor.MEMORY


@pytest.mark.parametrize("name", ["windowed", "ready_first", "weight_fifo"])
def test_without_stamps_nothing_is_diverted_and_nobody_stands_in(name: str) -> None:
    stage = run_with(sampler={"name": name, "max_staleness": 1})
    stage.fail(0)

    assert diverted(stage) == []
    assert stage.events(Replace) == stage.events(Shrink) == []


def test_a_run_that_shrinks_diverts_nothing() -> None:
    assert diverted(run_with(failure={"on_dropped_prompt": "shrink"})) == []


# --- standing in ------------------------------------------------------------------------------------------------------


def test_the_first_of_the_reserve_stands_in_and_its_order_goes_out_in_the_entry_of_the_drop() -> None:
    stage = run_with(flow={"max_inflight_prompts": N})
    assert stage.state.count(Place.IN_FLIGHT) == N
    before = stage.state.offset
    stage.fail(1)

    (entry,) = stage.entries(before + 2)  # after the report that new weights are loaded
    assert entry.events[1:] == (
        Replace(step=0, dropped=1, spare=3, nth=1),
        Stamp(prompts=(3,), step=0),
        Dispatch(prompt=3, attempt=1, step=0, weights=0),
    )
    assert stage.state.count(Place.IN_FLIGHT) == N, "it takes the room of the attempt that ended"


def test_spares_are_taken_in_the_order_of_the_data_and_nothing_is_put_back() -> None:
    stage = run_with()
    for prompt in (2, 0):
        stage.fail(prompt)

    assert [(event.dropped, event.spare) for event in stage.events(Replace)] == [(2, 3), (0, 4)]
    assert stage.at(Place.RESERVE) == [5]


def test_a_spare_has_budgets_of_its_own() -> None:
    stage = run_with(failure={"max_infra_attempts": 2, "backoff_base_s": 0})
    stage.fail(0)
    stage.fail(0)
    (replaced,) = stage.events(Replace)
    stage.fail(replaced.spare)

    assert stage.state.groups[replaced.spare].infra_failures == 1
    assert len(stage.events(Replace)) == 1


def test_spares_in_one_place_of_a_step_are_counted_and_the_step_shrinks_beyond_the_limit() -> None:
    stage = run_with(attempts=2)
    stage.fail(0)
    stage.fail(3)
    stage.fail(4)

    assert [(event.dropped, event.spare, event.nth) for event in stage.events(Replace)] == [(0, 3, 1), (3, 4, 2)]
    assert stage.events(Shrink) == [Shrink(step=0, prompt=4)]
    assert stage.at(Place.RESERVE) == [5], "spares are left, and this place may have no more"
    stage.fail(1)
    assert stage.events(Replace)[-1] == Replace(step=0, dropped=1, spare=5, nth=1)


def test_with_an_empty_reserve_the_step_shrinks() -> None:
    stage = run_with(sampler={"lookahead": 1}, num_rows=9)
    for prompt in (6, 7, 8):
        stage.fail(prompt)
    assert stage.state.count(Place.RESERVE) == 0
    stage.fail(0)

    assert stage.events(Shrink) == [Shrink(step=0, prompt=0)]
    stage.finish(1, 2)
    stage.train()
    assert stage.steps[0] == (1, 2)


def test_the_reserve_stands_after_a_crash_as_it_stood_before() -> None:
    stage = run_with(mark=4)
    stage.fail(0)
    before = stage.at(Place.RESERVE)
    stage.kill_controller()
    stage.resume()

    assert stage.at(Place.RESERVE) == before == [4, 5, 6, 7, 8]
    assert len(diverted(stage)) == 2


# --- the end of the data ----------------------------------------------------------------------------------------------


def finish_all(stage: Stage) -> Finish:
    """Everything succeeds from here on."""
    for _ in range(40):
        if stage.state.finish is not None:
            return stage.events(Finish)[-1]
        stage.finish(*stage.at(Place.IN_FLIGHT))
        if stage.state.filling > stage.state.version:
            stage.train()
        elif stage.state.version in stage.state.saves:
            stage.save()
    raise AssertionError("the run does not end")


def test_at_the_end_the_reserve_is_trained_in_whole_steps() -> None:
    stage = run_with(mark=4, num_rows=15)
    ending = finish_all(stage)

    assert ending == Finish(reason=FinishReason.EXHAUSTED, left=())
    assert list(stage.steps.values()) == [(0, 1, 2), (9, 10, 11), (12, 13, 14), (3, 4, 5), (6, 7, 8)]
    assert [admit.batch for admit in stage.events(Admit)] == [0, 1, 2, 3, 4]


def test_nothing_is_drained_before_every_dispatched_prompt_has_settled() -> None:
    stage = run_with(num_rows=9, failure={"max_infra_attempts": 2, "backoff_base_s": 20})
    stage.finish(0, 1, 2, 6, 7)
    stage.fail(8)
    stage.train()
    assert (stage.at(Place.BACKING_OFF), stage.at(Place.IN_FLIGHT)) == ([8], [])
    assert len(stage.events(Admit)) == 2
    stage.after(20)
    assert len(stage.events(Admit)) == 2, "8 is being answered"
    stage.finish(8)

    assert [admit.prompts for admit in stage.events(Admit)][2:] == [(3, 4, 5)]


def test_the_drain_passes_the_gate() -> None:
    stage = run_with(mark=4, num_rows=9, sampler={"lookahead": 0})
    stage.finish(0, 1, 2)
    assert stage.at(Place.RESERVE) == [3, 4, 5, 6, 7, 8]
    assert len(stage.events(Admit)) == 1
    stage.train()

    assert [admit.prompts for admit in stage.events(Admit)] == [(0, 1, 2), (3, 4, 5)]
    finish_all(stage)
    assert stage.steps == {0: (0, 1, 2), 1: (3, 4, 5), 2: (6, 7, 8)}


def test_fewer_than_n_spares_are_not_trained_and_are_named_at_the_end() -> None:
    stage = run_with(num_rows=9)
    stage.fail(0)
    ending = finish_all(stage)

    assert ending == Finish(reason=FinishReason.EXHAUSTED, left=(4, 5))
    assert list(stage.steps.values()) == [(1, 2, 3), (6, 7, 8)]


def test_a_run_that_is_resumed_to_shrink_drains_its_reserve_too() -> None:
    stage = run_with(num_rows=9)
    stage.kill_controller()
    failure = REPLACES | {"on_dropped_prompt": "shrink", "reserve_prompts": 1, "max_replacement_attempts": 1}
    stage.resume(small_plan(grpo={"prompts_per_step": N}, failure=failure))
    stage.after(12)
    stage.fail(0)
    assert stage.events(Shrink) == [Shrink(step=0, prompt=0)]
    finish_all(stage)

    assert list(stage.steps.values()) == [(1, 2), (6, 7, 8), (3, 4, 5)]


def test_no_spares_are_drained_for_a_step_beyond_max_steps() -> None:
    stage = Stage(small_plan(grpo={"prompts_per_step": N, "max_steps": 2}, failure=REPLACES), num_rows=9)
    ending = finish_all(stage)

    assert ending == Finish(reason=FinishReason.MAX_STEPS, left=(3, 4, 5))


def test_a_drained_prompt_that_fails_has_nobody_to_stand_in_when_the_reserve_is_empty() -> None:
    stage = run_with(num_rows=6)
    stage.finish(0, 1, 2)
    assert [admit.prompts for admit in stage.events(Admit)] == [(0, 1, 2), (3, 4, 5)]
    stage.train()
    stage.fail(4, FailureKind.INFRA)
    finish_all(stage)

    assert stage.steps[1] == (3, 5)
