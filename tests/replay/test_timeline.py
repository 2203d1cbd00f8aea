"""Time travel: states at moments, steps forward and back, causes, and differences in words."""

from dataclasses import fields

import pytest

from builders import (
    Decision,
    KeptLog,
    admitted,
    committed,
    dropped,
    durable,
    folded,
    history,
    opened,
    published,
    ready,
    retried,
    saved,
    selected,
    sent,
    steps,
    trained,
)
from rollog.events.vocabulary import (
    Configure,
    FailureKind,
    Finish,
    FinishReason,
    Join,
    Load,
    Resume,
    Role,
    SaveReason,
    Stop,
    StopReason,
)
from rollog.replay.causes import Causes
from rollog.replay.difference import _SCALARS, _TABLES, difference
from rollog.replay.errors import NoSuchMoment
from rollog.replay.plain import state_digest, state_to_plain
from rollog.replay.state import State
from rollog.replay.timeline import Timeline

DECISIONS: list[Decision] = [
    admitted(0),  # 3
    sent(0),
    sent(1),
    retried(0, FailureKind.INFRA),  # 6
    committed(1),
    sent(0, 2),
    committed(0, 2),  # 9
    selected(0),
    trained(0),  # 11
    admitted(1),
    saved(1),  # 13
    durable(1),
]
RUN = Timeline(KeptLog(history(*DECISIONS)))


def test_a_state_at_an_offset_is_the_fold_up_to_it() -> None:
    assert RUN.state(0) == State()
    for offset in range(2, 15):
        assert RUN.state(offset) == folded(*DECISIONS[: offset - 2])


def test_moments_are_every_state_in_order() -> None:
    seen = [(entry.offset, state.offset, state.version) for entry, state in RUN.moments(first=10)]

    assert seen == [(10, 10, 0), (11, 11, 1), (12, 12, 1), (13, 13, 1), (14, 14, 1)]


@pytest.mark.parametrize("offset", [-1, 15, 99])
def test_a_moment_outside_of_the_log_is_none(offset: int) -> None:
    with pytest.raises(NoSuchMoment, match=r"1\.\.14"):
        RUN.state(offset)


def test_the_next_and_the_previous_entry_end_with_the_log() -> None:
    assert (RUN.next(3), RUN.previous(3)) == (4, 2)
    with pytest.raises(NoSuchMoment):
        RUN.next(14)
    with pytest.raises(NoSuchMoment):
        RUN.previous(1)


def test_the_next_and_the_previous_step_are_where_the_version_moved() -> None:
    twice = Timeline(KeptLog(history(*steps(2))))

    assert (twice.next_step(1), twice.next_step(9), twice.previous_step(16)) == (9, 16, 9)
    with pytest.raises(NoSuchMoment, match="steps ended at 9, 16"):
        twice.next_step(16)
    with pytest.raises(NoSuchMoment, match="no step is trained before entry 9"):
        twice.previous_step(9)


