"""Settings that are each right and cannot do together what they were set for: refused or warned about, with reasons."""

import math
import re
from typing import Any

import pytest

from rollog.pipeline import plan_checks
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError
from rollog.pipeline.plan_warnings import warnings

REPLACES = {"on_dropped_prompt": "replace", "max_replacement_attempts": 3}


def plan(**sections: Any) -> Plan:
    return Plan.from_settings({"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}, **sections})


def warned(**sections: Any) -> tuple[str, ...]:
    """What is said of a run with data for 100 steps."""
    made = plan(**sections)
    return warnings(made, made.derived(100 * made.grpo.prompts_per_step).max_steps)


# --- samplers and their own settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ({"name": "windowed", "lookahead": 1},
         r"sampler\.lookahead=1 would do nothing with sampler\.name=windowed, which has .*sampler\.max_staleness"),
        ({"name": "ready_first", "lookahead": 2}, r"sampler\.lookahead=2 .*ready_first"),
        ({"name": "weight_fifo", "lookahead": 2, "freshest_first": True},
         r"sampler\.freshest_first=True and sampler\.lookahead=2 .*weight_fifo"),
        ({"max_staleness": 1}, r"sampler\.max_staleness=1 .*sampler\.name=in_order, which has sampler\.lookahead"),
        ({"freshest_first": True}, r"sampler\.freshest_first=True .*in_order"),
        ({"target": "mine:Mine"}, r"sampler\.target=mine:Mine .*in_order"),
        ({"name": "custom"}, r"sampler\.name=custom needs sampler\.target=module:Class"),
        ({"name": "custom", "target": "Mine"}, r"sampler\.target='Mine': .*``module:Class``"),
        ({"name": "windowed", "depth": 3}, r"sampler\.depth: unknown setting"),
    ],
)  # fmt: skip
def test_a_setting_of_another_sampler_is_refused(sampler: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(sampler=sampler)


@pytest.mark.parametrize(
    ("written", "recorded"),
    [
        ({}, {"name": "in_order", "lookahead": 1}),
        ({"name": "windowed", "max_staleness": None},
         {"name": "windowed", "max_staleness": 1, "freshest_first": False}),
        ({"name": "weight_fifo", "freshest_first": False}, {"name": "weight_fifo", "max_staleness": 1}),
        ({"name": "custom", "target": "a:B", "depth": 3, "max_staleness": 2},
         {"name": "custom", "target": "a:B", "depth": 3, "max_staleness": 2}),
    ],
)  # fmt: skip
def test_only_what_the_sampler_reads_is_recorded(written: dict[str, Any], recorded: dict[str, Any]) -> None:
    made = plan(sampler=written)
    assert made.settings()["sampler"] == recorded
    assert Plan.from_settings(made.settings()) == made


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"flow": {"max_buffered_groups": 31}}, "max_buffered_groups=31 is below the 32 .*Set it to 32 or more"),
        ({"flow": {"min_groups_for_streaming": 17}}, "min_groups_for_streaming=17 is more than grpo"),
        ({"flow": {"stall_timeout_s": 600}}, "stall_timeout_s=600 must be longer than flow.rollout_timeout_s=600"),
        ({"flow": {"reward_timeout_s": 700}}, "rollout_timeout_s=600 must be longer than flow.reward_timeout_s=700"),
        ({"flow": {"lease_s": 600}}, "rollout_timeout_s=600 must be longer than flow.lease_s=600"),
        ({"flow": {"worker_orphan_s": 5}}, "worker_orphan_s=5 must be longer than flow.lease_s=10"),
        ({"failure": {"backoff_base_s": 31}}, "backoff_base_s=31 is above failure.backoff_max_s=30"),
        ({"failure": {"backoff_max_s": 900}}, "stall_timeout_s=900 must be longer than failure.backoff_max_s=900"),
        ({"grpo": {"rollouts_per_prompt": 1}}, "rollouts_per_prompt=1 gives every rollout the advantage 0"),
        ({"data": {"path": "d.jsonl", "task": {"size": 3}}}, "data.task is only for reasoning_gym"),
        ({"model": {"path": "m", "chat_template": False, "system_prompt": "x"}}, "system_prompt needs"),
        ({"failure": {"on_dropped_prompt": "replace", "max_replacement_attempts": 0}},
         "max_replacement_attempts=0 cannot go with failure.on_dropped_prompt=replace: .*Set it to 1 or more"),
        ({"failure": {"on_dropped_prompt": "replace", "reserve_prompts": 0}},
         "reserve_prompts=0 cannot go with failure.on_dropped_prompt=replace"),
        ({"failure": {"evicted_prompts": "requeue"}},
         "evicted_prompts=requeue cannot go with sampler.name=in_order.*choose windowed or weight_fifo"),
        ({"sampler": {"name": "ready_first"}, "failure": {"evicted_prompts": "requeue"}}, "sampler.name=ready_first"),
        ({"sampler": {"name": "windowed"}, "failure": {"evicted_prompts": "requeue", "max_requeues": 0}},
         "max_requeues=0 cannot go with failure.evicted_prompts=requeue"),
        ({"generation": {"tensor_parallel": 2}}, "tensor_parallel=2 cannot go with generation.engine=torch"),
        ({"generation": {"engine": "vllm"}, "determinism": "pinned", "failure": {"min_step_fraction": 1.0}},
         "determinism=pinned cannot go with generation.engine=vllm: this engine does not give the same bits"),
        ({"compaction": {"max_context_tokens": 9}}, "max_context_tokens=9 would do nothing with compaction.enabled"),
    ],
)  # fmt: skip
def test_settings_that_cannot_go_together_are_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(**sections)


