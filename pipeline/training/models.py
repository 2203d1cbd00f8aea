"""A causal language model from a Hugging Face folder on this machine. Nothing is fetched from elsewhere.

Rule 1: only safetensors are read, and no code from the folder runs.
Rule 2: a process that must give the same bits again calls `deterministic` before it computes.
Rule 3: a folder that is no model is a ModelError that says which file is missing.
"""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from rollog.pipeline.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(folder: Path, *, dtype: str = "float32") -> PreTrainedModel:
    """The model of `folder`, on the CPU, dropout off. Raises ModelError if the folder holds no such model."""
    if dtype not in DTYPES:
        raise ModelError(f"model.dtype={dtype} is unknown; use one of {', '.join(DTYPES)}")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no config.json; model.path must name a Hugging Face model folder")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} holds no *.safetensors file; save the model again with safe_serialization")
    logging.disable_progress_bar()
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {error}") from error
    model: PreTrainedModel = found[0]
    # transformers fills what a file lacks with random numbers and says so in a warning only.
    if missing := sorted(found[1]["missing_keys"]):
        raise ModelError(f"{folder} has no weights for {missing[0]} ({len(missing)} missing); its files are incomplete")
    model.eval()
    return model


def deterministic(*, threads: int) -> None:
    """Make every later computation of this process reproducible: same inputs, same machine and `threads`, same bits.

    Sets process-wide switches of torch. An operation without a reproducible form raises instead of differing.
    """
    # cuBLAS gives the same bits only with a workspace of fixed size; read when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
