"""The fold of what happens to prompts: Admit, Divert, Dispatch, Retry, Commit, Drop, Filter, Evict, Requeue."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from builders import (
    Decision,
    admitted,
    committed,
    diverted,
    dropped,
    folded,
    opened,
    places,
    retried,
    sent,
)
from rollog.events.vocabulary import (
    Cancel,
    Drop,
    Evict,
    EvictReason,
    Exhaust,
    FailureKind,
    Filter,
    FilterReason,
    Requeue,
)
from rollog.replay.errors import BrokenHistory
from rollog.replay.state import Place


def test_admit_hands_out_the_next_ordinals_and_moves_the_cursor() -> None:
    state = folded(admitted(0), admitted(1))

    assert (state.handed_out, state.cursor, places(state)) == (4, 1, dict.fromkeys(range(4), "waiting"))
    assert (state.groups[3].row, state.groups[3].step) == (103, 1)


def test_a_batch_number_is_never_left_out() -> None:
    with pytest.raises(BrokenHistory, match="batch 1 does not follow -1"):
        folded(admitted(1))


def test_an_ordinal_is_never_left_out() -> None:
    with pytest.raises(BrokenHistory, match=r"prompt 5 is not the next \(0\)"):
        folded(diverted(5))


def test_an_ordinal_is_handed_out_once() -> None:
    with pytest.raises(BrokenHistory, match="prompt 0 is handed out twice"):
        folded(diverted(0), diverted(0))


def test_each_prompt_brings_its_row() -> None:
    with pytest.raises(BrokenHistory, match="one row for each prompt"):
        folded(replace(diverted(0, 1), rows=(100,)))


def test_divert_fills_the_reserve_and_moves_no_cursor() -> None:
    state = folded(diverted(0, 1))

    assert (places(state), state.cursor, state.handed_out) == ({0: "reserve", 1: "reserve"}, -1, 2)


def test_spares_that_are_admitted_wait_like_others() -> None:
    state = folded(diverted(0, 1), admitted(0))

    assert (places(state), state.handed_out, state.cursor) == ({0: "waiting", 1: "waiting"}, 2, 0)


def test_dispatch_counts_attempts_and_gives_the_latest_slot() -> None:
    state = folded(admitted(0), sent(0), sent(1), retried(0), sent(0, 2, weights=0))

    assert (state.groups[0].slot, state.groups[1].slot, state.groups[0].attempt) == (3, 2, 2)
    assert state.groups[0].order is not None
    assert state.groups[0].order.offset == state.offset


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (lambda: sent(0, 2), "attempt 2 does not follow 0"),
        (lambda: sent(0, step=5), "stamped 0, not 5"),
        (lambda: sent(7), "settled or was never handed out"),
    ],
)
def test_an_order_that_does_not_fit_its_prompt_is_refused(order: Callable[[], Decision], why: str) -> None:
    with pytest.raises(BrokenHistory, match=why):
        folded(admitted(0), order())


def test_a_prompt_in_flight_is_not_sent_again() -> None:
    with pytest.raises(BrokenHistory, match="prompt 0 is in_flight"):
        folded(admitted(0), sent(0), sent(0, 2))


def test_commit_puts_the_group_into_the_buffer_and_ends_a_row_of_infra_drops() -> None:
    state = folded(admitted(0), sent(1), dropped(1), sent(0), committed(0, born=0))

    assert places(state) == {0: "buffer"}
    assert state.groups[0].order is None
    assert state.groups[0].finished is not None
    assert (state.groups[0].finished.born, state.consecutive_drops) == (0, 0)


def test_a_result_of_another_attempt_is_not_a_commit() -> None:
    with pytest.raises(BrokenHistory, match="prompt 0 is at attempt 2, not 1"):
        folded(admitted(0), sent(0), retried(0), sent(0, 2), committed(0, 1))


@pytest.mark.parametrize(
    ("kind", "counts"),
    [(FailureKind.INFRA, (1, 0, 0, 0)), (FailureKind.DATA, (0, 1, 1, 0)), (FailureKind.LOST, (0, 0, 0, 1))],
)
def test_each_kind_of_failure_has_its_own_counter(kind: FailureKind, counts: tuple[int, ...]) -> None:
    group = folded(admitted(0), sent(0), retried(0, kind, not_before=12.5)).groups[0]

    assert (group.infra_failures, group.data_failures, group.seed_failures, group.lost_attempts) == counts
    assert (group.place, group.not_before, group.last_failure, group.order) == (Place.BACKING_OFF, 12.5, kind, None)


def test_an_attempt_sent_by_an_earlier_controller_is_lost_for_nothing() -> None:
    assert folded(admitted(0), sent(0), opened(2), retried(0, FailureKind.LOST)).groups[0].lost_attempts == 0


def test_a_group_whose_blob_vanished_leaves_the_buffer_without_any_count() -> None:
    group = folded(admitted(0), sent(0), committed(0), retried(0, FailureKind.LOST)).groups[0]

    assert (group.place, group.finished, group.lost_attempts) == (Place.BACKING_OFF, None, 0)


def test_a_finished_group_cannot_fail() -> None:
    with pytest.raises(BrokenHistory, match="prompt 0 is finished"):
        folded(admitted(0), sent(0), committed(0), retried(0, FailureKind.INFRA))


def test_a_person_drops_and_does_not_retry() -> None:
    with pytest.raises(BrokenHistory, match="a person drops"):
        folded(admitted(0), sent(0), retried(0, FailureKind.USER))


@pytest.mark.parametrize(
    ("kind", "skipped", "in_a_row"), [(FailureKind.DATA, 1, 0), (FailureKind.INFRA, 0, 1), (FailureKind.USER, 0, 0)]
)
def test_a_drop_counts_in_the_budget_of_its_kind(kind: FailureKind, skipped: int, in_a_row: int) -> None:
    state = folded(admitted(0), sent(0), Drop(prompt=0, kind=kind, error="x"))

    assert (state.skipped, state.consecutive_drops, state.dropped, places(state)) == (
        skipped,
        in_a_row,
        1,
        {1: "waiting"},
    )


def test_a_person_may_drop_a_finished_group() -> None:
    state = folded(admitted(0), sent(0), committed(0), Drop(prompt=0, kind=FailureKind.USER, error="x"))

    assert (state.dropped, places(state)) == (1, {1: "waiting"})


def test_a_filtered_group_is_settled() -> None:
    useless = (committed(0), Filter(prompt=0, reason=FilterReason.EQUAL_REWARDS))
    state = folded(admitted(0), sent(0), useless)

    assert (state.filtered, places(state)) == (1, {1: "waiting"})


def test_an_evicted_group_is_settled_and_a_requeued_one_waits_with_its_attempts() -> None:
    finished = (admitted(0, step=None), sent(0, step=None), committed(0))

    assert folded(*finished, Evict(prompts=(0,), reason=EvictReason.STALE)).evicted == 1
    group = folded(*finished, Requeue(prompts=(0,))).groups[0]
    assert (group.place, group.attempt, group.requeues, group.finished) == (Place.WAITING, 1, 1, None)


def test_cancel_ends_the_attempt_and_the_same_entry_says_where_the_prompt_goes() -> None:
    cancel = Cancel(prompt=0, attempt=1, reason="too old")
    begun = (admitted(0, step=None), sent(0, step=None))

    state = folded(*begun, (cancel, Requeue(prompts=(0,))))
    assert (places(state)[0], state.groups[0].order) == ("waiting", None)
    assert folded(*begun, (cancel, Evict(prompts=(0,), reason=EvictReason.STALE))).evicted == 1


def test_a_running_attempt_is_cancelled_before_its_prompt_goes_elsewhere() -> None:
    with pytest.raises(BrokenHistory, match="prompt 0 is in_flight"):
        folded(admitted(0), sent(0), Evict(prompts=(0,), reason=EvictReason.STALE))


def test_exhaust_is_remembered() -> None:
    assert folded(Exhaust(left=1)).exhausted
