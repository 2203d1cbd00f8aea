"""Which models the Megatron engine trains, and into how many parts it cuts them. No Megatron is imported here.

Rule 1: dense models of the families Llama, Qwen2 and Qwen3. What differs from them in a way that Megatron-core's layers
do not compute is refused by name, never approximated.
Rule 2: a part holds whole heads: attention heads, and the heads of keys and values.
Rule 3: the vocabulary is filled up to a multiple of the parts; the filling is never seen outside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollog.pipeline.errors import ModelError, PlanError

FAMILIES: Final = ("llama", "qwen2", "qwen3")
# The constants that Megatron-core has built in for Llama 3's stretched positions.
_LLAMA3_ROPE: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronShape:
    """A model's shape. ``heads`` of queries, ``kv_heads`` of keys and values, ``head`` numbers in each of them.

    ``rope_factor``: how far positions are stretched as in Llama 3; None: not at all.
    """

    family: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    positions: int
    epsilon: float
    rope_base: float
    rope_factor: float | None
    tied: bool

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections of attention have biases."""
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normed."""
        return self.family == "qwen3"

    def padded_vocabulary(self, parts: int) -> int:
        """The vocabulary with its filling."""
        return -(-self.vocabulary // parts) * parts

    def check_parts(self, parts: int) -> None:
        """Refuse, with PlanError, more parts than can be made of it."""
        for what, count in (
            ("attention heads", self.heads),
            ("heads of keys and values", self.kv_heads),
            ("numbers inside its feed-forward layers", self.inner),
        ):
            if count % parts:
                raise PlanError(
                    f"training.tensor_parallel={parts} does not divide the model's {count} {what}. Use a number that "
                    f"does, or 1."
                )


def read_config(folder: Path) -> Any:
    """The Hugging Face configuration of the model in ``folder``. Raises ModelError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error


def read_shape(folder: Path) -> MegatronShape:
    """The shape of the model in ``folder``. Raises ModelError if the Megatron engine does not train such a model."""
    config = read_config(folder)
    if config.model_type not in FAMILIES:
        raise ModelError(
            f"{folder} holds a model of the family {config.model_type}; training.engine=megatron trains "
            f"{', '.join(FAMILIES)}. Use training.engine=torch for others."
        )
    if odd := next(_what_differs(config), None):
        raise ModelError(f"{folder}: training.engine=megatron does not compute {odd}. Use training.engine=torch.")
    rope = config.rope_parameters
    return MegatronShape(
        family=config.model_type,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        epsilon=config.rms_norm_eps,
        rope_base=rope["rope_theta"],
        rope_factor=rope["factor"] if rope["rope_type"] == "llama3" else None,
        tied=config.tie_word_embeddings,
    )


def _what_differs(config: Any) -> Iterator[str]:
    """What of this model Megatron's layers do not compute."""
    if config.hidden_act != "silu":
        yield f"hidden_act={config.hidden_act}"
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if getattr(config, name, False):
            yield f"{name}=true"
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        yield f"layers of the type {kinds[0]}"
    rope = config.rope_parameters
    if rope["rope_type"] not in ("default", "llama3"):
        yield f"positions of the type {rope['rope_type']}"
    if rope["rope_type"] == "llama3":
        for name, value in _LLAMA3_ROPE.items():
            if rope[name] != value:
                yield f"{name}={rope[name]:g} (only {value:g})"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"partial_rotary_factor={rope['partial_rotary_factor']:g}"
