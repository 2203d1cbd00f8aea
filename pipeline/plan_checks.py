"""Every pair of settings that cannot go together, refused before anything is made.

Rule 1: what could not do what it was set for is refused when it would hang, stop or mislead the run, and warned about
        when the run is sound without it (``plan_warnings``).
Rule 2: a message names both settings with their values, says why, and what to write instead.
Rule 3: nothing of the user's is imported here: a plan is also made by those who only look at a run. What a custom
        sampler needs is asked when the run starts (``plan_bounds.derive``).
"""

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, Final

from rollog.pipeline import compaction_checks
from rollog.pipeline.errors import PlanError
from rollog.pipeline.plan_bounds import check_capacity, streaming_minimum

if TYPE_CHECKING:
    from rollog.pipeline.config import Plan

BITWISE_ENGINES: Final = frozenset({"torch"})
"""Engines and trainers that give the same bits for the same rows: what ``determinism: pinned`` may be built on."""

LATER: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "generation.transfer": (("nccl", "ipc"), "folder"),
    "track.wandb": ((True,), "false"),
    "track.tensorboard": ((True,), "false"),
    "track.mlflow": ((True,), "false"),
}
"""Setting -> (values that the interface promises and this release lacks, what to use instead).

To add one: widen the type of its field in ``settings`` and take it out of here."""


def refuse_later(settings: Mapping[str, Any], origin: str) -> None:
    """Refuse, with PlanError, what a later release brings; looks at raw settings, so other mistakes cannot hide it."""
    for path, (values, instead) in LATER.items():
        value: Any = settings
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, (str, bool)) and value in values:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise PlanError(f"{origin}: {path}={shown} comes with a later release of rollog. Use {instead} here.")


def check(plan: "Plan") -> None:
    """Refuse, with PlanError, settings that are each right and cannot go together."""
    if plan.sampler.name != "custom":
        check_capacity(plan)
    _check_streaming(plan)
    _check_deadlines(plan)
    _check_replacement(plan)
    _check_requeues(plan)
    _check_learning(plan)
    _check_engines(plan)
    compaction_checks.check(plan)
    if plan.determinism == "pinned":
        check_pinned(plan)


def _check_streaming(plan: "Plan") -> None:
    n, minimum = plan.grpo.prompts_per_step, streaming_minimum(plan)
    if minimum > n:
        raise PlanError(
            f"flow.min_groups_for_streaming={minimum} is more than grpo.prompts_per_step={n}; no step could ever "
            f"begin. Set it to {n} or less, or to null."
        )


def _check_deadlines(plan: "Plan") -> None:
    flow, failure = plan.flow, plan.failure
    for longer, shorter in (
        ("stall_timeout_s", "rollout_timeout_s"),
        ("rollout_timeout_s", "reward_timeout_s"),
        ("rollout_timeout_s", "lease_s"),
        ("worker_orphan_s", "lease_s"),
    ):
        above, below = getattr(flow, longer), getattr(flow, shorter)
        if above <= below:
            raise PlanError(
                f"flow.{longer}={above:g} must be longer than flow.{shorter}={below:g}, which would never run out "
                f"before it. Raise the first or lower the second."
            )
    if failure.backoff_base_s > failure.backoff_max_s:
        raise PlanError(
            f"failure.backoff_base_s={failure.backoff_base_s:g} is above failure.backoff_max_s="
            f"{failure.backoff_max_s:g}. Raise backoff_max_s or lower backoff_base_s."
        )
    if flow.stall_timeout_s <= failure.backoff_max_s:
        raise PlanError(
            f"flow.stall_timeout_s={flow.stall_timeout_s:g} must be longer than failure.backoff_max_s="
            f"{failure.backoff_max_s:g}, or a prompt that backs off would be taken for a stall. Raise the first or "
            f"lower the second."
        )


def _check_replacement(plan: "Plan") -> None:
    if plan.failure.on_dropped_prompt != "replace":
        return
    for name, without in (
        ("max_replacement_attempts", "no spare could ever stand in"),
        ("reserve_prompts", "no prompt would ever be put into the reserve"),
    ):
        if getattr(plan.failure, name) == 0:
            raise PlanError(
                f"failure.{name}=0 cannot go with failure.on_dropped_prompt=replace: {without}. Set it to 1 or more, "
                f"or on_dropped_prompt to shrink."
            )


