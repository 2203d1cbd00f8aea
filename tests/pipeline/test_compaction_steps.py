"""Under context compaction a step has exactly N x rollouts rollouts, or the run stops and says both numbers.

N = 3 prompts of 2 rollouts, K = 1, a prompt is given up at its first failure, the reserve holds one batch.
"""

from dataclasses import replace
from typing import Any

import pytest

from rollog.events.vocabulary import (
    Borrow,
    Drop,
    Filter,
    FinishReason,
    Note,
    Replace,
    Select,
    Shrink,
    Stop,
)
from rollog.pipeline.errors import PlanError
from rollog.pipeline.reconfigure import drop
from rollog.replay.limits import FLOOR, exceeded
from rollog.replay.state import Place
from stage import Stage, small_plan

COMPACTION = {"enabled": True, "max_context_tokens": 4096}
REPLACES = {
    "on_dropped_prompt": "replace",
    "max_infra_attempts": 1,
    "max_data_attempts": 2,
    "max_consecutive_dropped_prompts": 100,
    "max_skipped_prompts": "unlimited",
    "min_step_fraction": 0.1,
}


def a_plan(**sections: Any) -> Any:
    settings: dict[str, Any] = {
        "model": {"path": "none", "max_tokens": 16},
        "grpo": {"prompts_per_step": 3, "rollouts_per_prompt": 2},
        "environment": {"play": "a:b"},
        "compaction": COMPACTION,
        "failure": REPLACES | sections.pop("failure", {}),
    }
    return small_plan(**(settings | sections))


def a_stage(*, num_rows: int = 60, **sections: Any) -> Stage:
    return Stage(a_plan(**sections), num_rows=num_rows)


def test_a_spare_stands_in_and_the_step_has_all_its_rollouts() -> None:
    stage = a_stage()
    stage.fail(1)

    assert [(event.dropped, event.spare) for event in stage.events(Replace)] == [(1, 3)]
    stage.train_steps(1)
    assert stage.steps[0] == (0, 2, 3)


def test_a_later_step_lends_and_is_paid_back() -> None:
    stage = a_stage()
    stage.finish(6)
    stage.fail(1)

    assert [(event.prompt, event.lender, event.borrower) for event in stage.events(Borrow)] == [(6, 1, 0)]
    stage.train_steps(2)
    assert stage.steps == {0: (0, 2, 6), 1: (3, 7, 8)}


def test_without_a_spare_the_run_stops_and_names_both_numbers() -> None:
    stage = a_stage()
    stage.fail(1)
    stage.fail(3)  # the spare, and a slot has one replacement

    (stop,) = stage.events(Stop)
    assert stop.prompt == 3
    assert "step 0 has 4 of its 6 rollouts (3 prompts x 2)" in str(stop.detail)
    assert "no spare is left" in str(stop.detail)
    assert [event.prompt for event in stage.events(Drop)] == [1]
    assert stage.events(Shrink) == []
    assert stage.state.finish is FinishReason.FAILED
    assert stage.at(Place.BACKING_OFF) == [3], "it is not lost"


def test_a_resume_tries_the_prompt_again_and_trains_the_whole_step() -> None:
    stage = a_stage()
    stage.fail(1)
    stage.fail(3)
    stage.resume()
    stage.after(40.0)
    stage.train_steps(1)

    assert stage.steps[0] == (0, 2, 3)


def test_a_person_cannot_drop_what_the_step_needs() -> None:
    stage = a_stage()
    stage.fail(1)
    stage.fail(3)

    with pytest.raises(PlanError, match=r"step 0 would have 4 of its 6 rollouts \(3 prompts x 2\)"):
        drop(stage.state, stage.policy, 3)
    assert drop(stage.state, stage.policy, 6), "step 1 may have a spare"


def test_a_useless_group_is_trained_all_the_same_when_nothing_can_stand_in() -> None:
    stage = a_stage(failure={"filter": "equal_rewards"})
    stage.generator.reward_std = 0.0
    stage.finish(1)
    assert [event.prompt for event in stage.events(Filter)] == [1]
    stage.finish(3)

    assert [event.prompt for event in stage.events(Filter)] == [1]
    (note,) = stage.events(Note)
    assert note.text == "prompt 3 is trained though it is useless (equal_rewards): no spare for step 0"
    stage.generator.reward_std = 0.25
    stage.train_steps(1)
    assert stage.steps[0] == (0, 2, 3)


def test_no_step_is_trained_short_at_the_end_of_the_data() -> None:
    """windowed: nothing stands in for what is dropped, and the last groups fill no step."""
    stage = a_stage(num_rows=9, sampler={"name": "windowed", "max_staleness": 9})
    stage.generator.load()
    for prompt in range(9):
        (stage.fail if prompt == 7 else stage.finish)(prompt)
        while any(step.closed for number, step in stage.state.steps.items() if number >= stage.state.version):
            stage.train()

    stage.save()
    assert {step: len(prompts) for step, prompts in stage.steps.items()} == {0: 3, 1: 3}
    assert stage.state.finish is FinishReason.EXHAUSTED
    assert len(stage.state.groups) == 2, "they are named in Finish, not trained as a short step"


def test_a_step_that_shrank_before_compaction_was_turned_on_stops_the_run() -> None:
    plan = a_plan()
    shrinking = small_plan(
        model={"path": "none", "max_tokens": 16},
        grpo={"prompts_per_step": 3, "rollouts_per_prompt": 2},
        failure=REPLACES | {"on_dropped_prompt": "shrink"},
    )
    stage = Stage(shrinking, num_rows=60)
    stage.fail(1)
    stage.plan = plan  # as a fork does
    (stop,) = stage.schedule()  # type: ignore[misc]

    assert isinstance(stop, Stop)
    assert "step 0 can only have 4 of its 6 rollouts" in str(stop.detail)


def test_the_audit_refuses_a_short_step_under_compaction() -> None:
    stage = a_stage()
    stage.train_steps(1)
    state = stage.state
    (select,) = stage.events(Select)
    assert list(exceeded(state, (select,), 0, 0)) == []
    chunk = state.steps[0].chunks[0]
    state.steps[0].chunks[0] = replace(chunk, members=chunk.members[:2])
    ((law, what),) = exceeded(state, (select,), 0, 0)
    assert law == FLOOR
    assert "closes with 2 groups, under compaction it needs 3" in what
