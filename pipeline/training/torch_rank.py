"""The rank of the torch engine: a TorchTrainer with its files.

Rule: a generation begins from a checkpoint or from the model that the run began with, never from anything else.
"""

from collections.abc import Sequence
from pathlib import Path

from rollog.pipeline import checkpoints
from rollog.pipeline.checkpoints import Manifest, Ordered
from rollog.pipeline.config import Plan
from rollog.pipeline.durable import sweep
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training import checkpoint_files
from rollog.pipeline.training.models import DTYPES, load_model
from rollog.pipeline.training.rank import PublishedFile, StepFacts
from rollog.pipeline.training.torch_trainer import TorchTrainer
from rollog.pipeline.training.trainer_plan import check_version, facts_of, prune_weights, settings_of, whole_checkpoint
from rollog.pipeline.training.weights import Published, publish

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
            settings_of(plan, max_steps),
            version=version,
            reference=load_model(model_folder) if plan.grpo.kl else None,
            weights=folder.weights,
        )
        if checkpoint:
            found = whole_checkpoint(folder.checkpoints / checkpoint)
            stands = checkpoint_files.read_trainer(found, model=trainer.model, optimizer=trainer.optimizer)
            check_version(found, stands, version)
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
        return facts_of(self._trainer.close_step())

    def publish(self) -> PublishedFile:
        """Write the weights in the generators' number format, and delete what nobody needs any more."""
        version = self.version
        weights = publish(self._trainer.model, version, self._folder.weights, dtype=DTYPES[self._plan.model.dtype])
        prune_weights(self._plan, self._folder.weights, version)
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
