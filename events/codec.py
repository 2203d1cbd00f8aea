"""Entries and messages to bytes and back.

Rule 1: digest = blake2b-128(previous digest || header || payload), over the bytes as written. Bytes are never encoded
        again: a copy, a fork and an archive carry what stands in ``Entry.header`` and ``Entry.payload``.
Rule 2: reading gives the original or an error, never another value.
Rule 3: which events there are, and what is done with older, newer and unknown ones, stands in ``registry``.
Rule 4: a message from a worker is data from outside: it is decoded under the same types and limits, and a digest in it
        is lower-case hexadecimal of the right length or the message is malformed.
Rule 5: a result waits in the server until it is answered, and the server's file has no checksum: a message begins with
        a digest of its own, so that a damaged one is malformed and never another message.

Wire: header = [format, epoch, offset, time, input]; payload = [{"t": tag, "v": version, ...fields}, ...];
message = 8 bytes blake2b of the rest, {"t": tag, "v": version, ...fields}. Everything else is MessagePack.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from types import NoneType
from typing import Any, Final

import msgpack

from rollog.events.errors import CorruptEntry, MalformedMessage, UnknownEvent
from rollog.events.log import GENESIS, MAX_DISPATCHES_PER_ENTRY, MAX_ENTRY_BYTES, Entry
from rollog.events.messages import MESSAGE_TAGS, Message, StepDone
from rollog.events.registry import EVENTS, Registry
from rollog.events.vocabulary import Dispatch, Event
from rollog.events.wire import DIGEST_CHARS, MAX_INT, MAX_ITEMS, Misfit, Shape, shown

FORMAT: Final = 1
"""Version of the entry's frame. A reader refuses any other."""
MAX_MESSAGE_BYTES: Final = 1 << 18
MAX_INPUT_CHARS: Final = 64
MESSAGE_VERSION: Final = 1
MESSAGE_DIGEST_BYTES: Final = 8


def _message_shape(kind: type[Any]) -> Shape[Any]:
    sizes = (DIGEST_CHARS,)
    return Shape(kind, {"blob": sizes, "blobs": sizes, "digest": (DIGEST_CHARS, 0) if kind is StepDone else sizes})


_MESSAGE_SHAPES: Final = {tag: _message_shape(kind) for tag, kind in MESSAGE_TAGS.items()}
_TAG_OF_MESSAGE: Final = {kind: tag for tag, kind in MESSAGE_TAGS.items()}


def seal(*, offset: int, epoch: int, time: float, input: str | None, events: Sequence[Event], previous: str) -> Entry:
    """The entry that says ``events`` at ``offset``, after the entry whose digest is ``previous``.

    ``time``: wall time in seconds. ``input``: id of the answered result. Raises ``ValueError`` for what the log cannot
    hold: no events, a field of another type, more than 512 dispatches, more than 1 MiB.
    """
    if not 1 <= offset <= MAX_INT or not 0 <= epoch <= MAX_INT:
        raise ValueError(f"offset {offset} or epoch {epoch} is out of bounds")
    if not events:
        raise ValueError(f"entry {offset} says nothing: one entry is one decision")
    if input is not None and len(input) > MAX_INPUT_CHARS:
        raise ValueError(
            f"the input of entry {offset} has {len(input)} characters; a stream id has at most {MAX_INPUT_CHARS}"
        )
    wire, kept, dispatches = [], [], 0
    for event in events:
        fields, same = EVENTS.to_wire(event)
        wire.append(fields)
        kept.append(same)
        dispatches += type(event) is Dispatch
    if dispatches > MAX_DISPATCHES_PER_ENTRY:
        raise ValueError(f"entry {offset} has {dispatches} dispatches; split it at {MAX_DISPATCHES_PER_ENTRY}")
    time = float(time)
    header = _pack((FORMAT, epoch, offset, time, input))
    payload = _pack(wire)
    if len(header) + len(payload) > MAX_ENTRY_BYTES:
        raise ValueError(f"entry {offset} has {len(payload)} bytes of at most {MAX_ENTRY_BYTES}: put arrays into blobs")
    return Entry(
        offset=offset, epoch=epoch, time=time, input=input, events=tuple(kept),
        digest=digest_of(previous, header, payload), header=header, payload=payload,
    )  # fmt: skip


