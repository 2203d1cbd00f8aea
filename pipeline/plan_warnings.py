"""What is allowed and probably not meant: said once, at the start of a run and of a resume.

Rule 1: a plan without warnings does everything that it was told.
Rule 2: a setting that only matters beside another one is warned about when it was changed and the other was not.
Rule 3: whether a drop leaves a hole depends on whether the sampler means prompts for steps. A custom one says so
        itself, and is not told that its settings do nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollog.pipeline.plan_bounds import step_floor
from rollog.pipeline.samplers import make_sampler
from rollog.pipeline.settings import Failure

if TYPE_CHECKING:
    from rollog.pipeline.config import Plan

FEW_REPLACEMENTS = 3
"""With fewer, a filter that refuses one group in three or more will often leave a hole."""


def warnings(plan: "Plan", steps: int) -> tuple[str, ...]:
    """A few sentences each, for a run that ends by itself after ``steps`` steps; empty as a rule."""
    stamps = make_sampler(plan.sampler).stamps
    return (
        *_idle(plan),
        *(_holes(plan) if stamps else ()),
        *(_replacement_without_steps(plan) if not stamps and plan.sampler.name != "custom" else ()),
        *_too_short(plan, steps),
    )


def _idle(plan: "Plan") -> Iterator[str]:
    """Settings that nothing reads."""
    failure, usual = plan.failure, Failure()
    beside = (
        ("max_replacement_attempts", "on_dropped_prompt", "replace"),
        ("reserve_prompts", "on_dropped_prompt", "replace"),
        ("max_requeues", "evicted_prompts", "requeue"),
    )
    for name, other, value in beside:
        if getattr(failure, name) != getattr(usual, name) and getattr(failure, other) != value:
            yield (
                f"failure.{name}={getattr(failure, name)} does nothing with failure.{other}={getattr(failure, other)}. "
                f"Set {other} to {value}, or remove it."
            )
    n = plan.grpo.prompts_per_step
    if failure.on_dropped_prompt == "replace" and failure.reserve_prompts > n:
        yield (
            f"failure.reserve_prompts={failure.reserve_prompts} is above grpo.prompts_per_step={n}: several batches in "
            f"a row go into the reserve, and most of them are trained only at the end of the data. {n} or fewer is "
            f"enough for most runs."
        )
    for name in ("max_context_tokens", "kv_cache_gib"):
        if (value := getattr(plan.generation, name)) is not None and plan.generation.engine == "torch":
            yield (
                f"generation.{name}={value} does nothing with generation.engine=torch. Set the engine to vllm, or "
                f"remove it."
            )
    if plan.flow.max_inflight_prompts < plan.generation.workers:
        yield (
            f"flow.max_inflight_prompts={plan.flow.max_inflight_prompts} is below generation.workers="
            f"{plan.generation.workers}: some generators will always be idle. Raise the first or lower the second."
        )


def _holes(plan: "Plan") -> Iterator[str]:
    """What a prompt that leaves its step untrained can do to the step."""
    failure, n, floor = plan.failure, plan.grpo.prompts_per_step, step_floor(plan)
    shrinks = failure.on_dropped_prompt == "shrink"
    if shrinks and floor == n:
        cannot = f"failure.min_step_fraction={failure.min_step_fraction:g} leaves a floor of {floor} of {n} groups"
        mend = "Lower min_step_fraction, or set failure.on_dropped_prompt to replace."
        for name in ("max_skipped_prompts", "max_consecutive_dropped_prompts"):
            if getattr(failure, name):
                yield (
                    f"{cannot}: the first dropped prompt stops the run, whatever failure.{name}="
                    f"{getattr(failure, name)} allows. {mend}"
                )
        if failure.filter != "none":
            yield f"{cannot}: the first group that failure.filter={failure.filter} refuses stops the run. {mend}"
    elif shrinks and failure.filter != "none":
        yield (
            f"failure.filter={failure.filter} with failure.on_dropped_prompt=shrink: every filtered group makes its "
            f"step smaller, and one below {floor} of {n} groups stops the run. Set on_dropped_prompt to replace."
        )
    elif failure.filter != "none" and failure.max_replacement_attempts < FEW_REPLACEMENTS:
        yield (
            f"failure.filter={failure.filter} with failure.max_replacement_attempts="
            f"{failure.max_replacement_attempts}: a spare may be filtered too, and then its step shrinks. Set it to "
            f"{FEW_REPLACEMENTS} or more."
        )


def _replacement_without_steps(plan: "Plan") -> Iterator[str]:
    if plan.failure.on_dropped_prompt == "replace" and not plan.compaction.enabled:  # which asks for it in any case
        yield (
            f"failure.on_dropped_prompt=replace does nothing with sampler.name={plan.sampler.name}: no prompt is meant "
            f"for a step there, so no step lacks one that is dropped. Remove it, or choose in_order."
        )


def _too_short(plan: "Plan", steps: int) -> Iterator[str]:
    """What lies beyond the end of the run."""
    if plan.grpo.max_steps is not None and plan.grpo.max_steps > steps:
        yield (
            f"grpo.max_steps={plan.grpo.max_steps} is more than the {steps} steps in the data: the run ends there. "
            f"Raise data.epochs, or set max_steps to null."
        )
    if plan.optimizer.warmup_steps >= steps:
        yield (
            f"optimizer.warmup_steps={plan.optimizer.warmup_steps} is not below the {steps} steps of the run: the "
            f"learning rate never reaches optimizer.lr={plan.optimizer.lr:g}. Lower it."
        )
