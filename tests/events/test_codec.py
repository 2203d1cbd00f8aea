"""The codec gives back what was written, or an error."""

import math
import random
from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgpack
import pytest

from rollog.events import codec
from rollog.events.codec import (
    event_to_plain,
    message_digest,
    pack_message,
    seal,
    tag_of,
    unpack_message,
    unseal,
)
from rollog.events.errors import CorruptEntry, MalformedMessage, UnknownEvent
from rollog.events.log import GENESIS, Entry
from rollog.events.messages import (
    MESSAGE_TAGS,
    Cause,
    Chunk,
    Doorbell,
    GroupDone,
    Message,
    Order,
    StepDone,
)
from rollog.events.vocabulary import (
    TAGS,
    Commit,
    Dispatch,
    Event,
    Evict,
    EvictReason,
    FailureKind,
    FilterReason,
    FinishReason,
    Fork,
    Note,
    Retry,
    Role,
    SaveReason,
    Start,
    StopReason,
    Train,
)

CAUSE = Cause(offset=7, epoch=2, digest="0f" * 16)

SAMPLES: dict[Any, Any] = {
    int: 5,
    int | None: 5,
    float: 0.25,
    float | None: 0.25,
    str: "text",
    str | None: "text",
    bool: True,
    tuple[int, ...]: (1, 2, 3),
    tuple[str, ...]: ("ab" * 32, "cd" * 32),
    Cause: CAUSE,
    FailureKind: FailureKind.LOST,
    StopReason: StopReason.REQUEST,
    FinishReason: FinishReason.STOPPED,
    SaveReason: SaveReason.PERIODIC,
    EvictReason: EvictReason.STALE,
    FilterReason: FilterReason.RULE,
    Role: Role.TRAINER,
}


def sample(kind: type[Any]) -> Any:
    """One value of every kind of event and message."""
    hints = get_type_hints(kind)
    values = {f.name: SAMPLES.get(hints[f.name], {"a": [1, {"b": None}], "c": 0.5}) for f in fields(kind)}
    if "blob" in values:
        values["blob"] = "ab" * 32
    if "digest" in values:
        values["digest"] = "cd" * (16 if kind is Fork else 32)
    return kind(**values)


def sealed(*events: Event, offset: int = 1, previous: str = GENESIS, input: str | None = "12-0") -> Entry:
    return seal(offset=offset, epoch=3, time=1_700_000_000.25, input=input, events=events, previous=previous)


def opened(entry: Entry, previous: str = GENESIS) -> Entry:
    return unseal(entry.header, entry.payload, entry.digest, previous)


@pytest.mark.parametrize("tag", TAGS)
def test_every_event_comes_back_as_it_was(tag: str) -> None:
    event = sample(TAGS[tag][0])
    entry = sealed(event)
    assert opened(entry) == entry
    assert entry.events == (event,)
    assert tag_of(event) == tag
    assert event_to_plain(event)["type"] == tag


@pytest.mark.parametrize("tag", MESSAGE_TAGS)
def test_every_message_comes_back_as_it_was(tag: str) -> None:
    message = sample(MESSAGE_TAGS[tag])
    assert unpack_message(pack_message(message)) == message


def test_one_entry_keeps_the_order_of_its_events() -> None:
    entry = sealed(sample(Retry), sample(Dispatch), sample(Note))
    assert [type(event) for event in opened(entry).events] == [Retry, Dispatch, Note]


def test_the_sealed_entry_already_holds_what_a_reader_will_get() -> None:
    written = Start(run="r", config={"sizes": (1, 2)}, dataset="d", seed=1, num_rows=2)
    entry = sealed(written, replace(sample(Retry), not_before=3))
    start, retry = entry.events
    assert isinstance(start, Start)
    assert start.config == {"sizes": [1, 2]}
    assert isinstance(retry, Retry)
    assert type(retry.not_before) is float
    assert opened(entry) == entry


def test_a_diverged_loss_is_a_fact_that_the_log_can_hold() -> None:
    entry = sealed(replace(sample(Train), loss=math.nan, grad_norm=math.inf))
    (train,) = opened(entry).events
    assert isinstance(train, Train)
    assert math.isnan(train.loss)
    assert train.grad_norm == math.inf
    plain = event_to_plain(train)
    assert (plain["loss"], plain["grad_norm"]) == ("nan", "inf")


