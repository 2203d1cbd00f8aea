"""The trainer on plain PyTorch: one process, one model, one optimizer step for each step of the run.

    accumulate(chunk), accumulate(chunk), ..., close_step() -> StepResult

Rule 1: gradients of all micro batches are summed and divided once by the step's valid tokens.
Rule 2: old log probabilities are the trainer's own, computed before the step changes a weight, so the ratio begins at
1.
Rule 3: dropout is off in every pass, else old and new would differ before anything was learnt.
Rule 4: the model holds float32; another dtype is used inside the forward pass only (autocast).
Rule 5: same weights, same groups, same machine and number of threads: same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from rollog.pipeline.errors import PipelineError
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.training.batching import BatchShape, TrainRow, blocks, collate
from rollog.pipeline.training.checkpoint_files import read_trainer, write_trainer
from rollog.pipeline.training.grpo_loss import LossSettings, grpo_loss
from rollog.pipeline.training.logprob_gap import GapMeter, LogprobGap
from rollog.pipeline.training.logprobs import Forward, row_logprobs, token_logprobs
from rollog.pipeline.training.models import DTYPES
from rollog.pipeline.training.optimizer import OptimizerSettings, learning_rate, make_optimizer


class TrainingError(PipelineError):
    """A step cannot be trained. Weights and optimizer are as they were before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What the trainer needs of the plan. `max_steps` is where the learning rate's decay ends."""

    max_steps: int
    temperature: float = 1.0
    dtype: str = "float32"
    shape: BatchShape = BatchShape()
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step: `step` was trained, `version` is the weights' number now.

    `loss` is per valid token, `grad_norm` before clipping, `rows` without the `padding` rows.
    """

    step: int
    version: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    rows: int
    padding: int
    logprob_gap: LogprobGap | None


@dataclass(slots=True)
class _Sums:
    """Over the chunks of the open step."""

    loss: float = 0.0
    tokens: int = 0
    rows: int = 0
    padding: int = 0


class TorchTrainer:
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
        if settings.loss.kl and reference is None:
            raise ValueError(f"kl={settings.loss.kl} needs a reference model; load the one that the run began with")
        if settings.shape.ranks != 1:
            raise ValueError(f"{settings.shape.ranks} ranks: this trainer is one process")
        self.model = model.float().eval()
        self.optimizer = make_optimizer(model, settings.optimizer)
        self.version = version
        self._settings = settings
        self._reference = reference
        self._forward = Forward(
            temperature=settings.temperature, dtype=DTYPES[settings.dtype], batch=settings.shape.logprob_batch
        )
        self._gap = GapMeter(weights)
        self._sums = _Sums()

    def accumulate(self, groups: Sequence[GroupRollouts]) -> None:
        """Add a chunk's gradients to the open step. A chunk without a valid token, or without a group, adds nothing."""
        self._gap.add_groups(groups)
        for block in blocks(groups, self._settings.shape):
            self._accumulate(block)

    def close_step(self) -> StepResult:
        """Take the optimizer step. Raises TrainingError if there is nothing to learn from, or the gradient is no
        number; the open step is empty then and nothing else has changed."""
        sums, step, settings = self._sums, self.version, self._settings.optimizer
        self._sums = _Sums()
        gap = self._gap.close(self.model, self.version, self._forward)
        if not sums.tokens:
            self._forget_gradients()
            raise TrainingError(f"step {step} has no valid token in {sums.rows} rows; check what filters its groups")
        grad_norm = self._finish_gradients(sums.tokens)
        if not math.isfinite(grad_norm):
            self._forget_gradients()
            raise TrainingError(
                f"step {step} has a gradient of norm {grad_norm}; lower optimizer.lr or check the rewards"
            )
        rate = learning_rate(settings, step, self._settings.max_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self._forget_gradients()
        self.version += 1
        return StepResult(
            step=step,
            version=self.version,
            loss=sums.loss / sums.tokens,
            grad_norm=grad_norm,
            learning_rate=rate,
            tokens=sums.tokens,
            rows=sums.rows,
            padding=sums.padding,
            logprob_gap=gap,
        )

    def write_checkpoint(self, folder: Path, model_folder: Path) -> None:
        """Put the trainer's files into an empty `folder`; `model_folder` lends the tokenizer's. No step may be open."""
        assert not self._sums.rows
        write_trainer(
            folder, model=self.model, optimizer=self.optimizer, version=self.version, model_folder=model_folder
        )

    def read_checkpoint(self, folder: Path) -> None:
        """Become the trainer that wrote `folder`, bit for bit. No step may be open."""
        assert not self._sums.rows
        self.version = read_trainer(folder, model=self.model, optimizer=self.optimizer)

    def _accumulate(self, block: Sequence[TrainRow]) -> None:
        self._sums.rows += sum(not row.padding for row in block)
        self._sums.padding += sum(row.padding for row in block)
        tokens = sum(row.num_valid for row in block)
        if not tokens:
            return
        self._sums.tokens += tokens
        old = row_logprobs(self.model, block, self._forward)
        self._gap.add(block, old, self.version)
        reference = row_logprobs(self._reference, block, self._forward) if self._reference else None
        size = self._settings.shape.micro_batch
        for start in range(0, len(block), size):
            part = slice(start, start + size)
            self._sums.loss += self._backward(block[part], old[part], reference[part] if reference else None)

    def _backward(
        self, rows: Sequence[TrainRow], old: list[torch.Tensor], reference: list[torch.Tensor] | None
    ) -> float:
        """Add one micro batch's gradients; returns its summed loss."""
        batch, device = collate(rows), self.model.device
        new = token_logprobs(self.model, torch.from_numpy(batch.tokens).to(device), self._forward)
        loss = grpo_loss(
            new,
            old=pad_sequence(old, batch_first=True),
            generator=torch.from_numpy(batch.generator).to(device),
            advantages=torch.from_numpy(batch.advantages).to(device),
            valid=torch.from_numpy(batch.valid).to(device),
            settings=self._settings.loss,
            reference=None if reference is None else pad_sequence(reference, batch_first=True),
        )
        loss.backward()
        return float(loss.item())

    def _finish_gradients(self, tokens: int) -> float:
        """Divide once by the valid tokens, clip; returns the norm before clipping."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(tokens)
        return float(torch.nn.utils.clip_grad_norm_(parameters, self._settings.optimizer.max_grad_norm))

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
