"""Settings of environments and of compaction that cannot go together, and what each refusal says."""

from typing import Any

import pytest

from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError

WORKS: dict[str, Any] = {
    "run": "demo",
    "model": {"path": "m", "max_tokens": 16},
    "data": {"path": "d.jsonl"},
    "environment": {"play": "a:b"},
    "compaction": {"enabled": True, "max_context_tokens": 128},
    "failure": {"on_dropped_prompt": "replace"},
}


def plan(**sections: Any) -> Plan:
    settings = {**WORKS}
    for name, section in sections.items():
        settings[name] = {**WORKS.get(name, {}), **section} if isinstance(section, dict) else section
    return Plan.from_settings(settings)


def test_a_plan_with_compaction_floors_its_steps_at_all_their_groups() -> None:
    made = plan(failure={"min_step_fraction": 0.1})

    assert made.step_floor == made.grpo.prompts_per_step
    assert made.derived(1000).step_floor == 16


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"failure": {"on_dropped_prompt": "shrink"}},
         r"on_dropped_prompt=shrink cannot go with compaction.enabled=true: a step has exactly 16 x 8 = 128 rollouts"),
        ({"environment": {"play": None}}, "compaction.enabled=true needs environment.play"),
        ({"compaction": {"max_context_tokens": None}}, "needs compaction.max_context_tokens: the longest row"),
        ({"compaction": {"max_context_tokens": 16}}, r"max_context_tokens=16 leaves no room .*Raise the first to 17"),
        ({"compaction": {"method": "summary", "max_context_tokens": 32}}, "a reply and a summary .*to 33 or more"),
        ({"compaction": {"keep_tokens": 113}}, "keep_tokens=113 leaves less than .*Set it to 112 or less"),
        ({"compaction": {"method": "summary", "keep_tokens": 9}}, "keep_tokens=9 would do nothing"),
        ({"compaction": {"enabled": False, "keep_tokens": 9, "max_context_tokens": None}},
         "keep_tokens=9 would do nothing with compaction.enabled=false"),
        ({"sampler": {"name": "windowed"}, "flow": {"min_groups_for_streaming": 4}},
         "min_groups_for_streaming=4 cannot go with compaction.enabled=true and sampler.name=windowed"),
        ({"environment": {"timeout_s": 600.0}}, "rollout_timeout_s=600 must be longer than environment.timeout_s=600"),
        ({"environment": {"play": None, "options": {"tries": 2}}, "compaction": {"enabled": False}},
         "environment.options=.*would do nothing with environment.play=null"),
    ],
)  # fmt: skip
def test_settings_that_cannot_go_together_are_refused(sections: dict[str, Any], says: str) -> None:
    plan()
    with pytest.raises(PlanError, match=says):
        plan(**sections)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sequence_packing", "several rows in one would make the number of rows of a micro batch vary"),
        ("dynamic_batching", "micro batches by tokens have no fixed number of rows"),
        ("interleaved_pipeline", "an interleaved pipeline needs the same number of micro batches in every step"),
    ],
)
def test_batches_without_a_fixed_number_of_rows_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(PlanError, match=f"training.{name}=true cannot go with compaction.enabled=true: {reason}"):
        plan(training={name: True})
    with pytest.raises(PlanError, match=f"training.{name}=true cannot go with rollog's micro batches: {reason}"):
        plan(training={name: True}, compaction={"enabled": False, "max_context_tokens": None})
    plan(training={name: False})


def test_pinned_goes_with_compaction_where_nothing_is_ever_dropped() -> None:
    assert plan(determinism="pinned").determinism == "pinned"
    for failure in ({"max_skipped_prompts": "unlimited"}, {"filter": "equal_rewards"}):
        with pytest.raises(PlanError, match=r"determinism=pinned cannot go with failure.on_dropped_prompt=replace"):
            plan(determinism="pinned", failure=failure)


def test_streaming_goes_with_compaction_where_every_step_can_be_completed() -> None:
    assert plan(flow={"min_groups_for_streaming": 4}).min_groups_for_streaming == 4
