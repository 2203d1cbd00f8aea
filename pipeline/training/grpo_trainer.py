"""What every trainer does with a step, whatever holds the model. An engine fills in what a model can do.

    accumulate(chunk), accumulate(chunk), ..., close_step() -> StepResult

Rule 1: gradients of all micro batches are summed and divided once by the step's valid tokens, over all ranks.
Rule 2: old log probabilities are the trainer's own, computed before the step changes a weight, so the ratio begins at
1.
Rule 3: dropout is off in every pass, else old and new would differ before anything was learnt.
Rule 4: the model holds float32; another dtype is used inside the forward pass only (autocast).
Rule 5: every rank is given all groups and computes its share of each block; what is counted is counted over all.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from rollog.pipeline.errors import PipelineError
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.training.batching import BatchShape, TrainRow, blocks, collate, shard
from rollog.pipeline.training.grpo_loss import LossSettings, grpo_loss
from rollog.pipeline.training.logprob_gap import GapMeter, GapSums, LogprobGap
from rollog.pipeline.training.logprobs import row_logprobs
from rollog.pipeline.training.optimizer import OptimizerSettings, learning_rate


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
    """Over the chunks of the open step. `loss` is this rank's, the others are everybody's."""

    loss: float = 0.0
    tokens: int = 0
    rows: int = 0
    padding: int = 0


class GrpoTrainer(ABC):
    """Trains in place. `version` is the number of steps behind it; `data_rank` of `settings.shape.ranks` it is."""

    def __init__(
        self, settings: TrainerSettings, *, version: int, device: torch.device, has_reference: bool, data_rank: int = 0
    ) -> None:
        if settings.loss.kl and not has_reference:
            raise ValueError(f"kl={settings.loss.kl} needs a reference model; load the one that the run began with")
        self.version = version
        self._settings = settings
        self._device = device
        self._data_rank = data_rank
        self._gap = GapMeter()
        self._sums = _Sums()

    @property
    def idle(self) -> bool:
        """Whether no step is open."""
        return not self._sums.rows

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
        gap = self._gap.close(self.version, self._logprobs_again, self._gap_of_all)
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
        self._step(rate, grad_norm)
        self._forget_gradients()
        self.version += 1
        return StepResult(
            step=step,
            version=self.version,
            loss=self._loss_of_all(sums.loss) / sums.tokens,
            grad_norm=grad_norm,
            learning_rate=rate,
            tokens=sums.tokens,
            rows=sums.rows,
            padding=sums.padding,
            logprob_gap=gap,
        )

    def _accumulate(self, block: Sequence[TrainRow]) -> None:
        self._sums.rows += sum(not row.padding for row in block)
        self._sums.padding += sum(row.padding for row in block)
        tokens = sum(row.num_valid for row in block)
        if not tokens:
            return
        self._sums.tokens += tokens
        shape = self._settings.shape
        own = shard(block, self._data_rank, shape.ranks)
        old = row_logprobs(self._logprobs, own, batch=shape.logprob_batch, device=self._device)
        self._gap.add(own, old, self.version)
        reference = None
        if self._settings.loss.kl:
            reference = row_logprobs(self._reference_logprobs, own, batch=shape.logprob_batch, device=self._device)
        for start in range(0, len(own), shape.micro_batch):
            part = slice(start, start + shape.micro_batch)
            self._sums.loss += self._backward(own[part], old[part], reference[part] if reference else None)

    def _backward(
        self, rows: Sequence[TrainRow], old: list[torch.Tensor], reference: list[torch.Tensor] | None
    ) -> float:
        """Add one micro batch's gradients; returns its summed loss."""
        batch, device = collate(rows), self._device
        loss = grpo_loss(
            self._logprobs(torch.from_numpy(batch.tokens).to(device)),
            old=pad_sequence(old, batch_first=True),
            generator=torch.from_numpy(batch.generator).to(device),
            advantages=torch.from_numpy(batch.advantages).to(device),
            valid=torch.from_numpy(batch.valid).to(device),
            settings=self._settings.loss,
            reference=None if reference is None else pad_sequence(reference, batch_first=True),
        )
        loss.backward()
        return float(loss.item())

    @abstractmethod
    def _logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log probabilities [B, T - 1] float32 of tokens 1 .. T - 1 of [B, T] under the trained weights."""

    @abstractmethod
    def _reference_logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same under the weights that the run began with. Asked for only if kl > 0."""

    @abstractmethod
    def _logprobs_again(self, version: int, rows: Sequence[TrainRow]) -> Sequence[torch.Tensor] | None:
        """Log probabilities [T - 1] of rows under published weights; None when they are gone. All ranks ask alike."""

    @abstractmethod
    def _finish_gradients(self, tokens: int) -> float:
        """Add up the ranks' gradients and divide once by `tokens`; returns their norm. Nothing is clipped yet."""

    @abstractmethod
    def _step(self, rate: float, grad_norm: float) -> None:
        """Clip the gradients, whose norm is `grad_norm`, and move the weights at the learning rate `rate`."""

    @abstractmethod
    def _forget_gradients(self) -> None:
        """Begin a new step."""

    def _loss_of_all(self, loss: float) -> float:
        """The sum of the ranks' losses."""
        return loss

    def _gap_of_all(self, sums: GapSums) -> GapSums:
        """The ranks' sums in one."""
        return sums
