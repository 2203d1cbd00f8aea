"""A conversation in tokens: what the model sees at every turn, and the rows that are trained.

    row 1   first message | reply 1 | message 2 | reply 2 | message 3 | reply 3
                  |                                             |
                  +---------------+    what lies between    +---+      compacted before message 4
                                  v                         v
    row 2                  first message  |  reply 3  |  message 4 | reply 4

Rule 1: a row holds the very tokens that the model saw and wrote. A reply is never decoded and encoded again.
Rule 2: what the model wrote in a row is marked there and trained there. What is carried into a later row is context
        there, so each written token is trained once.
Rule 3: before each reply there is room for the longest one (``max_tokens``) in the context. If there is none, the
        conversation is compacted first and a new row begins, so that no reply is cut short for its place.
Rule 4: the first message and the newest stay whole. By truncation, as many of the newest replies and messages between
        them stay as ``keep_tokens`` allow, from a reply on; of one reply that is too long, its end. By a summary, the
        model is asked for one at the end of the old row, and it stands where the replies stood. It wrote the summary
        there, so it is trained there.
Rule 5: a first and a newest message that leave no room are the data's fault, and the message names the sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np

from rollog.pipeline.environments.multi_turn import Message
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.errors import DataError
from rollog.pipeline.rollouts import Row, Span
from rollog.pipeline.settings import Compaction

MARK: Final = "⟦reply⟧"
"""Stands for a reply when a chat template is asked what comes after one."""


class Wording:
    """Messages as tokens, by the tokenizer and template of the run."""

    def __init__(self, asks: SingleTurn) -> None:
        self._asks = asks

    def first(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """What the model continues with its first reply; the system prompt comes before ``messages``."""
        prompt = [dict(message) for message in messages]
        plain = not self._asks.chat_template
        return tuple(self._asks.prompt_tokens({"prompt": _text(messages) if plain else prompt}))

    def next(self, messages: Sequence[Message], after: Sequence[int]) -> tuple[int, ...]:
        """What stands between the reply ``after`` and the next one: the end of the reply unless it has one, and
        ``messages``. Without a chat template the messages stand as they are.
        """
        if not self._asks.chat_template:
            return tuple(self._asks.tokenizer.encode(_text(messages), add_special_tokens=False))
        talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}, *map(dict, messages)]
        rendered = self._asks.render(talk)
        _, mark, rest = rendered.partition(MARK)
        if not mark:
            raise DataError("the model's chat template leaves out what the model replied. Use another one.")
        tokens = tuple(self._asks.tokenizer.encode(rest, add_special_tokens=False))
        return tokens[1:] if tokens and after and tokens[0] == after[-1] else tokens

    def text(self, tokens: Sequence[int]) -> str:
        """A reply as text."""
        return self._asks.completion(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The context that a row may fill. ``keep_tokens``: with so many a new row begins at most, if rule 4 allows.

    ``summary_prompt``: by which the model is asked for a summary; None: compaction by truncation.
    """

    max_context_tokens: int
    keep_tokens: int
    summary_prompt: str | None = None

    @classmethod
    def of(cls, compaction: Compaction) -> "Window | None":
        """The window of these settings; None: contexts are not compacted."""
        most = compaction.max_context_tokens
        if not compaction.enabled or most is None:
            return None
        summary_prompt = compaction.summary_prompt if compaction.method == "summary" else None
        return cls(
            max_context_tokens=most, keep_tokens=compaction.keep_tokens or most // 2, summary_prompt=summary_prompt
        )