def unseal(header: bytes, payload: bytes, digest: str, previous: str, registry: Registry = EVENTS) -> Entry:
    """The entry whose bytes these are, its events as ``registry`` knows them.

    Raises ``CorruptEntry`` unless everything fits, ``UnknownEvent`` if too new.
    """
    if len(header) + len(payload) > MAX_ENTRY_BYTES:
        raise CorruptEntry(f"an entry of {len(header) + len(payload)} bytes; the cap is {MAX_ENTRY_BYTES}")
    if digest_of(previous, header, payload) != digest:
        raise CorruptEntry(
            f"digest {shown(digest)} does not fit the entry's bytes after {previous}: "
            "the log was damaged here; restore it from an archive"
        )
    offset, epoch, time, input = _read_header(header)
    try:
        wire = _unpack(payload)
        if type(wire) is not list or not wire:
            raise Misfit("the payload is not a list of events")
        read = [registry.from_wire(item) for item in wire]
    except ValueError as error:
        raise CorruptEntry(f"entry {offset}: {error}; the digest fits, so it was written like this") from error
    except UnknownEvent as error:
        raise UnknownEvent(f"entry {offset}: {error}") from None
    events = tuple(event for event in read if event is not None)
    if [type(event) for event in events].count(Dispatch) > MAX_DISPATCHES_PER_ENTRY:
        raise CorruptEntry(f"entry {offset} has more than {MAX_DISPATCHES_PER_ENTRY} dispatches")
    return Entry(
        offset=offset, epoch=epoch, time=time, input=input, events=events,
        digest=digest, header=header, payload=payload,
    )  # fmt: skip


def digest_of(previous: str, header: bytes, payload: bytes) -> str:
    """blake2b-128 over the digest before (its 16 bytes), the header and the payload, in hexadecimal."""
    try:
        before = bytes.fromhex(previous)
    except ValueError:
        before = b""
    if len(before) != len(GENESIS) // 2:
        raise CorruptEntry(f"{previous!r} is not a digest of {len(GENESIS)} hexadecimal digits")
    return blake2b(before + header + payload, digest_size=16).hexdigest()


def pack_message(message: Message) -> bytes:
    """The message's bytes. Raises ``ValueError`` for a field of another type or more than 256 KiB."""
    tag = _TAG_OF_MESSAGE[type(message)]
    fields, _ = _MESSAGE_SHAPES[tag].to_wire(message)
    packed = _pack({"t": tag, "v": MESSAGE_VERSION} | fields)
    body = message_digest(packed) + packed
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a {tag} message of {len(body)} bytes; the cap is {MAX_MESSAGE_BYTES}")
    return body


def unpack_message(body: bytes) -> Message:
    """The message whose bytes these are; ``MalformedMessage`` for anything else."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"a message of {len(body)} bytes; the cap is {MAX_MESSAGE_BYTES}")
    packed = body[MESSAGE_DIGEST_BYTES:]
    if message_digest(packed) != body[:MESSAGE_DIGEST_BYTES]:
        raise MalformedMessage(f"the digest of a message of {len(body)} bytes does not fit: it was damaged")
    try:
        wire = _unpack(packed)
        tag = wire.get("t") if type(wire) is dict else None
        shape = _MESSAGE_SHAPES.get(tag) if type(tag) is str else None
        if shape is None or wire.get("v") != MESSAGE_VERSION:
            version = wire.get("v") if type(wire) is dict else None
            raise Misfit(f"no message has the tag {shown(tag)} in version {shown(version)}")
        message: Message = shape.from_wire(wire)
    except ValueError as error:
        raise MalformedMessage(f"not a message of this rollog: {error}") from error
    return message


def message_digest(packed: bytes) -> bytes:
    """What stands before a message's MessagePack."""
    return blake2b(packed, digest_size=MESSAGE_DIGEST_BYTES).digest()


def tag_of(event: Event) -> str:
    """The event's wire tag."""
    return EVENTS.tag_of(event)


def event_to_plain(event: Event) -> dict[str, Any]:
    """The event as JSON knows it: ``{"type": tag, **fields}``; enums are strings, tuples lists, NaN is ``"nan"``."""
    tag = EVENTS.tag_of(event)
    shape = EVENTS.shapes[tag]
    return {"type": tag} | {field.name: _to_plain(getattr(event, field.name)) for field in shape.fields}


def _to_plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    return value


_HEADERS: Final = ((int, int, int, float, str), (int, int, int, float, NoneType))
"""The types of [format, epoch, offset, time, input]."""
_pack: Final[Callable[[Any], bytes]] = msgpack.Packer(autoreset=True).pack


def _unpack(body: bytes) -> Any:
    """One MessagePack value and nothing after it; every failure of the decoder is a ``ValueError``."""
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True, max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS)
    except ValueError:
        raise
    except (msgpack.UnpackException, OverflowError) as error:
        raise Misfit(f"not MessagePack: {error!r}") from error


def _read_header(header: bytes) -> tuple[int, int, float, str | None]:
    try:
        frame = _unpack(header)
    except ValueError as error:
        raise CorruptEntry(f"an entry's header is not MessagePack: {error}") from error
    if type(frame) is not list or not frame or type(frame[0]) is not int:
        raise CorruptEntry(f"an entry's header is not [format, epoch, offset, time, input] but {shown(frame)}")
    if frame[0] != FORMAT:
        raise UnknownEvent(f"an entry of format {frame[0]}; this rollog reads format {FORMAT}: use a newer one")
    if tuple(map(type, frame)) in _HEADERS:
        _, epoch, offset, time, input = frame
        if 0 <= epoch <= MAX_INT and 1 <= offset <= MAX_INT:
            return offset, epoch, time, input
    raise CorruptEntry(f"an entry's header is not [format, epoch, offset, time, input] but {shown(frame)}")
