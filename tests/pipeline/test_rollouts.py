"""Groups of rollouts: values that fit together, and their bytes."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollog.pipeline.rollout_codec import decode, encode
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts, Rollout, Row, Span, answer_row

GroupMaker = Callable[..., GroupRollouts]


def a_row(**changes: Any) -> Row:
    fields: dict[str, Any] = {
        "tokens": np.array([10, 3, 11, 4, 12], dtype=np.int32),
        "written": np.array([False, False, False, True, True]),
        "logprobs": np.array([0, 0, 0, -0.5, -0.25], dtype=np.float32),
        "spans": (Span(version=7, tokens=1), Span(version=8, tokens=1)),
    }
    return Row(**{**fields, **changes})


def a_group(**changes: Any) -> GroupRollouts:
    rollouts = (Rollout(rows=(a_row(),), reward=1.0), Rollout(rows=(a_row(), a_row()), reward=0.5))
    return GroupRollouts(
        **{"prompt": 3, "attempt": 2, "rollouts": rollouts, "metadata": {"worker": "gen-0"}, **changes}
    )


def rebuilt(group: GroupRollouts, *, index: dict[str, Any] | None = None, **arrays: Any) -> bytes:
    """The group's bytes with parts replaced: fields of the index, or whole arrays (None: left out)."""
    data = encode(group)
    (length,) = struct.unpack("<Q", data[:8])
    recorded = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["rollog.rollouts"])
    held = {name: array for name, array in {**safetensors.numpy.load(data), **arrays}.items() if array is not None}
    return safetensors.numpy.save(held, metadata={"rollog.rollouts": json.dumps({**recorded, **(index or {})})})


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(1, 3), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_any_group_comes_back_from_its_bytes(random_group: GroupMaker, rows: list[int], seed: int) -> None:
    group = random_group(5, rows=rows, seed=seed)

    assert decode(encode(group)) == group
    assert encode(decode(encode(group))) == encode(group)


def test_the_counts_of_a_commit_follow_from_the_group() -> None:
    group = decode(encode(a_group()))

    assert (group.num_rollouts, group.num_rows, group.num_tokens) == (2, 3, 6)
    assert (group.born, group.done) == (7, 8)
    assert (group.reward_mean, group.reward_std) == (0.75, 0.25)
    assert group.metadata == {"worker": "gen-0"}


def test_the_row_of_an_answer_marks_what_the_model_wrote_and_by_which_weights() -> None:
    row = answer_row(prompt=[10, 3, 11], answer=[4, 12], logprobs=[-0.5, -0.25], versions=[7, 8])

    assert row == a_row()


def test_arrays_of_a_row_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="read-only"):
        a_row().tokens[0] = 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tokens": np.array([10, 3], dtype=np.int32)}, "written has"),
        ({"tokens": np.array([10, 3, 11, 4, -1], dtype=np.int32)}, "negative"),
        ({"written": np.array([True, False, False, True, False])}, "first token"),
        ({"logprobs": np.array([0, 0, 0, 0.5, -1], dtype=np.float32)}, "above 0"),
        ({"logprobs": np.array([0, 0, 0, np.nan, -1], dtype=np.float32)}, "no number"),
        ({"logprobs": np.array([0, -1, 0, -1, -1], dtype=np.float32)}, "not written has"),
        ({"spans": (Span(version=7, tokens=1),)}, "label 1 tokens, 2 were written"),
        ({"spans": (Span(version=7, tokens=2), Span(version=8, tokens=0))}, "span is empty"),
    ],
)
def test_a_row_that_does_not_fit_together_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(CorruptRollouts, match=what):
        a_row(**changes)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -1e200])
def test_a_reward_that_is_no_usable_number_is_refused(reward: float) -> None:
    with pytest.raises(CorruptRollouts, match="reward"):
        Rollout(rows=(a_row(),), reward=reward)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"index": {"format": 2}}, "format is 2"),
        ({"index": {"extra": 1}}, "extra"),
        ({"index": {"prompt": True}}, "prompt is True"),
        ({"index": {"prompt": -1}}, "prompt -1"),
        ({"index": {"attempt": "1"}}, "attempt is '1'"),
        ({"index": {"metadata": {"worker": 1}}}, "more than texts"),
        ({"tokens": None}, "hold the arrays"),
        ({"more": np.zeros(1)}, "hold the arrays"),
        ({"tokens": np.zeros(15, dtype=np.int64)}, "tokens is int64"),
        ({"rows": np.zeros((3, 3), dtype=np.int32)}, "rows has shape"),
        ({"rows": np.array([[0, 5], [1, 5], [1, 6]], dtype=np.int32)}, "claim 16 tokens"),
        ({"rows": np.array([[0, 5], [1, 2**31 - 1], [1, 5]], dtype=np.int32)}, "claim"),
        ({"rows": np.array([[1, 5], [0, 5], [1, 5]], dtype=np.int32)}, "order of their rollouts"),
        ({"rows": np.array([[0, 5], [1, 5], [2, 5]], dtype=np.int32)}, "belongs to no rollout"),
        ({"rows": np.array([[1, 5], [1, 5], [1, 5]], dtype=np.int32)}, "no row"),
        ({"rows": np.zeros((0, 2), dtype=np.int32)}, "claim 0 tokens"),
        ({"written": np.full(15, 2, dtype=np.uint8)}, "more than 0 and 1"),
        ({"logprobs": np.full(5, -1, dtype=np.float32)}, "one log probability"),
        ({"spans": np.array([[9, 7, 2]], dtype=np.int64)}, "belongs to no row"),
        ({"spans": np.zeros((0, 3), dtype=np.int64)}, "label 0 tokens"),
    ],
)
def test_bytes_that_contradict_themselves_are_refused(change: dict[str, Any], what: str) -> None:
    with pytest.raises(CorruptRollouts, match=what):
        decode(rebuilt(a_group(), **change))


def test_more_bytes_than_allowed_are_refused_before_they_are_read() -> None:
    data = encode(a_group())

    assert decode(data, max_bytes=len(data)) == a_group()
    with pytest.raises(CorruptRollouts, match=f"{len(data)} bytes"):
        decode(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"__metadata__": 3}', '{"__metadata__": {"rollog.rollouts": "[]"}}', "{"]
)
def test_a_strange_header_is_refused(text: str) -> None:
    with pytest.raises(CorruptRollouts):
        decode(struct.pack("<Q", len(text)) + text.encode())


def test_every_truncation_is_refused() -> None:
    data = encode(a_group())

    for length in range(len(data)):
        with pytest.raises(CorruptRollouts):
            decode(data[:length])


@settings(max_examples=300)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_changed_bytes_decode_to_a_group_or_are_refused(place: int, value: int) -> None:
    data = bytearray(encode(a_group()))
    data[place % len(data)] = value

    try:
        group = decode(bytes(data))
    except CorruptRollouts:
        return
    assert decode(encode(group)) == group
