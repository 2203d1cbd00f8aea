"""The five questions, in their order, and the condition that makes each answer safe.

1. is it over?    2. can a step take groups?    3. is there room in flight?    4. does nothing wait?
5. is the data at its end?
"""

import pytest

from rollog.events.vocabulary import (
    Admit,
    Dispatch,
    FailureKind,
    FinishReason,
    Select,
    Stamp,
    Stop,
    StopReason,
)
from rollog.pipeline.samplers import select
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.world import Script
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.state import Place
from stage import Stage, small_plan

# --- 4: admission -----------------------------------------------------------------------------------------------------


def test_a_batch_and_the_stamp_of_its_step_are_admitted_in_one_entry() -> None:
    stage = Stage(small_plan())

    admissions = [entry for entry in stage.entries() if isinstance(entry.events[0], Admit)]
    assert [[type(event) for event in entry.events] for entry in admissions] == [[Admit, Stamp]] * 2
    assert [stamp.step for stamp in stage.events(Stamp)] == [0, 1]
    assert stage.events(Admit)[1].prompts == (4, 5, 6, 7)


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_the_gate_leaves_at_most_k_plus_one_batches_outstanding(lookahead: int) -> None:
    stage = Stage(small_plan(sampler={"lookahead": lookahead}))

    assert stage.state.cursor == lookahead
    assert stage.state.handed_out == 4 * (lookahead + 1)
    assert stage.waits_for() is WaitFor.GATE


def test_one_version_more_frees_exactly_one_batch() -> None:
    stage = Stage(small_plan(sampler={"lookahead": 2}))
    for version in range(1, 5):
        stage.train_steps(1)
        assert stage.state.cursor == version + 2


def test_admission_waits_until_nothing_waits() -> None:
    stage = Stage(small_plan(flow={"max_inflight_prompts": 3}))

    assert stage.at(Place.IN_FLIGHT) == [0, 1, 2]
    assert stage.at(Place.WAITING) == [3]
    assert stage.state.cursor == 0
    assert stage.waits_for() is WaitFor.RESULTS


def test_a_larger_buffer_does_not_open_the_gate_and_the_capacity_needed_never_closes_it() -> None:
    exact = Stage(small_plan(flow={"max_buffered_groups": 8}))
    large = Stage(small_plan(flow={"max_buffered_groups": 100}))
    for stage in (exact, large):
        stage.train_steps(2)

    assert exact.state.cursor == large.state.cursor == 3


def test_finished_groups_that_no_step_has_taken_use_up_the_capacity() -> None:
    stage = Stage(small_plan())
    stage.finish(4, 5, 6, 7)

    assert stage.state.num_open() == stage.policy.capacity == 8


def test_under_memory_pressure_nothing_is_admitted_and_everything_else_goes_on() -> None:
    stage = Stage(small_plan())
    stage.server.under_pressure = True
    stage.finish(0, 1, 2, 3)
    stage.train()
    assert (stage.state.version, stage.state.cursor) == (1, 1)
    assert stage.waits_for(pressure=True) is WaitFor.MEMORY

    stage.server.under_pressure = False
    stage.settle()
    assert stage.state.cursor == 2


def test_no_step_is_admitted_that_max_steps_will_never_train() -> None:
    stage = Stage(small_plan(grpo={"max_steps": 3}, sampler={"lookahead": 4}))

    assert stage.state.cursor == 2
    assert stage.state.handed_out == 12


# --- 3: room in flight ------------------------------------------------------------------------------------------------


def test_what_is_sent_is_the_least_by_step_and_ordinal() -> None:
    stage = Stage(small_plan())

    orders = stage.events(Dispatch)
    assert [(order.step, order.prompt) for order in orders] == [(0, p) for p in range(4)] + [
        (1, p) for p in range(4, 8)
    ]


def test_what_is_due_goes_before_what_waits() -> None:
    stage = Stage(small_plan(flow={"max_inflight_prompts": 2}))
    stage.fail(1, FailureKind.DATA)

    assert [(order.prompt, order.attempt) for order in stage.events(Dispatch)] == [(0, 1), (1, 1), (1, 2)]


def test_a_prompt_that_backs_off_does_not_hold_up_the_others() -> None:
    stage = Stage(small_plan(flow={"max_inflight_prompts": 2}, failure={"backoff_base_s": 20}))
    stage.fail(0)

    assert stage.at(Place.IN_FLIGHT) == [1, 2]
    assert stage.at(Place.BACKING_OFF) == [0]


def test_the_wait_for_a_backoff_says_until_when() -> None:
    stage = Stage(small_plan(failure={"backoff_base_s": 20}))
    stage.fail(0)

    assert stage.schedule() == Wait(why=WaitFor.BACKOFF, until=stage.now + 20)


def test_orders_ask_for_the_version_at_dispatch_and_pinned_for_exactly_step_less_k() -> None:
    free = Stage(small_plan(sampler={"lookahead": 2}))
    pinned = Stage(small_plan(sampler={"lookahead": 2}, determinism="pinned"))
    for stage in (free, pinned):
        stage.train_steps(3)

    weights = {order.prompt: order.weights for order in free.events(Dispatch)}
    assert [weights[4 * step] for step in range(6)] == [0, 0, 0, 1, 2, 3]
    assert {(order.step, order.weights) for order in pinned.events(Dispatch)} == {
        (step, max(0, step - 2)) for step in range(6)
    }


# --- 2: selection -----------------------------------------------------------------------------------------------------


