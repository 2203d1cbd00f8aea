"""Groups of rollouts as bytes: one safetensors file with a JSON index in its metadata.

Rule 1: arrays of all rows lie end to end; nothing else tells where a row begins.

    tokens    int32    [all tokens]       written   uint8    [all tokens]      logprobs  float32  [written tokens]
    rewards   float64  [rollouts]         rows      int32    [rows, 2]         spans     int64    [spans, 3]

`rows` holds (rollout, tokens), `spans` (row, version, written tokens); both are in order.
Rule 2: decoding runs no code, allocates no more than a small multiple of the input, and ends in the value that was
encoded or in CorruptRollouts. The digest that names a blob finds changed bytes; this finds bytes of something else.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from rollog.pipeline.durable import canonical_json
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts, Rollout, Row, Span, require

FORMAT: Final = 1
MAX_BYTES: Final = 1 << 30
_INDEX: Final = "rollog.rollouts"
_KEYS: Final = {"format", "prompt", "attempt", "metadata"}
# Name -> dtype and the shape after the first dimension.
_ARRAYS: Final[Mapping[str, tuple[type[np.generic], tuple[int, ...]]]] = {
    "tokens": (np.int32, ()),
    "written": (np.uint8, ()),
    "logprobs": (np.float32, ()),
    "rewards": (np.float64, ()),
    "rows": (np.int32, (2,)),
    "spans": (np.int64, (3,)),
}

Arrays = Mapping[str, npt.NDArray[Any]]


def encode(group: GroupRollouts) -> bytes:
    """The bytes of a group; the same group gives the same bytes. Raises CorruptRollouts above MAX_BYTES."""
    rows = group.rows
    owners = [number for number, rollout in enumerate(group.rollouts) for _ in rollout.rows]
    spans = [(number, span.version, span.tokens) for number, row in enumerate(rows) for span in row.spans]
    written = np.concatenate([row.written for row in rows])
    index = {"format": FORMAT, "prompt": group.prompt, "attempt": group.attempt, "metadata": dict(group.metadata)}
    data = safetensors.numpy.save(
        {
            "tokens": np.concatenate([row.tokens for row in rows]),
            "written": written.astype(np.uint8),
            "logprobs": np.concatenate([row.logprobs for row in rows])[written],
            "rewards": np.array(group.rewards, dtype=np.float64),
            "rows": np.array(
                [(owner, len(row.tokens)) for owner, row in zip(owners, rows, strict=True)], dtype=np.int32
            ),
            "spans": np.array(spans, dtype=np.int64),
        },
        metadata={_INDEX: canonical_json(index).decode()},
    )
    require(len(data) <= MAX_BYTES, f"prompt {group.prompt} has {len(data)} bytes, more than {MAX_BYTES}")
    return data


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> GroupRollouts:
    """The group in `data`. Raises CorruptRollouts for anything else, and for more than `max_bytes`."""
    require(len(data) <= max_bytes, f"they have {len(data)} bytes, more than the {max_bytes} allowed")
    index = _read_index(data)
    arrays = _read_arrays(data)
    rows = _read_rows(arrays)
    owners = arrays["rows"][:, 0]
    num_rollouts = len(arrays["rewards"])
    require(bool((np.diff(owners) >= 0).all()), "rows are not in the order of their rollouts")
    require(bool(((owners >= 0) & (owners < num_rollouts)).all()), "a row belongs to no rollout")
    bounds = np.searchsorted(owners, np.arange(num_rollouts + 1)).tolist()
    rollouts = tuple(
        Rollout(rows=tuple(rows[start:end]), reward=reward)
        for start, end, reward in zip(bounds[:-1], bounds[1:], arrays["rewards"].tolist(), strict=True)
    )
    return GroupRollouts(
        prompt=index["prompt"], attempt=index["attempt"], rollouts=rollouts, metadata=index["metadata"]
    )


def _read_index(data: bytes) -> dict[str, Any]:
    """The JSON index from the safetensors header: 8 bytes of length, then JSON that holds it under __metadata__."""
    require(len(data) >= 8, "they are shorter than a safetensors header")
    (length,) = struct.unpack("<Q", data[:8])
    require(length <= len(data) - 8, "the safetensors header is cut off")
    try:
        index = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_INDEX])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptRollouts(f"these are no rollouts: their index cannot be read ({error})") from error
    require(isinstance(index, dict), "their index is no object")
    found: dict[str, Any] = index
    require(found.get("format") == FORMAT, f"their format is {found.get('format')!r}, this rollog reads {FORMAT}")
    require(found.keys() == _KEYS, f"their index has the names {sorted(found)}")
    for name in ("prompt", "attempt"):
        require(type(found[name]) is int, f"{name} is {found[name]!r}, no whole number")
    require(isinstance(found["metadata"], dict), "metadata is no object")
    require(all(isinstance(text, str) for text in found["metadata"].values()), "metadata holds more than texts")
    return found


def _read_arrays(data: bytes) -> Arrays:
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptRollouts(f"these are no rollouts: no safetensors file ({error})") from error
    require(arrays.keys() == _ARRAYS.keys(), f"they hold the arrays {sorted(arrays)}")
    for name, (kind, shape) in _ARRAYS.items():
        array = arrays[name]
        require(array.dtype == kind, f"{name} is {array.dtype}")
        require(array.ndim == 1 + len(shape) and array.shape[1:] == shape, f"{name} has shape {list(array.shape)}")
    return arrays


def _read_rows(arrays: Arrays) -> list[Row]:
    marks, lengths, spans = arrays["written"], arrays["rows"][:, 1], arrays["spans"]
    require(bool((marks <= 1).all()), "written holds more than 0 and 1")
    written = marks.astype(np.bool_)
    require(bool((lengths > 0).all()), "a row has no token")
    total = int(lengths.sum(dtype=np.int64))
    require(len(arrays["tokens"]) == len(written) == total, f"rows claim {total} tokens, {len(written)} are there")
    require(len(arrays["logprobs"]) == int(written.sum()), "there is not one log probability for each written token")
    require(bool((np.diff(spans[:, 0]) >= 0).all()), "spans are not in the order of their rows")
    require(bool(((spans[:, 0] >= 0) & (spans[:, 0] < len(lengths))).all()), "a span belongs to no row")
    logprobs = np.zeros(total, dtype=np.float32)
    logprobs[written] = arrays["logprobs"]
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).tolist()
    span_bounds = np.searchsorted(spans[:, 0], np.arange(len(lengths) + 1)).tolist()
    return [
        Row(
            tokens=arrays["tokens"][start:end],
            written=written[start:end],
            logprobs=logprobs[start:end],
            spans=tuple(Span(version=version, tokens=tokens) for _, version, tokens in spans[first:last].tolist()),
        )
        for start, end, first, last in zip(bounds[:-1], bounds[1:], span_bounds[:-1], span_bounds[1:], strict=True)
    ]
