"""Entries and messages to bytes and back.

Rule 1: digest = blake2b-128(previous digest || header || payload), over the bytes as written. Bytes are never encoded
        again: a copy, a fork and an archive carry what stands in ``Entry.header`` and ``Entry.payload``.
Rule 2: reading gives the original or an error, never another value.
Rule 3: an unknown field is ignored and stays in the bytes. An unknown tag or a newer version stops the reader, unless
        the writer marked the event optional (``o: true``), which it does only for events that change no state.
Rule 4: older versions are lifted on read, one version a step, by the pure functions in ``UPCASTS``.
Rule 5: a message from a worker is data from outside: it is decoded under the same types and limits, and a digest in it
        is lower-case hexadecimal of the right length or the message is malformed.
Rule 6: a result waits in the server until it is answered, and the server's file has no checksum: a message begins with
        a digest of its own, so that a damaged one is malformed and never another message.

Wire: header = [format, epoch, offset, time, input]; payload = [{"t": tag, "v": version, ...fields}, ...];
message = 8 bytes blake2b of the rest, {"t": tag, "v": version, ...fields}. Everything else is MessagePack.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

import msgpack

from rollog.events.errors import CorruptEntry, MalformedMessage, UnknownEvent
from rollog.events.log import GENESIS, MAX_DISPATCHES_PER_ENTRY, MAX_ENTRY_BYTES, Entry
from rollog.events.messages import MESSAGE_TAGS, Message, StepDone
from rollog.events.vocabulary import OPTIONAL, TAGS, Dispatch, Event, Fork
from rollog.events.wire import DIGEST_CHARS, ENTRY_DIGEST_CHARS, MAX_INT, Misfit, Shape

FORMAT: Final = 1
"""Version of the entry's frame. A reader refuses any other."""
MAX_MESSAGE_BYTES: Final = 1 << 18
MAX_INPUT_CHARS: Final = 64
MESSAGE_VERSION: Final = 1
MESSAGE_DIGEST_BYTES: Final = 8

Lift = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTS: Final[Mapping[tuple[str, int], Lift]] = {}
"""(tag, version) -> the fields of that version as fields of the next version. Append-only."""


def _shape(kind: type[Any]) -> Shape[Any]:
    sizes = (DIGEST_CHARS,)
    digest = (ENTRY_DIGEST_CHARS,) if kind is Fork else (DIGEST_CHARS, 0) if kind is StepDone else sizes
    return Shape(kind, {"blob": sizes, "blobs": sizes, "digest": digest})


_EVENT_SHAPES: Final = {tag: _shape(kind) for tag, (kind, _) in TAGS.items()}
_EVENT_TAGS: Final = {
    kind: (tag, version, _EVENT_SHAPES[tag], kind in OPTIONAL) for tag, (kind, version) in TAGS.items()
}
_MESSAGE_SHAPES: Final = {tag: _shape(kind) for tag, kind in MESSAGE_TAGS.items()}
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
        tag, version, shape, optional = _EVENT_TAGS[type(event)]
        fields, same = shape.to_wire(event)
        head = {"t": tag, "v": version, "o": True} if optional else {"t": tag, "v": version}
        wire.append(head | fields)
        kept.append(event if same else shape.from_wire(fields))
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


def unseal(header: bytes, payload: bytes, digest: str, previous: str) -> Entry:
    """The entry whose bytes these are. Raises ``CorruptEntry`` unless everything fits, ``UnknownEvent`` if too new."""
    if len(header) + len(payload) > MAX_ENTRY_BYTES:
        raise CorruptEntry(f"an entry of {len(header) + len(payload)} bytes; the cap is {MAX_ENTRY_BYTES}")
    if digest_of(previous, header, payload) != digest:
        raise CorruptEntry(
            f"digest {digest!r} does not fit the entry's bytes after {previous}: "
            "the log was damaged here; restore it from an archive"
        )
    offset, epoch, time, input = _read_header(header)
    try:
        wire = _unpack(payload)
        if type(wire) is not list or not wire:
            raise Misfit("the payload is not a list of events")
        read = [_read_event(item) for item in wire]
    except ValueError as error:
        raise CorruptEntry(f"entry {offset}: {error}; the digest fits, so it was written like this") from error
    except UnknownEvent as error:
        raise UnknownEvent(f"entry {offset}: {error}") from None
    events = tuple(event for event in read if event is not None)
    if sum(type(event) is Dispatch for event in events) > MAX_DISPATCHES_PER_ENTRY:
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
    whole = blake2b(before, digest_size=16)
    whole.update(header)
    whole.update(payload)
    return whole.hexdigest()


def lift(
    tag: str, version: int, fields: dict[str, Any], newest: int, upcasts: Mapping[tuple[str, int], Lift]
) -> dict[str, Any]:
    """The fields of an older version as fields of the newest one."""
    for old in range(version, newest):
        fields = upcasts[tag, old](fields)
    return fields


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
            raise Misfit(f"no message has the tag {tag!r} in version {wire.get('v') if type(wire) is dict else None!r}")
        message: Message = shape.from_wire(wire)
    except ValueError as error:
        raise MalformedMessage(f"not a message of this rollog: {error}") from error
    return message


def message_digest(packed: bytes) -> bytes:
    """What stands before a message's MessagePack."""
    return blake2b(packed, digest_size=MESSAGE_DIGEST_BYTES).digest()


def tag_of(event: Event) -> str:
    """The event's wire tag."""
    return _EVENT_TAGS[type(event)][0]


def event_to_plain(event: Event) -> dict[str, Any]:
    """The event as JSON knows it: ``{"type": tag, **fields}``; enums are strings, tuples lists, NaN is ``"nan"``."""
    tag, _, shape, _ = _EVENT_TAGS[type(event)]
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


_pack: Final[Callable[[Any], bytes]] = msgpack.Packer(autoreset=True).pack


def _unpack(body: bytes) -> Any:
    """One MessagePack value and nothing after it; every failure of the decoder is a ``ValueError``."""
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True)
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
        raise CorruptEntry(f"an entry's header is not [format, epoch, offset, time, input] but {frame!r}")
    if frame[0] != FORMAT:
        raise UnknownEvent(f"an entry of format {frame[0]}; this rollog reads format {FORMAT}: use a newer one")
    match frame:
        case [_, int(epoch), int(offset), float(time), None | str() as input] if (
            type(epoch) is int and type(offset) is int and 0 <= epoch <= MAX_INT and 1 <= offset <= MAX_INT
        ):
            return offset, epoch, time, input
    raise CorruptEntry(f"an entry's header is not [format, epoch, offset, time, input] but {frame!r}")


def _read_event(wire: Any) -> Event | None:
    """The event, or None for an optional one that this rollog does not know."""
    if type(wire) is not dict:
        raise Misfit(f"{wire!r} is not an event")
    tag, version = wire.get("t"), wire.get("v")
    if type(tag) is not str or type(version) is not int or version < 1:
        raise Misfit(f"an event needs a tag and a version, not {tag!r} and {version!r}")
    known = TAGS.get(tag)
    if known is None or version > known[1]:
        if wire.get("o") is True:
            return None
        reads = "does not know this event" if known is None else f"reads it up to version {known[1]}"
        raise UnknownEvent(
            f"event {tag!r} of version {version}; this rollog {reads}. "
            "Read the log with the version that its last Open names, or a newer one"
        )
    if version < known[1]:
        wire = lift(tag, version, wire, known[1], UPCASTS)
    event: Event = _EVENT_SHAPES[tag].from_wire(wire)
    return event
