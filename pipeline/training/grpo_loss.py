"""The loss of GRPO for one micro batch, as a sum over its valid tokens.

Rule 1: a sum, never a mean. The step divides once by its valid tokens over all micro batches and ranks, so the gradient
does not depend on how rows were cut into batches.
Rule 2: three policies. `new` is the one being changed; `old` the trainer's own at the start of the step, which the
ratio and its clip refer to; `generator` the one that wrote the tokens, whose distance from `old` is a weight, not a
ratio.

For a valid token with advantage A, all logarithms natural:

    ratio  = exp(new - old)
    weight = min(exp(old - generator), importance_cap)                      no gradient
    loss   = -weight * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + kl * k3
    k3     = exp(reference - new) - (reference - new) - 1

Sources: the clipped objective and k3 from DeepSeekMath (https://arxiv.org/abs/2402.03300); separate clips and the sum
over tokens from DAPO (https://arxiv.org/abs/2503.14476); the weight is truncated importance sampling (Ionides 2008).

Shapes: B rows, T - 1 predicted tokens of each.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The constants of the formula. `kl` 0: no reference is needed. `importance_cap` may be infinite: never cut."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    importance_cap: float = 2.0


def grpo_loss(
    new: torch.Tensor,
    *,
    old: torch.Tensor,
    generator: torch.Tensor,
    advantages: torch.Tensor,
    valid: torch.Tensor,
    settings: LossSettings,
    reference: torch.Tensor | None = None,
) -> torch.Tensor:
    """The summed loss, a scalar. `new`, `old`, `generator`, `reference`: log probabilities [B, T - 1]; `valid`: bool
    [B, T - 1]; `advantages`: [B]. What is not valid may hold anything, also NaN, and adds exactly nothing.
    """
    if settings.kl and reference is None:
        raise ValueError(f"kl={settings.kl} needs the reference's log probabilities")
    new, old, generator = new[valid], old[valid].detach(), generator[valid].detach()
    advantage = advantages[:, None].expand(valid.shape)[valid]
    ratio = torch.exp(new - old)
    weight = torch.exp(old - generator).clamp(max=settings.importance_cap)
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    loss = -weight * torch.minimum(ratio * advantage, clipped * advantage)
    if settings.kl and reference is not None:
        away = reference[valid].detach() - new
        loss = loss + settings.kl * (torch.exp(away) - away - 1)
    return loss.sum()
