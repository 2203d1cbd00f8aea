"""The cases that each broke a model of this design once, by name, on the real controller.

Those about other samplers, the reserve, loans and requeues are in ``test_section9_samplers``.
"""

import pytest

from play import Play
from rollog.events.errors import LogUncertain
from rollog.events.log import Entry, Outbox
from rollog.events.messages import Chunk, SaveOrder
from rollog.events.vocabulary import (
    Checkpoint,
    Commit,
    Dispatch,
    Exhaust,
    FailureKind,
    Finish,
    FinishReason,
    Late,
    Open,
    Publish,
    Resume,
    Save,
    Select,
    Stop,
    Train,
)
from rollog.pipeline.simulate import Death
from rollog.replay.projector import fold
from rollog.replay.state import Place, State
from stage import Stage, small_plan
from watched_log import Moment, WatchedLog

SHRINKS = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.01}


# --- steps and what is trained again ----------------------------------------------------------------------------------


def test_streaming_took_two_of_three_and_the_third_is_dropped_so_the_last_selection_is_empty() -> None:
    stage = Stage(small_plan(grpo={"prompts_per_step": 3}, flow={"min_groups_for_streaming": 1}, failure=SHRINKS))
    stage.finish(0, 1)
    stage.fail(2)

    assert stage.events(Select)[-1] == Select(step=0, chunk=2, prompts=(), last=True)
    stage.train()
    assert (stage.state.version, stage.steps[0]) == (1, (0, 1))


def test_after_two_trained_steps_a_fall_back_to_0_leaves_retries_asking_for_weights_2() -> None:
    stage = Stage(small_plan())
    stage.train_steps(2)
    stage.generator.load()
    stage.generator.take()
    (prompt, *_) = [p for p in stage.at(Place.IN_FLIGHT) if stage.state.groups[p].step == 2]
    stage.kill_trainer()
    stage.settle()
    assert (stage.state.standing, stage.state.version) == (0, 2)
    stage.fail(prompt, FailureKind.DATA)

    retried = stage.events(Dispatch)[-1]
    assert (retried.prompt, retried.attempt, retried.step, retried.weights) == (prompt, 2, 2, 2)
    stage.train(2)
    stage.train_steps(1)
    assert prompt in stage.steps[2]


def test_a_trainer_that_dies_twice_before_its_resume_and_a_step_of_the_older_generation_in_the_redo() -> None:
    stage = Stage(small_plan())
    stage.train_steps(2)
    first = stage.rank
    stage.kill_trainer()
    stage.kill_controller()  # nobody has noticed, and the next one dies too before it could
    stage.resume()
    assert stage.events(Resume) == []
    stage.after(12)
    assert [resume.version for resume in stage.events(Resume)] == [0]

    first.desk.report(first.done(0, "1-a", first.weights))
    stage.settle()
    assert stage.events(Late)[-1] == Late(what="step", step=0, generation=1, worker="rank-0")
    assert stage.state.standing == 0
    stage.train(2)
    assert (stage.state.standing, stage.state.version) == (2, 2)


def test_a_redo_of_2_3_4_with_a_checkpoint_due_at_3_saves_the_weights_of_3() -> None:
    calm = Stage(small_plan(checkpoint={"every_steps": 1}))
    calm.train_steps(5)
    weights_of_3 = next(folder.weights for name, folder in calm.disk.items() if name.startswith("3-"))

    stage = Stage(small_plan(checkpoint={"every_steps": 1, "keep_last": 9}))
    stage.train_steps(5)
    for name, folder in stage.disk.items():
        folder.whole = int(name.split("-")[0]) <= 2
    stage.kill_trainer()
    stage.settle()
    assert stage.state.standing == 2
    todo = [
        f"step {message.step}" if isinstance(message, Chunk) else f"save {message.version}"
        for message in stage.rank.pull()
    ]
    assert todo == ["step 2", "save 3", "step 3", "save 4", "step 4", "save 5"]
    stage.train(3)

    assert stage.disk[stage.state.checkpoints[3].manifest].weights == weights_of_3


