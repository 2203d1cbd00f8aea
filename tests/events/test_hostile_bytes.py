"""Bytes that somebody made to do harm: each decoder ends in an error of its own, and takes little memory for it.

A digest that fits proves nothing here: whoever writes the bytes can write the digest too.
"""

import io
import json
import random
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rollog.events.archive_file import CONTENTS, read_contents, unpack
from rollog.events.blobs import Blobs
from rollog.events.codec import digest_of, message_digest, unpack_message, unseal
from rollog.events.errors import BlobError, CorruptEntry, LogError, LostTail, MalformedMessage
from rollog.events.file_log import MAGIC, FileLog, seal_tail
from rollog.events.log import GENESIS, MAX_ENTRY_BYTES
from rollog.events.mark import MarkFile
from rollog.events.memory_log import MemoryServer

MEGA = 1 << 20
HEADER = msgpack.packb((1, 3, 1, 0.5, None))

BOMBS: dict[str, bytes] = {
    "a list that claims 4 G items": b"\xdd\xff\xff\xff\xff",
    "a map that claims 4 G items": b"\xdf\xff\xff\xff\xff",
    "a text that claims 4 GiB": b"\xdb\xff\xff\xff\xff",
    "bytes that claim 4 GiB": b"\xc6\xff\xff\xff\xff",
    "an extension that claims 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "lists within lists": b"\x91" * 200_000,
    "maps within maps": b"\x81\xa1a" * 80_000,
    "lists that claim 64 K items within each other": b"\xdc\xff\xff" * 80_000,
    "lists that claim 250 K items within each other": b"\xdd\x00\x03\xd0\x90" * 50_000,
    "nothing but empty lists": b"\xdd\x00\x03\xff\x00" + b"\x90" * 0x3FF00,
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "no text": b"\xa2\xff\xfe",
}


@pytest.fixture
def frugal() -> Iterator[None]:
    """The test may take at most 96 MiB at once: what a decoder makes room for before it sees that nothing comes."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 96 * MEGA


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_no_message(frugal: None, bomb: str) -> None:
    packed = BOMBS[bomb]
    wrapped = [packed, b"\x83\xa1t\xaaworker_joined\xa1v\x01\xa7machine" + packed, b"\x82\xa1t" + packed]
    for body in wrapped:
        with pytest.raises(MalformedMessage):
            unpack_message(message_digest(body) + body)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_no_entry(frugal: None, bomb: str) -> None:
    packed = BOMBS[bomb]
    start = b"\x91\x87\xa1t\xa5start\xa1v\x01\xa3run\xa1r\xa7dataset\xa1d\xa4seed\x01\xa8num_rows\x01\xa6config"
    for header, payload in [(packed, b"\x90"), (HEADER, packed), (HEADER, b"\x91" + packed), (HEADER, start + packed)]:
        with pytest.raises(CorruptEntry):
            unseal(header, payload, digest_of(GENESIS, header, payload), GENESIS)


def test_what_is_too_long_is_refused_before_it_is_read(frugal: None) -> None:
    with pytest.raises(CorruptEntry, match="the cap is"):
        unseal(HEADER, b"\x90" * MAX_ENTRY_BYTES, "00" * 16, GENESIS)
    with pytest.raises(MalformedMessage, match="the cap is"):
        unpack_message(b"\x90" * MEGA)


def test_a_blob_is_not_read_beyond_its_cap(frugal: None, tmp_path: Path) -> None:
    digest = "ab" * 32
    (tmp_path / "ab").mkdir()
    with (tmp_path / "ab" / digest).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BlobError, match="has more than 1000 bytes"):
        Blobs(tmp_path).get(digest, max_bytes=1_000)


# --- segments ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def segment(tmp_path: Path, writer: Any) -> Path:
    """A segment of five entries."""
    log = MemoryServer(clock=lambda: 0.0).log()
    pen = writer(log)
    for _ in range(5):
        pen.say()
    sealed = seal_tail(log, tmp_path / "segments", "id")
    assert sealed is not None
    return sealed.file


def resealed(body: bytes) -> bytes:
    """A segment's bytes with a hash that fits."""
    return body + blake2b(body, digest_size=32).digest()


