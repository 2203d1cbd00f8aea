"""Which answers count, and the one entry that each makes.

An answer counts only for the very order it echoes; every answer makes exactly one entry, ``Late`` if nothing follows.
"""

from dataclasses import replace

import pytest

from rollog.events.messages import (
    BlobUnreadable,
    CheckpointDone,
    GroupDone,
    Result,
    StopRequest,
    WeightsReady,
    WorkerLeft,
)
from rollog.events.vocabulary import (
    Checkpoint,
    Commit,
    Event,
    FailureKind,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Publish,
    Retry,
    Role,
    Stop,
    StopReason,
    Train,
)
from rollog.pipeline.decisions import decide
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.inputs import Answer, BlobGone, StopAsked, WorkerGone
from rollog.pipeline.simulation.world import digest
from rollog.replay.state import Place
from stage import Stage, small_plan


def ask(stage: Stage, result: Result | None) -> tuple[Event, ...]:
    """What would follow from this result now."""
    return decide(stage.state, stage.policy, Answer(id="9-0", result=result), stage.now)


def holding(stage: Stage) -> GroupDone:
    """What the generator would report for prompt 0, which it has taken."""
    stage.generator.load()
    stage.generator.take()
    order, began = stage.generator.orders[0]
    return stage.generator.result(order, began, stage.generator.version)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_the_answer_to_the_order_in_flight_is_committed_as_it_was_reported() -> None:
    stage = Stage(small_plan())
    done = holding(stage)

    (commit,) = ask(stage, done)
    assert isinstance(commit, Commit)
    assert (commit.prompt, commit.attempt, commit.blob) == (0, 1, done.blob)
    assert (commit.born, commit.done, commit.worker) == (0, 0, "gen-0")
    assert (commit.rollouts, commit.rows, commit.tokens) == (done.rollouts, done.rows, done.tokens)


def test_an_answer_to_another_order_is_late() -> None:
    stage = Stage(small_plan())
    done = holding(stage)
    cause = done.cause
    others = (
        replace(done, attempt=2),
        replace(done, prompt=1),
        replace(done, prompt=40),
        replace(done, cause=replace(cause, offset=cause.offset + 1)),
        replace(done, cause=replace(cause, epoch=cause.epoch + 1)),
        replace(done, cause=replace(cause, digest="0" * 32)),
    )

    for other in others:
        late = Late(what="group", prompt=other.prompt, attempt=other.attempt, worker="gen-0")
        assert ask(stage, other) == (late,), other


def test_a_group_that_arrives_after_its_attempt_was_failed_is_late_and_the_next_attempt_goes_on() -> None:
    stage = Stage(small_plan())
    done = holding(stage)
    stage.fail(0, FailureKind.DATA)

    assert ask(stage, done) == (Late(what="group", prompt=0, attempt=1, worker="gen-0"),)
    assert stage.state.groups[0].place is Place.IN_FLIGHT


def test_a_failure_that_arrives_after_its_attempt_has_ended_is_late() -> None:
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    failed = stage.generator.fail(0, FailureKind.DATA)
    stage.settle()

    assert ask(stage, failed) == (Late(what="failure", prompt=0, attempt=1, worker="gen-0"),)


def test_the_same_group_delivered_again_is_late() -> None:
    stage = Stage(small_plan())
    done = holding(stage)
    stage.finish(0)

    assert ask(stage, done) == (Late(what="group", prompt=0, attempt=1, worker="gen-0"),)


def test_a_group_of_a_trained_prompt_is_late() -> None:
    stage = Stage(small_plan())
    done = holding(stage)
    stage.train_steps(1)

    assert ask(stage, done) == (Late(what="group", prompt=0, attempt=1, worker="gen-0"),)


@pytest.mark.parametrize(
    "lie",
    [
        {"born": 1, "done": 1},
        {"born": 0, "done": 1},
        {"rollouts": 1, "rows": 1},
        {"rows": 1},
        {"reward_mean": float("nan")},
        {"reward_std": float("inf")},
    ],
)
def test_a_report_that_no_correct_worker_makes_fails_the_attempt_and_is_not_waited_for(lie: dict[str, float]) -> None:
    stage = Stage(small_plan(failure={"max_infra_attempts": 2}))
    done = holding(stage)

    (retry,) = ask(stage, replace(done, **lie))  # type: ignore[arg-type]
    assert isinstance(retry, Retry)
    assert (retry.prompt, retry.attempt, retry.kind) == (0, 1, FailureKind.INFRA)
    assert "gen-0" in retry.error


def test_older_weights_than_the_order_asks_for_are_refused() -> None:
    stage = Stage(small_plan())
    stage.train_steps(1)
    stage.generator.load()
    stage.generator.take()
    order, _ = stage.generator.orders[8]
    assert order.weights == 1

    (retry,) = ask(stage, stage.generator.result(order, born=0, done=1))
    assert isinstance(retry, Retry)


