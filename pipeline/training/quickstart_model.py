"""The quickstart's task, data and model, made from nothing: learn the successor of a digit.

    <bos> 3 <sep>   ->   4 <eos>            (9 is followed by 0)

Rule 1: everything follows from one seed, bit for bit on one machine.
Rule 2: the folder is that of any model (Hugging Face layout), so that the quickstart uses no path of its own.
Rule 3: torch is imported when a model is built, so that the reward's process starts without it.
"""

import json
from pathlib import Path

from rollog.pipeline.durable import AlreadyThere, keep, new_folder, write_file

DIGITS = 10
BOS, SEP, EOS = "<bos>", "<sep>", "<eos>"
# Digit d is token d.
VOCABULARY = [*(str(digit) for digit in range(DIGITS)), BOS, SEP, EOS]
# An answer is a digit and the end.
MAX_TOKENS = 2


def successor(prompt: str, completion: str, answer: str, **row: object) -> float:
    """The share of right positions, 0, 0.5 or 1: the first token is `answer`, and nothing but the end follows it."""
    words = completion.split()
    return ((words[:1] == [answer]) + (len(words) == 1)) / MAX_TOKENS


def write_dataset(path: Path, *, rows: int) -> None:
    """A JSONL file of `rows` prompts with their answers, every digit equally often."""
    lines = (
        json.dumps({"prompt": str(row % DIGITS), "answer": str((row + 1) % DIGITS)}, separators=(",", ":"))
        for row in range(rows)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(f"{line}\n" for line in lines).encode())


def write_model(folder: Path, *, seed: int) -> None:
    """A Qwen3 model of 0.36 million random parameters with its tokenizer. A folder that exists is left as it is."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=288,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=VOCABULARY.index(BOS),
        eos_token_id=VOCABULARY.index(EOS),
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    with new_folder(folder.parent) as temporary:
        model.save_pretrained(temporary)
        _write_tokenizer(temporary)
        try:
            keep(temporary, folder.name)
        except AlreadyThere:
            return


def _write_tokenizer(folder: Path) -> None:
    """One token per word; a prompt is put between <bos> and <sep>. Only <eos> is left out when an answer is decoded."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SEP))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {SEP}", special_tokens=[(word, ids[word]) for word in (BOS, SEP)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS).save_pretrained(folder)
