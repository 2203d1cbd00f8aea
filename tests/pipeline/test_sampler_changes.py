"""A run that goes on under another sampler: what becomes of stamps, cursor, debts and a half taken step.

N = 2 and K = 1 unless a test says else. Everything that follows from the change is in the entry of the change.
"""

from typing import Any

import pytest

from rollog.events.vocabulary import Admit, Configure, Event, FailureKind, FinishReason, Retry, Stamp
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.world import Script
from rollog.replay.state import Place
from stage import Stage, small_plan

UNSTAMPED = ("windowed", "ready_first", "weight_fifo")


def plan(name: str, window: int = 1, **sections: Any) -> Any:
    key = "lookahead" if name == "in_order" else "max_staleness"
    grpo = {"prompts_per_step": 2} | sections.pop("grpo", {})
    return small_plan(grpo=grpo, sampler={"name": name, key: window}, **sections)


def change(stage: Stage, name: str, window: int = 1, **sections: Any) -> tuple[Event, ...]:
    """The controller is gone, and the next one has other settings; returns the entry of the change."""
    stage.kill_controller()
    before = stage.state.offset
    stage.resume(plan(name, window, **sections))
    (entry,) = [entry for entry in stage.entries(before + 1) if isinstance(entry.events[0], Configure)]
    return entry.events


def steps(stage: Stage) -> dict[int | None, list[int]]:
    """Step -> open prompts that are meant for it."""
    meant: dict[int | None, list[int]] = {}
    for prompt, group in sorted(stage.state.groups.items()):
        if group.place is not Place.SELECTED:
            meant.setdefault(group.step, []).append(prompt)
    return meant


def run_out(stage: Stage) -> None:
    """Everything succeeds until the run ends."""
    for _ in range(80):
        if stage.state.finish is not None:
            return
        stage.finish(*stage.at(Place.IN_FLIGHT))
        if stage.state.filling > stage.state.version:
            stage.train()
        elif stage.state.version in stage.state.saves:
            stage.save()
        elif stage.at(Place.BACKING_OFF):
            stage.after(12)
    raise AssertionError(f"the run waits for {stage.waits_for()}")


# --- to in_order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNSTAMPED)
def test_to_in_order_open_groups_are_stamped_oldest_first_n_to_a_step(name: str) -> None:
    stage = Stage(plan(name, flow={"max_buffered_groups": 5}))
    stage.finish(2)
    prompts = sorted(stage.state.groups)
    configure, *stamps = change(stage, "in_order")

    assert isinstance(configure, Configure)
    assert stamps == [
        Stamp(prompts=tuple(prompts[at : at + 2]), step=step) for step, at in enumerate(range(0, len(prompts), 2))
    ]
    assert configure.cursor == len(stamps) - 1
    assert configure.changes["sampler.name"] == "in_order"


def test_what_the_step_being_filled_has_taken_counts() -> None:
    stage = Stage(plan("ready_first", grpo={"prompts_per_step": 3}, flow={"min_groups_for_streaming": 1}))
    stage.finish(4, 1)
    assert stage.state.step(0).taken == 2
    change(stage, "in_order", grpo={"prompts_per_step": 3}, flow={"min_groups_for_streaming": 1})

    assert steps(stage) == {0: [0], 1: [2, 3, 5]}
    stage.finish(0)
    stage.train()
    assert stage.steps[0] == (0, 1, 4)


def test_while_step_v_trains_the_stamps_begin_at_v_plus_1() -> None:
    stage = Stage(plan("ready_first"))
    stage.finish(2, 3)
    assert (stage.state.version, stage.state.filling) == (0, 1)
    change(stage, "in_order")

    assert steps(stage)[1] == [0, 1]
    assert stage.state.cursor == 1


def test_a_partial_last_step_is_completed_past_the_gate_with_its_own_batch_number() -> None:
    failure = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited"}
    stage = Stage(plan("windowed", failure=failure, flow={"max_buffered_groups": 3}), num_rows=20)
    stage.fail(0, FailureKind.DATA)
    assert sorted(stage.state.groups) == [1, 2, 3]
    head = stage.state.offset
    change(stage, "in_order", window=0, failure=failure)

    assert [(admit.batch, admit.prompts) for admit in stage.events(Admit, head + 1)] == [(1, (4,))]
    assert steps(stage) == {0: [1, 2], 1: [3, 4]}
    assert stage.at(Place.WAITING) == [4], "step 1 is not in the window of K = 0 yet"
    run_out(stage)
    assert stage.state.finish is FinishReason.EXHAUSTED
    assert (stage.steps[0], stage.steps[1]) == ((1, 2), (3, 4))


def test_nothing_open_leaves_the_cursor_just_behind_the_step_being_filled() -> None:
    stage = Stage(plan("ready_first", window=0))
    stage.server.under_pressure = True
    stage.finish(0, 1)
    stage.train()
    assert stage.state.num_open() == 0
    configure, *stamps = change(stage, "in_order")
    assert isinstance(configure, Configure)
    assert (configure.cursor, stamps) == (0, [])
    stage.server.under_pressure = False
    stage.settle()

    assert steps(stage) == {1: [2, 3], 2: [4, 5]}


