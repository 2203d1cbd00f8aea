"""Every bound that follows from a plan, derived in one place.

    N = grpo.prompts_per_step      K = sampler.lookahead or sampler.max_staleness      M = rows of the data set

bound                 value                  because
buffer capacity       N(K+1)                 in_order keeps up to K+1 admitted batches (steps v .. v+K); with less, step
                                             v + K could never be admitted and the run would wait for itself
                      N(K+1) + N - 1         ready_first, weight_fifo: as many batches, and the N - 1 groups that are
                                             left of a batch of which one was lost and given back
                      2N - 1                 windowed: N - 1 groups that no step can begin with, and a batch that
                                             completes it
streaming minimum     N                      whole-step: the first chunk waits for every group of the step
floor                 ceil(N x f)            f = failure.min_step_fraction, as an IEEE double product: N = 100, f = 0.55
                                             gives 56, since 100 x 0.55 is a little more than 55
                      N under compaction     a step is N groups there, never fewer
steps                 epochs x M // N        whole steps in the data; grpo.max_steps may only ask for fewer
left                  epochs x M mod N       the last prompts, which fill no step and are never handed out

With in_order a trained group is at most K versions old, because step s is admitted when v >= s - K.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.pipeline.errors import PlanError
from rollog.pipeline.samplers import make_sampler

if TYPE_CHECKING:
    from rollog.pipeline.config import Plan


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
    sampler: str
    """Which sampler it is that needs the capacity, and its K."""

    def lines(self) -> tuple[str, ...]:
        """For ``--dry-run``: one line a bound."""
        return (
            f"prompts: {self.num_prompts:,} (rows {self.num_rows:,} x epochs)",
            f"grpo.max_steps: {self.max_steps:,} (prompts // prompts_per_step, or fewer if asked)",
            f"never handed out: {self.left:,} at the end of the data (prompts mod prompts_per_step)",
            f"flow.max_buffered_groups: {self.max_buffered_groups:,} ({self.sampler} needs "
            f"{self.needed_buffer_capacity:,})",
            f"flow.min_groups_for_streaming: {self.min_groups_for_streaming:,} (null: the whole step)",
            f"smallest step: {self.step_floor:,} groups (ceil(prompts_per_step x min_step_fraction); all of them "
            f"under compaction)",
        )


def needed_buffer_capacity(plan: "Plan") -> int:
    """Groups that the sampler can have admitted and not selected. A custom sampler's class is loaded for it."""
    return make_sampler(plan.sampler).capacity(plan.grpo.prompts_per_step)


def buffer_capacity(plan: "Plan") -> int:
    """``flow.max_buffered_groups``, derived when null."""
    return plan.flow.max_buffered_groups or needed_buffer_capacity(plan)


def streaming_minimum(plan: "Plan") -> int:
    """``flow.min_groups_for_streaming``, derived when null."""
    return plan.flow.min_groups_for_streaming or plan.grpo.prompts_per_step


def step_floor(plan: "Plan") -> int:
    """Fewest groups that a step may train; at least 1, since the fraction is above 0, and N under compaction."""
    if plan.compaction.enabled:
        return plan.grpo.prompts_per_step
    return math.ceil(plan.grpo.prompts_per_step * plan.failure.min_step_fraction)


def check_capacity(plan: "Plan") -> None:
    """Refuse, with PlanError, a buffer in which the sampler could never have all that it waits for."""
    have, need = buffer_capacity(plan), needed_buffer_capacity(plan)
    if have < need:
        raise PlanError(
            f"flow.max_buffered_groups={have} is below the {need} that {named(plan)} needs with "
            f"grpo.prompts_per_step={plan.grpo.prompts_per_step}; the run would wait for itself. Set it to {need} or "
            f"more, or to null."
        )


def derive(plan: "Plan", num_rows: int, slate: tuple[int, int] = (0, 0)) -> Derived:
    """All bounds for a data set of ``num_rows`` rows. PlanError when it cannot fill one step, or capacity is short.

    ``slate``: the step from which batches are counted, and the ordinal that it begins with; a fork may move them.
    """
    n, prompts = plan.grpo.prompts_per_step, plan.data.epochs * num_rows
    if prompts < n:
        raise PlanError(
            f"data.path={plan.data.path}: {num_rows} rows x data.epochs={plan.data.epochs} are {prompts} prompts, "
            f"fewer than the {n} of one step. Lower grpo.prompts_per_step, or raise data.epochs to "
            f"{math.ceil(n / max(1, num_rows))}."
        )
    check_capacity(plan)
    first_step, first_prompt = slate
    if prompts - first_prompt < n:
        raise PlanError(
            f"data.path={plan.data.path}: {num_rows} rows x data.epochs={plan.data.epochs} are {prompts} prompts, and "
            f"{first_prompt} were handed out before the fork: no step is left. Raise data.epochs."
        )
    whole_steps = first_step + (prompts - first_prompt) // n
    return Derived(
        num_rows=num_rows,
        num_prompts=prompts,
        max_steps=min(plan.grpo.max_steps or whole_steps, whole_steps),
        left=(prompts - first_prompt) % n,
        needed_buffer_capacity=needed_buffer_capacity(plan),
        max_buffered_groups=buffer_capacity(plan),
        min_groups_for_streaming=streaming_minimum(plan),
        step_floor=step_floor(plan),
        sampler=named(plan),
    )


def named(plan: "Plan") -> str:
    """The sampler and its K in words."""
    sampler = plan.sampler
    match sampler.name:
        case "in_order":
            return f"sampler.name=in_order with sampler.lookahead={sampler.lookahead}"
        case "windowed" | "ready_first" | "weight_fifo":
            return f"sampler.name={sampler.name} with sampler.max_staleness={sampler.max_staleness}"
        case "custom":
            return f"sampler.target={sampler.target}"
