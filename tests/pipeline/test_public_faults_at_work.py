"""Public faults of this kind of software: hangs, stale or wrongly stamped rollouts, duplicates, deaths.

Each docstring names the fault by its number and its report.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from play import Play
from rollog.events.errors import LogUncertain
from rollog.events.messages import NewWeights
from rollog.events.vocabulary import (
    Commit,
    Drop,
    Evict,
    EvictReason,
    Exhaust,
    FailureKind,
    Finish,
    FinishReason,
    Late,
    Load,
    Note,
    Open,
    Publish,
    Resume,
    Retry,
    Select,
    Shrink,
)
from rollog.pipeline.rollout_codec import decode, encode
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts, Rollout, Row, Span
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.world import Script
from rollog.replay.projector import fold
from rollog.replay.state import Place, State
from stage import Stage, small_plan
from watched_log import Moment

SHRINKS = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.01}
SKIPS = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited", "min_step_fraction": 0.01}


# --- D: hangs when a prompt fails or a step is left short -------------------------------------------------------------


def test_a_rollout_that_never_returns_costs_its_step_a_deadline_and_never_wedges_a_resume() -> None:
    """B33, NVIDIA-NeMo/RL#3238: one stuck rollout kept a step from ever filling, and again after each resume."""
    stage = Stage(small_plan(flow={"rollout_timeout_s": 100, "reward_timeout_s": 50}, failure=SHRINKS))
    stage.finish(0, 1, 2)
    stage.kill_controller()
    stage.resume()
    assert 3 in stage.generator.orders, "it still runs, and nobody has taken it away"
    stage.after(104)
    stage.train()

    assert stage.steps[0] == (0, 1, 2)
    assert 3 in [drop.prompt for drop in stage.events(Drop)]
    stage.kill_controller()
    stage.resume()
    assert 3 not in stage.state.groups


@pytest.mark.parametrize("name", ["ready_first", "weight_fifo"])
def test_filtering_half_of_all_groups_for_200_steps_does_not_shrink_what_may_be_in_flight(name: str) -> None:
    """B36, SkyRL PR#1802: filtered groups went on counting as accepted, until nothing could start any more."""
    sampler = {"name": name, "max_staleness": 1}
    plan = small_plan(
        grpo={"prompts_per_step": 2, "max_steps": 200}, sampler=sampler, failure={"filter": "equal_rewards"}
    )
    outcome = simulate(plan, 2000, Script(equal_rate=0.5))
    state, most_in_flight = State(), [0] * 201
    for entry in outcome.world.server.log().read():
        fold(state, entry)
        most_in_flight[state.version] = max(most_in_flight[state.version], state.count(Place.IN_FLIGHT))

    assert state.version == 200
    assert state.filtered > 300
    assert max(most_in_flight[-30:]) == max(most_in_flight[:30]) >= 4


def test_one_rejected_group_with_nothing_more_to_submit_does_not_leave_a_wait_without_end() -> None:
    """B37, AReaL#588: any rejected trajectory made a fixed-count wait infinite."""
    stage = Stage(small_plan(failure=SKIPS), num_rows=4)
    stage.finish(0, 1, 2)
    stage.fail(3, FailureKind.DATA)
    stage.train()
    stage.save()

    assert stage.steps == {0: (0, 1, 2)}
    assert stage.state.finish is FinishReason.EXHAUSTED


def test_data_that_ends_with_half_a_step_in_the_buffer_ends_cleanly_and_says_what_was_left() -> None:
    """B40, tinker-cookbook#107: the trainer waited on a queue that no one would fill."""
    run = Play(small_plan(), num_rows=10).run()
    assert run.stage.events(Exhaust) == [Exhaust(left=2)]
    assert run.stage.events(Finish) == [Finish(reason=FinishReason.EXHAUSTED, left=())]

    stopped = Stage(small_plan(), num_rows=8)
    stopped.finish(0, 1)
    stopped.ask_to_stop(0)
    assert stopped.events(Finish) == [Finish(reason=FinishReason.STOPPED, left=tuple(range(8)))]


def test_a_resume_with_an_empty_buffer_publishes_the_weights_before_anybody_waits_for_a_rollout() -> None:
    """B41, prime-rl PR#3004: on resume inference waited for weights and the trainer for rollouts, both for ever."""
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(2)
    stage.save()
    assert stage.at(Place.BUFFER) == []
    stage.kill_generator()
    stage.kill_trainer()
    stage.kill_controller()
    resumed_at = stage.state.offset
    stage.resume()
    stage.after(12)

    facts = [event for entry in stage.entries(resumed_at + 1) for event in entry.events]
    kinds = [type(event) for event in facts if isinstance(event, Open | Resume | Publish | Commit | Load)]
    assert kinds == [Open, Resume, Publish]
    assert stage.events(Publish)[-1].version == 2
    assert stage.generator.load() == 2


