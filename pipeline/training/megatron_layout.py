"""How the parameters of a Megatron model are put together from those of the Hugging Face model, and taken apart again.

    linear_qkv    for each head of keys: its heads of queries, then itself, then its head of values; cut between them
    linear_fc1    each part: its share of the gate, then its share of up
    embedding, output_layer   filled up with zeros, cut by rows

Rule 1: both directions are here, side by side, and are exact: numbers are moved, never computed with.
Rule 2: what holds for a parameter holds for all that an optimizer keeps of each of its numbers.

Shapes: D hidden numbers; the first dimension of a weight is its output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rollog.pipeline.training.megatron_shape import MegatronShape

Tensors = Sequence[torch.Tensor]


class Layout(Protocol):
    """One Megatron parameter, named ``name``, made of the Hugging Face tensors ``sources``."""

    @property
    def name(self) -> str:
        """In Megatron's model."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """In the Hugging Face model."""
        ...

    @property
    def cut(self) -> int | None:
        """The dimension that is cut into parts; None: every part holds it whole."""
        ...

    def part(self, whole: Tensors, rank: int, parts: int) -> torch.Tensor:
        """What one of ``parts`` ranks holds of the sources."""
        ...

    def whole(self, parts: Tensors) -> list[torch.Tensor]:
        """The sources, from what all parts hold."""
        ...


@dataclass(frozen=True, slots=True)
class Copy:
    """The same on all ranks."""

    name: str
    source: str
    cut: None = None

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    def part(self, whole: Tensors, rank: int, parts: int) -> torch.Tensor:
        return whole[0]

    def whole(self, parts: Tensors) -> list[torch.Tensor]:
        return [parts[0]]


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut along one dimension, which is filled up with zeros when ``size`` is not a multiple of the parts."""

    name: str
    source: str
    cut: int
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    def part(self, whole: Tensors, rank: int, parts: int) -> torch.Tensor:
        length = -(-self.size // parts)
        own = whole[0].narrow(self.cut, min(rank * length, self.size), max(0, min(length, self.size - rank * length)))
        missing = length - own.shape[self.cut]
        if not missing:
            return own
        shape = list(own.shape)
        shape[self.cut] = missing
        return torch.cat([own, own.new_zeros(shape)], self.cut)

    def whole(self, parts: Tensors) -> list[torch.Tensor]:
        return [torch.cat(list(parts), self.cut).narrow(self.cut, 0, self.size)]


@dataclass(frozen=True, slots=True)
class GateUp:
    """The two halves of a gated feed-forward layer, cut by rows."""

    name: str
    sources: tuple[str, str]
    cut: int = 0

    def part(self, whole: Tensors, rank: int, parts: int) -> torch.Tensor:
        return torch.cat([half.chunk(parts)[rank] for half in whole])

    def whole(self, parts: Tensors) -> list[torch.Tensor]:
        return [torch.cat(halves) for halves in zip(*(part.chunk(2) for part in parts), strict=True)]


@dataclass(frozen=True, slots=True)
class Qkv:
    """Queries, keys and values, cut between heads of keys. Weights [N x H, D] or biases [N x H].

    A head of keys has ``queries`` rows of queries (those of its heads), and ``head`` rows of its own.
    """

    name: str
    sources: tuple[str, str, str]
    kv_heads: int
    queries: int
    head: int
    cut: int = 0

    def part(self, whole: Tensors, rank: int, parts: int) -> torch.Tensor:
        own = self.kv_heads // parts
        heads = zip(*(projection.chunk(self.kv_heads) for projection in whole), strict=True)
        return torch.cat([rows for head in list(heads)[rank * own : (rank + 1) * own] for rows in head])

    def whole(self, parts: Tensors) -> list[torch.Tensor]:
        heads = torch.cat(list(parts)).chunk(self.kv_heads)
        split = (rows.split([self.queries, self.head, self.head]) for rows in heads)
        return [torch.cat(projection) for projection in zip(*split, strict=True)]


def layouts(shape: MegatronShape) -> list[Layout]:
    """All parameters of the model, in the order in which it computes."""
    found: list[Layout] = [
        Cut("embedding.word_embeddings.weight", "model.embed_tokens.weight", 0, shape.vocabulary),
        *(layout for layer in range(shape.layers) for layout in _layer(shape, layer)),
        Copy("decoder.final_layernorm.weight", "model.norm.weight"),
    ]
    if not shape.tied:
        found.append(Cut("output_layer.weight", "lm_head.weight", 0, shape.vocabulary))
    return found


def _layer(shape: MegatronShape, layer: int) -> Iterator[Layout]:
    there, here = f"model.layers.{layer}", f"decoder.layers.{layer}"
    attention, block = f"{there}.self_attn", f"{here}.self_attention"
    queries = shape.heads // shape.kv_heads * shape.head
    yield Copy(f"{here}.input_layernorm.weight", f"{there}.input_layernorm.weight")
    for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
        q, k, v = (f"{attention}.{letter}_proj.{kind}" for letter in "qkv")
        yield Qkv(f"{block}.linear_qkv.{kind}", (q, k, v), shape.kv_heads, queries, shape.head)
    if shape.qk_norm:
        yield Copy(f"{block}.q_layernorm.weight", f"{attention}.q_norm.weight")
        yield Copy(f"{block}.k_layernorm.weight", f"{attention}.k_norm.weight")
    yield Cut(f"{block}.linear_proj.weight", f"{attention}.o_proj.weight", 1, shape.heads * shape.head)
    yield Copy(f"{here}.pre_mlp_layernorm.weight", f"{there}.post_attention_layernorm.weight")
    gate, up = (f"{there}.mlp.{half}_proj.weight" for half in ("gate", "up"))
    yield GateUp(f"{here}.mlp.linear_fc1.weight", (gate, up))
    yield Cut(f"{here}.mlp.linear_fc2.weight", f"{there}.mlp.down_proj.weight", 1, shape.inner)
