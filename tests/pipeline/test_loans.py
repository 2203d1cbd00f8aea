"""Loans: who lends, who owes, and how a debt ends. N = 3, K = 2 unless a test says else, the trainer at 5.

step 5: 18 19 20     step 6: 21 22 23     step 7: 24 25 26     reserve: 3 4 5
"""

from typing import Any

import pytest

from rollog.events.vocabulary import (
    Borrow,
    Commit,
    Dispatch,
    Drop,
    FailureKind,
    FinishReason,
    Repay,
    Replace,
    Shrink,
    Stamp,
    Stop,
)
from rollog.pipeline.reconfigure import drop
from rollog.pipeline.simulate import Death
from rollog.replay.state import Loan, Place
from stage import Stage, small_plan
from watched_log import Moment

STEP_5, STEP_6, STEP_7 = (18, 19, 20), (21, 22, 23), (24, 25, 26)


def at_step_5(*finished: int, lookahead: int = 2, attempts: int = 1, **failure: Any) -> Stage:
    """A prompt is given up at its first failure; what is ``finished`` of the steps ahead stands in the buffer."""
    settings = {
        "on_dropped_prompt": "replace",
        "max_replacement_attempts": attempts,
        "max_infra_attempts": 1,
        "max_consecutive_dropped_prompts": 100,
        "min_step_fraction": 0.1,
    }
    stage = Stage(
        small_plan(grpo={"prompts_per_step": 3}, sampler={"lookahead": lookahead}, failure=settings | failure)
    )
    stage.train_steps(5)
    stage.finish(*finished)
    return stage


def loans(stage: Stage) -> list[tuple[int, int, int, int]]:
    """(group, lender, borrower, spare) of every Borrow."""
    return [(event.prompt, event.lender, event.borrower, event.spare) for event in stage.events(Borrow)]


# --- who lends --------------------------------------------------------------------------------------------------------


def test_the_furthest_later_step_lends_and_of_it_the_group_that_was_sent_first() -> None:
    stage = at_step_5(21, 26, 25)
    stage.fail(18)

    assert loans(stage) == [(25, 7, 5, 3)]


def test_the_nearer_step_lends_when_the_furthest_has_nothing_finished() -> None:
    stage = at_step_5(22)
    stage.fail(18)

    assert loans(stage) == [(22, 6, 5, 3)]


def test_two_losses_take_two_groups_and_a_third_finds_none() -> None:
    stage = at_step_5(24, 25)
    for prompt in STEP_5:
        stage.fail(prompt)

    assert loans(stage) == [(24, 7, 5, 3), (25, 7, 5, 4)]
    assert stage.events(Replace) == [Replace(step=5, dropped=20, spare=5, nth=1)]


def test_what_runs_is_not_lent_and_neither_is_a_group_of_the_same_or_an_earlier_step() -> None:
    stage = at_step_5(18, 19, 21)
    stage.fail(24)

    assert loans(stage) == []
    assert stage.events(Replace) == [Replace(step=7, dropped=24, spare=3, nth=1)]


def test_a_step_that_is_not_filled_yet_borrows_too() -> None:
    stage = at_step_5(24)
    stage.fail(22)

    assert loans(stage) == [(24, 7, 6, 3)]


def test_with_k_0_nothing_can_ever_be_borrowed() -> None:
    stage = at_step_5(lookahead=0)
    assert {group.step for group in stage.state.groups.values() if group.step is not None} == {5}
    stage.finish(18, 19)
    stage.fail(20)

    assert loans(stage) == []
    assert len(stage.events(Replace)) == 1


def test_there_is_no_loan_without_a_spare_in_hand() -> None:
    """Worked example (c) of the public case: the reserve is empty."""
    stage = at_step_5(24, 25)
    stage.server.under_pressure = True  # so that the reserve is not filled again
    for prompt in (21, 22, 23):
        stage.fail(prompt)
    assert (stage.at(Place.RESERVE), len(loans(stage))) == ([], 2)
    stage.fail(18)

    assert len(loans(stage)) == 2
    assert stage.events(Shrink) == [Shrink(step=5, prompt=18)]
    assert stage.state.target(5) == 2
    stage.finish(19, 20)
    stage.train()
    assert stage.steps[5] == (19, 20)