def test_a_redo_whose_published_file_is_lost_gives_generators_v_again() -> None:
    stage = Stage(small_plan())
    stage.train_steps(2)
    lost = stage.state.published[2]
    stage.kill_trainer()
    stage.settle()
    before = len(stage.events(Publish))
    stage.train()
    assert len(stage.events(Publish)) == before, "step 0 again makes version 1: nobody needs it"
    stage.train()

    assert stage.events(Publish)[before:] == [Publish(version=2, file=lost.file, digest=lost.digest)]
    assert stage.generator.load() == 2


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save_order(stage: Stage) -> SaveOrder:
    """The checkpoint that the trainer is asked for."""
    return next(message for message in stage.rank.pull() if isinstance(message, SaveOrder))


def test_a_manifest_on_disk_whose_event_was_not_appended_is_announced_and_resumed_from() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(2)
    stage.rank.save(save_order(stage).cause.offset, report=False)
    stage.kill_trainer()
    stage.kill_controller()
    stage.resume()
    stage.after(12)

    (entry,) = [entry for entry in stage.entries() if any(isinstance(event, Resume) for event in entry.events)]
    assert [type(event) for event in entry.events[:2]] == [Checkpoint, Resume]
    assert (stage.state.standing, stage.state.newest_checkpoint()) == (2, 2)


def test_when_the_newest_manifest_is_broken_the_run_goes_on_from_the_older_and_the_blobs_are_there() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(5)
    newest = stage.state.checkpoints[4]
    stage.disk[newest.manifest].whole = False
    stage.kill_trainer()
    stage.settle()
    assert stage.events(Resume)[-1].version == 2
    chunks = [message for message in stage.rank.pull() if isinstance(message, Chunk)]
    assert [chunk.step for chunk in chunks] == [2, 3, 4]
    assert all(blob for chunk in chunks for blob in chunk.blobs)
    stage.train(3)

    again = stage.state.checkpoints[4]
    assert again.manifest != newest.manifest
    assert stage.disk[again.manifest].weights == stage.disk[newest.manifest].weights


def test_a_superseded_trainers_manifest_of_v_plus_1_exists_and_the_next_resume_is_to_v_or_below() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 1}))
    stage.train_steps(1)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    ghost = stage.rank
    stage.kill_trainer()
    stage.settle()
    assert stage.state.version == 1
    ghost.alive = True  # it was only out of reach, and goes on with what it had
    ghost.step(report=False)
    ghost.save(99, report=False)
    assert max(folder.saved.version for folder in stage.disk.values()) == 2
    stage.kill_trainer()
    stage.settle()

    assert stage.events(Resume)[-1].version <= 1
    assert 2 not in stage.state.checkpoints


# --- once-only results ------------------------------------------------------------------------------------------------


def die_once(stage: Stage, moment: Moment) -> None:
    """The controller dies at this moment of its log."""

    def hook(now: Moment) -> None:
        if now == moment:
            stage.hook = lambda later: None
            raise Death

    stage.hook = hook


@pytest.mark.parametrize("late", [False, True])
def test_a_result_that_was_read_and_answered_before_the_controller_died_is_not_answered_again(late: bool) -> None:
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.settle()
    result = stage.generator.finish(0)
    if late:
        stage.settle()
        stage.generator.desk.report(result)
    head = stage.state.offset
    die_once(stage, Moment("after append", head + 1))
    with pytest.raises(Death):
        stage.settle()
    stage.kill_controller()
    stage.resume()

    answers = [entry for entry in stage.entries() if entry.input is not None]
    assert len({entry.input for entry in answers}) == len(answers)
    assert len(stage.events(Commit)) == 1
    assert len(stage.events(Late)) == int(late)


def test_a_result_that_was_read_but_not_answered_before_the_controller_died_is_answered_by_the_next() -> None:
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.settle()
    stage.generator.finish(0)
    die_once(stage, Moment("before append", stage.state.offset + 1))
    with pytest.raises(Death):
        stage.settle()
    assert stage.events(Commit) == []
    stage.kill_controller()
    stage.resume()

    assert [(commit.prompt, commit.attempt) for commit in stage.events(Commit)] == [(0, 1)]


