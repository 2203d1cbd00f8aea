"""Attention inside Megatron's layers: torch's own, on every machine.

Megatron-core's own module keeps a score for each pair of tokens and allocates its mask on "cuda"; this one keeps none
where torch has a flash kernel, and runs on the CPU.

Rule: causal and nothing else. Rows are filled up on the right only, so no mask is needed (see ``batching``).

Shapes: T tokens, B rows, N heads (queries) or G (keys, values) of this rank, H numbers per head.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig


class CausalAttention(MegatronModule):  # type: ignore[misc] # the library publishes no types
    """Stands in the place of ``core_attention``; has no weights."""

    def __init__(self, config: TransformerConfig, layer_number: int, **unused: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **unused: Any
    ) -> torch.Tensor:
        """[T, B, N, H], [T, B, G, H], [T, B, G, H] to [T, B, N x H]."""
        q, k, v = (heads.permute(1, 2, 0, 3) for heads in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return found.permute(2, 0, 1, 3).flatten(2)