def test_pinned_takes_a_group_only_from_exactly_the_weights_that_it_asks_for() -> None:
    stage = Stage(small_plan(determinism="pinned"))
    stage.train_steps(2)
    stage.generator.load()
    stage.generator.take()
    order, born = stage.generator.orders[12]
    assert (order.step, order.weights, born) == (3, 2, 2)

    assert isinstance(ask(stage, stage.generator.result(order, 2, 2))[0], Commit)
    for wrong in ((1, 2), (1, 1)):
        assert isinstance(ask(stage, stage.generator.result(order, *wrong))[0], Retry)


def test_a_worker_cannot_give_a_prompt_up_in_the_name_of_a_person() -> None:
    stage = Stage(small_plan())
    stage.fail(0, FailureKind.USER)

    assert [retry.kind for retry in stage.events(Retry)] == [FailureKind.INFRA]


def test_a_long_error_is_cut() -> None:
    stage = Stage(small_plan())
    stage.fail(0, FailureKind.INFRA, "x" * 60_000)

    assert len(stage.events(Retry)[0].error) == 500


# --- exactly one entry ------------------------------------------------------------------------------------------------


def test_each_result_makes_exactly_one_entry_that_names_it_in_the_order_of_the_stream() -> None:
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    for prompt in (3, 0, 5):
        stage.generator.finish(prompt)
    stage.generator.fail(1, FailureKind.DATA)
    waiting = [delivery.id for delivery in stage.server.results]
    stage.settle()

    answered = [entry.input for entry in stage.entries() if entry.input in waiting]
    assert answered == waiting


def test_bytes_that_are_no_message_and_messages_that_are_no_result_are_late() -> None:
    stage = Stage(small_plan())

    assert ask(stage, None) == (Late(what="not a message"),)


@pytest.mark.parametrize("stopping", [False, True])
def test_whatever_a_worker_says_at_whatever_time_makes_an_entry(stopping: bool) -> None:
    stage = Stage(small_plan())
    group = holding(stage)
    generation = stage.state.generation
    if stopping:
        stage.ask_to_stop(60)
    step = stage.rank.done(0)
    results: list[Result] = [
        group,
        step,
        replace(step, generation=7),
        WeightsReady(generation=7, version=0, file="0-a", digest=digest(0), worker="rank-0"),
        WeightsReady(generation=generation, version=3, file="3-a", digest=digest(0), worker="rank-0"),
        CheckpointDone(generation=generation, version=9, manifest="9-1-1", digest=digest(0), worker="rank-0"),
        BlobUnreadable(generation=7, step=0, prompt=0, error="gone", worker="rank-0"),
        WorkerLeft(worker="nobody", role=Role.GENERATOR, reason="bye"),
        StopRequest(reason=StopReason.REQUEST, within_s=60),
    ]

    for result in results:
        assert ask(stage, result), result


# --- the trainer ------------------------------------------------------------------------------------------------------


def test_a_trained_step_and_its_weights_are_published_in_one_entry() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.train()

    (entry,) = [entry for entry in stage.entries() if isinstance(entry.events[0], Train)]
    assert [type(event) for event in entry.events] == [Train, Publish]
    assert entry.events[1].version == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [{"generation": 2}, {"step": 1}])
def test_a_step_of_another_generation_or_of_another_number_is_late(wrong: dict[str, int]) -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    done = replace(stage.rank.done(0, "1-a", digest(1)), **wrong)  # type: ignore[arg-type]

    late = Late(what="step", step=done.step, generation=done.generation, worker="rank-0")
    assert ask(stage, done) == (late,)


def test_a_step_whose_last_chunk_is_not_selected_is_late() -> None:
    stage = Stage(small_plan(flow={"min_groups_for_streaming": 1}))
    stage.finish(0)

    assert isinstance(ask(stage, stage.rank.done(0))[0], Late)


def test_a_step_reported_twice_moves_the_version_once() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.train()
    stage.rank.desk.report(stage.rank.done(0, "1-a", digest(1)))
    stage.settle()

    assert stage.state.version == 1
    assert [late.what for late in stage.events(Late)] == ["step"]


def test_a_wide_gap_between_generator_and_trainer_is_remarked_in_the_entry_of_its_step() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    done = stage.rank.done(0, "1-a", digest(1))

    assert [type(e) for e in ask(stage, replace(done, logprob_gap=0.2))] == [Train, Publish, Note]
    assert [type(e) for e in ask(stage, replace(done, logprob_gap=0.001))] == [Train, Publish]


def test_weights_of_another_generation_or_version_are_not_published() -> None:
    stage = Stage(small_plan(), trainers_start=False)
    ready = WeightsReady(generation=1, version=0, file="0-a", digest=digest(0), worker="rank-0")

    assert ask(stage, ready) == (Publish(version=0, file="0-a", digest=digest(0)),)
    assert isinstance(ask(stage, replace(ready, generation=2))[0], Late)
    assert isinstance(ask(stage, replace(ready, version=1))[0], Late)