@dataclass(slots=True)
class _Draft:
    """A row being written."""

    tokens: list[int]
    written: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def say(self, tokens: Sequence[int]) -> None:
        """Tokens that the model sees and has not written here."""
        self.tokens.extend(tokens)

    def write(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Tokens that the model wrote here."""
        self.written.extend([False] * (len(self.tokens) - len(self.written)) + [True] * len(tokens))
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    def row(self) -> Row:
        """The row, up to its last written token."""
        written = np.array(self.written, dtype=np.bool_)
        logprobs = np.zeros(len(written), dtype=np.float32)
        logprobs[written] = self.logprobs
        spans = tuple(Span(version=version, tokens=len(list(run))) for version, run in groupby(self.versions))
        return Row(
            tokens=np.array(self.tokens[: len(written)], dtype=np.int32),
            written=written,
            logprobs=logprobs,
            spans=spans,
        )


class Conversation:
    """One rollout. ``ask`` and ``take`` alternate; ``context`` is what the model continues in between."""

    def __init__(self, wording: Wording, *, max_tokens: int, window: Window | None = None) -> None:
        """``max_tokens``: of one reply. ``window``: None: never compacted."""
        self._wording = wording
        self._max_tokens = max_tokens
        self._window = window
        self._rows: list[Row] = []
        self._draft = _Draft([])
        self._head: tuple[int, ...] = ()
        self._between: list[tuple[int, ...]] = []
        """What the draft holds after the head: reply, message, reply, ..., reply."""
        self._to_say: Sequence[Message] | None = None
        """What is said once the summary that was asked for is there."""

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens that the model continues."""
        return tuple(self._draft.tokens)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows so far, up to the last reply."""
        return (*self._rows, self._draft.row()) if self._draft.versions else tuple(self._rows)

    def ask(self, messages: Sequence[Message]) -> None:
        """Say something; from here on ``context`` asks for the reply, or for a summary that comes first.

        Raises ``DataError`` when there is no room for it (rule 5).
        """
        if not self._head:
            self._head = self._wording.first(messages)
            self._begin_row(())
            return
        message = self._wording.next(messages, self._between[-1])
        if self._has_room(len(self._draft.tokens) + len(message)):
            self._hear(message)
        elif self._window is not None and self._window.summary_prompt is not None:
            self._to_say = messages
            self._draft.say(self._summary_request(self._window.summary_prompt))
        else:
            kept = self._newest(len(message))
            self._compact(kept, messages)

    def take(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> str | None:
        """What the model wrote: the reply as text; None when it was a summary and ``context`` now asks for the reply.

        Raises ``DataError`` when there is no room beside the summary.
        """
        self._draft.write(tokens, logprobs, versions)
        if self._to_say is None:
            self._between.append(tuple(tokens))
            return self._wording.text(tokens)
        to_say, self._to_say = self._to_say, None
        self._compact([tuple(tokens)], to_say)
        return None

    def _hear(self, message: tuple[int, ...]) -> None:
        self._between.append(message)
        self._draft.say(message)

    def _compact(self, kept: Sequence[tuple[int, ...]], messages: Sequence[Message]) -> None:
        """Begin a new row with the head, what is kept, and the messages."""
        self._rows.append(self._draft.row())
        self._begin_row((*kept, self._wording.next(messages, kept[-1])))

    def _begin_row(self, after_head: Sequence[tuple[int, ...]]) -> None:
        self._draft = _Draft([*self._head, *(token for piece in after_head for token in piece)])
        self._between = list(after_head)
        length = len(self._draft.tokens)
        if not self._has_room(length):
            assert self._window is not None
            raise DataError(
                f"a context of {length} tokens (first message {len(self._head)}) leaves no room in "
                f"compaction.max_context_tokens={self._window.max_context_tokens} for the {self._reserve} that a turn "
                f"may take. Raise it, lower model.max_tokens, or leave out long prompts."
            )

    def _newest(self, message_tokens: int) -> list[tuple[int, ...]]:
        """The newest replies and messages that a new row has room for, from a reply on; never nothing."""
        assert self._window is not None
        most = min(self._window.keep_tokens, self._window.max_context_tokens - self._reserve)
        room = most - len(self._head) - message_tokens
        kept = [self._between[-1][-room:] if room > 0 else ()]
        used = len(self._between[-1])
        for place in range(len(self._between) - 3, -1, -2):
            used += len(self._between[place]) + len(self._between[place + 1])
            if used > room:
                break
            kept = [self._between[place], self._between[place + 1], *kept]
        return kept

    @property
    def _reserve(self) -> int:
        """Tokens that a turn may take: a reply, and under summaries the request for one and the summary."""
        if self._window is None or self._window.summary_prompt is None:
            return self._max_tokens
        return 2 * self._max_tokens + len(self._summary_request(self._window.summary_prompt, after=()))

    def _has_room(self, length: int) -> bool:
        return self._window is None or length + self._reserve <= self._window.max_context_tokens

    def _summary_request(self, prompt: str, after: Sequence[int] | None = None) -> tuple[int, ...]:
        said = self._between[-1] if after is None else after
        return self._wording.next([{"role": "user", "content": prompt}], said)


def _text(messages: Sequence[Message]) -> str:
    """For models without a chat template: the contents, one after the other."""
    return "\n".join(message["content"] for message in messages)
