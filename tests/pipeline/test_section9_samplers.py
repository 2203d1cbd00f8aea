"""The cases that each broke a model of this design once: samplers, the reserve, loans, requeues, changes of sampler."""

from typing import Any

import pytest

from rollog.events.vocabulary import (
    Admit,
    Borrow,
    Cancel,
    Commit,
    Dispatch,
    Divert,
    Evict,
    FailureKind,
    Filter,
    Repay,
    Replace,
    Requeue,
    Retry,
    Select,
    Shrink,
)
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.world import Script
from rollog.replay.state import Loan, Place
from stage import Stage, small_plan

DATA = FailureKind.DATA
GIVES_UP = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited", "min_step_fraction": 0.01}


def one_by_one(name: str, staleness: int, **sections: Any) -> Stage:
    """N = 1 under this sampler."""
    settings = {"name": name, "lookahead" if name == "in_order" else "max_staleness": staleness}
    return Stage(small_plan(grpo={"prompts_per_step": 1}, sampler=settings, **sections))


def replacing(lookahead: int, reserve: int, attempts: int = 1) -> Stage:
    """in_order with N = 1; spares stand in for prompts that fail once."""
    failure = {**GIVES_UP, "on_dropped_prompt": "replace", "max_replacement_attempts": attempts}
    return one_by_one("in_order", lookahead, failure={**failure, "reserve_prompts": reserve})


# --- samplers ---------------------------------------------------------------------------------------------------------


def test_ready_first_with_k_0_and_n_1_admits_prompt_1_when_prompt_0_is_filtered() -> None:
    stage = one_by_one("ready_first", 0, failure={"filter": "equal_rewards"})
    assert stage.state.handed_out == 1
    stage.generator.reward_std = 0.0
    stage.finish(0)

    assert [event.prompt for event in stage.events(Filter)] == [0]
    assert stage.events(Admit)[-1].prompts == (1,)
    stage.generator.reward_std = 0.25
    stage.finish(1)
    stage.train()
    assert stage.steps[0] == (1,)


def test_weight_fifo_with_ready_weights_0_1_1_1_takes_the_0_and_then_a_1() -> None:
    flow = {"min_groups_for_streaming": 2}
    sampler = {"name": "weight_fifo", "max_staleness": 1}
    stage = Stage(small_plan(grpo={"prompts_per_step": 2}, sampler=sampler, flow=flow))
    stage.finish(0, 1)
    stage.train()
    assert stage.state.version == 1
    stage.fail(3, DATA)  # its second attempt begins with weights 1, as 4 and 5 do
    stage.finish(4, 5, 3)
    assert len(stage.events(Select)) == 1, "2, of weights 0, still runs"
    stage.finish(2)

    born = {commit.prompt: commit.born for commit in stage.events(Commit)}
    chosen = [prompt for select in stage.events(Select) if select.step == 1 for prompt in select.prompts]
    assert [born[prompt] for prompt in chosen] == [0, 1]
    assert [len(select.prompts) for select in stage.events(Select) if select.step == 1] == [1, 1]


def test_windowed_with_2_workers_and_8_in_flight_loses_no_order_that_was_not_begun() -> None:
    plan = small_plan(
        grpo={"prompts_per_step": 2}, sampler={"name": "windowed", "max_staleness": 0}, flow={"max_inflight_prompts": 8}
    )
    cancelled = 0
    for seed in range(8):
        outcome = simulate(plan, 40, Script(seed=seed, generators=2, orders_per_generator=2, slow_rate=0.2, slow_s=9))
        entries = outcome.world.server.log().read()
        events = [event for entry in entries for event in entry.events]
        assert not [event for event in events if isinstance(event, Retry)]
        for event in events:
            if isinstance(event, Cancel):
                cancelled += 1
                assert (event.prompt, event.attempt) in outcome.world.started

    assert cancelled > 0, "something must have grown too old while it ran"


def test_a_requeued_prompts_attempts_go_on() -> None:
    failure = {"evicted_prompts": "requeue", "max_requeues": 1}
    stage = Stage(
        small_plan(
            grpo={"prompts_per_step": 1}, sampler={"name": "windowed", "max_staleness": 0}, failure=failure,
            flow={"max_buffered_groups": 4},
        )
    )  # fmt: skip
    stage.finish(0, 1, 2)
    stage.train()
    assert stage.events(Requeue)[0].prompts == (1, 2), "born of weights 0, and only weights 1 are fresh enough"

    assert [(order.prompt, order.attempt) for order in stage.events(Dispatch) if order.prompt == 1] == [(1, 1), (1, 2)]
    stage.finish(1, 2)
    stage.train()
    assert stage.events(Evict)[0].prompts == (2,), "once is the limit"


# --- the reserve ------------------------------------------------------------------------------------------------------


def test_in_order_with_n_1_k_1_and_spare_1_when_prompt_0_is_dropped_and_2_is_finished() -> None:
    stage = replacing(lookahead=1, reserve=1)
    assert [divert.prompts for divert in stage.events(Divert)] == [(1,)]
    assert [(admit.prompts, admit.batch) for admit in stage.events(Admit)] == [((0,), 0), ((2,), 1)]
    stage.finish(2)
    stage.fail(0, DATA)

    assert [(event.prompt, event.lender, event.borrower, event.spare) for event in stage.events(Borrow)] == [
        (2, 1, 0, 1)
    ]
    stage.train()
    stage.finish(1)
    stage.train()
    assert (stage.steps[0], stage.steps[1]) == ((2,), (1,))


