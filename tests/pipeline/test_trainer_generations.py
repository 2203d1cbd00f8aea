"""The trainer dies: which checkpoint it begins again from, what is sent to it again, and what never changes.

v, and the place of every ordinal, stay as they are; a step trained again moves only ``standing``.
"""

import pytest

from rollog.events.messages import Chunk, SaveOrder
from rollog.events.outbox import step_of
from rollog.events.vocabulary import Dispatch, Finish, Publish, Resume, Save, Select, Train
from rollog.pipeline.decisions import decide
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.fatal import MAX_RESUMES_IN_VAIN
from rollog.pipeline.inputs import TrainerGone
from rollog.replay.state import Place
from stage import Stage, small_plan


def saving(every: int = 2, keep: int = 2) -> Stage:
    """A run with a checkpoint every few steps."""
    return Stage(small_plan(checkpoint={"every_steps": every, "keep_last": keep}))


def test_the_newest_whole_checkpoint_is_loaded_and_the_steps_after_it_are_sent_again() -> None:
    stage = saving(every=2)
    stage.train_steps(3)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    recorded = {step: stage.state.step(step).chunks for step in (2, 3)}
    stage.kill_trainer()
    stage.settle()

    assert stage.events(Resume)[-1].version == 2
    sent = [message for message in stage.rank.pull() if isinstance(message, Chunk)]
    assert [chunk.step for chunk in sent] == [2, 3]
    for chunk in sent:
        (selection,) = recorded[chunk.step]
        assert chunk.prompts == tuple(member.prompt for member in selection.members)
        assert chunk.blobs == tuple(member.finished.blob for member in selection.members)


def test_a_step_trained_again_moves_only_standing_and_settles_nobody_twice() -> None:
    stage = saving()
    stage.train_steps(3)
    stage.kill_trainer()
    stage.settle()
    before = stage.state
    assert (before.version, before.standing) == (3, 2)
    stage.train()

    after = stage.state
    assert (after.version, after.standing) == (3, 3)
    assert (after.trained, after.handed_out, after.cursor) == (before.trained, before.handed_out, before.cursor)


def test_nothing_is_generated_again_when_the_trainer_dies() -> None:
    stage = saving()
    stage.train_steps(3)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    dispatched = len(stage.events(Dispatch))
    stage.kill_trainer()
    stage.settle()
    stage.train(2)

    again = stage.events(Dispatch)[dispatched:]
    assert all(order.attempt == 1 for order in again)
    assert stage.state.version == 4


def test_the_weights_after_a_redo_are_those_of_a_trainer_that_never_died() -> None:
    calm, killed = saving(), saving()
    calm.train_steps(4)
    killed.train_steps(3)
    killed.kill_trainer()
    killed.settle()
    killed.train_steps(1)

    assert killed.state.published[4] == calm.state.published[4]


def test_while_steps_are_trained_again_no_step_takes_groups_and_orders_still_ask_for_v() -> None:
    stage = Stage(small_plan(sampler={"lookahead": 2}, checkpoint={"every_steps": 100}))
    stage.train_steps(2)
    stage.kill_trainer()
    stage.settle()
    assert (stage.state.version, stage.state.standing) == (2, 0)
    selected, waiting = len(stage.events(Select)), stage.at(Place.IN_FLIGHT)
    offset = stage.state.offset
    stage.finish(*waiting)

    assert len(stage.events(Select)) == selected
    assert {order.weights for order in stage.events(Dispatch, offset + 1)} <= {2}


def test_a_trainer_that_stands_at_v_by_loading_publishes_it() -> None:
    stage = saving(every=2)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    stage.train(2)
    stage.save()
    assert stage.state.checkpoints.keys() == {0, 2}
    stage.kill_trainer()
    stage.settle()

    assert stage.events(Resume)[-1].version == 2
    assert stage.events(Publish)[-1] == Publish(version=2, file=f"2-{stage.rank.weights}", digest=stage.rank.weights)


def test_a_checkpoint_without_its_manifest_is_never_chosen() -> None:
    stage = saving(every=2)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    stage.train(2)
    order = next(message for message in stage.rank.pull() if isinstance(message, SaveOrder))
    stage.rank.save(order.cause.offset, whole=False)
    stage.kill_trainer()
    stage.settle()

    assert stage.events(Resume)[-1].version == 0
    assert 2 not in stage.state.checkpoints


def test_a_trainer_that_dies_again_before_it_reports_is_started_again() -> None:
    stage = saving(every=100)
    stage.train_steps(1)
    for _ in range(3):
        stage.kill_trainer()
        stage.settle()
    stage.train_steps(2)

    assert len(stage.events(Resume)) == 3
    assert len({resume.version for resume in stage.events(Resume)}) == 1
    assert stage.steps[2] == (8, 9, 10, 11)


def test_a_trainer_that_does_nothing_but_die_stops_the_controller_with_its_reason() -> None:
    stage = Stage(small_plan(), trainers_start=False)
    for _ in range(MAX_RESUMES_IN_VAIN):
        stage.kill_trainer()
        stage.settle()
    stage.kill_trainer()

    with pytest.raises(RunFailed, match=r"ended 6 times without a new step or a newer checkpoint, at last: killed"):
        stage.settle()
    assert stage.state.finish is None, "a person mends the trainer and resumes"


