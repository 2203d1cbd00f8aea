"""The trainer on plain PyTorch: one process, one model, one optimizer step for each step of the run.

Rule: same weights, same groups, same machine and number of threads: same bits.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rollog.pipeline.training.batching import TrainRow
from rollog.pipeline.training.checkpoint_files import read_trainer, write_trainer
from rollog.pipeline.training.grpo_trainer import GrpoTrainer, TrainerSettings
from rollog.pipeline.training.logprobs import Forward, row_logprobs, token_logprobs
from rollog.pipeline.training.models import DTYPES
from rollog.pipeline.training.older_weights import OlderWeights
from rollog.pipeline.training.optimizer import make_optimizer


class TorchTrainer(GrpoTrainer):
    """Trains `model` in place. `version` is the number of steps behind it; `reference` is needed only if kl > 0."""

    bitwise = True

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainerSettings,
        *,
        version: int = 0,
        reference: PreTrainedModel | None = None,
        weights: Path | None = None,
    ) -> None:
        """`weights` is the folder of published weights, where the gap finds older ones."""
        if settings.shape.ranks != 1:
            raise ValueError(f"{settings.shape.ranks} ranks: this trainer is one process")
        super().__init__(settings, version=version, device=model.device, has_reference=reference is not None)
        self.model = model.float().eval()
        self.optimizer = make_optimizer(model, settings.optimizer)
        self._reference = reference
        self._forward = Forward(temperature=settings.temperature, dtype=DTYPES[settings.dtype])
        self._older = OlderWeights(weights)

    def write_checkpoint(self, folder: Path, model_folder: Path) -> None:
        """Put the trainer's files into an empty `folder`; `model_folder` lends the tokenizer's. No step may be open."""
        assert self.idle
        write_trainer(
            folder, model=self.model, optimizer=self.optimizer, version=self.version, model_folder=model_folder
        )

    def read_checkpoint(self, folder: Path) -> None:
        """Become the trainer that wrote `folder`, bit for bit. No step may be open."""
        assert self.idle
        self.version = read_trainer(folder, model=self.model, optimizer=self.optimizer)

    def _logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        return token_logprobs(self.model, tokens, self._forward)

    def _reference_logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self._reference is not None
        return token_logprobs(self._reference, tokens, self._forward)

    def _logprobs_again(self, version: int, rows: Sequence[TrainRow]) -> Sequence[torch.Tensor] | None:
        model = self._older.model(self.model, version)
        if model is None:
            return None
        return row_logprobs(
            lambda tokens: token_logprobs(model, tokens, self._forward),
            rows,
            batch=self._settings.shape.logprob_batch,
            device=self._device,
        )

    def _finish_gradients(self, tokens: int) -> float:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.div_(tokens)
        return float(torch.nn.utils.get_total_norm(gradients))

    def _step(self, rate: float, grad_norm: float) -> None:
        torch.nn.utils.clip_grads_with_norm_(
            self.model.parameters(), self._settings.optimizer.max_grad_norm, torch.tensor(grad_norm)
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
