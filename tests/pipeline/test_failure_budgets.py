"""What a failure costs: budgets of a prompt, budgets of the run, and what costs nothing.

Budgets are counted from the log: no test here finds one refilled by a restart.
"""

import pytest

from rollog.events.vocabulary import Commit, Drop, Event, FailureKind, FinishReason, Retry, Shrink, Stop, StopReason
from rollog.pipeline.decisions import decide
from rollog.pipeline.inputs import LeaseLost, Overdue
from rollog.replay.state import Place
from stage import Stage, small_plan

INFRA, DATA, LOST = FailureKind.INFRA, FailureKind.DATA, FailureKind.LOST


def tolerant(**failure: object) -> Stage:
    """A run that goes on after drops; a setting given is laid over that."""
    settings = {
        "max_infra_attempts": 1,
        "max_data_attempts": 1,
        "max_skipped_prompts": "unlimited",
        "max_consecutive_dropped_prompts": 100,
        "min_step_fraction": 0.01,
    }
    return Stage(small_plan(failure={**settings, **failure}))


def give_up(stage: Stage, prompt: int, kind: FailureKind = INFRA) -> tuple[type[Event], ...]:
    """Fail this prompt once; returns what kinds of events that entry held."""
    before = stage.state.offset
    stage.fail(prompt, kind)
    (entry,) = [e for e in stage.entries(before + 1) if isinstance(e.events[0], Retry | Drop)]
    return tuple(type(event) for event in entry.events)


# --- the budget of a prompt -------------------------------------------------------------------------------------------


def test_the_kth_infra_failure_waits_twice_as_long_as_the_one_before_up_to_the_cap() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 7, "backoff_base_s": 1.5, "backoff_max_s": 10}))
    waits = []
    for _ in range(6):
        stage.fail(0)
        waits.append(stage.state.groups[0].not_before - stage.now)
        stage.after(waits[-1])

    assert waits == [1.5, 3, 6, 10, 10, 10]
    assert stage.state.groups[0].attempt == 7


def test_a_prompt_that_backs_off_is_not_sent_before_its_time() -> None:
    stage = Stage(small_plan(failure={"backoff_base_s": 8}))
    stage.fail(0)

    stage.after(7.9)
    assert stage.at(Place.BACKING_OFF) == [0]
    stage.after(0.1)
    assert stage.state.groups[0].attempt == 2


def test_the_last_infra_failure_gives_the_prompt_up_without_a_wait() -> None:
    stage = tolerant(max_infra_attempts=2)
    stage.fail(0)
    stage.after(1.0)

    assert give_up(stage, 0) == (Drop, Shrink)
    assert stage.state.dropped == 1


def test_a_data_failure_is_tried_again_at_once() -> None:
    stage = tolerant(max_data_attempts=2)
    stage.fail(0, DATA)

    assert stage.events(Retry)[-1].not_before == stage.now
    assert stage.state.groups[0].attempt == 2
    assert stage.state.groups[0].place is Place.IN_FLIGHT


def test_infra_and_data_failures_of_a_prompt_have_budgets_of_their_own() -> None:
    stage = tolerant(max_infra_attempts=2, max_data_attempts=2)
    stage.fail(0, INFRA)
    stage.after(1.0)
    stage.fail(0, DATA)

    assert stage.state.dropped == 0
    assert give_up(stage, 0, DATA) == (Drop, Shrink)
    assert stage.state.skipped == 1
    assert stage.state.consecutive_drops == 0


def test_a_restart_does_not_refill_the_budget_of_a_prompt() -> None:
    stage = tolerant(max_infra_attempts=2)
    stage.fail(0)
    stage.kill_controller()
    stage.resume()
    stage.after(1.0)

    assert give_up(stage, 0) == (Drop, Shrink)


def test_a_rollout_that_takes_too_long_is_an_infra_failure_although_its_lease_is_fresh() -> None:
    stage = Stage(small_plan(flow={"rollout_timeout_s": 100, "reward_timeout_s": 50}))
    stage.generator.load()
    stage.generator.take()
    stage.after(104)

    retries = [retry for retry in stage.events(Retry) if retry.prompt == 0]
    assert [retry.kind for retry in retries] == [INFRA]
    assert "timeout" in retries[0].error


# --- the drop and its step --------------------------------------------------------------------------------------------


def test_a_drop_and_the_shrinking_of_its_step_are_one_entry() -> None:
    stage = tolerant()
    stage.fail(5)

    (entry,) = [entry for entry in stage.entries() if any(isinstance(event, Drop) for event in entry.events)]
    assert entry.events == (Drop(prompt=5, kind=INFRA, error="played"), Shrink(step=1, prompt=5))
    assert entry.input is not None, "the entry answers the result"


