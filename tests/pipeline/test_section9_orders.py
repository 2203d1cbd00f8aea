"""The cases that each broke a model of this design once: orders, leases, and prompts that are tried again."""

from rollog.events.vocabulary import (
    Dispatch,
    FailureKind,
    FinishReason,
    Late,
    Retry,
)
from rollog.replay.state import Place
from stage import Stage, small_plan


def test_a_hung_attempt_keeps_its_lease_fresh_and_its_deadline_starts_attempt_2() -> None:
    stage = Stage(small_plan(flow={"rollout_timeout_s": 100, "reward_timeout_s": 50}))
    stage.generator.load()
    stage.generator.take()
    hung = stage.generator.orders[0]
    for prompt in range(1, 8):
        stage.generator.finish(prompt)
    stage.after(110)

    assert [(r.prompt, r.attempt, r.kind) for r in stage.events(Retry)] == [(0, 1, FailureKind.INFRA)]
    assert stage.state.groups[0].attempt == 2
    assert 0 not in stage.generator.orders, "the worker whose lease is gone has let go"
    stage.generator.orders[0] = hung
    stage.generator.finish(0)
    stage.settle()
    assert stage.events(Late)[-1].what == "group"
    stage.train_steps(1)
    assert stage.steps[0] == (0, 1, 2, 3)


def test_open_while_3_of_5_orders_run_starts_each_of_them_once() -> None:
    stage = Stage(small_plan(flow={"max_inflight_prompts": 5}))
    stage.generator.load()
    assert stage.generator.take(3) == (0, 1, 2)
    stage.kill_controller()
    stage.resume()

    assert stage.at(Place.IN_FLIGHT) == [0, 1, 2, 3, 4]
    other = stage.new_generator("gen-9")
    other.load()
    assert other.take() == (3, 4)
    assert {order.attempt for order in stage.events(Dispatch)} == {1}
    stage.finish(0, 1, 2)
    other.finish(3)
    stage.settle()
    assert stage.steps[0] == (0, 1, 2, 3)


def test_the_whole_run_killed_50_times_during_one_long_rollout_trains_it_and_spends_no_budget() -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 1, "max_lost_attempts": 2}))
    for _ in range(50):
        stage.generator.load()
        stage.generator.take()
        stage.kill_generator()
        stage.kill_trainer()
        stage.kill_controller()
        stage.resume()
        stage.after(12)
    group = stage.state.groups[0]
    assert group.attempt == 51
    assert (group.infra_failures, group.data_failures, group.lost_attempts) == (0, 0, 0)
    stage.train_steps(1)

    assert stage.steps[0] == (0, 1, 2, 3)
    assert stage.state.dropped == 0


def test_a_failing_prompt_resumed_under_pinned_draws_new_tokens() -> None:
    failure = {"max_data_attempts": 1, "max_skipped_prompts": 0}
    stage = Stage(small_plan(determinism="pinned", failure=failure))
    seeds = [stage.server.work[0].data_failures]
    for _ in range(3):
        stage.fail(0, FailureKind.DATA)
        assert stage.state.finish is FinishReason.FAILED
        stage.kill_controller()
        stage.resume()
        stage.after(12)
        seeds.append(stage.server.work[0].data_failures)

    assert seeds == [0, 1, 2, 3]
    assert stage.server.work[0].weights == 0, "pinned asks for the same weights as ever"
