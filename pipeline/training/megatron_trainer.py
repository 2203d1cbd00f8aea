"""The trainer on Megatron-core: one process for each rank, which share the rows and the model.

Rule 1: data parallel ranks compute different rows of each block, tensor parallel ranks the same rows with their parts
of the model. Gradients travel once a step, not once a micro batch.
Rule 2: what a step trains, what its loss is and when it is an error are in ``grpo_trainer``, for all engines.
Rule 3: all ranks make the same calls in the same order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

from rollog.pipeline.training.batching import TrainRow
from rollog.pipeline.training.grpo_trainer import GrpoTrainer, TrainerSettings
from rollog.pipeline.training.logprob_gap import GapSums
from rollog.pipeline.training.logprobs import Forward, row_logprobs
from rollog.pipeline.training.megatron_model import MegatronModel
from rollog.pipeline.training.megatron_optimizer import Mover, SharedMover, WholeMover, add_up
from rollog.pipeline.training.megatron_shape import read_config, read_shape
from rollog.pipeline.training.models import DTYPES
from rollog.pipeline.training.older_weights import only_file
from rollog.pipeline.training.rank_group import RankGroup
from rollog.pipeline.training.tensor_folder import TensorFolder


class MegatronTrainer(GrpoTrainer):
    """Trains this rank's part in place. `version` is the number of steps behind it."""

    bitwise = False

    def __init__(
        self,
        model_folder: Path,
        settings: TrainerSettings,
        group: RankGroup,
        *,
        version: int = 0,
        weights: Path | None = None,
    ) -> None:
        """Begins with the weights of `model_folder`, which are the reference too. `weights` is the folder of published
        ones, where the gap finds older ones. Raises ModelError, WeightsError."""
        if settings.shape.ranks != group.data_size:
            raise ValueError(f"rows are cut for {settings.shape.ranks} ranks, and {group.data_size} share them")
        super().__init__(settings, version=version, device=group.device, has_reference=True, data_rank=group.data_rank)
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=group.tensor_size)
        shape = read_shape(model_folder)
        self.hf_config = read_config(model_folder)
        self.hf_config.dtype = torch.float32
        self.model = _loaded(MegatronModel(shape, group), model_folder)
        self._reference = _loaded(MegatronModel(shape, group), model_folder) if settings.loss.kl else None
        self._group = group
        self._weights = weights
        self._forward = Forward(temperature=settings.temperature, dtype=DTYPES[settings.dtype])
        cuda = group.device.type == "cuda"
        self.model.module = DistributedDataParallel(
            self.model.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=cuda
            ),
            self.model.module,
        )
        self.mover: Mover = (
            SharedMover(self.model.module, settings.optimizer)
            if cuda
            else WholeMover(self.model.module, settings.optimizer, group)
        )
        self._forget_gradients()

    def leave(self) -> None:
        """Part from the other ranks; the trainer cannot be used any more."""
        parallel_state.destroy_model_parallel()
        self._group.leave()

    def _logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model.logprobs(tokens, self._forward)

    def _reference_logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self._reference is not None
        return self._reference.logprobs(tokens, self._forward)

    def _logprobs_again(self, version: int, rows: Sequence[TrainRow]) -> Sequence[torch.Tensor] | None:
        """The older weights lie in the model while its own are kept aside: a copy of it could not be cut as it is."""
        file = only_file(self._weights, version)
        if not self._group.all_ready(file is not None):
            return None
        assert self._weights is not None
        assert file is not None
        own = [parameter.detach().clone() for _, parameter in self.model.parameters]
        self.model.load(TensorFolder(self._weights / file.file, "model"))
        found = row_logprobs(self._logprobs, rows, batch=self._settings.shape.logprob_batch, device=self._device)
        with torch.no_grad():
            for (_, parameter), kept in zip(self.model.parameters, own, strict=True):
                parameter.copy_(kept)
        return found

    def _finish_gradients(self, tokens: int) -> float:
        add_up(self.model.module, tokens)
        return self.mover.norm()

    def _step(self, rate: float, grad_norm: float) -> None:
        self.mover.step(rate, grad_norm)

    def _forget_gradients(self) -> None:
        self.model.module.zero_grad_buffer()

    def _loss_of_all(self, loss: float) -> float:
        (found,) = self._group.total([loss], _data_group())
        return found

    def _gap_of_all(self, sums: GapSums) -> GapSums:
        tokens, total = self._group.total([sums.tokens, sums.total], _data_group())
        (largest,) = self._group.largest([sums.largest], _data_group())
        return GapSums(tokens=int(tokens), total=total, largest=largest)


def _data_group() -> Any:
    return parallel_state.get_data_parallel_group()


def _loaded(model: MegatronModel, folder: Path) -> MegatronModel:
    model.load(TensorFolder(folder, "model"))
    return model
