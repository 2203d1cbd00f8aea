"""AdamW and the learning rate of every step.

Rule 1: the learning rate is a pure function of the step, so there is no scheduler whose state could be lost.
Rule 2: weight decay touches matrices only; norms and biases are in a group of their own without it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

# Linear decay ends at this share of the full rate: the last steps still learn.
FINAL_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW (https://arxiv.org/abs/1711.05101) with warm-up, decay and clipping of the gradient's norm."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    warmup_steps: int = 10
    decay: Literal["linear", "constant"] = "linear"
    max_grad_norm: float = 1.0


def learning_rate(settings: OptimizerSettings, step: int, max_steps: int) -> float:
    """The learning rate of `step` (0, 1, ...) in a run of `max_steps`.

    It rises in a line to lr over the warm-up (step 0 has 1 / warmup_steps of it), then, with linear decay, falls in a
    line to 5% of lr at the last step, and stays there in steps beyond.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return settings.lr
    length = max(max_steps - 1 - settings.warmup_steps, 1)
    done = min((step - settings.warmup_steps) / length, 1.0)
    return settings.lr * (1.0 - (1.0 - FINAL_SHARE) * done)


def make_optimizer(model: PreTrainedModel, settings: OptimizerSettings) -> torch.optim.AdamW:
    """An optimizer over the model's trainable parameters, in two groups: matrices, and the rest without decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True)
