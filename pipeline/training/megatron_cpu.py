"""Megatron-core on machines without CUDA: the one thing that must be put right, and why.

Megatron-core asks ``torch.cuda.current_device()`` where its buffers, gradients and rotary tables shall live, and torch
without CUDA raises there. On such a machine the answer is the CPU, and everything that rollog uses of it (GPTModel,
tensor parallelism, DistributedDataParallel, finalize_model_grads) then runs over gloo.

Rule 1: with CUDA, nothing is changed.
Rule 2: what insists on CUDA for reasons of its own is not used here: the distributed optimizer and its clipping compare
type names with torch.cuda.FloatTensor (``megatron_optimizer`` steps torch's AdamW instead), the fused softmax and its
mask are allocated on "cuda" (``megatron_attention`` is torch's own attention, on every machine), and the generator of
random numbers per device is not needed, because nothing is drawn: no dropout, and weights come from files.
"""

import warnings
from typing import Final

import torch

_SAID_OF_OPTIONAL_THINGS: Final = (
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    "full scope is deprecated",
    "The following imports from",
    "The 'megatron.core.transformer.custom_layers.transformer_engine'",
    "When using async grad allreduce",
    "`torch.jit.script",
)
"""How the warnings begin that Megatron-core gives of packages that are not there, and torch of its old calls."""


def device_of(rank: int) -> torch.device:
    """Where this rank of a machine computes: its own GPU, or the CPU. Call it before Megatron-core is imported."""
    for message in _SAID_OF_OPTIONAL_THINGS:
        warnings.filterwarnings("ignore", message=rf"\s*{message}")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    return torch.device("cpu")
