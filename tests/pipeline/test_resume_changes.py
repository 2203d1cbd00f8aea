"""What a resume changes is in force from its own entry on, and what it gives up leaves in an entry of its own."""

from functools import partial
from typing import Any

import pytest

from rollog.events.vocabulary import Configure, Dispatch, Drop, FinishReason, Open, Replace, Save, Shrink, Stamp
from rollog.pipeline.errors import PlanError
from rollog.pipeline.reconfigure import drop
from rollog.replay.state import Place
from stage import Stage, small_plan


def changed(stage: Stage, **sections: Any) -> None:
    """The controller is gone, and the next one has other settings."""
    stage.kill_controller()
    stage.resume(small_plan(**sections))


def resumed_without(stage: Stage, *prompts: int) -> None:
    """As ``rollog resume RUN --drop ORDINAL`` does."""
    stage.kill_controller()
    controller = stage.new_controller()
    controller.changes = [*controller.changes, *(partial(drop, policy=stage.policy, prompt=p) for p in prompts)]
    controller.open("resume")
    stage.settle()


def test_everything_that_may_change_is_changed_in_one_entry_and_in_force_after_it() -> None:
    stage = Stage(small_plan(flow={"max_inflight_prompts": 2}))
    stage.finish(0)
    before = stage.state.offset

    changed(
        stage,
        sampler={"lookahead": 3},
        flow={"max_inflight_prompts": 5, "max_buffered_groups": 20, "rollout_timeout_s": 100, "stall_timeout_s": 200},
        failure={"max_skipped_prompts": 7},
        checkpoint={"every_steps": 1},
        grpo={"max_steps": 2},
        generation={"workers": 3},
    )

    opened, configured, *_ = stage.entries(before + 1)
    assert [type(event) for event in (*opened.events, *configured.events)] == [Open, Configure]
    assert configured.events == (
        Configure(
            changes={
                "checkpoint.every_steps": 1,
                "failure.max_skipped_prompts": 7,
                "flow.max_buffered_groups": 20,
                "flow.max_inflight_prompts": 5,
                "flow.rollout_timeout_s": 100.0,
                "flow.stall_timeout_s": 200.0,
                "generation.workers": 3,
                "grpo.max_steps": 2,
                "sampler.lookahead": 3,
            },
            cursor=stage.events(Configure)[0].cursor,
        ),
    )
    assert stage.state.count(Place.IN_FLIGHT) == 5
    stage.train_steps(1)
    assert [save.version for save in stage.events(Save)] == [1]
    stage.save()
    stage.train_steps(1)
    stage.save()
    assert stage.state.finish is FinishReason.MAX_STEPS


def test_a_change_survives_a_crash_right_after_it_and_is_not_made_twice() -> None:
    stage = Stage(small_plan())
    changed(stage, grpo={"max_steps": 9})
    stage.kill_controller()
    stage.resume()

    assert [event.changes for event in stage.events(Configure)] == [{"grpo.max_steps": 9}]
    assert stage.state.settings["grpo"]["max_steps"] == 9


@pytest.mark.parametrize("place", [Place.IN_FLIGHT, Place.BUFFER])
def test_a_person_gives_prompts_up_each_in_its_own_entry_and_the_step_shrinks(place: Place) -> None:
    stage = Stage(small_plan(failure={"min_step_fraction": 0.5}))
    stage.finish(*((0, 1) if place is Place.BUFFER else (2,)))
    before = stage.state.offset

    resumed_without(stage, 0, 1)

    first, second = (entry.events for entry in stage.entries(before + 2)[:2])
    assert [type(event) for event in first] == [type(event) for event in second] == [Drop, Shrink]
    assert (first[0].prompt, second[0].prompt) == (0, 1)  # type: ignore[union-attr]
    stage.train_steps(1)
    assert stage.steps[0] == (2, 3)
    assert (stage.state.dropped, stage.state.skipped, stage.state.consecutive_drops) == (2, 0, 0)


def test_a_spare_stands_in_for_what_a_person_gives_up() -> None:
    stage = Stage(small_plan(failure={"on_dropped_prompt": "replace"}))
    spare = stage.at(Place.RESERVE)[0]
    before = stage.state.offset

    resumed_without(stage, 2)

    (entry,) = [entry for entry in stage.entries(before + 1) if isinstance(entry.events[0], Drop)]
    assert [type(event) for event in entry.events] == [Drop, Replace, Stamp, Dispatch]
    stage.train_steps(1)
    assert stage.steps[0] == (0, 1, 3, spare)


@pytest.mark.parametrize(
    ("prompt", "says"), [(0, "it is settled"), (999, "it was never handed out"), (-1, "it was never handed out")]
)
def test_what_is_not_open_cannot_be_given_up(prompt: int, says: str) -> None:
    stage = Stage(small_plan())
    stage.train_steps(1)
    with pytest.raises(PlanError, match=f"prompt {prompt} cannot be dropped: {says}"):
        drop(stage.state, stage.policy, prompt)
