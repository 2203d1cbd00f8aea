"""Every bound of a plan, derived in one place, and every pair of settings that cannot go together.

    N = grpo.prompts_per_step      K = sampler.lookahead      M = rows of the data set

bound                 value                  because
buffer capacity       N(K+1)                 in_order keeps up to K+1 admitted batches (steps v .. v+K); with less, step
                                             v + K could never be admitted and the run would wait for itself
streaming minimum     N                      whole-step: the first chunk waits for every group of the step
floor                 ceil(N x f)            f = failure.min_step_fraction, as an IEEE double product: N = 100, f = 0.55
                                             gives 56, since 100 x 0.55 is a little more than 55
steps                 epochs x M // N        whole steps in the data; grpo.max_steps may only ask for fewer
left                  epochs x M mod N       the last prompts, which fill no step and are never handed out

With in_order a trained group is at most K versions old, because step s is admitted when v >= s - K.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rollog.pipeline.errors import PlanError
from rollog.pipeline.samplers import make_sampler

if TYPE_CHECKING:
    from rollog.pipeline.config import Plan

BITWISE_ENGINES: Final = frozenset({"torch"})
"""Engines and trainers that give the same bits for the same rows: what ``determinism: pinned`` may be built on."""

LATER: Final[Mapping[str, tuple[frozenset[Any], str]]] = {
    "sampler.name": (frozenset({"custom"}), "in_order"),
    "generation.engine": (frozenset({"vllm"}), "torch"),
    "training.engine": (frozenset({"megatron"}), "torch"),
    "compaction.enabled": (frozenset({True}), "false"),
    "launch": (frozenset({"ray"}), "local"),
    "track.wandb": (frozenset({True}), "false"),
    "track.tensorboard": (frozenset({True}), "false"),
    "track.mlflow": (frozenset({True}), "false"),
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


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from a plan and the number of rows of its data set."""

    num_rows: int
    num_prompts: int
    """Ordinals that exist: epochs x M."""
    max_steps: int
    """Optimizer steps until the run ends by itself."""
    left: int
    """Prompts at the end of the data that are never handed out."""
    needed_buffer_capacity: int
    max_buffered_groups: int
    min_groups_for_streaming: int
    step_floor: int

    def lines(self) -> tuple[str, ...]:
        """For ``--dry-run``: one line a bound."""
        return (
            f"prompts                        {self.num_prompts:,} = rows {self.num_rows:,} x epochs",
            f"grpo.max_steps                 {self.max_steps:,} (prompts // prompts_per_step, or fewer if asked)",
            f"never handed out               {self.left:,} at the end of the data (prompts mod prompts_per_step)",
            f"flow.max_buffered_groups       {self.max_buffered_groups:,} (in_order needs "
            f"{self.needed_buffer_capacity:,} = prompts_per_step x (lookahead + 1))",
            f"flow.min_groups_for_streaming  {self.min_groups_for_streaming:,} (null: the whole step)",
            f"smallest step                  {self.step_floor:,} groups = ceil(prompts_per_step x min_step_fraction)",
        )


def needed_buffer_capacity(plan: "Plan") -> int:
    """Groups that the sampler can have admitted and not selected (``samplers.py`` says why)."""
    return make_sampler(plan.sampler).capacity(plan.grpo.prompts_per_step)


def buffer_capacity(plan: "Plan") -> int:
    """``flow.max_buffered_groups``, derived when null."""
    return plan.flow.max_buffered_groups or needed_buffer_capacity(plan)


def streaming_minimum(plan: "Plan") -> int:
    """``flow.min_groups_for_streaming``, derived when null."""
    return plan.flow.min_groups_for_streaming or plan.grpo.prompts_per_step


def step_floor(plan: "Plan") -> int:
    """Fewest groups that a step may train; at least 1, since the fraction is above 0."""
    return math.ceil(plan.grpo.prompts_per_step * plan.failure.min_step_fraction)


def derive(plan: "Plan", num_rows: int) -> Derived:
    """All bounds for a data set of ``num_rows`` rows. PlanError when it cannot fill one step."""
    n, prompts = plan.grpo.prompts_per_step, plan.data.epochs * num_rows
    if prompts < n:
        raise PlanError(
            f"data.path={plan.data.path}: {num_rows} rows x data.epochs={plan.data.epochs} are {prompts} prompts, "
            f"fewer than the {n} of one step. Lower grpo.prompts_per_step, or raise data.epochs to "
            f"{math.ceil(n / max(1, num_rows))}."
        )
    whole_steps = prompts // n
    return Derived(
        num_rows=num_rows,
        num_prompts=prompts,
        max_steps=min(plan.grpo.max_steps or whole_steps, whole_steps),
        left=prompts % n,
        needed_buffer_capacity=needed_buffer_capacity(plan),
        max_buffered_groups=buffer_capacity(plan),
        min_groups_for_streaming=streaming_minimum(plan),
        step_floor=step_floor(plan),
    )


def check(plan: "Plan") -> None:
    """Refuse, with PlanError, settings that are each right and cannot go together."""
    _check_capacity(plan)
    _check_deadlines(plan)
    _check_learning(plan)
    if plan.determinism == "pinned":
        check_pinned(plan)


def _check_capacity(plan: "Plan") -> None:
    n, k = plan.grpo.prompts_per_step, plan.sampler.lookahead
    have, need = buffer_capacity(plan), needed_buffer_capacity(plan)
    if have < need:
        raise PlanError(
            f"flow.max_buffered_groups={have} is below the {need} that in_order with sampler.lookahead={k} needs; the "
            f"run would wait for itself. Set it to {need} or more, or to null."
        )
    if streaming_minimum(plan) > n:
        raise PlanError(
            f"flow.min_groups_for_streaming={streaming_minimum(plan)} is more than grpo.prompts_per_step={n}; no "
            f"step could ever begin. Set it to {n} or less, or to null."
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
            f"{failure.backoff_max_s:g}, or a prompt that backs off would be taken for a stall."
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


def check_pinned(plan: "Plan", bitwise: Set[str] = BITWISE_ENGINES) -> None:
    """Refuse, with PlanError, what would let the clock or the order of arrival into the weights."""
    failure, n = plan.failure, plan.grpo.prompts_per_step
    conditions = (
        (plan.sampler.name == "in_order", f"sampler.name={plan.sampler.name}", "in_order",
         "only there does a step train prompts that do not depend on which group was finished first"),
        (streaming_minimum(plan) == n, f"flow.min_groups_for_streaming={streaming_minimum(plan)}", "null",
         "gradients of chunks add up in the order of arrival"),
        (failure.on_dropped_prompt == "shrink", f"failure.on_dropped_prompt={failure.on_dropped_prompt}", "shrink",
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


def warnings(plan: "Plan") -> tuple[str, ...]:
    """What is allowed and probably not meant, for the start of a run."""
    found = []
    failure, floor = plan.failure, step_floor(plan)
    if floor == plan.grpo.prompts_per_step and (failure.max_skipped_prompts or failure.max_consecutive_dropped_prompts):
        found.append(
            f"failure.min_step_fraction={failure.min_step_fraction:g} leaves a floor of {floor} of "
            f"{plan.grpo.prompts_per_step} groups: the first dropped prompt stops the run, whatever its budget allows."
        )
    if plan.flow.max_inflight_prompts < plan.generation.workers:
        found.append(
            f"flow.max_inflight_prompts={plan.flow.max_inflight_prompts} is below generation.workers="
            f"{plan.generation.workers}: some generators will always be idle."
        )
    return tuple(found)
