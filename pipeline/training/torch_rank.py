"""The rank of the torch engine: a TorchTrainer with its files.

Rule 1: a generation begins from a checkpoint or from the model that the run began with, never from anything else.
Rule 2: published weights are kept as long as somebody may ask for them: the newest two, pinned the newest K + 1.
"""

from collections.abc import Sequence
from pathlib import Path

from rollog.pipeline import checkpoints
from rollog.pipeline.checkpoints import CheckpointError, Manifest, Ordered, read_manifest
from rollog.pipeline.config import Plan
from rollog.pipeline.durable import sweep
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training import checkpoint_files
from rollog.pipeline.training.batching import BatchShape
from rollog.pipeline.training.grpo_loss import LossSettings
from rollog.pipeline.training.grpo_trainer import TrainerSettings
from rollog.pipeline.training.models import DTYPES, load_model
from rollog.pipeline.training.optimizer import OptimizerSettings
from rollog.pipeline.training.rank import PublishedFile, StepFacts
from rollog.pipeline.training.torch_trainer import TorchTrainer
from rollog.pipeline.training.weights import Published, prune, publish

FORMATS = {"trainer": checkpoint_files.FORMAT}


class TorchRank:
    """Fills the Rank protocol."""

    def __init__(self, trainer: TorchTrainer, plan: Plan, folder: RunFolder) -> None:
        self._trainer = trainer
        self._plan = plan
        self._folder = folder
        self._published: Published | None = None

    @classmethod
    def start(cls, plan: Plan, folder: RunFolder, *, version: int, checkpoint: str, max_steps: int) -> "TorchRank":
        """A trainer that stands at ``version``, loaded from the checkpoint of that name, or new for the empty name.

        ``max_steps`` is where the learning rate's decay ends. Raises ``CheckpointError``, ``ModelError``.
        """
        for parent in (folder.checkpoints, folder.weights):
            sweep(parent)  # halves that a killed trainer has left
        model_folder = Path(plan.model.path)
        trainer = TorchTrainer(
            load_model(model_folder),
            _settings(plan, max_steps),
            version=version,
            reference=load_model(model_folder) if plan.grpo.kl else None,
            weights=folder.weights,
        )
        if checkpoint:
            found = folder.checkpoints / checkpoint
            if read_manifest(found) is None:
                raise CheckpointError(f"{found} is no whole checkpoint any more; resume to go on from an older one")
            stands = checkpoint_files.read_trainer(found, model=trainer.model, optimizer=trainer.optimizer)
            if stands != version:
                raise CheckpointError(f"{found} holds version {stands}, not {version}; it was changed by hand")
        return cls(trainer, plan, folder)

    @property
    def version(self) -> int:
        """Steps behind it."""
        return self._trainer.version

    def accumulate(self, groups: Sequence[GroupRollouts]) -> None:
        """Add a chunk's gradients to the open step."""
        self._trainer.accumulate(groups)

    def close_step(self) -> StepFacts:
        """Take the optimizer step."""
        result = self._trainer.close_step()
        return StepFacts(
            loss=result.loss,
            grad_norm=result.grad_norm,
            tokens=result.tokens,
            rows=result.rows,
            padding=result.padding,
            logprob_gap=None if result.logprob_gap is None else result.logprob_gap.mean,
        )

    def publish(self) -> PublishedFile:
        """Write the weights in the generators' number format, and delete what nobody needs any more."""
        version = self.version
        weights = publish(self._trainer.model, version, self._folder.weights, dtype=DTYPES[self._plan.model.dtype])
        pinned = range(max(0, version - self._plan.sampler.lookahead), version + 1)
        prune(self._folder.weights, keep_versions=pinned if self._plan.determinism == "pinned" else None)
        self._published = weights
        return PublishedFile(file=weights.file, digest=weights.digest)

    def save(self, ordered: Ordered) -> Manifest:
        """Write a checkpoint. It shares the file of published weights that are the trainer's own, bit for bit."""
        latest, same = self._published, None
        if latest is not None and latest.version == self.version and self._plan.model.dtype == "float32":
            same = (self._folder.weights / latest.file, latest.digest)

        def fill(folder: Path) -> None:
            checkpoint_files.write_trainer(
                folder,
                model=self._trainer.model,
                optimizer=self._trainer.optimizer,
                version=self.version,
                model_folder=Path(self._plan.model.path),
                published=same,
            )

        return checkpoints.write(self._folder.checkpoints, ordered, fill, formats=FORMATS)


def _settings(plan: Plan, max_steps: int) -> TrainerSettings:
    grpo, optimizer, training = plan.grpo, plan.optimizer, plan.training
    return TrainerSettings(
        max_steps=max_steps,
        temperature=plan.model.temperature,
        dtype=plan.model.dtype,
        shape=BatchShape(
            micro_batch=training.micro_batch,
            logprob_batch=training.logprob_batch,
            ranks=training.ranks,
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
