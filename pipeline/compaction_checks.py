"""Settings of environments and of context compaction that cannot go together.

Rule 1: under compaction a step has exactly prompts_per_step x rollouts_per_prompt rollouts, however many rows they are.
        So nothing may make a step smaller, and every micro batch has a fixed number of rows.
Rule 2: a message names both settings with their values, says why, and what to write instead.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rollog.pipeline.errors import PlanError
from rollog.pipeline.plan_bounds import streaming_minimum
from rollog.pipeline.settings import Compaction

if TYPE_CHECKING:
    from rollog.pipeline.config import Plan

UNFIXED: Final[Mapping[str, str]] = {
    "sequence_packing": "several rows in one would make the number of rows of a micro batch vary",
    "dynamic_batching": "micro batches by tokens have no fixed number of rows",
    "interleaved_pipeline": "an interleaved pipeline needs the same number of micro batches in every step",
}
"""Setting of ``training`` -> why rows of a group, padded to a multiple, cannot be computed with it."""


def refuse_unfixed_batches(settings: Mapping[str, Any], origin: str) -> None:
    """Refuse, with PlanError, ways to batch rows that padding cannot serve; looks at raw settings."""
    training, compaction = settings.get("training"), settings.get("compaction")
    if not isinstance(training, Mapping):
        return
    enabled = isinstance(compaction, Mapping) and compaction.get("enabled") is True
    for name, reason in UNFIXED.items():
        if value := training.get(name):
            beside = "compaction.enabled=true" if enabled else "rollog's micro batches"
            shown = str(value).lower() if isinstance(value, bool) else value
            raise PlanError(
                f"{origin}: training.{name}={shown} cannot go with {beside}: {reason}, and the rows of a step are "
                f"padded so that every rank has equally many full micro batches. Remove training.{name}."
            )


def check(plan: "Plan") -> None:
    """Refuse, with PlanError, settings that are each right and cannot go together."""
    if plan.environment.options and plan.environment.play is None:
        raise PlanError(
            f"environment.options={plan.environment.options} would do nothing with environment.play=null. Name the "
            f"environment there, or remove the options."
        )
    if plan.environment.play is not None and plan.flow.rollout_timeout_s <= plan.environment.timeout_s:
        raise PlanError(
            f"flow.rollout_timeout_s={plan.flow.rollout_timeout_s:g} must be longer than environment.timeout_s="
            f"{plan.environment.timeout_s:g}, which would never run out before it. Raise the first or lower the second."
        )
    if not plan.compaction.enabled:
        _check_idle(plan.compaction)
        return
    _check_rows(plan)
    _check_window(plan)


def _check_idle(compaction: Compaction) -> None:
    for name in ("max_context_tokens", "keep_tokens"):
        value = getattr(compaction, name)
        if value is not None:
            raise PlanError(
                f"compaction.{name}={value} would do nothing with compaction.enabled=false. Remove it; "
                f"model.max_tokens bounds an answer."
            )


def _check_rows(plan: "Plan") -> None:
    """What a step is."""
    n, per_prompt = plan.grpo.prompts_per_step, plan.grpo.rollouts_per_prompt
    if plan.environment.play is None:
        raise PlanError(
            "compaction.enabled=true needs environment.play: with one question and one answer there is nothing to "
            "compact. Name an environment, or set compaction.enabled to false."
        )
    if plan.failure.on_dropped_prompt != "replace":
        raise PlanError(
            f"failure.on_dropped_prompt={plan.failure.on_dropped_prompt} cannot go with compaction.enabled=true: a "
            f"step has exactly {n} x {per_prompt} = {n * per_prompt} rollouts there and cannot close short. Set it to "
            f"replace."
        )
    if streaming_minimum(plan) < n and plan.sampler.name != "in_order":
        raise PlanError(
            f"flow.min_groups_for_streaming={streaming_minimum(plan)} cannot go with compaction.enabled=true and "
            f"sampler.name={plan.sampler.name}: a step that has begun at the end of the data might never have its {n} "
            f"groups. Set it to null, or use in_order."
        )


def _check_window(plan: "Plan") -> None:
    """What a row holds."""
    compaction, reply = plan.compaction, plan.model.max_tokens
    most = compaction.max_context_tokens
    if most is None:
        raise PlanError(
            "compaction.enabled=true needs compaction.max_context_tokens: the longest row. Set it to what the model "
            "and the trainer's memory hold."
        )
    turn = reply if compaction.method == "truncate" else 2 * reply
    if most <= turn:
        written = "a reply" if compaction.method == "truncate" else "a reply and a summary"
        raise PlanError(
            f"compaction.max_context_tokens={most} leaves no room for a message beside {written} of up to "
            f"model.max_tokens={reply}. Raise the first to {turn + 1} or more, far above for a conversation."
        )
    if compaction.keep_tokens is not None and compaction.method == "summary":
        raise PlanError(
            f"compaction.keep_tokens={compaction.keep_tokens} would do nothing with compaction.method=summary: the "
            f"summary is what is kept. Remove it."
        )
    if compaction.keep_tokens is not None and compaction.keep_tokens > most - turn:
        raise PlanError(
            f"compaction.keep_tokens={compaction.keep_tokens} leaves less than model.max_tokens={reply} of "
            f"compaction.max_context_tokens={most}. Set it to {most - turn} or less, or to null."
        )
