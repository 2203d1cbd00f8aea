"""What the plan asks of a trainer, whichever engine it is.

Rule: published weights are kept as long as somebody may ask for them: the newest two, pinned the newest K + 1.
"""

from pathlib import Path

from rollog.pipeline.checkpoints import CheckpointError, read_manifest
from rollog.pipeline.config import Plan
from rollog.pipeline.training.batching import BatchShape
from rollog.pipeline.training.grpo_loss import LossSettings
from rollog.pipeline.training.grpo_trainer import StepResult, TrainerSettings
from rollog.pipeline.training.optimizer import OptimizerSettings
from rollog.pipeline.training.rank import StepFacts
from rollog.pipeline.training.weights import prune


def settings_of(plan: Plan, max_steps: int) -> TrainerSettings:
    """The part of the plan that is about training. ``max_steps``: where the learning rate's decay ends."""
    grpo, optimizer, training = plan.grpo, plan.optimizer, plan.training
    return TrainerSettings(
        max_steps=max_steps,
        temperature=plan.model.temperature,
        dtype=plan.model.dtype,
        shape=BatchShape(
            micro_batch=training.micro_batch,
            logprob_batch=training.logprob_batch,
            ranks=training.data_parallel,
            block_per_group=plan.compaction.enabled,
        ),
        loss=LossSettings(
            clip_low=grpo.clip_low,
            clip_high=grpo.clip_high,
            kl=grpo.kl,
            importance_cap=grpo.importance_cap,
        ),
        optimizer=OptimizerSettings(
            lr=optimizer.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
            warmup_steps=optimizer.warmup_steps,
            decay=optimizer.decay,
            max_grad_norm=optimizer.max_grad_norm,
        ),
    )


def facts_of(result: StepResult) -> StepFacts:
    """What is reported of a step."""
    return StepFacts(
        loss=result.loss,
        grad_norm=result.grad_norm,
        tokens=result.tokens,
        rows=result.rows,
        padding=result.padding,
        logprob_gap=None if result.logprob_gap is None else result.logprob_gap.mean,
    )


def whole_checkpoint(folder: Path) -> Path:
    """``folder``, if a whole checkpoint lies there. Raises ``CheckpointError``."""
    if read_manifest(folder) is None:
        raise CheckpointError(f"{folder} is no whole checkpoint any more; resume to go on from an older one")
    return folder


def check_version(folder: Path, stands: int, version: int) -> None:
    """Raises ``CheckpointError`` when a checkpoint holds another version than it was chosen for."""
    if stands != version:
        raise CheckpointError(f"{folder} holds version {stands}, not {version}; it was changed by hand")


def prune_weights(plan: Plan, root: Path, version: int) -> None:
    """Delete the published weights that nobody needs any more when ``version`` has been published."""
    pinned = range(max(0, version - plan.sampler.window), version + 1)
    prune(root, keep_versions=pinned if plan.determinism == "pinned" else None)
