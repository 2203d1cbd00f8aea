"""When a checkpoint is ordered, how a stop goes, and when a run is over: nothing trained is ever left undurable."""

from rollog.events.vocabulary import (
    Admit,
    Checkpoint,
    Commit,
    Dispatch,
    Exhaust,
    Finish,
    FinishReason,
    Save,
    SaveReason,
    Select,
    Stop,
    StopReason,
    Train,
)
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.state import Place
from stage import Stage, small_plan


def kinds(stage: Stage, *wanted: type) -> list[str]:
    """The names of these events, in the order in which they were decided."""
    return [type(event).__name__ for entry in stage.entries() for event in entry.events if isinstance(event, wanted)]


# --- 1: checkpoints, stops, the end -----------------------------------------------------------------------------------


def test_a_periodic_checkpoint_is_ordered_before_the_first_selection_of_its_step() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(5)

    order = kinds(stage, Save, Select, Train)
    assert order == ["Select", "Train"] * 2 + ["Save"] + ["Select", "Train"] * 2 + ["Save"] + ["Select", "Train"] * 1
    assert [save.version for save in stage.events(Save)] == [2, 4]
    assert {save.reason for save in stage.events(Save)} == {SaveReason.PERIODIC}


def test_a_checkpoint_is_not_waited_for_by_the_next_step() -> None:
    stage = Stage(small_plan(checkpoint={"every_steps": 1}))
    stage.finish(*range(8))
    stage.train()

    assert [save.version for save in stage.events(Save)] == [1]
    assert [chosen.step for chosen in stage.events(Select)] == [0, 1]


def test_at_max_steps_the_run_saves_waits_for_the_checkpoint_and_finishes() -> None:
    stage = Stage(small_plan(grpo={"max_steps": 2}))
    stage.train_steps(2)
    assert stage.state.finish is None
    assert stage.waits_for() is WaitFor.CHECKPOINT
    stage.save()

    assert stage.state.finish is FinishReason.MAX_STEPS
    assert kinds(stage, Save, Checkpoint, Finish) == ["Checkpoint", "Save", "Checkpoint", "Finish"]
    assert stage.events(Save)[-1].reason is SaveReason.END
    assert stage.waits_for() is WaitFor.NOTHING


def test_the_end_of_the_data_is_said_once_and_what_is_left_over_is_never_handed_out() -> None:
    stage = Stage(small_plan(), num_rows=10)
    stage.train_steps(2)
    stage.save()

    assert stage.events(Exhaust) == [Exhaust(left=2)]
    assert stage.state.handed_out == 8
    assert stage.events(Finish) == [Finish(reason=FinishReason.EXHAUSTED, left=())]


def test_two_epochs_are_one_stream_of_ordinals_and_batches_cross_the_border() -> None:
    stage = Stage(small_plan(data={"epochs": 2}), num_rows=6)
    stage.train_steps(3)
    stage.save()

    rows = [row for admit in stage.events(Admit) for row in admit.rows]
    assert sorted(rows[:6]) == sorted(rows[6:]) == list(range(6))
    assert stage.events(Admit)[1].prompts == (4, 5, 6, 7)
    assert stage.state.finish is FinishReason.EXHAUSTED


def test_the_end_waits_for_a_prompt_that_backs_off() -> None:
    stage = Stage(small_plan(), num_rows=4)
    stage.fail(0)
    stage.finish(1, 2, 3)
    assert stage.events(Exhaust), "the loader is at its end"
    assert stage.waits_for() is WaitFor.BACKOFF
    assert stage.events(Finish) == []
    stage.after(1.0)
    stage.train_steps(1)
    stage.save()

    assert stage.steps == {0: (0, 1, 2, 3)}


def test_a_stop_drains_trains_what_is_selected_saves_and_finishes_in_this_order() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.ask_to_stop(60)
    stage.finish(4)
    stage.train()
    assert stage.waits_for() is WaitFor.DRAIN, "5, 6 and 7 still run"
    stage.finish(5, 6, 7)
    stage.save()

    assert kinds(stage, Stop, Train, Save, Finish) == ["Stop", "Train", "Save", "Finish"]
    (finish,) = stage.events(Finish)
    assert finish == Finish(reason=FinishReason.STOPPED, left=(4, 5, 6, 7))
    assert stage.events(Save)[-1].reason is SaveReason.STOP


def test_while_the_run_stops_there_is_no_new_work() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.ask_to_stop(60)
    offset = stage.state.offset
    stage.finish(4, 5, 6, 7)
    stage.train()

    new = stage.entries(offset + 1)
    assert not [event for entry in new for event in entry.events if isinstance(event, Admit | Dispatch | Select)]
    assert stage.at(Place.BUFFER) == [4, 5, 6, 7]


def test_at_the_deadline_of_a_stop_what_still_runs_is_left_in_flight() -> None:
    stage = Stage(small_plan())
    stage.finish(5)
    stage.ask_to_stop(10)
    assert stage.schedule() == Wait(why=WaitFor.DRAIN, until=stage.now + 10)
    stage.after(10)

    assert stage.events(Finish)[0].left == tuple(range(8))
    assert stage.at(Place.IN_FLIGHT) == [0, 1, 2, 3, 4, 6, 7]


def test_a_stop_within_no_time_still_waits_for_the_step_that_trains() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    stage.ask_to_stop(0, StopReason.TERMINATE)
    assert stage.waits_for() is WaitFor.TRAINER
    stage.train()
    stage.save()

    assert stage.state.finish is FinishReason.STOPPED
    assert stage.state.newest_checkpoint() == 1


def test_a_run_that_has_trained_nothing_stops_without_a_checkpoint() -> None:
    stage = Stage(small_plan())
    stage.ask_to_stop(0)

    assert stage.events(Save) == []
    assert stage.state.finish is FinishReason.STOPPED


def test_a_stopped_run_goes_on_where_it_was_after_the_next_open() -> None:
    stage = Stage(small_plan())
    stage.finish(0, 1)
    stage.ask_to_stop(0)
    stage.kill_controller()
    stage.resume()
    stage.after(12)
    stage.train_steps(2)

    assert stage.steps == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    assert [commit.prompt for commit in stage.events(Commit)].count(0) == 1