# --- away from in_order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNSTAMPED)
def test_away_from_in_order_stamps_loans_and_shortfalls_end(name: str) -> None:
    failure = {
        "on_dropped_prompt": "replace",
        "max_infra_attempts": 1,
        "max_consecutive_dropped_prompts": 9,
        "min_step_fraction": 0.5,
    }
    stage = Stage(plan("in_order", failure=failure), num_rows=24)
    stage.finish(4)
    stage.fail(0)  # 4 is lent to step 0, and 2 owes step 1
    stage.fail(2)  # and the debt cannot be paid
    stage.finish(5)
    stage.fail(1)
    assert stage.state.loans
    assert stage.state.step(1).shortfall == 1
    change(stage, name, failure=failure, flow={"max_buffered_groups": 9})

    assert steps(stage).keys() <= {None}
    assert stage.state.loans == {}
    assert {group.loan for group in stage.state.groups.values()} == {None}
    assert stage.state.step(1).shortfall == 0
    assert stage.state.loans_made == stage.state.loans_repaid + stage.state.loans_forgiven
    run_out(stage)
    assert stage.state.trained + stage.state.dropped + stage.state.evicted + len(stage.state.groups) == 24


# --- between samplers without stamps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("windowed", "ready_first"), ("ready_first", "weight_fifo")])
def test_to_a_gated_sampler_the_cursor_counts_open_and_taken_as_batches_and_nothing_is_lost_so_far(
    before: str, after: str
) -> None:
    failure = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited"}
    streaming = {"min_groups_for_streaming": 1, "max_buffered_groups": 5}
    stage = Stage(plan(before, failure=failure, flow=streaming))
    stage.fail(0, FailureKind.DATA)
    stage.finish(1)
    assert (stage.state.lost, stage.state.step(0).taken) == (1, 1)
    open_groups = stage.state.num_open()
    (configure,) = change(stage, after, failure=failure, flow=streaming)

    assert isinstance(configure, Configure)
    assert configure.cursor == -1 + (open_groups + 1) // 2
    assert stage.state.lost == 0


def test_another_k_alone_moves_neither_cursor_nor_stamps() -> None:
    stage = Stage(plan("in_order", window=2), num_rows=20)
    meant = steps(stage)
    (configure,) = change(stage, "in_order", window=0)
    assert isinstance(configure, Configure)
    assert configure.cursor == 2
    assert steps(stage) == meant

    run_out(stage)
    assert list(stage.steps.values()) == [(2 * step, 2 * step + 1) for step in range(10)]


def test_a_smaller_k_holds_back_what_is_admitted_until_its_step_is_in_the_window() -> None:
    stage = Stage(plan("in_order", window=2, flow={"max_inflight_prompts": 2}))
    assert stage.at(Place.IN_FLIGHT) == [0, 1]
    stage.kill_controller()
    stage.resume(plan("in_order", window=0, flow={"max_inflight_prompts": 9}))
    stage.finish(0, 1)

    assert stage.at(Place.IN_FLIGHT) == [], "step 1 is not in the window of K = 0 before version 1"
    stage.train()
    assert all(group.step == 1 for group in stage.state.at(Place.IN_FLIGHT))


@pytest.mark.parametrize("name", UNSTAMPED)
def test_what_ran_under_the_old_sampler_is_neither_lost_nor_sent_twice(name: str) -> None:
    stage = Stage(plan("in_order"))
    stage.generator.load()
    stage.generator.take()
    change(stage, name, flow={"max_buffered_groups": 9})
    stage.after(12)
    stage.finish(0, 1, 2, 3)
    stage.train()

    assert stage.steps[0] == (0, 1)
    assert stage.events(Retry) == []


# --- back and forth ---------------------------------------------------------------------------------------------------


def test_random_histories_of_changes_lose_and_repeat_nothing() -> None:
    plans = [
        plan(name, window, failure={"max_skipped_prompts": "unlimited", "min_step_fraction": 0.1})
        for name, window in (("in_order", 2), ("windowed", 1), ("ready_first", 0), ("weight_fifo", 2))
    ]
    changes = 0
    for seed in range(6):
        script = Script(seed=seed, controller_death_rate=0.04, data_rate=0.05, slow_rate=0.1, slow_s=9, stop_rate=0.01)
        outcome = simulate(plans[seed % 4], 30, script, others=plans)
        state = outcome.state
        assert state.finish is FinishReason.EXHAUSTED
        settled = state.trained + state.dropped + state.filtered + state.evicted
        assert settled + len(state.groups) == state.handed_out
        assert 30 - state.handed_out < 2, "fewer than a batch were never handed out"
        trained = [prompt for prompts in outcome.steps.values() for prompt in prompts]
        assert len(trained) == len(set(trained)) == state.trained
        log = outcome.world.server.log().read()
        changes += sum(isinstance(event, Configure) for entry in log for event in entry.events)

    assert changes > 6, "on average each history must really have changed"
