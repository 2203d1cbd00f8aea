"""One question, one answer: from a row to prompt tokens, and from answer tokens to what the reward sees.

Rule 1: the tokens of a prompt follow from its row alone, so that every attempt and every rollout has the same ones.
Rule 2: the reward sees the answer as text without special tokens; the end token is the trainer's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollog.pipeline.environments.reward_child import Sample
from rollog.pipeline.errors import DataError, PlanError


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    @property
    def chat_template(self) -> Any:
        """None: the tokenizer has no template."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> Any: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """How this run asks: the model's tokenizer with ``model.chat_template`` and ``model.system_prompt``."""

    tokenizer: Tokenizer
    chat_template: bool
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        if self.chat_template and self.tokenizer.chat_template is None:
            raise PlanError(
                "model.chat_template=true, and the model's tokenizer has no chat template. Set it to false, or use a "
                "model that was trained to chat."
            )

    def prompt_tokens(self, row: Mapping[str, Any]) -> list[int]:
        """Token ids of the row's prompt, never empty. DataError when the prompt cannot be asked this way."""
        prompt = row["prompt"]
        if self.chat_template:
            # As text first: the template writes the special tokens itself, and encode must not add them again.
            tokens = self.tokenizer.encode(self.render(self._messages(prompt)), add_special_tokens=False)
        elif isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            raise DataError(f"prompt {prompt!r:.80} is a list of chat messages. Set model.chat_template=true.")
        if not tokens:
            raise DataError(f"prompt {prompt!r:.80} has no tokens under the model's tokenizer. Remove the row.")
        return tokens

    def render(self, messages: list[dict[str, str]]) -> str:
        """Chat messages as the template writes them, up to where the model's reply begins."""
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def completion(self, tokens: Sequence[int]) -> str:
        """The answer as text, special tokens left out."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def sample(self, row_index: int, row: Mapping[str, Any], tokens: Sequence[int]) -> Sample:
        """What the reward is asked about this answer. ``row_index``: the row's number in the data set."""
        columns = {name: value for name, value in row.items() if name != "prompt"}
        return Sample(row_index, row["prompt"], self.completion(tokens), columns)

    def _messages(self, prompt: str | list[dict[str, str]]) -> list[dict[str, str]]:
        system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        return system + ([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
