"""Each law of a history goes red on a history that breaks it: fates, answers, writers, checkpoints, the end."""

from dataclasses import replace

import pytest

from builders import (
    Decision,
    admitted,
    audited,
    committed,
    durable,
    first_break,
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
    Drop,
    Evict,
    EvictReason,
    Exhaust,
    FailureKind,
    Finish,
    FinishReason,
    Note,
    Requeue,
    Resume,
    SaveReason,
    Stop,
    StopReason,
)
from rollog.replay.errors import BrokenInvariant, ReplayError
from rollog.replay.invariants import Audit

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
    assert first_break(admitted(0), STOP, STOPPED) == ("every prompt in exactly one place", 0)
    assert audited(admitted(0), STOP, Finish(reason=FinishReason.STOPPED, left=(0, 1))).entries == 5


@pytest.mark.parametrize("fields", [{"rollouts": 1}, {"rows": 1}])
def test_no_part_of_a_group_is_committed(fields: dict[str, int]) -> None:
    assert first_break(admitted(0), sent(0), committed(0, **fields)) == (
        "every finished group has all its rollouts",
        0,
    )


@pytest.mark.parametrize("decision", [Note(what="note", text="hello"), Exhaust(left=0), STOP])
def test_after_finish_only_an_open_may_follow(decision: Decision) -> None:
    assert first_break(STOP, STOPPED, decision) == ("nothing decided between Finish and Open", 0)
    assert audited(STOP, STOPPED, opened(2), decision).entries == 6


@pytest.mark.parametrize("second", ["7-0", "6-9", "1-0"])
def test_a_result_is_answered_once_and_in_order(second: str) -> None:
    law = first_break(admitted(0), sent(0), sent(1), committed(0), committed(1), inputs=["7-0", second])

    assert law == ("each result answered once, in order", 0)


def test_results_are_ordered_as_numbers_and_an_id_that_is_none_is_named() -> None:
    audit = audited(admitted(0), sent(0), sent(1), committed(0), committed(1), inputs=["9-0", "10-0"])
    assert audit.state.input == "10-0"

    assert first_break(admitted(0), inputs=["soon"]) == ("each result answered once, in order", 0)


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
    law = first_break(*ready(0), selected(0), decision)

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
    assert first_break(*decisions) == (
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
        [*whole_step(0), saved(1), durable(1), *ready(1, weights=1), selected(1), STOP, replace(STOPPED, left=(2, 3))],
        [STOPPED],
        [replace(STOPPED, reason=FinishReason.FAILED)],
        [STOP, replace(STOPPED, reason=FinishReason.MAX_STEPS)],
        [replace(STOPPED, reason=FinishReason.EXHAUSTED)],
    ],
)
def test_a_run_ends_for_its_reason_and_only_when_everything_trained_is_durable(decisions: list[Decision]) -> None:
    assert first_break(*decisions) == ("no end without its reason, or before everything trained is durable", 0)
    exhausted = replace(STOPPED, reason=FinishReason.EXHAUSTED)
    assert first_break(Exhaust(left=0), exhausted) is None


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