def test_the_digest_covers_the_digest_before() -> None:
    entry = sealed(sample(Dispatch), previous="ab" * 16)
    with pytest.raises(CorruptEntry, match="does not fit"):
        opened(entry, previous="ac" * 16)


@pytest.mark.parametrize(
    "event",
    [
        replace(sample(Dispatch), prompt=1 << 53),
        replace(sample(Dispatch), prompt=True),
        replace(sample(Dispatch), prompt=1.0),
        replace(sample(Commit), blob="AB" * 32),
        replace(sample(Commit), blob="ab" * 16),
        replace(sample(Commit), reward_mean="1"),
        replace(sample(Retry), kind="nobody"),
        replace(sample(Retry), error="x" * 70_000),
        replace(sample(Start), config={"when": object()}),
        replace(sample(Start), config={"loop": math.nan}),
        replace(sample(Start), config={1: 2}),
        replace(sample(Start), config={"list": [0] * 65_537}),
        replace(sample(Start), config={str(number): 0 for number in range(65_537)}),
        replace(sample(Evict), prompts=tuple(range(65_537))),
    ],
)
def test_what_the_log_cannot_hold_is_refused_before_it_is_written(event: Event) -> None:
    with pytest.raises(ValueError, match=type(event).__name__):
        sealed(event)


def test_an_entry_says_something_and_is_not_too_large() -> None:
    with pytest.raises(ValueError, match="says nothing"):
        sealed()
    with pytest.raises(ValueError, match="513 dispatches"):
        sealed(*[sample(Dispatch)] * 513)
    with pytest.raises(ValueError, match="put arrays into blobs"):
        sealed(*[replace(sample(Note), text="x" * 60_000)] * 18)
    assert len(opened(sealed(*[sample(Dispatch)] * 512)).events) == 512


def raw(*wire: object, header: object = (1, 3, 1, 0.5, None)) -> Entry:
    """An entry with any payload and a digest that fits: what another writer could have written."""
    packed, payload = msgpack.packb(header), msgpack.packb(list(wire))
    digest = codec.digest_of(GENESIS, packed, payload)
    return Entry(offset=1, epoch=3, time=0.5, input=None, events=(), digest=digest, header=packed, payload=payload)


DISPATCH = {"t": "dispatch", "v": 1, "prompt": 1, "attempt": 1, "step": None, "weights": 0}


def test_an_unknown_field_is_ignored_and_kept_in_the_bytes() -> None:
    entry = opened(raw(DISPATCH | {"later": [1, 2]}))
    assert entry.events == (Dispatch(prompt=1, attempt=1, step=None, weights=0),)
    assert b"later" in entry.payload


def test_an_unknown_event_stops_the_reader_unless_it_was_marked_optional() -> None:
    with pytest.raises(UnknownEvent, match="'teleport'"):
        opened(raw({"t": "teleport", "v": 1}))
    with pytest.raises(UnknownEvent, match="up to version 1"):
        opened(raw(DISPATCH | {"v": 2}))
    entry = opened(raw(DISPATCH, {"t": "remark", "v": 1, "o": True}, {"t": "note", "v": 9, "o": True}))
    assert [type(event) for event in entry.events] == [Dispatch]


def test_only_remarks_are_marked_optional() -> None:
    marked = {tag for tag, (kind, _) in TAGS.items() if msgpack.unpackb(sealed(sample(kind)).payload)[0].get("o")}
    assert marked == {"note", "stall"}


@pytest.mark.parametrize(
    "wire",
    [
        {"t": "dispatch", "v": 1},
        DISPATCH | {"prompt": "1"},
        DISPATCH | {"prompt": 2**53},
        DISPATCH | {"v": 0},
        DISPATCH | {"v": True},
        DISPATCH | {"t": 1},
        ["dispatch"],
        None,
    ],
)
def test_a_payload_that_fits_no_event_is_corrupt_even_with_the_right_digest(wire: object) -> None:
    with pytest.raises(CorruptEntry):
        opened(raw(wire))


@pytest.mark.parametrize(
    "header",
    [(1, 3, 0, 0.5, None), (1, -1, 1, 0.5, None), (1, 3, 1, 1, None), (1, 3, 1, 0.5), (1, True, 1, 0.5, None), {}, 1],
)
def test_a_header_of_another_form_is_corrupt(header: object) -> None:
    with pytest.raises(CorruptEntry):
        opened(raw(DISPATCH, header=header))


