"""Log probabilities of tokens under the trainer's weights.

Rule: the number is that of `rollog.pipeline.generation.engine`: log softmax(logits / temperature) of the token,
computed in float32 whatever the dtype of the forward pass.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rollog.pipeline.training.batching import TrainRow, collate

Compute = Callable[[torch.Tensor], torch.Tensor]
"""Tokens [B, T] to the log probabilities [B, T - 1] float32 of tokens 1 .. T - 1, each given those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """How a forward pass is made: `dtype` inside of it (autocast if not float32)."""

    temperature: float = 1.0
    dtype: torch.dtype = torch.float32


def token_logprobs(model: PreTrainedModel, tokens: torch.Tensor, forward: Forward) -> torch.Tensor:
    """Log probabilities [B, T - 1] float32 of tokens 1 .. T - 1 of [B, T], each given those before it."""
    with torch.autocast(tokens.device.type, dtype=forward.dtype, enabled=forward.dtype != torch.float32):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits  # [B, T - 1, V]
    scaled = logits.float() / forward.temperature
    found: torch.Tensor = scaled.gather(-1, tokens[:, 1:, None])[..., 0] - scaled.logsumexp(-1)
    return found


@torch.no_grad()
def row_logprobs(compute: Compute, rows: Sequence[TrainRow], *, batch: int, device: torch.device) -> list[torch.Tensor]:
    """For each row its log probabilities [T - 1], without gradients, `batch` rows at a time. A padding row stands for
    the row it copies."""
    found: list[torch.Tensor] = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        computed = compute(torch.from_numpy(collate(part).tokens).to(device))
        found += [line[: len(row.row.tokens) - 1] for line, row in zip(computed, part, strict=True)]
    return found
