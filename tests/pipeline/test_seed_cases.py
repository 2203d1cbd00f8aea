"""The cases with which the problem was explained in public, with their own numbers.

NVIDIA-NeMo/RL #3599 (prompts that were still generating when the checkpoint was written) and #3480 (cursor and buffer
that describe two different moments).
"""

import pytest

from rollog.events.vocabulary import Admit, Commit, Dispatch, FinishReason, Stamp
from rollog.pipeline.simulate import Death
from rollog.replay.state import Place
from stage import Stage, small_plan
from watched_log import Moment

TRAINED = [0, 1, 2, 3]
IN_THE_BUFFER = [4, 6, 7, 10]
STILL_BEING_ANSWERED = [5, 8, 9, 11]
NOT_HANDED_OUT = [12, 13, 14, 15]


def part_way_through() -> Stage:
    """16 prompts, handed out 4 at a time: the picture of #3599 at the moment of its checkpoint."""
    stage = Stage(small_plan(checkpoint={"every_steps": 1}), num_rows=16)
    stage.finish(*TRAINED)
    stage.train()
    stage.finish(*IN_THE_BUFFER)
    stage.save()
    assert stage.state.newest_checkpoint() == 1
    assert stage.at(Place.BUFFER) == IN_THE_BUFFER
    assert stage.at(Place.IN_FLIGHT) == STILL_BEING_ANSWERED
    assert stage.state.handed_out == 12
    return stage


def end_by_kill(stage: Stage) -> None:
    """Everything dies at once."""
    stage.kill_generator()
    stage.kill_trainer()
    stage.kill_controller()


def end_by_stop(stage: Stage) -> None:
    """Somebody stops the run, and does not wait for the answers that are missing."""
    stage.ask_to_stop(0)
    assert stage.state.finish is FinishReason.STOPPED
    end_by_kill(stage)


@pytest.mark.parametrize("end", [end_by_kill, end_by_stop])
def test_of_16_prompts_handed_out_by_4_nothing_of_5_8_9_11_is_lost_and_4_6_7_10_are_not_repeated(end: object) -> None:
    stage = part_way_through()
    end(stage)  # type: ignore[operator]
    resumed_at = stage.state.offset
    stage.resume()
    stage.after(12)
    again = stage.events(Dispatch, resumed_at + 1)
    assert sorted(order.prompt for order in again) == STILL_BEING_ANSWERED
    assert {order.attempt for order in again} == {2}

    stage.train_steps(3)
    stage.save()
    assert stage.steps == {
        0: (0, 1, 2, 3),
        1: (4, 5, 6, 7),
        2: (8, 9, 10, 11),
        3: (12, 13, 14, 15),
    }
    committed = [commit.prompt for commit in stage.events(Commit)]
    assert sorted(committed) == list(range(16)), "each is answered once: none twice, none never"
    dispatched = [order.prompt for order in stage.events(Dispatch)]
    assert [prompt for prompt in range(16) if dispatched.count(prompt) > 1] == STILL_BEING_ANSWERED
    assert stage.state.finish is FinishReason.EXHAUSTED


def test_after_the_resume_no_row_is_handed_out_twice_and_none_is_left_out() -> None:
    stage = part_way_through()
    end_by_kill(stage)
    stage.resume()
    stage.after(12)
    stage.train_steps(3)

    assert [prompt for admit in stage.events(Admit) for prompt in admit.prompts] == list(range(16))
    assert sorted(row for admit in stage.events(Admit) for row in admit.rows) == list(range(16))


def warm_at_version_7() -> Stage:
    """K = 1, N = 4, trainer at 7, the checkpoint of 7 ordered, the cursor at 6: #3480 at t0.

    Here the pump would have moved as soon as version 6 was there; memory pressure holds it back to where it stood.
    """
    stage = Stage(small_plan(checkpoint={"every_steps": 7}))
    stage.train_steps(5)
    assert stage.state.cursor == 6
    stage.server.under_pressure = True
    stage.train_steps(2)
    assert (stage.state.version, stage.state.cursor) == (7, 6)
    assert 7 in stage.state.saves
    assert 7 not in stage.state.checkpoints
    return stage


def test_a_save_with_a_warm_pipeline_leaves_a_resumed_run_that_dispatches_a_full_batch() -> None:
    stage = warm_at_version_7()

    # t1: the cursor moves to 7 while the checkpoint is being written, and the controller dies behind the fourth order
    def dies_when_the_batch_is_out(moment: Moment) -> None:
        if moment.when == "after append" and len(stage.at(Place.IN_FLIGHT)) == 4:
            stage.hook = lambda later: None
            raise Death

    stage.hook = dies_when_the_batch_is_out
    stage.server.under_pressure = False
    with pytest.raises(Death):
        stage.settle()
    stage.kill_controller()
    stage.server.under_pressure = True
    stage.resume()
    assert (stage.state.version, stage.state.cursor) == (7, 7)
    assert stage.events(Stamp)[-1] == Stamp(prompts=(28, 29, 30, 31), step=7)

    # t2: its four groups finish during the save; t3: the checkpoint is durable
    stage.finish(28, 29, 30, 31)
    assert 7 not in stage.state.checkpoints
    stage.save()
    assert stage.state.newest_checkpoint() == 7

    # the restart
    end_by_kill(stage)
    resumed_at = stage.state.offset
    stage.server.under_pressure = False
    stage.resume()
    stage.after(12)

    (admit,) = stage.events(Admit, resumed_at + 1)
    assert (admit.batch, admit.prompts) == (8, (32, 33, 34, 35))
    assert [order.prompt for order in stage.events(Dispatch, resumed_at + 1)] == [32, 33, 34, 35]
    stage.train_steps(2)
    assert stage.steps[7] == (28, 29, 30, 31)
    assert stage.steps[8] == (32, 33, 34, 35)
    assert sorted(p for prompts in stage.steps.values() for p in prompts) == list(range(36))


def test_the_other_direction_a_batch_admitted_but_not_finished_during_the_save_is_dispatched_again() -> None:
    stage = warm_at_version_7()
    stage.server.under_pressure = False
    stage.settle()
    stage.generator.load()
    assert set(stage.generator.take()) >= {28, 29, 30, 31}
    stage.save()
    assert stage.state.newest_checkpoint() == 7
    end_by_kill(stage)
    resumed_at = stage.state.offset
    stage.resume()
    stage.after(12)

    again = [(order.prompt, order.step) for order in stage.events(Dispatch, resumed_at + 1)]
    assert again[:4] == [(28, 7), (29, 7), (30, 7), (31, 7)]
    stage.train_steps(2)
    assert sorted(p for prompts in stage.steps.values() for p in prompts) == list(range(36))