def test_a_step_closes_without_the_prompt_that_was_given_up() -> None:
    stage = tolerant()
    stage.fail(2)
    stage.finish(0, 1, 3)
    stage.train()

    assert stage.steps[0] == (0, 1, 3)
    assert stage.state.trained == 3


# --- the budgets of the run -------------------------------------------------------------------------------------------


def test_by_default_the_first_prompt_given_up_stops_the_run() -> None:
    for kind, failure in ((INFRA, {"max_infra_attempts": 1}), (DATA, {"max_data_attempts": 1})):
        stage = Stage(small_plan(failure=failure))

        assert give_up(stage, 0, kind) == (Retry, Stop)
        (stop,) = stage.events(Stop)
        assert (stop.reason, stop.prompt, stop.deadline) == (StopReason.FAILED, 0, stage.now)
        assert stage.state.finish is FinishReason.FAILED


def test_the_message_of_such_a_stop_names_prompt_setting_and_error() -> None:
    stage = Stage(small_plan(failure={"max_data_attempts": 1}))
    stage.fail(0, DATA, "reward raised ValueError in row 44")

    detail = stage.events(Stop)[0].detail
    assert "prompt 0" in detail
    assert "failure.max_skipped_prompts" in detail
    assert "reward raised ValueError in row 44" in detail


def test_skipped_prompts_are_counted_over_the_whole_run() -> None:
    stage = tolerant(max_skipped_prompts=2)
    assert give_up(stage, 0, DATA) == (Drop, Shrink)
    stage.finish(1, 2, 3)
    stage.kill_controller()
    stage.resume()
    stage.train()
    assert give_up(stage, 4, DATA) == (Drop, Shrink)

    assert give_up(stage, 5, DATA) == (Retry, Stop)


def test_unlimited_skipping_never_stops_the_run() -> None:
    stage = tolerant()
    for prompt in (0, 1, 2, 4, 5, 6):
        assert give_up(stage, prompt, DATA) == (Drop, Shrink)


def test_infra_drops_in_a_row_are_counted_until_a_group_is_finished() -> None:
    stage = tolerant(max_consecutive_dropped_prompts=1)
    assert give_up(stage, 0) == (Drop, Shrink)
    stage.finish(1)
    assert give_up(stage, 2) == (Drop, Shrink)
    stage.kill_controller()
    stage.resume()

    assert give_up(stage, 3) == (Retry, Stop)


def test_a_data_drop_between_two_infra_drops_neither_counts_nor_resets() -> None:
    stage = tolerant(max_consecutive_dropped_prompts=1)
    assert give_up(stage, 0, INFRA) == (Drop, Shrink)
    assert give_up(stage, 1, DATA) == (Drop, Shrink)

    assert give_up(stage, 2, INFRA) == (Retry, Stop)


# --- the prompt that stopped the run ----------------------------------------------------------------------------------


def test_the_prompt_that_stopped_the_run_is_backing_off_and_named_as_left() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 1}))
    stage.fail(3)

    assert stage.state.groups[3].place is Place.BACKING_OFF
    assert stage.state.dropped == 0
    assert stage.at(Place.IN_FLIGHT) == [0, 1, 2, 4, 5, 6, 7]


def test_it_is_tried_again_after_the_next_open_and_trained_in_its_own_step() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 1}))
    stage.fail(3)
    stage.kill_controller()
    stage.resume()
    stage.after(12)  # the leases of the rest are lost with their generators
    stage.train_steps(1)

    assert stage.steps[0] == (0, 1, 2, 3)


def test_the_open_after_a_failure_resets_only_the_counter_that_ran_out_of_the_prompt_named() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 2, "max_data_attempts": 2}))
    stage.fail(0, DATA)
    stage.fail(1, INFRA)
    stage.fail(0, INFRA)
    stage.after(1.0)
    stage.fail(0, INFRA)
    stage.kill_controller()
    stage.resume()

    groups = stage.state.groups
    assert (groups[0].infra_failures, groups[0].data_failures) == (0, 1)
    assert groups[1].infra_failures == 1


def test_the_seed_of_a_failing_prompt_goes_on_after_the_open_that_forgave_it() -> None:
    stage = Stage(small_plan(failure={"max_data_attempts": 1}))
    stage.fail(0, DATA)
    stage.kill_controller()
    stage.resume()

    assert stage.state.groups[0].data_failures == 0
    assert stage.server.work[0].data_failures == 1, "the same tokens would fail again"