def read_all(file: Path) -> None:
    """Everything that a reader does: from the beginning, and from the middle."""
    log = FileLog(file)
    list(log.read())
    list(log.read(log.segments[0].last))


def test_a_damaged_segment_under_a_right_hash_is_refused_or_reads_as_it_was(frugal: None, segment: Path) -> None:
    whole = segment.read_bytes()[:-32]
    before = list(FileLog(segment).read())
    rng, refused = random.Random(3), 0
    for _ in range(300):
        body = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        segment.write_bytes(resealed(bytes(body)))
        try:
            read_all(segment)
        except LogError:
            refused += 1
        else:
            assert list(FileLog(segment).read()) == before
    assert refused > 200


@pytest.mark.parametrize(
    "footer",
    [
        {"first": 1.0, "last": 5.0}, {"first": "1", "last": "5"}, {"first": True}, {"first": -4, "last": 0},
        {"log_id": {}}, {"digest": 7}, {"previous": b"x"}, {"last": 1 << 62, "count": 1 << 62}, {"count": None},
    ],
)  # fmt: skip
def test_a_footer_of_other_types_is_refused(frugal: None, segment: Path, footer: dict[str, Any]) -> None:
    body = segment.read_bytes()[:-32]
    length = int.from_bytes(body[-4:], "big")
    changed = msgpack.packb(msgpack.unpackb(body[-4 - length : -4]) | footer)
    segment.write_bytes(resealed(body[: -4 - length] + changed + len(changed).to_bytes(4, "big")))
    with pytest.raises(CorruptEntry):
        read_all(segment)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_no_segment(frugal: None, segment: Path, bomb: str) -> None:
    packed = BOMBS[bomb]
    for body in [
        MAGIC + packed + len(packed).to_bytes(4, "big"),
        MAGIC + b"\xff" * 24 + packed + len(packed).to_bytes(4, "big"),
        MAGIC + b"\xff\xff\xff\xff",
        b"",
    ]:
        segment.write_bytes(resealed(body))
        with pytest.raises(CorruptEntry):
            read_all(segment)


# --- files that are JSON ----------------------------------------------------------------------------------------------

JSON_BOMBS = {
    "lists within lists": b"[" * 200_000,
    "maps within maps": b'{"a":' * 200_000,
    "a number of many digits": b'{"schema": ' + b"9" * 100_000 + b"}",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "a number": b"1e999",
}


def archived(data: bytes) -> bytes:
    """An archive whose contents read so."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo(CONTENTS)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("bomb", JSON_BOMBS)
@pytest.mark.parametrize("read", [read_contents, lambda file: unpack(file, {})], ids=["contents", "members"])
def test_a_bomb_is_no_archive(frugal: None, tmp_path: Path, bomb: str, read: Callable[[Path], object]) -> None:
    file = tmp_path / "run.rollog"
    file.write_bytes(archived(JSON_BOMBS[bomb]))
    with pytest.raises(CorruptEntry):
        read(file)


@pytest.mark.parametrize("bomb", JSON_BOMBS)
def test_a_bomb_is_no_mark(frugal: None, tmp_path: Path, bomb: str) -> None:
    (tmp_path / "mark.json").write_bytes(JSON_BOMBS[bomb])
    with pytest.raises(LostTail, match="is damaged"):
        MarkFile(tmp_path / "mark.json").read()


def test_contents_that_claim_more_than_they_may_are_not_read(frugal: None, tmp_path: Path) -> None:
    member = tarfile.TarInfo(CONTENTS)
    member.size = 1 << 40
    (tmp_path / "run.rollog").write_bytes(member.tobuf() + json.dumps({}).encode().ljust(1024, b"\0"))
    with pytest.raises(CorruptEntry):
        read_contents(tmp_path / "run.rollog")
