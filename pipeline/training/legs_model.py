"""The model of the example of several turns, made from nothing: it reads how many legs an animal has and says a number.

    <user> ... how many legs are there in total if you have 1 grasshopper? <end> <assistant> 4 <end>
    <user> Too low. <end> <assistant> 6 <end>

Every number up to 20 is one token, and so is every other word that the task and its environment use.
"""

import re
from pathlib import Path
from typing import Final

from rollog.pipeline.training.small_model import write_qwen3

LARGEST: Final = 20
END: Final = "<end>"
ROLES: Final = ("<user>", "<assistant>")
UNKNOWN: Final = "<unknown>"
HINTS: Final = "Too low. Too high. Wrong. Summarize our conversation so far in a few sentences."
WORD: Final = r"\d+|\w+|[^\w\s]"

TEMPLATE: Final = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vocabulary() -> list[str]:
    """Every token; its place is its number. The task's words are those of the installed reasoning-gym."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS, QUESTION_TEMPLATE

    text = " ".join([QUESTION_TEMPLATE.format(animals=""), *ANIMALS, HINTS])
    numbers = [str(number) for number in range(LARGEST + 1)]
    return [*numbers, *sorted({*re.findall(WORD, text)} - {*numbers}), *ROLES, END, UNKNOWN]


def write_model(folder: Path, *, seed: int) -> None:
    """A Qwen3 model with its tokenizer and chat template. A folder that exists is left as it is."""
    write_qwen3(folder, seed=seed, words=vocabulary(), end=END, write_tokenizer=_write_tokenizer, positions=256)


def _write_tokenizer(folder: Path) -> None:
    """One token per word, number and mark; an answer is decoded without the special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in (*ROLES, END)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, unk_token=UNKNOWN, chat_template=TEMPLATE
    ).save_pretrained(folder)
