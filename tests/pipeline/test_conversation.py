"""A conversation in tokens: rows hold what the model saw and wrote, and each written token is trained once.

The tokenizer here has one token per character; the template writes <u>...<e> for messages and <a> where a reply begins.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.pipeline.environments.conversation import MARK, Conversation, Window, Wording
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.errors import DataError
from rollog.pipeline.rollouts import Row

END = ord("$")


class Letters:
    """One token per character. `$` ends a message, `|` is where a reply begins."""

    chat_template: Any = "a template"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in ("^" if add_special_tokens else "") + text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != END)

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert add_generation_prompt
        return "".join(f"{message['role'][0]}:{message['content']}$" for message in conversation) + "|"


def a_conversation(
    *, max_tokens: int = 4, most: int | None = None, keep: int | None = None, summary: str | None = None,
    template: bool = True,
) -> Conversation:  # fmt: skip
    window = None if most is None else Window(
        max_context_tokens=most, keep_tokens=most // 2 if keep is None else keep, summary_prompt=summary
    )  # fmt: skip
    return Conversation(Wording(SingleTurn(Letters(), template)), max_tokens=max_tokens, window=window)


def ask(conversation: Conversation, text: str) -> str:
    conversation.ask([{"role": "user", "content": text}])
    return shown(conversation.context)


def answer(conversation: Conversation, text: str, version: int = 0) -> str | None:
    return conversation.take([ord(c) for c in text], [-1.0] * len(text), [version] * len(text))


def shown(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def marked(row: Row) -> str:
    """The row with what the model wrote in brackets."""
    text, inside = "", False
    for token, written in zip(row.tokens.tolist(), row.written.tolist(), strict=True):
        text += ("[" if written and not inside else "]" if inside and not written else "") + chr(token)
        inside = written
    return text + ("]" if inside else "")


def test_a_row_marks_what_the_model_wrote_turn_by_turn() -> None:
    talk = a_conversation()

    assert ask(talk, "hi") == "u:hi$|"
    assert answer(talk, "yo$") == "yo"
    assert ask(talk, "so") == "u:hi$|yo$u:so$|"
    assert answer(talk, "ab$", version=3) == "ab"
    (row,) = talk.rows
    assert marked(row) == "u:hi$|[yo$]u:so$|[ab$]"
    assert [(span.version, span.tokens) for span in row.spans] == [(0, 3), (3, 3)]
    assert row.logprobs[row.written].tolist() == [-1.0] * 6


def test_a_reply_that_was_cut_is_ended_by_tokens_that_the_model_did_not_write() -> None:
    talk = a_conversation()
    ask(talk, "hi")
    answer(talk, "abcd")
    ask(talk, "so")
    answer(talk, "e$")

    assert marked(talk.rows[0]) == "u:hi$|[abcd]$u:so$|[e$]"


def test_a_row_ends_with_the_last_reply() -> None:
    talk = a_conversation()
    ask(talk, "hi")
    answer(talk, "yo$")
    ask(talk, "and nobody answers")

    assert marked(talk.rows[0]) == "u:hi$|[yo$]"


def test_without_a_template_messages_stand_as_they_are() -> None:
    talk = a_conversation(template=False)

    assert ask(talk, "hi") == "^hi"
    answer(talk, "yo$")
    assert ask(talk, "so") == "^hiyo$so"


def test_a_conversation_may_begin_with_several_messages() -> None:
    talk = a_conversation()
    talk.ask([{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}])

    assert shown(talk.context) == "s:be$u:hi$|"


def test_a_full_context_begins_a_new_row_with_the_first_message_the_newest_replies_and_the_newest_message() -> None:
    talk = a_conversation(most=32, keep=23)
    for question, reply in (("q1", "r1$"), ("q2", "r2$"), ("q3", "r3$")):
        ask(talk, question)
        answer(talk, reply)
    assert len(talk.rows) == 1, "27 tokens of 32"
    assert ask(talk, "q4") == "u:q1$|r3$u:q4$|", "with r2 and q3 it would be 24 tokens"
    answer(talk, "r4$")

    assert [marked(row) for row in talk.rows] == ["u:q1$|[r1$]u:q2$|[r2$]u:q3$|[r3$]", "u:q1$|r3$u:q4$|[r4$]"]


def test_as_many_of_the_newest_exchanges_stay_as_keep_tokens_allow() -> None:
    for keep, kept in ((26, "r2$u:q3$|r3$"), (23, "r3$"), (14, "3$"), (13, "$"), (12, "")):
        talk = a_conversation(most=32, keep=keep)
        for question, reply in (("q1", "r1$"), ("q2", "r2$"), ("q3", "r3$")):
            ask(talk, question)
            answer(talk, reply)
        end = "" if kept else "$"  # nothing is left of the reply: its end is said for it

        assert ask(talk, "q4") == f"u:q1$|{kept}{end}u:q4$|", keep


def test_a_summary_is_written_in_the_old_row_and_stands_in_the_new_one() -> None:
    talk = a_conversation(most=31, summary="sum?")
    ask(talk, "q1")
    answer(talk, "r1$")
    assert ask(talk, "q2") == "u:q1$|r1$u:sum?$|", "a reply and a summary after it would not fit any more"
    assert answer(talk, "S$", version=1) is None
    assert shown(talk.context) == "u:q1$|S$u:q2$|"
    assert answer(talk, "r2$", version=2) == "r2"

    assert [marked(row) for row in talk.rows] == ["u:q1$|[r1$]u:sum?$|[S$]", "u:q1$|S$u:q2$|[r2$]"]


def test_a_first_message_that_leaves_no_room_is_refused_with_the_sizes() -> None:
    with pytest.raises(DataError, match=r"a context of 14 tokens .*max_context_tokens=16 for the 4 that a turn may"):
        ask(a_conversation(most=16), "0123456789")


def test_a_message_that_leaves_no_room_in_a_new_row_is_refused() -> None:
    talk = a_conversation(most=24)
    ask(talk, "hi")
    answer(talk, "yo$")
    with pytest.raises(DataError, match=r"a context of \d+ tokens \(first message 6\) leaves no room"):
        ask(talk, "0123456789")


def test_a_template_that_hides_replies_is_refused() -> None:
    class Hiding(Letters):
        def apply_chat_template(
            self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
        ) -> str:
            kept = [message for message in conversation if MARK not in message["content"]]
            return super().apply_chat_template(kept, tokenize=tokenize, add_generation_prompt=add_generation_prompt)

    talk = Conversation(Wording(SingleTurn(Hiding(), True)), max_tokens=4)
    ask(talk, "hi")
    answer(talk, "yo$")
    with pytest.raises(DataError, match="leaves out what the model replied"):
        ask(talk, "so")


words = st.text("abc", max_size=3)


@given(
    turns=st.lists(st.tuples(words, words, st.booleans()), min_size=1, max_size=12),
    most=st.one_of(st.none(), st.integers(38, 70)),
    keep=st.integers(1, 34),
    summary=st.booleans(),
)
def test_every_written_token_is_trained_exactly_once_and_no_row_is_too_long(
    turns: list[tuple[str, str, bool]], most: int | None, keep: int, summary: bool
) -> None:
    talk = a_conversation(most=most, keep=keep, summary="s" if summary else None)
    wrote: list[int] = []
    number = 0
    for question, reply, ended in turns:
        ask(talk, question)
        text: str | None = None
        while text is None:
            seen = talk.context
            written = [*map(ord, reply), END] if ended or not reply else [ord(c) for c in (reply * 4)[:4]]
            number += 1
            text = talk.take(written, [-float(number)] * len(written), [number] * len(written))
            wrote += [number] * len(written)
            row = talk.rows[-1]
            np.testing.assert_array_equal(row.tokens[: len(seen)], seen)
            np.testing.assert_array_equal(row.tokens[len(seen) :], written)

    labelled = [version for row in talk.rows for span in row.spans for version in [span.version] * span.tokens]
    assert labelled == wrote, "each token once, in the order in which it was written"
    logprobs = [value for row in talk.rows for value in row.logprobs[row.written].tolist()]
    assert logprobs == [-float(version) for version in wrote]
    assert most is None or all(len(row.tokens) <= most for row in talk.rows)
    assert len(talk.rows) == 1 or most is not None