def test_in_order_with_n_1_k_1_and_spare_1_when_prompt_0_is_dropped_and_2_is_not_finished() -> None:
    stage = replacing(lookahead=1, reserve=1)
    stage.fail(0, DATA)

    assert stage.events(Replace) == [Replace(step=0, dropped=0, spare=1, nth=1)]
    stage.train_steps(2)
    assert (stage.steps[0], stage.steps[1]) == ((1,), (2,))


def in_debt(lookahead: int, *also_finished: int) -> tuple[Stage, int]:
    """Step 0 has borrowed the finished group of step 1; returns the spare that owes it."""
    stage = replacing(lookahead, reserve=2, attempts=2)
    step_of = {prompt: group.step for prompt, group in stage.state.groups.items()}
    (first,) = [prompt for prompt, step in step_of.items() if step == 0]
    (second,) = [prompt for prompt, step in step_of.items() if step == 1]
    stage.finish(second)
    stage.fail(first, DATA)
    (loan,) = stage.state.loans.values()
    assert (loan.lender, loan.borrower) == (1, 0)
    for step in also_finished:
        stage.finish(*[prompt for prompt, meant in step_of.items() if meant == step])
    return stage, loan.spare


def test_the_spare_of_a_loan_is_lost_too_and_a_further_lender_takes_over() -> None:
    stage, spare = in_debt(2, 2)
    assert stage.state.groups[spare].loan == 0
    stage.fail(spare, DATA)

    (entry,) = [e for e in stage.entries() if any(isinstance(event, Repay) for event in e.events)]
    assert {type(event) for event in entry.events} >= {Borrow, Repay}
    (loan,) = stage.state.loans.values()
    assert (loan.lender, loan.borrower) == (2, 1), "the debt of step 1 is paid, and step 2 is owed"
    stage.train()
    stage.train_steps(2)
    assert stage.state.trained == 3
    assert stage.state.loans == {}


def test_the_spare_of_a_loan_is_lost_too_and_with_a_spare_only_the_next_spare_owes_instead() -> None:
    stage, spare = in_debt(1)
    stage.fail(spare, DATA)

    replaced = stage.events(Replace)[-1]
    assert (replaced.step, replaced.dropped) == (1, spare)
    assert stage.state.loans == {0: Loan(prompt=stage.steps[0][0], lender=1, borrower=0, spare=replaced.spare)}
    stage.train()
    stage.train_steps(1)
    assert stage.steps[1] == (replaced.spare,)
    assert [(repay.loan, repay.prompt) for repay in stage.events(Repay)] == [(0, replaced.spare)]


def test_the_spare_of_a_loan_is_lost_too_and_with_neither_the_lender_shrinks() -> None:
    failure = {**GIVES_UP, "on_dropped_prompt": "replace", "max_replacement_attempts": 1, "reserve_prompts": 1}
    stage = Stage(small_plan(grpo={"prompts_per_step": 2}, failure=failure))
    lender = sorted(prompt for prompt, group in stage.state.groups.items() if group.step == 1)
    stage.finish(lender[0])
    stage.fail(0, DATA)
    (loan,) = stage.state.loans.values()
    stage.fail(loan.spare, DATA)

    assert stage.events(Shrink) == [Shrink(step=1, prompt=loan.spare, loan=0)]
    assert stage.state.loans == {}
    stage.finish(1)
    stage.train()
    stage.train_steps(1)
    assert stage.steps[0] == (1, lender[0])
    assert stage.steps[1] == (lender[1],)


# --- changes of sampler -----------------------------------------------------------------------------------------------


STREAMING = {"flow": {"min_groups_for_streaming": 1}}


def changed(stage: Stage, **sampler: object) -> None:
    """Stop, and resume under another sampler."""
    stage.ask_to_stop(0)
    while stage.state.finish is None:
        stage.save()
    stage.kill_controller()
    stage.resume(small_plan(sampler=sampler, **STREAMING))
    stage.after(12)


@pytest.mark.parametrize("name", ["windowed", "ready_first", "weight_fifo"])
def test_a_change_to_in_order_with_a_half_taken_step_and_back_and_forth(name: str) -> None:
    stage = Stage(small_plan(sampler={"name": name, "max_staleness": 1}, **STREAMING))
    stage.finish(2)
    assert stage.state.step(0).taken == 1
    changed(stage, name="in_order", lookahead=1)

    steps: dict[int | None, int] = {}
    for group in stage.state.groups.values():
        if group.place is not Place.SELECTED:
            steps[group.step] = steps.get(group.step, 0) + 1
    assert steps == {0: 3, 1: 4}
    stage.train_steps(3)
    changed(stage, name=name, max_staleness=1)
    changed(stage, name="in_order", lookahead=1)
    stage.train_steps(2)

    trained = sorted(prompt for step in range(5) for prompt in stage.steps[step])
    assert trained == list(range(20)), "each once, none left out"