def test_an_open_after_a_failure_does_not_refill_the_budgets_of_the_run() -> None:
    stage = tolerant(max_skipped_prompts=1)
    assert give_up(stage, 0, DATA) == (Drop, Shrink)
    assert give_up(stage, 1, DATA) == (Retry, Stop)
    stage.kill_controller()
    stage.resume()

    assert stage.state.skipped == 1
    assert give_up(stage, 1, DATA) == (Retry, Stop)


def test_an_open_after_a_crash_forgives_nothing() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 3}))
    stage.fail(0)
    stage.kill_controller()
    stage.resume()

    assert stage.state.groups[0].infra_failures == 1


def test_a_budget_that_runs_out_while_the_run_stops_is_judged_after_the_next_open() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 1}))
    stage.ask_to_stop(60)
    assert give_up(stage, 0) == (Retry,)
    stage.after(60)
    assert stage.state.finish is FinishReason.STOPPED

    stage.kill_controller()
    stage.resume()
    stage.after(12)
    assert give_up(stage, 0) == (Retry, Stop)


# --- lost attempts ----------------------------------------------------------------------------------------------------


def lose(stage: Stage, prompt: int) -> tuple[Event, ...]:
    """The prompt's worker dies under it."""
    stage.generator.load()
    stage.generator.take()
    group = stage.state.groups[prompt]
    gone = LeaseLost(prompt=prompt, attempt=group.attempt, worker=stage.generator.name)
    events = decide(stage.state, stage.policy, gone, stage.now)
    stage.kill_generator()
    stage.settle()
    return events


def test_a_lost_attempt_is_sent_again_at_once_and_costs_nothing() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 1, "max_data_attempts": 1}))
    (retry,) = lose(stage, 0)

    assert retry == Retry(prompt=0, attempt=1, kind=LOST, error="gen-0 is gone", not_before=stage.now)
    group = stage.state.groups[0]
    assert (group.place, group.attempt) == (Place.IN_FLIGHT, 2)
    assert (group.infra_failures, group.data_failures, stage.state.stopping) == (0, 0, None)


def test_a_prompt_is_given_up_only_when_it_was_lost_more_than_the_limit_under_one_writer_epoch() -> None:
    stage = tolerant(max_lost_attempts=2)
    for _ in range(2):
        assert isinstance(lose(stage, 0)[0], Retry)

    assert lose(stage, 0)[0] == Drop(prompt=0, kind=INFRA, error="gen-2 is gone")


def test_losses_under_an_earlier_controller_are_not_counted() -> None:
    stage = tolerant(max_lost_attempts=1)
    for _ in range(5):
        assert isinstance(lose(stage, 0)[0], Retry)
        stage.kill_controller()
        stage.resume()

    assert stage.state.dropped == 0


def test_the_loss_of_an_order_that_an_earlier_controller_gave_is_not_counted() -> None:
    stage = tolerant(max_lost_attempts=1)
    stage.kill_controller()
    stage.resume()
    assert isinstance(lose(stage, 0)[0], Retry)  # ordered before
    assert isinstance(lose(stage, 0)[0], Retry)  # the first that counts
    assert stage.state.groups[0].lost_attempts == 1


def test_a_worker_that_reports_a_loss_itself_costs_nothing_either() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 1}))
    stage.fail(0, LOST)

    assert stage.events(Retry)[-1].kind is LOST
    assert stage.state.groups[0].attempt == 2


def test_a_lost_prompt_that_is_given_up_can_stop_the_run_and_is_forgiven_at_the_next_open() -> None:
    stage = Stage(small_plan(failure={"max_lost_attempts": 1}))
    lose(stage, 0)
    lose(stage, 0)
    assert stage.state.finish is FinishReason.FAILED

    stage.kill_controller()
    stage.resume()
    group = stage.state.groups[0]
    assert (group.infra_failures, group.lost_attempts) == (0, 0)
    stage.after(12)
    stage.train_steps(1)
    assert 0 in stage.steps[0]


@pytest.mark.parametrize("judge", [LeaseLost(prompt=0, attempt=2, worker="gen-0"),
                                   LeaseLost(prompt=40, attempt=1, worker="gen-0"),
                                   Overdue(prompt=0, attempt=2, worker="gen-0", ran_s=1e3)])  # fmt: skip
def test_a_judgement_about_another_attempt_changes_nothing(judge: LeaseLost | Overdue) -> None:
    stage = Stage(small_plan())

    assert decide(stage.state, stage.policy, judge, stage.now) == ()


def test_whoever_reported_before_it_was_judged_dead_is_believed() -> None:
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.generator.finish(0)
    stage.kill_generator()
    stage.settle()

    assert [commit.prompt for commit in stage.events(Commit)] == [0]
    assert sorted(retry.prompt for retry in stage.events(Retry)) == [1, 2, 3, 4, 5, 6, 7]
