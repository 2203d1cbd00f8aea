"""What decisions are taken by: the plan's parts that they depend on, every bound derived, the sampler made.

Made once when the controller opens the log; the State says what is so, the Policy what is wanted.
"""

from dataclasses import dataclass
from typing import Protocol

from rollog.pipeline.config import Plan
from rollog.pipeline.samplers import Sampler, make_sampler
from rollog.pipeline.settings import Failure


class Rows(Protocol):
    """Which row of the data set an ordinal is; known without state (the loader fills this)."""

    @property
    def num_rows(self) -> int:
        """Rows of the data set, M."""
        ...

    def row_index(self, ordinal: int) -> int:
        """The row (0 .. M-1) of an ordinal."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The terms of every decision. Counts are groups unless the name says else."""

    failure: Failure
    sampler: Sampler
    rows: Rows
    prompts_per_step: int
    rollouts_per_prompt: int
    num_prompts: int
    """Ordinals that exist: epochs x M."""
    max_steps: int
    capacity: int
    """Admitted and not yet selected groups, at most."""
    chunk_minimum: int
    """Groups that a step's first chunks wait for."""
    floor: int
    """Fewest groups that a step may train."""
    whole_steps: bool
    """Whether a step has all its groups or is not trained: under context compaction."""
    replaces: bool
    """Whether a spare stands in for a dropped prompt of a stamped step; else the step shrinks."""
    requeues: bool
    """Whether a prompt that has grown too old is handed out again."""
    filters_equal_rewards: bool
    """Whether a finished group whose rewards are all equal is filtered."""
    max_inflight: int
    aborts_stalls: bool
    """Whether a stalled run is stopped; else the log says so and it goes on."""
    save_period: int
    """Steps between two periodic checkpoints."""

    @classmethod
    def of(cls, plan: Plan, rows: Rows, slate: tuple[int, int] = (0, 0)) -> "Policy":
        """The policy of this plan over a data set. Raises ``PlanError`` when the data cannot fill one step.

        ``slate``: step and ordinal from which batches are counted (``State.slate``).
        """
        bounds = plan.derived(rows.num_rows, slate)
        return cls(
            failure=plan.failure,
            sampler=make_sampler(plan.sampler),
            rows=rows,
            prompts_per_step=plan.grpo.prompts_per_step,
            rollouts_per_prompt=plan.grpo.rollouts_per_prompt,
            num_prompts=bounds.num_prompts,
            max_steps=bounds.max_steps,
            capacity=bounds.max_buffered_groups,
            chunk_minimum=bounds.min_groups_for_streaming,
            floor=bounds.step_floor,
            whole_steps=plan.compaction.enabled,
            replaces=plan.failure.on_dropped_prompt == "replace",
            requeues=plan.failure.evicted_prompts == "requeue",
            filters_equal_rewards=plan.failure.filter == "equal_rewards",
            max_inflight=plan.flow.max_inflight_prompts,
            aborts_stalls=plan.flow.stall_action == "abort",
            save_period=plan.checkpoint.every_steps,
        )

    def in_rollouts(self, groups: int) -> str:
        """``groups`` of a step in rollouts, and what a step needs, for messages."""
        each, wanted = self.rollouts_per_prompt, self.prompts_per_step
        return f"{groups * each} of its {wanted * each} rollouts ({wanted} prompts x {each})"