def test_a_step_takes_its_own_groups_in_slot_order_once_they_are_all_there() -> None:
    stage = Stage(small_plan())
    stage.finish(4, 5, 3, 2, 0)
    assert stage.events(Select) == []
    stage.finish(1)

    assert stage.events(Select) == [Select(step=0, chunk=0, prompts=(0, 1, 2, 3), last=True)]


def test_a_group_that_was_sent_again_comes_last_in_slot_order() -> None:
    stage = Stage(small_plan())
    stage.fail(0, FailureKind.DATA)
    stage.finish(0, 1, 2, 3)

    assert stage.events(Select)[0].prompts == (1, 2, 3, 0)


def test_nothing_is_selected_while_the_step_before_it_trains() -> None:
    stage = Stage(small_plan())
    stage.finish(*range(8))
    assert stage.state.filling == 1
    assert [chosen.step for chosen in stage.events(Select)] == [0]
    stage.train()

    assert [chosen.step for chosen in stage.events(Select)] == [0, 1]


def test_with_a_streaming_minimum_a_step_takes_what_is_ready_and_closes_on_its_target() -> None:
    stage = Stage(small_plan(flow={"min_groups_for_streaming": 2}))
    stage.finish(2)
    assert stage.events(Select) == []
    stage.finish(0, 3, 1)

    chunks = [(chosen.chunk, chosen.prompts, chosen.last) for chosen in stage.events(Select)]
    assert chunks == [(0, (0, 2), False), (1, (1, 3), True)]


def test_the_last_chunk_may_be_smaller_than_the_streaming_minimum() -> None:
    stage = Stage(small_plan(flow={"min_groups_for_streaming": 3}))
    stage.finish(0, 1, 2)
    stage.finish(3)

    assert [chosen.prompts for chosen in stage.events(Select)] == [(0, 1, 2), (3,)]


def test_a_step_that_has_taken_its_target_already_closes_with_an_empty_selection() -> None:
    failure = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.5}
    stage = Stage(small_plan(flow={"min_groups_for_streaming": 1}, failure=failure))
    stage.finish(0, 1, 2)
    stage.fail(3)

    assert stage.events(Select)[-1] == Select(step=0, chunk=3, prompts=(), last=True)
    stage.train()
    assert stage.steps[0] == (0, 1, 2)


def test_selecting_takes_between_minimum_and_maximum_and_refuses_bounds_that_cannot_be() -> None:
    groups = list(Stage(small_plan()).state.groups.values())

    assert select(groups, 9, 9) is None
    assert select(groups, 8, 9) == groups
    assert select(groups, 1, 3) == groups[:3]
    for minimum, maximum in ((0, 4), (5, 4)):
        with pytest.raises(ValueError, match="1 <= minimum <= maximum"):
            select(groups, minimum, maximum)


# --- the floor --------------------------------------------------------------------------------------------------------


def test_a_step_that_lost_too_much_stops_the_run_when_it_is_filled_and_not_before() -> None:
    failure = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.75}
    stage = Stage(small_plan(failure=failure))
    stage.fail(4)
    stage.fail(5)
    assert stage.events(Stop) == [], "step 1 is not filled yet"
    stage.finish(0, 1, 2, 3)
    stage.train()

    (stop,) = stage.events(Stop)
    assert stop.reason is StopReason.FAILED
    assert stop.detail == (
        "step 1 lost 2 of its 4 groups and 2 are left, below its floor of 3 (failure.min_step_fraction=0.75)"
    )


def test_a_step_exactly_at_its_floor_is_trained() -> None:
    failure = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.75}
    stage = Stage(small_plan(failure=failure))
    stage.fail(0)
    stage.finish(1, 2, 3)
    stage.train()

    assert stage.steps[0] == (1, 2, 3)


def test_a_run_stopped_by_its_floor_goes_on_when_it_is_resumed_with_a_lower_one() -> None:
    failure = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 1.0}
    stage = Stage(small_plan(failure=failure))
    stage.fail(0)
    assert stage.state.finish is FinishReason.FAILED
    stage.kill_controller()
    stage.resume()
    assert stage.state.finish is FinishReason.FAILED, "nothing has changed"
    stage.kill_controller()
    stage.resume(small_plan(failure={**failure, "min_step_fraction": 0.5}))
    stage.after(12)
    stage.train_steps(1)

    assert stage.steps[0] == (1, 2, 3)


# --- the theorem ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1, 2, 4])
def test_no_trained_group_is_older_than_the_lookahead_whatever_dies(lookahead: int) -> None:
    """An order asks for weights >= v at dispatch, and step s is sent when v >= s - K: age at training <= K."""
    ages = []
    for seed in range(12):
        plan = small_plan(
            grpo={"prompts_per_step": 2},
            sampler={"lookahead": lookahead},
            checkpoint={"every_steps": 2},
            flow={"max_inflight_prompts": [2, 32][seed % 2], "min_groups_for_streaming": [None, 1][seed % 2]},
            failure={
                "max_skipped_prompts": "unlimited",
                "max_consecutive_dropped_prompts": 99,
                "min_step_fraction": 0.1,
            },
        )
        script = Script(
            seed=seed,
            slow_rate=0.2,
            slow_s=20,
            infra_rate=0.1,
            data_rate=0.05,
            controller_death_rate=0.03,
            generator_deaths_per_s=0.03,
            trainer_deaths_per_s=0.03,
        )
        outcome = simulate(plan, 24, script)
        assert outcome.audit.max_staleness <= lookahead, f"seed {seed}"
        ages.append(outcome.audit.max_staleness)

    assert max(ages) == lookahead, "the bound is met: the test could see a group that is too old"
