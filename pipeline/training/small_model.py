"""Small models made from nothing, for examples and tests: random weights, and a tokenizer of whole words.

Rule 1: everything follows from one seed, bit for bit on one machine.
Rule 2: the folder is that of any model (Hugging Face layout), so that an example uses no path of its own.
Rule 3: torch is imported when a model is built, so that a reward's process starts without it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rollog.pipeline.durable import AlreadyThere, keep, new_folder


def write_qwen3(
    folder: Path,
    *,
    seed: int,
    words: Sequence[str],
    end: str,
    write_tokenizer: Callable[[Path], None],
    begin: str | None = None,
    positions: int = 64,
) -> None:
    """A Qwen3 model of about 0.36 million random parameters. A folder that exists is left as it is.

    Word i of ``words`` is token i; ``begin`` and ``end`` are among them. ``positions``: longest sequence in tokens.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=288,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=None if begin is None else words.index(begin),
        eos_token_id=words.index(end),
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    with new_folder(folder.parent) as temporary:
        model.save_pretrained(temporary)
        write_tokenizer(temporary)
        try:
            keep(temporary, folder.name)
        except AlreadyThere:
            return