def test_a_drop_budget_goes_with_every_sampler_and_requeues_with_those_that_evict() -> None:
    for name in ("in_order", "windowed", "ready_first", "weight_fifo"):
        assert plan(sampler={"name": name}, failure={"max_skipped_prompts": 3}).failure.skip_limit == 3
    for sampler in ({"name": "windowed"}, {"name": "weight_fifo"}, {"name": "custom", "target": "a:B"}):
        assert plan(sampler=sampler, failure={"evicted_prompts": "requeue"}).sampler.name == sampler["name"]


# --- pinned -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"sampler": {"name": "windowed"}}, "sampler.name=windowed: .*Use in_order"),
        ({"flow": {"min_groups_for_streaming": 4}}, "flow.min_groups_for_streaming=4: .*Use null"),
        ({"failure": REPLACES}, "failure.on_dropped_prompt=replace: .*Use shrink"),
        ({"failure": {"max_consecutive_dropped_prompts": 1}}, "max_consecutive_dropped_prompts=1: .*Use 0"),
        ({"failure": {"max_skipped_prompts": 3}}, "max_skipped_prompts=3: .*Use 0 or unlimited"),
    ],
)
def test_pinned_is_refused_where_arrival_would_decide(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=f"determinism=pinned cannot go with .*{says}"):
        plan(determinism="pinned", **sections)
    assert plan(**sections).determinism == "off"


def test_pinned_is_refused_for_an_engine_that_is_not_bitwise() -> None:
    with pytest.raises(PlanError, match=r"generation\.engine=torch: this engine does not give the same bits"):
        plan_checks.check_pinned(plan(determinism="pinned"), bitwise=frozenset())


def test_pinned_allows_a_whole_step_written_out_and_unlimited_skips() -> None:
    pinned = plan(
        determinism="pinned", flow={"min_groups_for_streaming": 16}, failure={"max_skipped_prompts": "unlimited"}
    )
    assert pinned.failure.skip_limit == math.inf


# --- warned about -----------------------------------------------------------------------------------------------------

SMALL = {"prompts_per_step": 4}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"grpo": SMALL, "failure": {"max_skipped_prompts": 2}},
         "min_step_fraction=0.9 leaves a floor of 4 of 4 .*: the first dropped prompt stops .*max_skipped_prompts=2"),
        ({"failure": {"min_step_fraction": 1, "max_consecutive_dropped_prompts": 2}},
         "floor of 16 of 16 .*max_consecutive_dropped_prompts=2"),
        ({"grpo": SMALL, "failure": {"filter": "equal_rewards"}}, "the first group that failure.filter=equal_rewards "),
        ({"failure": {"filter": "equal_rewards"}}, "filter=equal_rewards with failure.on_dropped_prompt=shrink"),
        ({"failure": {**REPLACES, "max_replacement_attempts": 2, "filter": "a:b"}},
         "filter=a:b with failure.max_replacement_attempts=2: .*Set it to 3 or more"),
        ({"failure": {**REPLACES, "reserve_prompts": 17}}, "reserve_prompts=17 is above grpo.prompts_per_step=16"),
        ({"sampler": {"name": "windowed"}, "failure": REPLACES}, "replace does nothing with sampler.name=windowed"),
        ({"failure": {"reserve_prompts": 4}}, "reserve_prompts=4 does nothing with failure.on_dropped_prompt=shrink"),
        ({"failure": {"max_replacement_attempts": 4}}, "max_replacement_attempts=4 does nothing with .*shrink"),
        ({"sampler": {"name": "windowed"}, "failure": {"max_requeues": 4}}, "max_requeues=4 does nothing with .*=drop"),
        ({"generation": {"workers": 33}}, "max_inflight_prompts=32 is below generation.workers=33"),
        ({"grpo": {"max_steps": 101}}, "max_steps=101 is more than the 100 steps in the data"),
        ({"optimizer": {"warmup_steps": 100}}, "warmup_steps=100 is not below the 100 steps of the run"),
    ],
)  # fmt: skip
def test_what_is_probably_not_meant_is_warned_about_once(sections: dict[str, Any], says: str) -> None:
    (warning,) = warned(**sections)
    assert re.search(says, warning)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"failure": {**REPLACES, "filter": "equal_rewards", "reserve_prompts": 16}},
        {"sampler": {"name": "windowed"}, "grpo": SMALL, "failure": {"max_skipped_prompts": 2, "filter": "a:b"}},
        {"sampler": {"name": "weight_fifo"}, "failure": {"evicted_prompts": "requeue", "max_requeues": 3}},
        {"grpo": {"max_steps": 100}},
    ],
)
def test_a_plan_that_does_what_it_says_is_not_warned_about(sections: dict[str, Any]) -> None:
    assert warned(**sections) == ()
