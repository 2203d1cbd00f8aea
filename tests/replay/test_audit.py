"""Each law of a history goes red on a history that breaks it."""

import pytest

from builders import (
    Decision,
    admitted,
    committed,
    diverted,
    dropped,
    durable,
    history,
    opened,
    published,
    ready,
    retrained,
    retried,
    saved,
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
    Finish,
    FinishReason,
    Note,
    Requeue,
    Resume,
    SaveReason,
    Select,
    Stamp,
    Stop,
    StopReason,
)
from rollog.replay.errors import BrokenInvariant, ReplayError
from rollog.replay.invariants import ALL_LAWS, Audit


def audited(*decisions: Decision, begins: list[Decision] | None = None, inputs: list[str] | None = None) -> Audit:
    """The audit of a whole history."""
    audit = Audit()
    for entry in history(*decisions, begins=begins, inputs=inputs or ()):
        audit.follow(entry)
    audit.finish()
    return audit


def law_broken_by(
    *decisions: Decision, begins: list[Decision] | None = None, inputs: list[str] | None = None
) -> tuple[str, int]:
    """The law and how many entries from the end it breaks: 0 is the last."""
    with pytest.raises(BrokenInvariant) as caught:
        audited(*decisions, begins=begins, inputs=inputs)
    assert caught.value.law in ALL_LAWS
    return caught.value.law, len(history(*decisions, begins=begins)) - caught.value.offset


STOP = Stop(reason=StopReason.REQUEST, deadline=0.0)
STOPPED = Finish(reason=FinishReason.STOPPED, left=())
KILLED = Resume(version=0, checkpoint="", reason="killed")


def test_a_right_history_keeps_the_same_books_as_the_state() -> None:
    audit = audited(*steps(3), *ready(3, weights=3), (retried(6, FailureKind.LOST)), sent(6, 2, weights=3))

    assert audit.fates == {**dict.fromkeys(range(6), "trained"), 6: "open", 7: "buffer"}
    assert (audit.entries, audit.max_staleness) == (2 + 3 * 7 + 5 + 2, 0)


def test_a_run_that_is_stopped_finished_and_opened_again_obeys_every_law() -> None:
    end: list[Decision] = [STOP, saved(1, SaveReason.STOP), durable(1), STOPPED]

    audit = audited(*whole_step(0), *end, opened(2), Resume(version=1, checkpoint="1-1-1", reason="new"), published(1))

    assert audit.state.standing == 1


def test_steps_trained_again_settle_nothing_twice() -> None:
    generation = len(history(*steps(2), KILLED))

    audit = audited(*steps(2), KILLED, retrained(0, generation), (retrained(1, generation), published(2)))

    assert audit.state.trained == 4


def test_a_settled_prompt_cannot_come_back() -> None:
    audit = Audit()
    for entry in history(*steps(1)):
        audit.follow(entry)
    audit.fates[7] = "trained"

    with pytest.raises(BrokenInvariant, match="the fates are"):
        audit.finish()


def test_the_number_of_fates_is_the_number_handed_out() -> None:
    audit = Audit()
    for entry in history(admitted(0)):
        audit.follow(entry)
    del audit.fates[1]

    with pytest.raises(BrokenInvariant, match="1 fates, 2 handed out"):
        audit.finish()


