"""A GPTModel of Megatron-core that stands for a Hugging Face model: made from its weights, and giving them back.

Rule 1: the layers are Megatron-core's own ("local") ones, which need no Transformer Engine, with torch's attention.
Rule 2: weights are float32; they come from files or other ranks, nothing is drawn.
Rule 3: names outside of this file and of ``megatron_layout`` are those of Hugging Face.
Rule 4: the pipeline has one stage: log probabilities, which each step needs before its loss, would have to come back
from the last stage to all. Where a model does not fit, more tensor parallel ranks cut it finer.

Shapes: B rows, T tokens, V numbers of the vocabulary on this rank.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.transformer import TransformerConfig

from rollog.pipeline.training.logprobs import Forward
from rollog.pipeline.training.megatron_attention import CausalAttention
from rollog.pipeline.training.megatron_layout import Layout, layouts
from rollog.pipeline.training.megatron_shape import MegatronShape
from rollog.pipeline.training.rank_group import RankGroup
from rollog.pipeline.training.tensor_folder import TensorFolder
from rollog.pipeline.training.weights import WeightsError

PerParameter = Callable[[torch.nn.Parameter], torch.Tensor]
"""What is kept of each of a parameter's numbers: the number itself, or an optimizer's mean of it."""


class MegatronModel:
    """This rank's part of a model. ``module``: what runs, the GPTModel or a wrapper of it."""

    def __init__(self, shape: MegatronShape, group: RankGroup) -> None:
        self.shape = shape
        self.config = transformer_config(shape, group.tensor_size)
        self.module: Any = _gpt_model(shape, self.config).to(group.device)
        self._group = group
        named = dict(self.module.named_parameters())
        self.parameters: list[tuple[Layout, torch.nn.Parameter]] = [
            (layout, named.pop(layout.name)) for layout in layouts(shape)
        ]
        assert not named, f"{sorted(named)} have no layout"
        for layout, parameter in self.parameters:
            # Megatron's norm of gradients asks these who holds a parameter whole.
            parameter.tensor_model_parallel = layout.cut is not None  # type: ignore[attr-defined]

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        """The ranks that share one copy of the model."""
        found: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
        return found

    def load(self, tensors: TensorFolder) -> None:
        """Overwrite the weights. Raises WeightsError if one is missing or has another shape."""
        with torch.no_grad():
            for layout, parameter in self.parameters:
                part = self.part(layout, tensors, "")
                if part.shape != parameter.shape:
                    raise WeightsError(
                        f"{layout.sources[0]} gives a part of shape {list(part.shape)}, the model's is "
                        f"{list(parameter.shape)}; use weights of this model"
                    )
                parameter.copy_(part)

    def part(self, layout: Layout, tensors: TensorFolder, suffix: str) -> torch.Tensor:
        """What this rank holds of a parameter, or of what is kept beside it under ``suffix``."""
        whole = [tensors[f"{source}{suffix}"] for source in layout.sources]
        return layout.part(whole, self._group.tensor_rank, self._group.tensor_size)

    def whole(self, value: PerParameter) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """The named tensors of one parameter after the other, put together from the ranks that share the model.

        On the CPU. All ranks of the model must ask, and take every one.
        """
        for layout, parameter in self.parameters:
            own = value(parameter).detach()
            parts = [own]
            if layout.cut is not None and self._group.tensor_size > 1:
                parts = [torch.empty_like(own) for _ in range(self._group.tensor_size)]
                dist.all_gather(parts, own.contiguous(), group=self.tensor_group)
            found = layout.whole([part.cpu() for part in parts])
            yield [(name, tensor.contiguous()) for name, tensor in zip(layout.sources, found, strict=True)]

    def logits(self, tokens: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What follows each of the tokens [B, T], before the softmax: [B, T, V] float32. The filling has -inf."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        with torch.autocast(tokens.device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits: torch.Tensor = self.module(tokens, positions, None)
        first = self._group.tensor_rank * logits.shape[-1]
        numbers = torch.arange(first, first + logits.shape[-1], device=logits.device)
        return logits.float().masked_fill(numbers >= self.shape.vocabulary, -torch.inf)

    def logprobs(self, tokens: torch.Tensor, forward: Forward) -> torch.Tensor:
        """Log probabilities [B, T - 1] float32 of tokens 1 .. T - 1 of [B, T], each given those before it."""
        scaled = self.logits(tokens[:, :-1], forward.dtype) / forward.temperature
        loss: torch.Tensor = vocab_parallel_cross_entropy(scaled, tokens[:, 1:])
        return -loss


def transformer_config(shape: MegatronShape, tensor_size: int) -> Any:
    """Megatron's name for each number of the shape."""
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.inner,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head,
        normalization="RMSNorm",
        layernorm_epsilon=shape.epsilon,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tensor_size,
        # Gradients are sums: who closes the step divides once.
        calculate_per_token_loss=True,
        params_dtype=torch.float32,
        perform_initialization=False,
        use_cpu_initialization=True,
        # These need kernels that are compiled for a GPU.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
    )


def _gpt_model(shape: MegatronShape, config: Any) -> Any:
    spec = get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    return GPTModel(
        config,
        spec,
        vocab_size=shape.padded_vocabulary(config.tensor_model_parallel_size),
        max_sequence_length=shape.positions,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope",
        rotary_base=shape.rope_base,
        rope_scaling=shape.rope_factor is not None,
        rope_scaling_factor=shape.rope_factor or 1.0,
    )