def test_a_place_that_has_used_up_its_spares_borrows_no_more() -> None:
    stage = at_step_5(24)
    stage.fail(18)
    stage.finish(25)
    stage.fail(3)

    assert loans(stage) == [(24, 7, 5, 3)], "prompt 3 stood in for step 7, once is the limit"
    assert stage.events(Shrink) == [Shrink(step=7, prompt=3, loan=0)]


# --- one entry --------------------------------------------------------------------------------------------------------


def test_who_left_who_lends_who_owes_and_the_order_of_the_spare_are_one_entry() -> None:
    stage = at_step_5(24)
    stage.fail(18, error="gone")
    (entry,) = [entry for entry in stage.entries() if any(isinstance(event, Borrow) for event in entry.events)]

    assert entry.events == (
        Drop(prompt=18, kind=FailureKind.INFRA, error="gone"),
        Borrow(loan=0, prompt=24, lender=7, borrower=5, dropped=18, spare=3, nth=1),
        Stamp(prompts=(3,), step=7),
        Dispatch(prompt=3, attempt=1, step=7, weights=5),
    )


@pytest.mark.parametrize("when", ["before append", "after append"])
def test_a_crash_finds_the_whole_loan_or_nothing_of_it_and_comes_to_the_same_end(when: str) -> None:
    stage = at_step_5(24)
    stage.generator.fail(18)

    def dies(moment: Moment) -> None:
        if moment == Moment(when, stage.controller.state.offset):  # type: ignore[union-attr]
            stage.hook = lambda later: None
            raise Death

    stage.hook = dies
    with pytest.raises(Death):
        stage.settle()
    landed = when == "after append"
    assert [len(stage.events(kind)) for kind in (Drop, Borrow)] == [landed, landed]
    stage.kill_controller()
    stage.resume()

    assert loans(stage) == [(24, 7, 5, 3)]
    stage.finish(19, 20)
    stage.train()
    assert stage.steps[5] == (19, 20, 24)


# --- how a debt ends --------------------------------------------------------------------------------------------------


def test_the_debt_is_paid_in_the_entry_in_which_the_spare_is_finished() -> None:
    stage = at_step_5(24)
    stage.fail(18)
    assert stage.state.loans == {0: Loan(prompt=24, lender=7, borrower=5, spare=3)}
    stage.finish(3)

    (entry,) = [entry for entry in stage.entries() if any(isinstance(event, Repay) for event in entry.events)]
    assert [type(event) for event in entry.events] == [Commit, Repay]
    assert (stage.state.loans, stage.state.loans_repaid) == ({}, 1)


def test_a_spare_that_fails_and_is_tried_again_still_owes() -> None:
    stage = at_step_5(24, max_infra_attempts=2, backoff_base_s=0)
    stage.fail(18)
    stage.fail(18)
    stage.fail(3)
    assert stage.state.groups[3].loan == 0
    stage.finish(3)

    assert stage.state.loans_repaid == 1


def test_the_borrowed_group_counts_for_the_step_that_borrowed_only() -> None:
    stage = at_step_5(*STEP_7)
    stage.fail(18)
    stage.finish(19, 20)
    stage.train()
    assert stage.steps[5] == (19, 20, 24)
    stage.finish(*STEP_6)
    stage.train()
    assert stage.state.version == 7
    assert stage.state.step(7).taken == 0, "25 and 26 wait for the spare"
    stage.finish(3)
    stage.train()

    assert stage.steps[7] == (3, 25, 26)


def test_debts_are_passed_down_until_the_spares_are_gone_and_then_the_lender_shrinks() -> None:
    """Chain: 5 borrows from 7, the spare is lost, another owes, it is lost too: the hole is in 7 and not in 5."""
    stage = at_step_5(24, attempts=2)
    stage.fail(18)
    stage.fail(3)
    assert stage.events(Replace) == [Replace(step=7, dropped=3, spare=4, nth=2)]
    assert stage.state.loans == {0: Loan(prompt=24, lender=7, borrower=5, spare=4)}
    stage.fail(4)

    assert stage.events(Shrink) == [Shrink(step=7, prompt=4, loan=0)]
    assert (stage.state.target(5), stage.state.target(7)) == (3, 2)
    assert (stage.state.loans, stage.state.loans_forgiven) == ({}, 1)
    assert stage.state.groups[24].step == 5, "what was lent stays where it is"


