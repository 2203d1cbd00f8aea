"""A rank of the Megatron engine: a MegatronTrainer with its files, one of several processes.

Rule 1: a generation begins from a checkpoint or from the model that the run began with, never from anything else.
Rule 2: rank 0 writes what appears under a name, whole and durable; the others lend it their parts, and return None.
Rule 3: the shards of a checkpoint are written by all into the folder that rank 0 names; it gives the folder its name
when all are there.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from rollog.pipeline import checkpoints
from rollog.pipeline.checkpoints import Manifest, Ordered
from rollog.pipeline.config import Plan
from rollog.pipeline.durable import sweep
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training import megatron_checkpoint
from rollog.pipeline.training.megatron_trainer import MegatronTrainer
from rollog.pipeline.training.models import DTYPES
from rollog.pipeline.training.rank import PublishedFile, StepFacts
from rollog.pipeline.training.rank_group import RankGroup
from rollog.pipeline.training.trainer_plan import check_version, facts_of, prune_weights, settings_of, whole_checkpoint
from rollog.pipeline.training.weights import publish_tensors

FORMATS = {"megatron": megatron_checkpoint.FORMAT}


class MegatronRank:
    """Fills the Rank protocol."""

    def __init__(self, trainer: MegatronTrainer, group: RankGroup, plan: Plan, folder: RunFolder) -> None:
        self._trainer = trainer
        self._group = group
        self._plan = plan
        self._folder = folder

    @classmethod
    def start(
        cls, plan: Plan, folder: RunFolder, group: RankGroup, *, version: int, checkpoint: str, max_steps: int
    ) -> "MegatronRank":
        """A trainer that stands at ``version``, loaded from the checkpoint of that name, or new for the empty name.

        ``max_steps`` is where the learning rate's decay ends. Raises ``CheckpointError``, ``ModelError``.
        """
        for parent in (folder.checkpoints, folder.weights) if group.leads else ():
            sweep(parent)  # halves that a killed trainer has left
        trainer = MegatronTrainer(
            Path(plan.model.path), settings_of(plan, max_steps), group, version=version, weights=folder.weights
        )
        if checkpoint:
            found = whole_checkpoint(folder.checkpoints / checkpoint)
            megatron_checkpoint.read(found, trainer)
            check_version(found, trainer.version, version)
        return cls(trainer, group, plan, folder)

    @property
    def version(self) -> int:
        """Steps behind it."""
        return self._trainer.version

    def all_ready(self, ready: bool) -> bool:
        """Whether every rank is."""
        return self._group.all_ready(ready)

    def accumulate(self, groups: Sequence[GroupRollouts]) -> None:
        """Add a chunk's gradients to the open step."""
        self._trainer.accumulate(groups)

    def close_step(self) -> StepFacts:
        """Take the optimizer step."""
        return facts_of(self._trainer.close_step())

    def publish(self) -> PublishedFile | None:
        """Write the weights in the generators' number format, and delete what nobody needs any more."""
        if self._group.data_rank:
            return None  # rank 0's copy of the model is enough
        dtype = DTYPES[self._plan.model.dtype]
        tensors: dict[str, torch.Tensor] = {}
        for named in self._trainer.model.whole(torch.nn.Parameter.detach):
            if self._group.leads:
                tensors |= {name: tensor.to(dtype) for name, tensor in named}
        if not self._group.leads:
            return None
        weights = publish_tensors(tensors, self._trainer.hf_config, self.version, self._folder.weights)
        prune_weights(self._plan, self._folder.weights, self.version)
        return PublishedFile(file=weights.file, digest=weights.digest)

    def save(self, ordered: Ordered) -> Manifest | None:
        """Write a checkpoint."""
        if not self._group.leads:
            while folder := self._group.tell(""):
                self._write_shards(Path(folder))
            return None

        def fill(folder: Path) -> None:
            megatron_checkpoint.prepare(folder, self._trainer, Path(self._plan.model.path))
            self._group.tell(str(folder.resolve()))
            self._write_shards(folder)
            megatron_checkpoint.complete(folder, self._trainer, self._group)

        manifest = checkpoints.write(self._folder.checkpoints, ordered, fill, formats=FORMATS)
        self._group.tell("")  # nothing more to write; or it lay there whole already
        return manifest

    def _write_shards(self, folder: Path) -> None:
        megatron_checkpoint.write_shards(folder, self._trainer, self._group)
        self._group.all_ready(True)