# --- causes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "causes", "chain"),
    [
        (1, (), []),
        (3, (), []),
        (4, (3,), [3]),
        (6, (4,), [3, 4]),
        (8, (6,), [3, 4, 6]),
        (9, (8,), [3, 4, 6, 8]),
        (10, (7, 9), [3, 4, 5, 6, 7, 8, 9]),
        (11, (10,), [3, 4, 5, 6, 7, 8, 9, 10]),
        (12, (), []),
        (13, (11,), [3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (14, (13,), [3, 4, 5, 6, 7, 8, 9, 10, 11, 13]),
    ],
)
def test_an_entry_rests_on_what_its_prompts_and_steps_went_through(
    offset: int, causes: tuple[int, ...], chain: list[int]
) -> None:
    explained = RUN.explain(offset)

    assert explained.causes == causes
    assert [entry.offset for entry in explained.chain] == chain


def test_a_step_closed_in_chunks_rests_on_all_of_them() -> None:
    chunks = [selected(0, 0, last=False), selected(0, 1, chunk=1)]
    log = KeptLog(history(*ready(0), *chunks, trained(0)))

    assert Timeline(log).explain(10).causes == (8, 9)


def test_a_finish_rests_on_the_stop_of_its_own_session_only() -> None:
    causes = Causes()
    stop, stopped = Stop(reason=StopReason.REQUEST, deadline=0.0), Finish(reason=FinishReason.STOPPED, left=())
    exhausted = Finish(reason=FinishReason.EXHAUSTED, left=())
    for entry in history(stop, stopped, opened(2), exhausted):
        causes.follow(entry)

    assert causes.of[4] == (3,)
    assert causes.of[5] == (2, 4)
    assert causes.of[6] == ()


def test_weights_rest_on_the_trainer_that_loaded_them_and_a_load_on_its_publish() -> None:
    causes = Causes()
    load = Load(worker="gen-0", version=0, digest="0" * 64)
    for entry in history(published(0), Join(worker="gen-0", role=Role.GENERATOR), load):
        causes.follow(entry)

    assert causes.of[3] == (1,)
    assert causes.of[5] == (3, 4)


# --- differences ------------------------------------------------------------------------------------------------------


def texts(before: State, after: State) -> list[str]:
    return [change.text for change in difference(before, after)]


def test_an_entry_tells_the_difference_it_made() -> None:
    assert [change.text for change in RUN.explain(8).changes] == [
        "orders sent: 2 -> 3",
        "prompt 0: backing off -> in flight (attempt 2, weights v0)",
    ]
    assert [change.text for change in RUN.explain(11).changes] == [
        "version: 0 -> 1",
        "the trainer stands at: 0 -> 1",
        "trained: 0 -> 2",
        "prompts 0, 1: selected -> trained",
        "published weights v1: new",
    ]


def test_prompts_that_made_the_same_move_are_one_line() -> None:
    assert texts(folded(), folded(admitted(0), admitted(1))) == [
        "prompts handed out: 0 -> 4",
        "cursor: -1 -> 1",
        "stamps made: False -> True",
        "prompts 0, 1: not handed out -> waiting (for step 0)",
        "prompts 2, 3: not handed out -> waiting (for step 1)",
    ]


def test_a_drop_tells_the_budget_and_the_short_step() -> None:
    assert texts(folded(admitted(0), sent(0)), folded(admitted(0), sent(0), dropped(0))) == [
        "dropped: 0 -> 1",
        "admitted prompts lost to training: 0 -> 1",
        "infra drops in a row: 0 -> 1",
        "prompt 0: in flight -> dropped",
        "step 0: 1 group short (was 0)",
    ]


def test_settings_stops_and_workers_are_told() -> None:
    later = folded(
        Configure(changes={"sampler.lookahead": 3}, cursor=-1),
        Join(worker="gen-0", role=Role.GENERATOR),
        Load(worker="gen-0", version=0, digest="0" * 64),
        Stop(reason=StopReason.REQUEST, deadline=9.0),
    )

    assert texts(folded(), later) == [
        "stopping (request)",
        "setting sampler.lookahead: 1 -> 3",
        "worker gen-0: new, runs v0",
    ]
    assert texts(later, folded()) == [
        "no longer stopping",
        "setting sampler.lookahead: 3 -> 1",
        "worker gen-0: gone",
    ]


def test_differences_are_complete_over_a_whole_run() -> None:
    """Whatever an entry changes beside its place in the log, a line tells it, and only then."""
    resume = Resume(version=1, checkpoint="1-1-1", reason="killed")
    end = [Stop(reason=StopReason.REQUEST, deadline=0.0), saved(1, SaveReason.STOP), durable(1)]
    log = Timeline(
        KeptLog(history(*DECISIONS, resume, *end, Finish(reason=FinishReason.STOPPED, left=(2, 3)), opened(2)))
    )
    for offset in range(1, log.log.head().offset + 1):
        before, after = state_to_plain(log.state(offset - 1)), state_to_plain(log.state(offset))
        for plain in (before, after):
            del plain["offset"], plain["digest"], plain["rules"]
        assert (before == after) == (log.explain(offset).changes == ()), f"entry {offset}"


# --- plain ------------------------------------------------------------------------------------------------------------


def test_the_digest_tells_states_apart_and_nothing_else() -> None:
    digests = {state_digest(RUN.state(offset)) for offset in range(15)}
    assert len(digests) == 15
    assert state_digest(RUN.state(14)) == state_digest(folded(*DECISIONS))
    assert len(state_digest(State())) == 64


def test_no_field_of_the_state_is_forgotten_in_differences() -> None:
    told = {*_SCALARS, *_TABLES, "stopping", "settings", "groups", "steps"}
    derived = {"offset", "digest", "rules", "places", "ready"}

    assert {each.name for each in fields(State)} == told | derived