def test_the_weights_are_told_to_generators_by_a_new_controller_although_the_trainer_says_nothing() -> None:
    """B41, prime-rl PR#3004, when only the controller died: nothing is published again, and nobody waits."""
    stage = Stage(small_plan())
    stage.train_steps(2)
    stage.kill_generator()
    stage.kill_controller()
    stage.resume()

    notices = [notice for _, notice in stage.server.control]
    assert [notice.version for notice in notices if isinstance(notice, NewWeights)] == [1, 2]
    stage.after(12)
    stage.train_steps(1)


# --- E, F: staleness and version stamps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [{"lookahead": 2}, {"name": "ready_first", "max_staleness": 2}, {"name": "weight_fifo", "max_staleness": 2}],
)
def test_a_resume_at_a_high_version_leaves_no_more_in_flight_than_the_bound_allows(sampler: dict[str, Any]) -> None:
    """B43, AReaL#1388: the version jumped after recovery while the counter of accepted groups was 0."""
    plan = small_plan(grpo={"prompts_per_step": 1}, sampler=sampler, checkpoint={"every_steps": 100})
    stage = Stage(plan, num_rows=200)
    for prompt in range(100):
        stage.finish(prompt)
        stage.train()
    stage.save()
    stage.kill_generator()
    stage.kill_trainer()
    stage.kill_controller()
    stage.resume()
    stage.after(12)

    assert stage.state.version == stage.state.standing == 100
    assert stage.at(Place.IN_FLIGHT) == [100, 101, 102]
    assert stage.state.num_open() == 3


def test_every_trained_group_says_which_weights_made_it_and_none_is_older_than_the_bound() -> None:
    """B46, slime#1800: the fully asynchronous mode tracked and bounded no versions at all."""
    stage = Stage(small_plan(sampler={"lookahead": 2}, checkpoint={"every_steps": 100}))
    stage.finish(*stage.at(Place.IN_FLIGHT))
    stage.train(3)
    stage.train_steps(4)

    ages = {step - member.finished.born for step in range(7) for member in stage.state.step(step).members()}
    assert ages == {0, 1, 2}
    assert {len(list(stage.state.step(step).members())) for step in range(7)} == {4}


def test_no_row_can_be_stored_that_does_not_say_which_weights_wrote_each_of_its_tokens() -> None:
    """B46, slime#1800, row by row: what the trainer is given says for every written token who wrote it."""
    rows = {"tokens": np.array([10, 3, 4, 12], np.int32), "written": np.array([False, True, True, True])}
    rows["logprobs"] = np.array([0, -1, -1, -1], np.float32)
    whole = Row(**rows, spans=(Span(version=4, tokens=2), Span(version=5, tokens=1)))
    group = GroupRollouts(prompt=0, attempt=1, rollouts=(Rollout(rows=(whole,), reward=1.0),))
    assert decode(encode(group)).rows[0].spans == whole.spans
    for spans in ((), (Span(version=4, tokens=2),), (Span(version=-1, tokens=3),)):
        with pytest.raises(CorruptRollouts, match=r"span"):
            encode(replace(group, rollouts=(Rollout(rows=(Row(**rows, spans=spans),), reward=1.0),)))


def test_a_group_that_was_under_way_during_an_update_carries_the_span_of_its_weights() -> None:
    """B47, AReaL PR#1569: the version was read again for the result, and labelled tokens that it had not made."""
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    assert 4 in stage.generator.orders
    stage.train()
    stage.finish(4)

    (commit,) = [commit for commit in stage.events(Commit) if commit.prompt == 4]
    assert (commit.born, commit.done) == (0, 1)


def test_staleness_counts_from_the_weights_that_began_a_group() -> None:
    """B48, rllm PR#622: a stamp taken at completion under-counts how old a rollout is."""
    stage = Stage(small_plan(sampler={"lookahead": 0}))
    stage.train_steps(2)
    assert stage.audit.max_staleness == 0

    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.train()
    stage.finish(4, 5, 6, 7)
    assert {commit.done for commit in stage.events(Commit)[4:]} == {1}
    assert stage.audit.max_staleness == 1


def test_a_group_that_was_begun_too_early_is_never_trained_however_fresh_its_last_weights_are() -> None:
    """B48, rllm PR#622, where it is decided: fresh by its completion, evicted by its beginning."""
    sampler = {"name": "windowed", "max_staleness": 0}
    stage = Stage(small_plan(grpo={"prompts_per_step": 1}, sampler=sampler, flow={"max_buffered_groups": 4}))
    stage.finish(0)
    assert 1 in stage.generator.orders
    stage.train()
    stage.finish(1)

    (commit,) = [commit for commit in stage.events(Commit) if commit.prompt == 1]
    assert (commit.born, commit.done) == (0, 1)
    assert stage.events(Evict) == [Evict(prompts=(1,), reason=EvictReason.STALE)]
    assert [select.prompts for select in stage.events(Select)] == [(0,)]


