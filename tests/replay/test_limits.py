"""What the settings in force allowed: each limit goes red one above it, and holds at it."""

from collections.abc import Sequence
from typing import Any

import pytest

from builders import (
    Decision,
    admitted,
    audited,
    committed,
    diverted,
    dropped,
    first_break,
    opened,
    ready,
    selected,
    sent,
    start,
    steps,
)
from rollog.events.vocabulary import (
    Borrow,
    Configure,
    Drop,
    Event,
    Exhaust,
    FailureKind,
    Filter,
    FilterReason,
    Replace,
    Requeue,
    Stamp,
)
from rollog.replay.limits import BUDGETS, FLOOR, LENDER, ROOM


def under(*, sampler: str = "in_order", lookahead: int = 1, flow: Any = None, **failure: Any) -> list[Decision]:
    """The beginning of a run with these limits."""
    return [start(sampler=sampler, lookahead=lookahead, flow=flow or {}, failure=failure), opened()]


def changed(cursor: int, **changes: Any) -> Configure:
    """A resume with another value; ``flow__x`` stands for ``flow.x``."""
    return Configure(changes={name.replace("__", "."): value for name, value in changes.items()}, cursor=cursor)


def dropped_for(prompt: int, spare: int, *, nth: int = 1, kind: FailureKind = FailureKind.INFRA) -> tuple[Event, ...]:
    """Given up, and a spare stands in for it in the same step; its order goes out at once."""
    replaced = Replace(step=0, dropped=prompt, spare=spare, nth=nth)
    drop = Drop(prompt=prompt, kind=kind, error="no budget left")
    return (drop, replaced, Stamp(prompts=(spare,), step=0), sent(spare, step=0))


def lent(prompt: int, lender: int) -> tuple[Event, ...]:
    """Prompt 0 of step 0 is given up; ``lender`` lends, and the spare 6 runs for it."""
    borrow = Borrow(loan=0, prompt=prompt, lender=lender, borrower=0, dropped=0, spare=6, nth=1)
    return (Drop(prompt=0, kind=FailureKind.INFRA, error="x"), borrow, Stamp(prompts=(6,), step=lender))


def test_no_more_orders_are_out_than_the_settings_allow() -> None:
    three: list[Decision] = [admitted(0), admitted(1), sent(0), sent(1), sent(2)]

    assert first_break(*three, begins=under(flow={"max_inflight_prompts": 3})) is None
    assert first_break(*three, begins=under(flow={"max_inflight_prompts": 2})) == (ROOM, 0)


def test_orders_stay_out_when_their_limit_is_lowered_and_no_new_one_goes_out() -> None:
    begins = under(flow={"max_inflight_prompts": 3})
    running = [admitted(0), admitted(1), sent(0), sent(1), changed(1, flow__max_inflight_prompts=1)]

    assert first_break(*running, committed(0), begins=begins) is None
    assert first_break(*running, committed(0), sent(2), begins=begins) == (ROOM, 0)


def test_a_spare_takes_the_room_of_the_attempt_that_ended_in_its_entry_above_a_lowered_limit_too() -> None:
    begins = under(flow={"max_inflight_prompts": 3})
    running = [admitted(0), diverted(2, 3), sent(0), sent(1), changed(0, flow__max_inflight_prompts=1)]
    filtered = (
        committed(0),
        Filter(prompt=0, reason=FilterReason.RULE),
        Replace(step=0, dropped=0, spare=2, nth=1),
        Stamp(prompts=(2,), step=0),
        sent(2, step=0),
    )

    assert first_break(*running, dropped_for(0, 2), begins=begins) is None
    assert first_break(*running, filtered, begins=begins) is None


def test_a_prompt_that_was_not_in_flight_leaves_no_room_to_its_spare() -> None:
    running = [admitted(0), diverted(2, 3), sent(1), dropped_for(0, 2, kind=FailureKind.USER)]

    assert first_break(*running, begins=under(flow={"max_inflight_prompts": 2})) is None
    assert first_break(*running, begins=under(flow={"max_inflight_prompts": 1})) == (ROOM, 0)


def test_no_batch_is_admitted_beyond_the_capacity_of_the_buffer() -> None:
    two = [admitted(0), admitted(1)]

    assert first_break(*two, begins=under(flow={"max_buffered_groups": 4})) is None
    assert first_break(*two, begins=under(flow={"max_buffered_groups": 3})) == (ROOM, 0)
    assert first_break(*two, begins=under(flow={"max_buffered_groups": None})) is None


