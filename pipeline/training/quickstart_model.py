"""The quickstart's task, data and model, made from nothing: learn the successor of a digit.

    <bos> 3 <sep>   ->   4 <eos>            (9 is followed by 0)

Its model is a ``small_model``: everything follows from one seed.
"""

import json
from pathlib import Path

from rollog.pipeline.durable import write_file
from rollog.pipeline.training.small_model import write_qwen3

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
    write_qwen3(folder, seed=seed, words=VOCABULARY, begin=BOS, end=EOS, write_tokenizer=_write_tokenizer)


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
