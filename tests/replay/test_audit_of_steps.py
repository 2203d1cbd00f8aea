"""Each law of a history goes red on a history that breaks it: gates, windows, loans, and what a step takes."""

import pytest

from builders import (
    Decision,
    admitted,
    audited,
    committed,
    diverted,
    dropped,
    first_break,
    history,
    opened,
    ready,
    selected,
    sent,
    start,
    steps,
    trained,
    whole_step,
)
from rollog.events.vocabulary import (
    Admit,
    Borrow,
    Configure,
    Drop,
    Evict,
    EvictReason,
    Exhaust,
    FailureKind,
    Filter,
    FilterReason,
    Resume,
    Select,
    Stamp,
    Stop,
    StopReason,
)
from rollog.replay.errors import BrokenInvariant
from rollog.replay.invariants import Audit

STOP = Stop(reason=StopReason.REQUEST, deadline=0.0)
KILLED = Resume(version=0, checkpoint="", reason="killed")


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        ([*ready(0), *ready(1), selected(0), selected(1)], "two steps at once"),
        ([*steps(1), KILLED, *ready(1, weights=1), selected(1)], "a step while another is trained again"),
        ([*ready(0), Select(step=0, chunk=0, prompts=(), last=False)], "nothing and not the last"),
        ([*ready(0), selected(0, 0)], "closed one short without a Shrink"),
    ],
)
def test_a_step_takes_exactly_its_groups_when_it_is_its_turn(decisions: list[Decision], why: str) -> None:
    assert first_break(*decisions) == ("each step trained exactly its groups, none twice", 0), why


def test_a_step_that_shrank_closes_short_and_so_does_the_last_of_the_data() -> None:
    assert (
        audited(admitted(0), sent(0), sent(1), committed(1), dropped(0), selected(0, 1), trained(0)).state.trained == 1
    )
    unstamped: list[Decision] = [start(sampler="ready_first"), opened()]
    given_up = Drop(prompt=1, kind=FailureKind.DATA, error="x")
    short = [
        admitted(0, step=None),
        sent(0, step=None),
        committed(0),
        given_up,
        Exhaust(left=0),
        selected(0, 0),
        trained(0),
    ]
    assert audited(*short, begins=unstamped).state.trained == 1


def test_a_prompt_is_not_sent_before_its_step_is_within_the_window() -> None:
    narrows = Configure(changes={"sampler.lookahead": 0}, cursor=1)

    assert first_break(admitted(0), admitted(1), narrows, sent(2)) == (
        "staleness within the bound for every selected group",
        0,
    )


def test_a_group_sent_under_a_wide_window_may_still_be_old_when_the_window_narrows() -> None:
    narrows = Configure(changes={"sampler.lookahead": 0}, cursor=1)
    audit = audited(*ready(0), *ready(1), narrows, selected(0), trained(0), selected(1))

    assert audit.max_staleness == 1


def test_no_group_is_selected_older_than_the_window_in_which_it_was_sent() -> None:
    on_policy: list[Decision] = [start(lookahead=0), opened()]
    # A generator that ran older weights than the version: its order did not ask for newer ones.
    stale = [
        *whole_step(0),
        admitted(1),
        sent(2, weights=0),
        sent(3, weights=1),
        committed(2, born=0),
        committed(3, born=1),
    ]
    widened = Configure(changes={"sampler.lookahead": 2}, cursor=1)

    for decisions in ([*stale, selected(1)], [*stale, widened, selected(1)]):
        assert first_break(*decisions, begins=on_policy) == ("staleness within the bound for every selected group", 0)


def test_windowed_selects_nothing_older_than_its_window() -> None:
    windowed: list[Decision] = [start(sampler="windowed", lookahead=0), opened()]
    groups = [decision for prompt in range(4) for decision in (sent(prompt, step=None), committed(prompt))]
    history_ = [admitted(0, step=None), admitted(1, step=None), *groups, selected(0), trained(0), selected(1)]

    assert first_break(*history_, begins=windowed) == ("staleness within the bound for every selected group", 0)