def test_groups_stay_when_the_capacity_is_lowered_and_no_batch_joins_them() -> None:
    begins = under(lookahead=2, flow={"max_buffered_groups": 6})
    lowered = [admitted(0), admitted(1), changed(1, flow__max_buffered_groups=3)]

    assert first_break(*lowered, sent(0), begins=begins) is None
    assert first_break(*lowered, admitted(2), begins=begins) == (ROOM, 0)


def test_no_step_closes_below_its_floor_unless_the_data_is_at_its_end() -> None:
    short = [admitted(0), sent(0), sent(1), committed(0), dropped(1)]

    assert first_break(*short, selected(0, 0), begins=under(min_step_fraction=0.5)) is None
    assert first_break(*short, selected(0, 0), begins=under(min_step_fraction=0.51)) == (FLOOR, 0)
    assert first_break(*short, Exhaust(left=0), selected(0, 0), begins=under(min_step_fraction=0.51)) is None


def test_a_step_is_judged_by_the_floor_in_force_when_it_closes() -> None:
    short = [admitted(0), sent(0), sent(1), committed(0), dropped(1)]
    raised = changed(0, failure__min_step_fraction=1.0)

    assert first_break(*short, raised, selected(0, 0), begins=under(min_step_fraction=0.5)) == (FLOOR, 0)
    assert first_break(*short, selected(0, 0), raised, begins=under(min_step_fraction=0.5)) is None


def test_no_prompt_is_handed_out_again_more_often_than_allowed() -> None:
    again: list[Decision] = []
    for attempt in (1, 2):
        again += [sent(0, attempt, step=None), committed(0, attempt), Requeue(prompts=(0,))]
    history_ = [admitted(0, step=None), *again]

    assert first_break(*history_, begins=under(sampler="windowed", max_requeues=2)) is None
    assert first_break(*history_, begins=under(sampler="windowed", max_requeues=1)) == (BUDGETS, 0)


def test_no_more_spares_are_tried_in_one_place_than_allowed() -> None:
    twice = [admitted(0), diverted(2, 3), sent(0), dropped_for(0, 2), dropped_for(2, 3, nth=2)]

    assert first_break(*twice, begins=under(max_replacement_attempts=2)) is None
    assert first_break(*twice, begins=under(max_replacement_attempts=1)) == (BUDGETS, 0)


def test_a_loan_counts_as_a_spare_tried() -> None:
    running = [*ready(0), *ready(1), diverted(4, 5, 6, 7), lent(2, 1)]

    assert first_break(*running, begins=under(max_replacement_attempts=1)) is None
    assert first_break(*running, begins=under(max_replacement_attempts=0)) == (BUDGETS, 0)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(FailureKind.DATA, "max_skipped_prompts"), (FailureKind.INFRA, "max_consecutive_dropped_prompts")],
)
def test_no_more_prompts_are_dropped_than_allowed(kind: FailureKind, setting: str) -> None:
    two = [admitted(0), admitted(1), sent(0), sent(2), dropped(0, kind), dropped(2, kind)]

    def judged(limit: int | str) -> tuple[str, int] | None:
        return first_break(*two, begins=[start(failure={setting: limit}), opened()])

    assert judged(2) is None
    assert judged(1) == (BUDGETS, 0)
    assert judged("unlimited") is None


def test_skips_count_for_the_whole_run_and_drops_in_a_row_until_a_group_is_finished() -> None:
    def between(kind: FailureKind) -> list[Decision]:
        first = [admitted(0), admitted(1), sent(0), sent(1), sent(2)]
        return [*first, dropped(0, kind), committed(1), dropped(2, kind)]

    begins = under(max_skipped_prompts=1, max_consecutive_dropped_prompts=1)
    assert first_break(*between(FailureKind.INFRA), begins=begins) is None
    assert first_break(*between(FailureKind.DATA), begins=begins) == (BUDGETS, 0)


def test_what_a_person_drops_uses_up_no_budget() -> None:
    begins = under(max_skipped_prompts=0, max_consecutive_dropped_prompts=0)

    assert first_break(admitted(0), dropped(0, FailureKind.USER), begins=begins) is None


@pytest.mark.parametrize(
    ("loan", "expected"),
    [
        (lent(4, 2), None),
        (lent(5, 2), (LENDER, 0)),
        (lent(2, 1), (LENDER, 0)),
    ],
    ids=["the furthest step's first group", "its second group", "a nearer step's"],
)
def test_the_furthest_later_step_lends_its_first_group(loan: Sequence[Event], expected: tuple[str, int] | None) -> None:
    running = [*ready(0, weights=0), *ready(1, weights=0), *ready(2, weights=0), diverted(6, 7)]

    assert first_break(*running, tuple(loan), begins=under(lookahead=2)) == expected


def test_a_log_that_lacks_the_settings_is_not_judged_by_them() -> None:
    assert audited(*steps(2)).entries == 16