def test_a_checkpoint_above_the_version_or_below_the_oldest_kept_is_late() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 1, "keep_last": 1}))
    stage.train_steps(2)
    stage.save()
    assert stage.state.checkpoints.keys() == {2}
    done = CheckpointDone(generation=1, version=2, manifest="2-1-1", digest=digest(2), worker="rank-0")

    assert ask(stage, done) == (Checkpoint(version=2, manifest="2-1-1", digest=digest(2)),)
    assert isinstance(ask(stage, replace(done, version=stage.state.version + 1))[0], Late)
    assert isinstance(ask(stage, replace(done, version=1))[0], Late)


def test_a_recorded_selection_that_cannot_be_read_stops_the_run_and_names_the_prompt() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    blob = BlobUnreadable(generation=1, step=0, prompt=2, error="no such file", worker="rank-0")
    stage.rank.desk.report(blob)

    with pytest.raises(RunFailed, match=r"step 0 cannot be trained: the blob of prompt 2 is unreadable"):
        stage.settle()
    assert stage.events(Note), "the result is answered all the same"
    assert stage.at(Place.SELECTED) == [0, 1, 2, 3]


def test_an_unreadable_blob_that_a_dead_generation_met_stops_nothing() -> None:
    stage = Stage(small_plan())
    stage.rank.desk.report(BlobUnreadable(generation=9, step=0, prompt=2, error="no such file", worker="rank-0"))
    stage.settle()

    assert [late.what for late in stage.events(Late)] == ["blob"]


def test_a_blob_that_vanished_from_the_buffer_is_made_again_and_costs_nothing() -> None:
    stage = Stage(small_plan())
    stage.finish(0)
    gone = BlobGone(prompt=0, attempt=1, error="no such file")
    retry = Retry(prompt=0, attempt=1, kind=FailureKind.LOST, error="no such file", not_before=stage.now)

    assert decide(stage.state, stage.policy, gone, stage.now) == (retry,)
    assert decide(stage.state, stage.policy, replace(gone, attempt=2), stage.now) == ()
    assert decide(stage.state, stage.policy, replace(gone, prompt=1), stage.now) == (), "it is still in flight"


# --- workers and stops ------------------------------------------------------------------------------------------------


def test_workers_join_load_and_leave() -> None:
    stage = Stage(small_plan())
    stage.generator.join()
    stage.finish(0)

    assert stage.events(Join)[-1] == Join(worker="gen-0", role=Role.GENERATOR)
    assert stage.events(Load)[-1].worker == "gen-0"
    assert stage.state.workers["gen-0"].version == 0
    left = WorkerLeft(worker="gen-0", role=Role.GENERATOR, reason="bye")
    assert ask(stage, left) == (Leave(worker="gen-0", role=Role.GENERATOR, reason="bye"),)


def test_a_dead_worker_that_never_joined_leaves_no_trace() -> None:
    stage = Stage(small_plan())
    gone = WorkerGone(worker="gen-7", role=Role.GENERATOR, reason="killed")

    assert decide(stage.state, stage.policy, gone, stage.now) == ()


def test_a_stop_that_was_asked_for_names_its_deadline() -> None:
    stage = Stage(small_plan())
    asked = StopAsked(reason=StopReason.INTERRUPT, within_s=60)

    stop = Stop(reason=StopReason.INTERRUPT, deadline=stage.now + 60)
    assert decide(stage.state, stage.policy, asked, stage.now) == (stop,)


def test_a_stop_that_leaves_less_time_shortens_the_one_before_it() -> None:
    stage = Stage(small_plan())
    stage.ask_to_stop(60)
    terminate = StopAsked(reason=StopReason.TERMINATE, within_s=0)

    assert decide(stage.state, stage.policy, terminate, stage.now) == (
        Stop(reason=StopReason.TERMINATE, deadline=stage.now),
    )
    assert decide(stage.state, stage.policy, replace(terminate, within_s=60), stage.now) == ()
    request = StopRequest(reason=StopReason.REQUEST, within_s=0)
    assert ask(stage, request) == (Stop(reason=StopReason.REQUEST, deadline=stage.now),)
    assert ask(stage, replace(request, within_s=60)) == (Late(what="stop"),)


def test_nobody_can_make_a_failure_look_like_a_stop_that_was_asked_for() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 100}, failure={"max_infra_attempts": 1}))
    stage.train_steps(1)
    stage.fail(8)
    assert stage.state.stopping is not None
    assert stage.state.finish is None, "it waits for the checkpoint"

    earlier = stage.now - 100  # a clock that jumps back
    terminate = StopAsked(reason=StopReason.TERMINATE, within_s=0)
    assert decide(stage.state, stage.policy, terminate, earlier) == ()