def test_a_trainer_that_dies_at_each_checkpoint_stops_the_controller_though_it_trains_again_and_again() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(2)
    stage.trainer_dies = stage.rank.dies = lambda point, version: version == 2 and point == "in a checkpoint"

    def trainers_go_on() -> None:
        for _ in range(100):
            if stage.trainer is not None and stage.trainer.alive:
                stage.rank.work(messages=1)
                stage.settle()
            else:
                stage.after(15.0)

    with pytest.raises(RunFailed, match="without a new step or a newer checkpoint"):
        trainers_go_on()
    assert len(stage.events(Train)) > 2, "steps were trained again"


def test_a_new_controller_gives_the_trainer_new_chances() -> None:
    stage = Stage(small_plan(), trainers_start=False)
    for _ in range(3):
        stage.kill_trainer()
        stage.settle()
    stage.kill_controller()
    stage.resume()
    stage.kill_trainer()
    stage.settle()

    assert len(stage.events(Resume)) == 4


def test_a_trainer_is_not_resumed_when_only_the_controller_died() -> None:
    stage = saving()
    stage.train_steps(3)
    generation = stage.rank.generation
    stage.kill_controller()
    stage.resume()
    stage.train_steps(1)

    assert stage.events(Resume) == []
    assert stage.rank.generation == generation


def test_the_end_of_a_generation_that_is_over_already_changes_nothing() -> None:
    stage = saving()
    stage.train_steps(1)
    gone = TrainerGone(generation=99, reason="killed", whole=())

    assert decide(stage.state, stage.policy, gone, stage.now) == ()


def test_without_any_whole_checkpoint_the_run_stops_unless_every_step_is_still_recorded() -> None:
    stage = saving(every=1, keep=1)
    stage.train_steps(3)
    for manifest in stage.disk.values():
        manifest.whole = False
    stage.kill_trainer()

    with pytest.raises(RunFailed, match="no checkpoint from version 2 to 3 is whole"):
        stage.settle()


def test_before_the_first_step_a_trainer_without_a_checkpoint_begins_anew_although_a_later_step_has_shrunk() -> None:
    failure = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.01}
    stage = Stage(small_plan(failure=failure))
    stage.fail(5)
    stage.disk.clear()
    stage.kill_trainer()
    stage.settle()

    assert stage.events(Resume) == [Resume(version=0, checkpoint="", reason="killed")]
    stage.train_steps(2)
    assert stage.steps[1] == (4, 6, 7)


def test_blobs_and_selections_are_known_back_to_the_oldest_kept_checkpoint() -> None:
    stage = saving(every=2, keep=2)
    stage.train_steps(7)

    assert min(stage.state.checkpoints) == 4
    assert min(step for step in stage.state.steps if stage.state.step(step).closed) == 4


def test_what_the_trainer_was_told_is_forgotten_at_each_checkpoint_below_the_oldest_one_that_is_kept() -> None:
    stage = saving(every=2, keep=2)
    stage.train_steps(7)
    told = [step_of(message) for _, message in stage.server.train]
    assert told == sorted(told)
    assert told[0] == min(stage.state.steps) == 4

    stage.kill_trainer()
    stage.settle()
    stage.train(1)
    stage.train_steps(6)
    assert next(step_of(message) for _, message in stage.server.train) == min(stage.state.checkpoints) == 10
    calm = saving(every=2, keep=2)
    calm.train_steps(13)
    assert stage.state.published[13] == calm.state.published[13]


def test_a_stop_waits_for_a_redo_and_saves_what_it_comes_back_to() -> None:
    stage = saving(every=100)
    stage.train_steps(2)
    stage.kill_trainer()
    stage.settle()
    stage.ask_to_stop(0)
    assert stage.events(Save) == []
    stage.train(stage.state.filling)
    stage.save()

    assert stage.events(Save)[-1].version == stage.state.version
    assert stage.events(Finish), "and then it finishes"


def test_a_checkpoint_of_a_superseded_generation_counts_because_its_manifest_names_an_entry_of_this_log() -> None:
    stage = saving(every=2)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    stage.train(2)
    order = next(message for message in stage.rank.pull() if isinstance(message, SaveOrder))
    old = stage.rank
    stage.kill_trainer()
    stage.settle()
    old.alive = True  # it was only out of reach
    old.save(order.cause.offset)
    stage.settle()

    assert stage.state.checkpoints[2].manifest == f"2-{order.cause.offset}-1"
    assert stage.state.checkpoints[2] in [manifest.saved for manifest in stage.disk.values()]


def test_a_late_checkpoint_of_a_superseded_generation_cuts_nothing_that_the_new_one_has_still_to_do() -> None:
    stage = saving(every=2, keep=1)
    stage.finish(*stage.at(Place.IN_FLIGHT))
    stage.train(2)
    order = next(message for message in stage.rank.pull() if isinstance(message, SaveOrder))
    old = stage.rank
    stage.kill_trainer()
    stage.settle()
    old.alive = True
    old.save(order.cause.offset)
    stage.settle()

    assert (stage.state.oldest_kept_checkpoint(), stage.state.standing) == (2, 0)
    assert {step_of(message) for _, message in stage.server.train} >= {0, 1}
    stage.train(2)
    stage.train_steps(1)
