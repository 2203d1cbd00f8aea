"""Finished and useless: groups whose rewards are all equal, and groups that a user's rule refuses.

N = 3, K = 1. A filtered group leaves its step as a dropped prompt does, and has cost nobody a failure.
"""

from dataclasses import replace
from typing import Any

import pytest

from rollog.events.vocabulary import (
    Borrow,
    Commit,
    Dispatch,
    Drop,
    Event,
    Filter,
    FilterReason,
    FinishReason,
    Repay,
    Replace,
    Select,
    Shrink,
    Stamp,
    Stop,
)
from rollog.replay.state import Loan, Place
from stage import Stage, small_plan


def filtering(*, replaces: bool = False, n: int = 3, rule: str = "equal_rewards", **sections: Any) -> Stage:
    """Steps may shrink to a third, or spares stand in."""
    failure = {"filter": rule, "on_dropped_prompt": "replace" if replaces else "shrink", "min_step_fraction": 0.3}
    failure |= sections.pop("failure", {})
    return Stage(small_plan(grpo={"prompts_per_step": n}, failure=failure, **sections))


def finish_equal(stage: Stage, prompt: int) -> tuple[Event, ...]:
    """All rewards of this group are the same; returns the entry that follows."""
    stage.generator.load()
    stage.generator.take()
    stage.settle()
    before = stage.state.offset
    stage.generator.reward_std = 0.0
    stage.generator.finish(prompt)
    stage.generator.reward_std = 0.25
    stage.settle()
    return stage.entries(before + 1)[0].events


def kinds(events: tuple[Event, ...]) -> list[type[Event]]:
    return [type(event) for event in events]


# --- shrink -----------------------------------------------------------------------------------------------------------


def test_a_group_without_spread_is_committed_filtered_and_leaves_its_step_in_one_entry() -> None:
    stage = filtering()
    events = finish_equal(stage, 1)

    assert kinds(events) == [Commit, Filter, Shrink]
    assert events[1:] == (Filter(prompt=1, reason=FilterReason.EQUAL_REWARDS), Shrink(step=0, prompt=1))
    assert (stage.state.filtered, stage.state.dropped) == (1, 0)
    stage.finish(0, 2)
    stage.train()
    assert stage.steps[0] == (0, 2)


def test_by_default_nothing_is_filtered() -> None:
    stage = filtering(rule="none")

    assert kinds(finish_equal(stage, 1)) == [Commit]
    assert stage.at(Place.BUFFER) == [1]


def test_a_users_rule_may_refuse_a_group_whatever_its_spread() -> None:
    stage = filtering(rule="users_own:rule")
    generator = stage.generator
    generator.load()
    generator.take()
    order, born = generator.orders.pop(2)
    generator.desk.report(replace(generator.result(order, born, born), refused=True), "p:2")
    stage.settle()

    assert stage.events(Filter) == [Filter(prompt=2, reason=FilterReason.RULE)]


def test_under_a_users_rule_equal_rewards_alone_filter_nothing() -> None:
    assert kinds(finish_equal(filtering(rule="users_own:rule"), 1)) == [Commit]


def test_a_filtered_group_costs_no_failure_budget_and_its_commit_ends_a_row_of_drops() -> None:
    budget = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 1, "max_skipped_prompts": 0}
    stage = filtering(n=8, failure=budget | {"min_step_fraction": 0.1})
    stage.fail(0)
    assert stage.state.consecutive_drops == 1
    finish_equal(stage, 1)
    assert (stage.state.consecutive_drops, stage.state.skipped) == (0, 0)
    for prompt in (2, 3, 4):
        finish_equal(stage, prompt)
    stage.fail(5)

    assert (stage.state.finish, stage.state.filtered, stage.state.dropped) == (None, 4, 2)