def test_pinned_trains_only_what_exactly_the_right_weights_made() -> None:
    pinned: list[Decision] = [start(determinism="pinned"), opened()]
    exact = [*ready(0), selected(0), trained(0), *ready(1, weights=0), selected(1)]
    newer = [*ready(0), selected(0), trained(0), *ready(1, weights=1), selected(1)]

    assert audited(*exact, begins=pinned).max_staleness == 1
    assert first_break(*newer, begins=pinned) == ("staleness within the bound for every selected group", 0)


@pytest.mark.parametrize("work", [admitted(2), diverted(4, 5), sent(3), selected(0)])
def test_a_stopping_run_begins_nothing(work: Decision) -> None:
    running = [*ready(0), admitted(1), sent(2), STOP]

    assert first_break(*running, work) == ("no new work while the run stops", 0)
    assert audited(*running, committed(2)).state.groups[2].finished is not None


def test_loans_in_the_state_are_the_loans_of_the_log() -> None:
    audit = Audit()
    for entry in history(admitted(0)):
        audit.follow(entry)
    audit.state.loans_repaid = 1

    with pytest.raises(BrokenInvariant, match="0 made, 1 repaid, 0 forgiven, 0 open"):
        audit.finish()


def test_a_batch_is_admitted_when_its_gate_is_open() -> None:
    gate = "each batch admitted once, when its gate is open"
    for sampler in ("in_order", "ready_first", "weight_fifo"):
        begins: list[Decision] = [start(sampler=sampler), opened()]
        step = -1 if sampler == "in_order" else None
        batches = [admitted(batch, step=step) for batch in range(3)]
        assert audited(*batches[:2], begins=begins).state.cursor == 1
        assert first_break(*batches, begins=begins) == (gate, 0), sampler
    windowed: list[Decision] = [start(sampler="windowed"), opened()]
    assert audited(*[admitted(batch, step=None) for batch in range(5)], begins=windowed).state.cursor == 4


def test_what_was_lost_opens_the_gate_again_where_steps_are_not_stamped() -> None:
    begins: list[Decision] = [start(sampler="ready_first", lookahead=0), opened()]
    useless = (committed(0), Filter(prompt=0, reason=FilterReason.EQUAL_REWARDS))

    audit = audited(admitted(0, step=None), sent(0, step=None), useless, admitted(1, step=None), begins=begins)

    assert audit.state.cursor == 1


def test_only_a_step_that_a_change_of_sampler_left_partial_is_completed() -> None:
    completing = (Admit(batch=0, prompts=(2,), rows=(102,)), Stamp(prompts=(2,), step=0))
    windowed: list[Decision] = [start(sampler="windowed"), opened()]
    evicted = Evict(prompts=(0,), reason=EvictReason.STALE)
    to_in_order = Configure(changes={"sampler.name": "in_order", "sampler.lookahead": 1}, cursor=0)
    partial = [admitted(0, step=None), evicted, (to_in_order, Stamp(prompts=(1,), step=0))]

    assert audited(*partial, completing, begins=windowed).state.handed_out == 3
    assert first_break(admitted(0), completing) == ("each batch admitted once, when its gate is open", 0)


def test_a_loan_goes_from_a_later_step_to_an_earlier_one() -> None:
    give_up = Drop(prompt=2, kind=FailureKind.INFRA, error="x")
    backwards = Borrow(loan=0, prompt=0, lender=0, borrower=1, dropped=2, spare=4, nth=1)
    running = [admitted(0), admitted(1), diverted(4, 5), sent(0), sent(2), committed(0)]

    assert first_break(*running, (give_up, backwards, Stamp(prompts=(4,), step=0))) == (
        "every loan repaid, forgiven or open",
        0,
    )


def test_a_step_does_not_close_short_at_the_end_of_the_data_while_groups_still_come() -> None:
    unstamped: list[Decision] = [start(sampler="ready_first"), opened()]
    running = [admitted(0, step=None), sent(0, step=None), sent(1, step=None), committed(0), Exhaust(left=0)]

    assert first_break(*running, selected(0, 0), begins=unstamped) == (
        "each step trained exactly its groups, none twice",
        0,
    )