def test_a_frame_of_a_newer_format_asks_for_a_newer_reader() -> None:
    with pytest.raises(UnknownEvent, match="format 2"):
        opened(raw(DISPATCH, header=(2, "anything")))


def test_damaged_bytes_give_the_original_or_corrupt_entry() -> None:
    """Fuzz: bit flips, cuts, swaps and insertions in header, payload and digest."""
    rng = random.Random(5)
    entry = sealed(sample(Start), sample(Dispatch), sample(Commit), sample(Retry))
    refused = 0
    for _ in range(4_000):
        parts = [bytearray(entry.header), bytearray(entry.payload), bytearray(entry.digest.encode())]
        damage(rng, rng.choice(parts))
        try:
            read = unseal(bytes(parts[0]), bytes(parts[1]), parts[2].decode("latin-1"), GENESIS)
        except CorruptEntry:
            refused += 1
        else:
            assert read == entry
    assert refused > 3_900


def test_damaged_payloads_under_a_right_digest_never_break_the_decoder() -> None:
    rng = random.Random(6)
    entry = sealed(sample(Start), sample(Dispatch), sample(Commit))
    for _ in range(4_000):
        header, payload = bytearray(entry.header), bytearray(entry.payload)
        damage(rng, rng.choice([header, payload]))
        digest = codec.digest_of(GENESIS, bytes(header), bytes(payload))
        try:
            read = unseal(bytes(header), bytes(payload), digest, GENESIS)
        except (CorruptEntry, UnknownEvent):
            continue
        assert (read.header, read.payload) == (bytes(header), bytes(payload))


def signed(packed: bytes) -> bytes:
    """A message whose digest fits: what another program could have written."""
    return message_digest(packed) + packed


def test_a_damaged_message_is_never_another_message() -> None:
    """Every single bit of it, and cuts, swaps and insertions."""
    rng = random.Random(7)
    message = sample(GroupDone)
    body = pack_message(message)
    damaged = [bytes(flipped(body, bit)) for bit in range(8 * len(body))]
    for _ in range(2_000):
        bytes_ = bytearray(body)
        damage(rng, bytes_)
        damaged.append(bytes(bytes_))
    for each in damaged:
        if each != body:
            with pytest.raises(MalformedMessage):
                unpack_message(each)


def flipped(body: bytes, bit: int) -> bytearray:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << (bit % 8)
    return changed


def test_damaged_messages_under_a_right_digest_are_malformed_or_messages() -> None:
    rng = random.Random(8)
    packed = pack_message(sample(GroupDone))[codec.MESSAGE_DIGEST_BYTES :]
    for _ in range(4_000):
        bytes_ = bytearray(packed)
        damage(rng, bytes_)
        try:
            message = unpack_message(signed(bytes(bytes_)))
        except MalformedMessage:
            continue
        assert isinstance(message, Message)
        assert unpack_message(pack_message(message)) is not None


def damage(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data.insert(at, rng.randrange(256))
        case 3:
            data[at] = rng.randrange(256)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"t": "order"}),
        msgpack.packb({"t": ["order"], "v": 1}),
        msgpack.packb({"t": "doorbell", "v": 2}),
        msgpack.packb({"t": "doorbell", "v": 1}) + b"\x00",
        msgpack.packb({1: 2}),
        b"\x91" * 5_000,
        b"x" * 300_000,
    ],
)
def test_what_is_no_message_is_malformed(packed: bytes) -> None:
    for body in (packed, signed(packed)):
        with pytest.raises(MalformedMessage):
            unpack_message(body)


@pytest.mark.parametrize(
    "message",
    [
        replace(sample(GroupDone), blob="../../etc/passwd"),
        replace(sample(GroupDone), blob=""),
        replace(sample(GroupDone), cause=replace(CAUSE, digest="ab" * 32)),
        replace(sample(Chunk), blobs=("ab" * 32, "AB" * 32)),
        replace(sample(Order), prompt=1 << 60),
        replace(sample(StepDone), digest="abc"),
    ],
)
def test_a_digest_or_number_out_of_bounds_is_no_message(message: Message) -> None:
    with pytest.raises(ValueError, match="is not"):
        pack_message(message)


def test_a_step_without_new_weights_names_no_file() -> None:
    message = replace(sample(StepDone), file="", digest="", logprob_gap=None)
    assert unpack_message(pack_message(message)) == message


def test_the_smallest_message_is_small() -> None:
    assert len(pack_message(Doorbell())) < 28