def test_a_window_that_landed_without_its_replies_is_sent_again_without_alarm() -> None:
    sent: list[list[tuple[Entry, Outbox]]] = []

    class Recorded(WatchedLog):
        def append(self, window: list[tuple[Entry, Outbox]]) -> None:  # type: ignore[override]
            sent.append(list(window))
            super().append(window)

    stage = Stage(small_plan(sampler={"lookahead": 15}, flow={"max_inflight_prompts": 64}), log=Recorded)
    window = max(sent, key=len)
    assert len(window) == 64
    before = [entry.digest for entry in stage.entries()]
    assert stage.controller is not None
    stage.controller.log.append(window)  # the identical bytes once more

    assert [entry.digest for entry in stage.entries()] == before
    stage.train_steps(1)


def test_a_controller_whose_window_landed_without_an_answer_opens_again_and_repeats_nothing() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2)
    stage.generator.finish(3)
    lost = iter([True])

    def hook(moment: Moment) -> None:
        if moment.when == "after append" and next(lost, False):
            raise LogUncertain("played: no answer in time")

    stage.hook = hook
    with pytest.raises(LogUncertain):
        stage.settle()
    stage.resume()

    assert [commit.prompt for commit in stage.events(Commit)] == [0, 1, 2, 3]
    assert [chosen.step for chosen in stage.events(Select)] == [0]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before append", "after append"])
def test_a_kill_at_finish_comes_to_the_same_end(when: str) -> None:
    deaths = iter([True])

    def blow(play: Play, moment: Moment) -> None:
        if moment.when == when and play.stage.state.newest_checkpoint() == 2 and next(deaths, False):
            raise Death

    run = Play(small_plan(), num_rows=8, blow=blow).run()

    assert run.deaths == 1
    assert run.stage.steps == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    assert run.stage.events(Finish)[-1] == Finish(reason=FinishReason.EXHAUSTED, left=())
    assert len(run.stage.events(Train)) == 2


def test_a_run_that_is_resumed_after_its_end_ends_at_once_and_trains_nothing() -> None:
    run = Play(small_plan(), num_rows=8).run()
    before = run.stage.state
    assert run.stage.new_controller().run() is FinishReason.EXHAUSTED

    after = run.stage.state
    assert (after.trained, after.version, after.handed_out) == (before.trained, before.version, before.handed_out)
    assert [type(event) for entry in run.stage.entries(before.offset + 1) for event in entry.events] == [Open, Finish]


def test_a_crash_while_draining_does_not_end_the_stop() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.ask_to_stop(60)
    stage.kill_controller()
    stage.resume()
    head = stage.state.offset
    assert stage.state.stopping is not None
    stage.train()
    stage.finish(4, 5, 6, 7)
    stage.save()

    assert stage.state.finish is FinishReason.STOPPED
    assert len(stage.events(Stop)) == len(stage.events(Save)) == 1
    assert stage.events(Dispatch, head + 1) == []


def test_while_one_prompt_backs_off_at_the_end_of_the_data_the_run_does_not_finish() -> None:
    stage = Stage(small_plan(failure={"backoff_base_s": 20}), num_rows=8)
    stage.finish(0, 1, 2, 3, 4, 5, 6)
    stage.fail(7)
    stage.train()
    assert stage.events(Exhaust)
    assert (stage.at(Place.WAITING), stage.at(Place.IN_FLIGHT), stage.at(Place.BACKING_OFF)) == ([], [], [7])
    stage.after(19)
    assert stage.events(Finish) == stage.events(Save) == []
    stage.after(1)
    stage.finish(7)
    stage.train()
    stage.save()

    assert stage.steps[1] == (4, 5, 6, 7)
    assert stage.state.finish is FinishReason.EXHAUSTED


# --- the fold ---------------------------------------------------------------------------------------------------------


def test_the_fold_of_the_log_is_the_running_state_after_every_entry() -> None:
    folded = State()

    def compare(play: Play, moment: Moment) -> None:
        if moment.when == "after append":
            (entry,) = play.stage.entries(moment.offset)
            fold(folded, entry)
        controller = play.stage.controller
        if moment.when == "before results" and controller is not None:
            assert controller.state == folded, moment

    run = Play(small_plan(), num_rows=16, blow=compare, fails_once=frozenset({3}), stop_at=2).run()
    assert folded == run.stage.state