def test_filters_can_bring_a_step_below_its_floor() -> None:
    stage = filtering(failure={"min_step_fraction": 0.9})
    finish_equal(stage, 0)

    assert stage.events(Stop)[0].detail.startswith("step 0 lost 1 of its 3 groups and 2 are left")
    assert stage.state.finish is FinishReason.FAILED


def test_a_step_that_has_streamed_the_others_closes_when_its_last_group_is_filtered() -> None:
    stage = filtering(flow={"min_groups_for_streaming": 1})
    stage.finish(0, 1)
    finish_equal(stage, 2)

    assert stage.events(Select)[-1] == Select(step=0, chunk=2, prompts=(), last=True)


# --- replace ----------------------------------------------------------------------------------------------------------


def test_a_spare_stands_in_for_a_filtered_group_and_counts_as_an_attempt_of_its_place() -> None:
    stage = filtering(replaces=True)
    events = finish_equal(stage, 0)
    assert kinds(events) == [Commit, Filter, Replace, Stamp, Dispatch]
    assert events[2] == Replace(step=0, dropped=0, spare=3, nth=1)
    events = finish_equal(stage, 3)

    assert kinds(events) == [Commit, Filter, Shrink], "once is the limit"


def test_a_later_step_lends_to_a_step_that_lost_a_filtered_group() -> None:
    stage = filtering(replaces=True)
    stage.finish(6)
    events = finish_equal(stage, 0)

    assert kinds(events) == [Commit, Filter, Borrow, Stamp, Dispatch]
    assert stage.state.loans == {0: Loan(prompt=6, lender=1, borrower=0, spare=3)}


def test_a_filtered_spare_pays_nothing_and_the_next_one_owes() -> None:
    stage = filtering(replaces=True, failure={"max_replacement_attempts": 2})
    stage.finish(6)
    finish_equal(stage, 0)
    events = finish_equal(stage, 3)
    assert kinds(events) == [Commit, Filter, Replace, Stamp, Dispatch]
    assert stage.state.loans == {0: Loan(prompt=6, lender=1, borrower=0, spare=4)}
    stage.finish(4)

    assert [(repay.loan, repay.prompt) for repay in stage.events(Repay)] == [(0, 4)]


def test_a_filtered_spare_with_nobody_after_it_leaves_the_lender_short() -> None:
    stage = filtering(replaces=True)
    stage.finish(6)
    finish_equal(stage, 0)
    events = finish_equal(stage, 3)

    assert events[1:] == (
        Filter(prompt=3, reason=FilterReason.EQUAL_REWARDS),
        Shrink(step=1, prompt=3, loan=0),
    )
    assert (stage.state.loans, stage.state.loans_forgiven, stage.state.loans_repaid) == ({}, 1, 0)


# --- without stamps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["windowed", "ready_first", "weight_fifo"])
def test_without_stamps_a_filtered_group_is_gone_and_other_groups_fill_the_step(name: str) -> None:
    stage = filtering(n=2, sampler={"name": name, "max_staleness": 0}, failure={"min_step_fraction": 1.0})
    assert kinds(finish_equal(stage, 0)) == [Commit, Filter]
    stage.finish(1, 2)
    stage.train()

    assert stage.steps[0] == (1, 2)


@pytest.mark.parametrize("name", ["ready_first", "weight_fifo"])
def test_a_run_in_which_every_other_group_is_filtered_never_waits_for_itself(name: str) -> None:
    stage = filtering(n=2, sampler={"name": name, "max_staleness": 0})
    for _ in range(60):
        if stage.state.finish is not None:
            break
        for prompt in stage.at(Place.IN_FLIGHT):
            if prompt % 2:
                finish_equal(stage, prompt)
            else:
                stage.finish(prompt)
        if stage.state.filling > stage.state.version:
            stage.train()
        elif stage.state.version in stage.state.saves:
            stage.save()

    assert stage.state.finish is FinishReason.EXHAUSTED
    assert (stage.state.trained, stage.state.filtered) == (32, 32)
    assert stage.events(Drop) == []
