"""The fold of what happens to steps: Select, Train, Resume, Shrink."""

from dataclasses import replace

import pytest

from builders import (
    Decision,
    N,
    admitted,
    committed,
    diverted,
    dropped,
    durable,
    folded,
    history,
    opened,
    places,
    published,
    ready,
    retrained,
    saved,
    selected,
    sent,
    steps,
    trained,
)
from rollog.events.vocabulary import Borrow, Drop, FailureKind, Repay, Replace, Resume, Shrink, Stamp
from rollog.replay.errors import BrokenHistory
from rollog.replay.state import Loan


def test_select_takes_groups_out_of_the_buffer_for_the_step() -> None:
    state = folded(*ready(0), selected(0))

    assert places(state) == {0: "selected", 1: "selected"}
    assert (state.step(0).taken, state.step(0).closed, state.filling, state.version) == (2, True, 1, 0)


def test_a_step_can_be_taken_in_chunks_and_closed_by_an_empty_one() -> None:
    first = selected(0, 0, last=False)
    state = folded(admitted(0), sent(0), sent(1), committed(0), first, dropped(1))
    assert (state.filling, state.step(0).taken, state.target(0)) == (0, 1, 1)

    closing = replace(selected(0, chunk=1), prompts=())
    closed = folded(admitted(0), sent(0), sent(1), committed(0), first, dropped(1), closing)
    assert (closed.filling, closed.step(0).taken, len(closed.step(0).chunks)) == (1, 1, 2)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (selected(1, 0, 1), r"step 1 is not the one being filled \(0\)"),
        (selected(0, chunk=1), "chunk 1 does not follow 0 chunks"),
        (selected(0, 0, 0), "prompt 0 is selected"),
        (selected(0, 2), "prompt 2 is settled or was never handed out"),
    ],
)
def test_a_selection_that_does_not_fit_its_step_is_refused(wrong: Decision, why: str) -> None:
    with pytest.raises(BrokenHistory, match=why):
        folded(*ready(0), wrong)


def test_train_settles_the_groups_of_its_step_and_moves_the_version() -> None:
    state = folded(*ready(0), selected(0), trained(0))

    assert (state.version, state.standing, state.trained, state.groups) == (1, 1, 2, {})
    assert sorted(state.published) == [1]


def test_a_step_is_trained_only_when_its_last_chunk_is_selected() -> None:
    with pytest.raises(BrokenHistory, match="last chunk of step 0 is not selected"):
        folded(*ready(0), selected(0, 0, last=False), trained(0))


def test_a_report_of_another_trainer_generation_is_no_train() -> None:
    with pytest.raises(BrokenHistory, match="trainer generation 99 is not 1"):
        folded(*ready(0), selected(0), trained(0, generation=99))


def test_a_new_trainer_stands_at_the_checkpoint_and_trains_the_same_steps_again() -> None:
    resume = Resume(version=0, checkpoint="", reason="killed")
    before = (*steps(2), resume)
    generation = len(history(*before))

    state = folded(*before)
    assert (state.version, state.standing, state.generation) == (2, 0, generation)

    again = folded(*before, retrained(0, generation))
    assert (again.version, again.standing, again.trained) == (2, 1, 4)
    assert folded(*before, retrained(0, generation), retrained(1, generation)).standing == 2


def test_while_steps_are_trained_again_new_orders_still_ask_for_the_version() -> None:
    resume = Resume(version=0, checkpoint="", reason="killed")

    state = folded(*steps(2), admitted(2), resume, sent(4, weights=2))

    assert (state.standing, state.groups[4].weights) == (0, 2)


def test_a_trainer_cannot_resume_above_the_version() -> None:
    with pytest.raises(BrokenHistory, match="version 1 is above 0"):
        folded(Resume(version=1, checkpoint="1-1-1", reason="killed"))


def test_what_is_recorded_above_the_checkpoint_that_is_loaded_is_not_whole() -> None:
    state = folded(*steps(1), saved(1), durable(1), durable(0), Resume(version=0, checkpoint="0-1-1", reason="broken"))

    assert sorted(state.checkpoints) == [0]


def test_trainers_that_end_in_vain_are_counted_until_a_new_step_a_newer_checkpoint_or_an_open() -> None:
    resume = Resume(version=0, checkpoint="", reason="killed")

    assert folded(resume, resume).resumes_in_vain == 2
    assert folded(resume, resume, published(0)).resumes_in_vain == 2
    assert folded(*steps(1), saved(1), resume, resume, durable(1)).resumes_in_vain == 0
    assert folded(*steps(1), resume, trained(0, generation=10)).resumes_in_vain == 1
    assert folded(resume, resume, opened(2)).resumes_in_vain == 0
    assert folded(*ready(0), resume, selected(0), trained(0, generation=8)).resumes_in_vain == 0


def test_shrink_lowers_the_target_of_its_step_only() -> None:
    state = folded(admitted(0), Shrink(step=0, prompt=0))

    assert (state.target(0), state.target(1)) == (N - 1, N)


# --- spares and loans -------------------------------------------------------------------------------------------------

BORROW = Borrow(loan=0, prompt=2, lender=1, borrower=0, dropped=0, spare=4, nth=1)


def lent() -> list[Decision]:
    """Prompt 0 of step 0 is dropped; finished prompt 2 of step 1 moves there, and the spare 4 owes step 1."""
    give_up = Drop(prompt=0, kind=FailureKind.INFRA, error="x")
    borrow = (give_up, BORROW, Stamp(prompts=(4,), step=1), sent(4, step=1))
    return [admitted(0), admitted(1), diverted(4, 5), sent(0), sent(2), committed(2), borrow]


def test_a_spare_stands_in_for_the_same_step() -> None:
    replace_it = (
        Drop(prompt=0, kind=FailureKind.INFRA, error="x"),
        Replace(step=0, dropped=0, spare=2, nth=1),
        Stamp(prompts=(2,), step=0),
    )
    state = folded(admitted(0), diverted(2, 3), sent(0), replace_it)

    assert places(state) == {1: "waiting", 2: "waiting", 3: "reserve"}
    assert (state.groups[2].step, state.groups[2].nth, state.target(0)) == (0, 1, N)


def test_a_borrowed_group_moves_to_the_borrower_and_the_spare_owes_the_lender() -> None:
    state = folded(*lent())

    assert (state.groups[2].step, state.groups[4].step, state.groups[4].loan) == (0, 1, 0)
    assert state.loans == {0: Loan(prompt=2, lender=1, borrower=0, spare=4)}


def test_a_loan_ends_when_it_is_repaid_or_forgiven() -> None:
    repaid = folded(*lent(), (committed(4), Repay(loan=0, prompt=4)))
    forgiven = folded(*lent(), (Drop(prompt=4, kind=FailureKind.DATA, error="x"), Shrink(step=1, prompt=4, loan=0)))

    assert (repaid.loans, repaid.loans_made, repaid.groups[4].loan, repaid.target(1)) == ({}, 1, None, N)
    assert (forgiven.loans, forgiven.loans_made, forgiven.target(1)) == ({}, 1, N - 1)


def test_only_a_group_of_the_lender_is_lent_and_only_once() -> None:
    with pytest.raises(BrokenHistory, match="prompt 2 is stamped 0, not 1"):
        folded(*lent(), replace(BORROW, loan=1, spare=5))
    with pytest.raises(BrokenHistory, match="loan 0 is open already"):
        folded(*lent(), sent(3), committed(3), replace(BORROW, prompt=3, spare=5))
    with pytest.raises(BrokenHistory, match="loan 7 is not open"):
        folded(*lent(), Repay(loan=7, prompt=4))