def _check_requeues(plan: "Plan") -> None:
    failure, name = plan.failure, plan.sampler.name
    if failure.evicted_prompts != "requeue":
        return
    if name in ("in_order", "ready_first"):
        raise PlanError(
            f"failure.evicted_prompts=requeue cannot go with sampler.name={name}, which evicts no prompt that could "
            f"still be trained. Set it to drop, or choose windowed or weight_fifo."
        )
    if failure.max_requeues == 0:
        raise PlanError(
            "failure.max_requeues=0 cannot go with failure.evicted_prompts=requeue: no prompt would be handed out "
            "again. Set it to 1 or more, or evicted_prompts to drop."
        )


def _check_learning(plan: "Plan") -> None:
    if plan.grpo.rollouts_per_prompt < 2:
        raise PlanError(
            "grpo.rollouts_per_prompt=1 gives every rollout the advantage 0 (its reward is its group's mean): "
            "nothing would be learnt. Set it to 2 or more."
        )
    if plan.data.task is not None and not plan.data.path.startswith("reasoning_gym:"):
        raise PlanError(
            f"data.task is only for reasoning_gym:<task>, and data.path={plan.data.path}. Remove data.task or correct "
            f"the path."
        )
    if plan.model.system_prompt is not None and not plan.model.chat_template:
        raise PlanError("model.system_prompt needs model.chat_template=true. Set that, or remove the system prompt.")


def _check_engines(plan: "Plan") -> None:
    parallel = plan.generation.tensor_parallel
    if plan.generation.engine == "torch" and parallel > 1:
        raise PlanError(
            f"generation.tensor_parallel={parallel} cannot go with generation.engine=torch, which runs on one device. "
            f"Set it to 1, or the engine to vllm."
        )


def check_pinned(plan: "Plan", bitwise: Set[str] = BITWISE_ENGINES) -> None:
    """Refuse, with PlanError, what would let the clock or the order of arrival into the weights."""
    failure, n = plan.failure, plan.grpo.prompts_per_step
    conditions = (
        (plan.sampler.name == "in_order", f"sampler.name={plan.sampler.name}", "in_order",
         "only there does a step train prompts that do not depend on which group was finished first"),
        (streaming_minimum(plan) == n, f"flow.min_groups_for_streaming={streaming_minimum(plan)}", "null",
         "gradients of chunks add up in the order of arrival"),
        (failure.on_dropped_prompt == "shrink" or _drops_nothing(plan),
         f"failure.on_dropped_prompt={failure.on_dropped_prompt}", "shrink",
         "which spare stands in depends on the order of arrival"),
        (failure.max_consecutive_dropped_prompts == 0,
         f"failure.max_consecutive_dropped_prompts={failure.max_consecutive_dropped_prompts}", "0",
         "which prompts an outage drops depends on the clock"),
        (failure.max_skipped_prompts in (0, "unlimited"), f"failure.max_skipped_prompts={failure.max_skipped_prompts}",
         "0 or unlimited", "which prompt meets a budget of the whole run last depends on the order of arrival"),
        (plan.generation.engine in bitwise, f"generation.engine={plan.generation.engine}", "torch",
         "this engine does not give the same bits for the same order"),
        (plan.training.engine in bitwise, f"training.engine={plan.training.engine}", "torch",
         "this trainer does not give the same bits for the same rows"),
    )  # fmt: skip
    for holds, have, use, reason in conditions:
        if not holds:
            raise PlanError(f"determinism=pinned cannot go with {have}: {reason}. Use {use}, or determinism=off.")


def _drops_nothing(plan: "Plan") -> bool:
    """Whether no spare is ever needed: compaction asks for spares, and a run that drops nothing never takes one."""
    failure = plan.failure
    return plan.compaction.enabled and failure.max_skipped_prompts == 0 and failure.filter == "none"
