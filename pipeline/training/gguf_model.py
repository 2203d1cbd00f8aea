"""A model out of a GGUF file, as the Hugging Face folder that a run is given.

Rule 1: the folder appears whole or not at all.
Rule 2: quantized weights become the float32 numbers that they stand for: nothing about the quantization is kept.
"""

from pathlib import Path
from typing import Any

from rollog.pipeline.durable import keep, new_folder


def write_model(source: Path, folder: Path) -> None:
    """The model in the GGUF file ``source`` as a folder: float32 weights, its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # What was read are plain numbers now; without this they would be saved as a quantized model.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with new_folder(folder.parent) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        keep(temporary, folder.name)