def test_a_second_loan_of_the_lender_comes_only_from_beyond_it() -> None:
    stage = at_step_5(21, 22, 24, lookahead=3, attempts=2)
    assert stage.state.cursor == 8
    stage.fail(18)
    assert loans(stage) == [(24, 7, 5, 3)]
    stage.finish(27)
    stage.fail(3)

    assert loans(stage)[1:] == [(27, 8, 7, 4)], "21 and 22 of step 6 are nearer than 7"
    assert [(repay.loan, repay.prompt) for repay in stage.events(Repay)] == [(0, 27)]
    assert stage.state.loans == {1: Loan(prompt=27, lender=8, borrower=7, spare=4)}


def test_loans_survive_a_crash_and_are_repaid_by_the_next_controller() -> None:
    stage = at_step_5(24)
    stage.fail(18)
    before = stage.state.loans
    assert 3 in stage.generator.take()
    stage.kill_generator()
    stage.kill_controller()
    stage.resume()
    assert stage.state.loans == before
    stage.after(12)
    stage.finish(3)

    assert stage.state.loans_repaid == 1
    assert stage.state.groups[3].attempt == 2


# --- what a person drops ----------------------------------------------------------------------------------------------


def test_a_prompt_that_a_person_drops_leaves_its_step_as_any_other_and_costs_no_budget() -> None:
    stage = at_step_5(24)
    stage.kill_controller()
    controller = stage.new_controller()
    controller.changes = [lambda state: drop(state, stage.policy, 18)]
    controller.open("resume")
    stage.settle()

    assert [event.kind for event in stage.events(Drop)] == [FailureKind.USER]
    assert loans(stage) == [(24, 7, 5, 3)]
    assert (stage.state.skipped, stage.state.consecutive_drops, stage.state.dropped) == (0, 0, 1)
    stage.generator.finish(18)
    stage.finish(19, 20)
    stage.train()
    assert stage.steps[5] == (19, 20, 24), "the answer to the dropped prompt came too late"


def test_the_spare_of_a_finished_group_that_a_person_drops_waits_for_room() -> None:
    stage = Stage(
        small_plan(
            grpo={"prompts_per_step": 3},
            failure={"on_dropped_prompt": "replace", "min_step_fraction": 0.1},
            flow={"max_inflight_prompts": 2},
        )
    )
    stage.finish(stage.at(Place.IN_FLIGHT)[0])
    finished, running = stage.at(Place.BUFFER), stage.at(Place.IN_FLIGHT)
    stage.kill_controller()
    controller = stage.new_controller()
    controller.changes = [lambda state: drop(state, stage.policy, finished[0])]
    controller.open("resume")

    (replaced,) = stage.events(Replace)
    assert len(running) == 2
    assert (replaced.dropped, stage.at(Place.IN_FLIGHT)) == (finished[0], running)
    assert stage.state.groups[replaced.spare].place is Place.WAITING
    stage.settle()
    stage.finish(*running)
    assert replaced.spare in {event.prompt for event in stage.events(Dispatch)}
    assert stage.follow().state.count(Place.IN_FLIGHT) <= 2


# --- the floor --------------------------------------------------------------------------------------------------------


def test_a_loan_that_cannot_be_paid_stops_the_run_when_the_lender_falls_below_its_floor() -> None:
    stage = at_step_5(24, min_step_fraction=1.0)
    stage.fail(18)
    stage.fail(3)
    assert stage.events(Shrink) == [Shrink(step=7, prompt=3, loan=0)]
    assert stage.events(Stop) == [], "steps 5 and 6 are whole"
    stage.finish(19, 20)
    stage.train()
    stage.finish(*STEP_6)
    stage.train()
    stage.save()

    assert stage.events(Stop)[0].detail.startswith("step 7 lost 1 of its 3 groups and 2 are left, below its floor of 3")
    assert stage.state.finish is FinishReason.FAILED