def test_finish_names_exactly_what_is_unsettled() -> None:
    assert law_broken_by(admitted(0), STOP, STOPPED) == ("every prompt in exactly one place", 0)
    assert audited(admitted(0), STOP, Finish(reason=FinishReason.STOPPED, left=(0, 1))).entries == 5


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
    assert law_broken_by(*decisions) == ("each step trained exactly its groups, none twice", 0), why


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

    assert law_broken_by(admitted(0), admitted(1), narrows, sent(2)) == (
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
        assert law_broken_by(*decisions, begins=on_policy) == ("staleness within the bound for every selected group", 0)


def test_windowed_selects_nothing_older_than_its_window() -> None:
    windowed: list[Decision] = [start(sampler="windowed", lookahead=0), opened()]
    groups = [decision for prompt in range(4) for decision in (sent(prompt, step=None), committed(prompt))]
    history_ = [admitted(0, step=None), admitted(1, step=None), *groups, selected(0), trained(0), selected(1)]

    assert law_broken_by(*history_, begins=windowed) == ("staleness within the bound for every selected group", 0)


def test_pinned_trains_only_what_exactly_the_right_weights_made() -> None:
    pinned: list[Decision] = [start(determinism="pinned"), opened()]
    exact = [*ready(0), selected(0), trained(0), *ready(1, weights=0), selected(1)]
    newer = [*ready(0), selected(0), trained(0), *ready(1, weights=1), selected(1)]

    assert audited(*exact, begins=pinned).max_staleness == 1
    assert law_broken_by(*newer, begins=pinned) == ("staleness within the bound for every selected group", 0)


@pytest.mark.parametrize("fields", [{"rollouts": 1}, {"rows": 1}])
def test_no_part_of_a_group_is_committed(fields: dict[str, int]) -> None:
    assert law_broken_by(admitted(0), sent(0), committed(0, **fields)) == (
        "every finished group has all its rollouts",
        0,
    )


@pytest.mark.parametrize("work", [admitted(2), diverted(4, 5), sent(3), selected(0)])
def test_a_stopping_run_begins_nothing(work: Decision) -> None:
    running = [*ready(0), admitted(1), sent(2), STOP]

    assert law_broken_by(*running, work) == ("no new work while the run stops", 0)
    assert audited(*running, committed(2)).state.groups[2].finished is not None


@pytest.mark.parametrize("decision", [Note(what="note", text="hello"), Exhaust(left=0), STOP])
def test_after_finish_only_an_open_may_follow(decision: Decision) -> None:
    assert law_broken_by(STOP, STOPPED, decision) == ("nothing decided between Finish and Open", 0)
    assert audited(STOP, STOPPED, opened(2), decision).entries == 6


@pytest.mark.parametrize("second", ["7-0", "6-9", "1-0"])
def test_a_result_is_answered_once_and_in_order(second: str) -> None:
    law = law_broken_by(admitted(0), sent(0), sent(1), committed(0), committed(1), inputs=["7-0", second])

    assert law == ("each result answered once, in order", 0)


def test_results_are_ordered_as_numbers_and_an_id_that_is_none_is_named() -> None:
    audit = audited(admitted(0), sent(0), sent(1), committed(0), committed(1), inputs=["9-0", "10-0"])
    assert audit.state.input == "10-0"

    assert law_broken_by(admitted(0), inputs=["soon"]) == ("each result answered once, in order", 0)


def test_only_the_controller_that_holds_the_pen_writes() -> None:
    usurped = history(admitted(0), opened(2))  # seal the same decision under the later epoch, without its Open
    audit = Audit()
    for entry in usurped[:3]:
        audit.follow(entry)
    audit.state.epoch = 0

    late = history(admitted(0), sent(0))[3]
    with pytest.raises(BrokenInvariant, match="writer epoch 1 writes while 0 holds the pen"):
        audit.follow(late)


@pytest.mark.parametrize(
    "decision",
    [
        (retrained(0, 1),),
        (*trained(0), published(0)),
    ],
)
def test_a_new_version_is_published_in_the_entry_that_makes_it(decision: Decision) -> None:
    law = law_broken_by(*ready(0), selected(0), decision)

    assert law == ("each version published when it is made, saved and loaded as it was made", 0)


@pytest.mark.parametrize(
    "decisions",
    [
        [*whole_step(0), saved(0)],
        [*steps(2), KILLED, saved(2)],
        [*whole_step(0), *ready(1, weights=1), selected(1), saved(1)],
        [*whole_step(0), durable(1)],
        [*whole_step(0), Resume(version=1, checkpoint="1-1-1", reason="killed")],
        [*whole_step(0), saved(1), durable(1), Resume(version=1, checkpoint="another", reason="killed")],
    ],
)
def test_a_checkpoint_is_ordered_written_and_loaded_as_what_it_is(decisions: list[Decision]) -> None:
    assert law_broken_by(*decisions) == (
        "each version published when it is made, saved and loaded as it was made",
        0,
    )


def test_checkpoint_zero_is_ordered_by_the_start() -> None:
    audit = audited(durable(0), published(0), Resume(version=0, checkpoint="0-1-1", reason="killed"))

    assert sorted(audit.state.checkpoints) == [0]


@pytest.mark.parametrize(
    "decisions",
    [
        [*whole_step(0), STOP, STOPPED],
        [
            *whole_step(0),
            saved(1),
            durable(1),
            *ready(1, weights=1),
            selected(1),
            Finish(reason=FinishReason.EXHAUSTED, left=(2, 3)),
        ],
    ],
)
def test_a_run_ends_only_when_everything_trained_is_durable(decisions: list[Decision]) -> None:
    assert law_broken_by(*decisions) == ("no end before everything trained is durable", 0)


def test_loans_in_the_state_are_the_loans_of_the_log() -> None:
    audit = Audit()
    for entry in history(admitted(0)):
        audit.follow(entry)
    audit.state.loans_repaid = 1

    with pytest.raises(BrokenInvariant, match="0 made, 1 repaid, 0 forgiven, 0 open"):
        audit.finish()


def test_the_last_step_lacks_no_group_unless_a_change_of_sampler_left_it_so() -> None:
    with pytest.raises(BrokenInvariant, match="step 0 can never have its 2 groups: 1 are meant for it"):
        audited(admitted(0), sent(0), Drop(prompt=0, kind=FailureKind.DATA, error="x"))


def test_evicted_and_requeued_prompts_have_one_fate() -> None:
    windowed: list[Decision] = [start(sampler="windowed"), opened()]
    both = [sent(0, step=None), committed(0), sent(1, step=None), committed(1)]

    audit = audited(
        admitted(0, step=None),
        *both,
        Evict(prompts=(0,), reason=EvictReason.STALE),
        Requeue(prompts=(1,)),
        begins=windowed,
    )

    assert audit.fates == {0: "evicted", 1: "open"}


WHOLE_RUN: list[Decision] = [start(), opened(), *steps(2), *ready(2, weights=2), selected(2), trained(2)]


@pytest.mark.parametrize("cut", range(len(WHOLE_RUN) - 1))
def test_no_decision_of_a_run_can_be_left_out(cut: int) -> None:
    with pytest.raises(ReplayError):
        audited(begins=[*WHOLE_RUN[:cut], *WHOLE_RUN[cut + 1 :]])


@pytest.mark.parametrize("cut", range(len(WHOLE_RUN)))
def test_no_decision_of_a_run_can_be_told_twice(cut: int) -> None:
    with pytest.raises(ReplayError):
        audited(begins=[*WHOLE_RUN[: cut + 1], *WHOLE_RUN[cut:]])


def test_a_batch_is_admitted_when_its_gate_is_open() -> None:
    gate = "each batch admitted once, when its gate is open"
    for sampler in ("in_order", "ready_first", "weight_fifo"):
        begins: list[Decision] = [start(sampler=sampler), opened()]
        step = -1 if sampler == "in_order" else None
        batches = [admitted(batch, step=step) for batch in range(3)]
        assert audited(*batches[:2], begins=begins).state.cursor == 1
        assert law_broken_by(*batches, begins=begins) == (gate, 0), sampler
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
    assert law_broken_by(admitted(0), completing) == ("each batch admitted once, when its gate is open", 0)


def test_a_loan_goes_from_a_later_step_to_an_earlier_one() -> None:
    give_up = Drop(prompt=2, kind=FailureKind.INFRA, error="x")
    backwards = Borrow(loan=0, prompt=0, lender=0, borrower=1, dropped=2, spare=4, nth=1)
    running = [admitted(0), admitted(1), diverted(4, 5), sent(0), sent(2), committed(0)]

    assert law_broken_by(*running, (give_up, backwards, Stamp(prompts=(4,), step=0))) == (
        "every loan repaid, forgiven or open",
        0,
    )


def test_a_step_does_not_close_short_at_the_end_of_the_data_while_groups_still_come() -> None:
    unstamped: list[Decision] = [start(sampler="ready_first"), opened()]
    running = [admitted(0, step=None), sent(0, step=None), sent(1, step=None), committed(0), Exhaust(left=0)]

    assert law_broken_by(*running, selected(0, 0), begins=unstamped) == (
        "each step trained exactly its groups, none twice",
        0,
    )