# --- G: duplicates and corrupted groups -------------------------------------------------------------------------------


def test_an_attempt_that_finishes_after_it_was_given_up_and_retried_is_committed_once() -> None:
    """B51, agent-lightning#355: late rollouts were counted too, "completed 33/32"."""
    stage = Stage(small_plan(flow={"rollout_timeout_s": 100, "reward_timeout_s": 50}))
    stage.generator.load()
    stage.generator.take()
    hung = stage.generator.orders[0]
    for prompt in range(1, 8):
        stage.generator.finish(prompt)
    stage.after(110)
    stage.finish(0)
    stage.generator.orders[0] = hung
    stage.generator.finish(0)
    stage.settle()

    assert [(commit.prompt, commit.attempt) for commit in stage.events(Commit) if commit.prompt == 0] == [(0, 2)]
    assert stage.events(Late) == [Late(what="group", prompt=0, attempt=1, worker="gen-0")]
    assert stage.events(Select)[0].prompts == (1, 2, 3, 0)


def test_a_group_whose_siblings_failed_is_retried_whole_and_no_row_of_it_reaches_training() -> None:
    """B53, NVIDIA-NeMo/RL#3470: every exception was committed as an empty row with reward zero."""
    stage = Stage(small_plan(grpo={"rollouts_per_prompt": 8}))
    stage.generator.load()
    stage.generator.take()
    order, began = stage.generator.orders.pop(0)
    six_of_eight = replace(stage.generator.result(order, began, began), rollouts=6, rows=6, tokens=18)
    stage.generator.desk.report(six_of_eight, "p:0")
    stage.settle()
    stage.fail(1)
    assert stage.events(Commit) == []
    assert [(retry.prompt, retry.kind) for retry in stage.events(Retry)] == [
        (0, FailureKind.INFRA),
        (1, FailureKind.INFRA),
    ]
    stage.after(1)
    stage.train_steps(1)

    assert {member.finished.rollouts for member in stage.state.step(0).members()} == {8}


def test_one_prompt_of_16_given_up_for_good_lets_the_waiting_trainer_go_on_at_once() -> None:
    """B55, NVIDIA-NeMo/RL#2368: what would have topped the step up waited for a version that never came."""
    stage = Stage(small_plan(grpo={"prompts_per_step": 16}, failure=SHRINKS))
    stage.finish(*range(15))
    assert stage.events(Select) == []
    offset = stage.state.offset
    stage.fail(15)

    decided = [type(event) for entry in stage.entries(offset + 1) for event in entry.events]
    assert decided == [Drop, Shrink, Select]
    stage.train()
    assert stage.steps[0] == tuple(range(15))


# --- H, I: weights and deaths -----------------------------------------------------------------------------------------


def test_generators_that_run_other_weights_than_they_say_raise_an_alarm_at_the_first_step() -> None:
    """B59, trl#5312: generation went on with old weights, and the mean logprob difference jumped from 0.015 to 0.2."""
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    done = stage.rank.done(0, "1-a", stage.rank.weights)
    stage.rank.desk.report(replace(done, logprob_gap=0.201))
    stage.settle()

    (note,) = stage.events(Note)
    assert note.what == "logprob_gap"
    assert "step 0" in note.text


def test_a_restarted_generator_gets_no_order_before_it_has_the_weights_that_the_order_asks_for() -> None:
    """B64, NVIDIA-NeMo/RL#3590: a dead endpoint kept getting work, and a restarted one was never used again."""
    stage = Stage(small_plan())
    stage.train_steps(2)
    stage.kill_generator()
    stage.settle()
    assert stage.generator.version == -1
    assert stage.generator.take() == ()
    stage.generator.version = 1
    assert stage.generator.take() == (), "everything that waits asks for weights 2"
    stage.generator.load()

    assert sorted(stage.generator.take()) == stage.at(Place.IN_FLIGHT)


def test_a_commit_whose_reply_was_lost_is_not_made_twice() -> None:
    """B66, ray PR#44212: nobody knows whether a call ran whose actor then became unavailable."""
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    result = stage.generator.finish(0)
    stage.generator.desk.report(result, "p:0")  # no reply came: once more
    lost = iter([True])

    def hook(moment: Moment) -> None:
        if moment.when == "after append" and next(lost, False):
            raise LogUncertain("played: no answer in time")

    stage.hook = hook
    with pytest.raises(LogUncertain):
        stage.settle()
    stage.resume()
    stage.generator.desk.report(result, "p:0")  # and once more, after its lease was taken away
    stage.settle()

    assert [commit.prompt for commit in stage.events(Commit)] == [0]
    assert [late.prompt for late in stage.events(Late)] == [0]
