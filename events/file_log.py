"""Sealed segments: a stretch of the log in one file, readable without a server.

Rule 1: the bytes of an entry are copied as they were written; the digest chain is checked while reading.
Rule 2: the last 32 bytes are the blake2b-256 of everything before them, and a file is checked whole before its first
        entry is used: one flipped bit anywhere is ``CorruptEntry``.
Rule 3: a segment is there whole or not at all: temporary name, fsync, rename, fsync of the folder.
Rule 4: segments of one folder belong to one log and follow each other without a gap.

File: MAGIC, then a record for each entry (digest 16 bytes, header length and payload length as big-endian uint32,
header, payload), then the footer (a MessagePack map), its length as uint32, and the hash.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgpack

from rollog.events.codec import unseal
from rollog.events.durable import sync_folder
from rollog.events.errors import CorruptEntry, MissingEntry
from rollog.events.log import GENESIS, MAX_ENTRY_BYTES, Entry, Head, Reader

MAGIC: Final = b"rollog segment 1\n"
SUFFIX: Final = ".segment"
_RECORD: Final = struct.Struct(">16sII")
_LENGTH: Final = struct.Struct(">I")
_HASH_BYTES: Final = 32
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed file.

    ``previous``: the digest before its first entry; ``digest``: that of its last; ``hash``: the file's own.
    """

    file: Path
    log_id: str
    first: int
    last: int
    previous: str
    digest: str
    hash: str
    records_end: int


def seal_tail(reader: Reader, folder: Path, log_id: str) -> Segment | None:
    """Seal what ``folder`` does not hold yet into one more segment, read it back, and return it; None if all is sealed.

    Raises ``CorruptEntry`` when the folder holds another history than the reader.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sealed = FileLog(folder).head() if any(folder.glob(f"*{SUFFIX}")) else Head(offset=0, digest=GENESIS)
    head = reader.head()
    if sealed.offset > head.offset:
        raise CorruptEntry(f"{folder} is sealed up to entry {sealed.offset}, but the log ends with {head.offset}")
    if sealed.offset > 0:
        (again,) = reader.read(sealed.offset, sealed.offset)
        if again.digest != sealed.digest:
            raise CorruptEntry(f"{folder} holds another entry {sealed.offset} than the log: move its files away")
    if sealed.offset == head.offset:
        return None
    return write_segment(folder, log_id, reader.read(sealed.offset + 1, head.offset), sealed.digest)


def write_segment(folder: Path, log_id: str, entries: Iterator[Entry], previous: str) -> Segment:
    """Write ``entries``, of which there is at least one, as one segment, and verify it by reading it back."""
    draft = folder / f"{os.getpid()}.tmp"
    whole = blake2b(digest_size=_HASH_BYTES)
    first = last = None
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:

            def put(data: bytes) -> None:
                file.write(data)
                whole.update(data)

            put(MAGIC)
            for entry in entries:
                first = first or entry
                last = entry
                put(_RECORD.pack(bytes.fromhex(entry.digest), len(entry.header), len(entry.payload)))
                put(entry.header + entry.payload)
            if first is None or last is None:
                raise ValueError("a segment holds at least one entry")
            footer = msgpack.packb({
                "log_id": log_id, "first": first.offset, "last": last.offset, "count": last.offset - first.offset + 1,
                "previous": previous, "digest": last.digest, "hash": whole.hexdigest(),
            })  # fmt: skip
            put(footer + _LENGTH.pack(len(footer)))
            file.write(whole.digest())
            file.flush()
            os.fsync(file.fileno())
        sealed = folder / f"{first.offset:012d}-{last.offset:012d}{SUFFIX}"
        draft.replace(sealed)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(folder)
    segment = open_segment(sealed)
    for _ in _records(segment):
        pass
    return segment


def open_segment(file: Path) -> Segment:
    """Check the whole file against its hash, and read its footer."""
    try:
        size = file.stat().st_size
        whole, left = blake2b(digest_size=_HASH_BYTES), size - _HASH_BYTES
        with file.open("rb") as opened:
            while left > 0 and (data := opened.read(min(_CHUNK_BYTES, left))):
                whole.update(data)
                left -= len(data)
            if left != 0 or opened.read() != whole.digest():
                raise CorruptEntry(f"{file} is damaged: its hash does not fit. Take it from a copy")
            opened.seek(size - _HASH_BYTES - _LENGTH.size)
            (length,) = _LENGTH.unpack(opened.read(_LENGTH.size))
            start = size - _HASH_BYTES - _LENGTH.size - length
            opened.seek(max(0, start))
            footer = _footer(msgpack.unpackb(opened.read(length)))
    except FileNotFoundError as error:
        raise MissingEntry(f"{file} does not exist") from error
    except (struct.error, ValueError, msgpack.UnpackException) as error:
        raise CorruptEntry(f"{file} is not a segment: {error}") from error
    return Segment(file=file, hash=whole.hexdigest(), records_end=start, **footer)


class FileLog:
    """``Reader`` on a folder of segments, or on one segment."""

    def __init__(self, path: Path) -> None:
        """Opens and checks every file. Raises ``MissingEntry`` where none is, ``CorruptEntry`` for a damaged one."""
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise MissingEntry(f"{path} holds no segment")
        self.segments = sorted((open_segment(file) for file in files), key=lambda segment: segment.first)
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            fits = (before.log_id, before.last + 1, before.digest) == (after.log_id, after.first, after.previous)
            if not fits:
                raise CorruptEntry(f"{after.file.name} does not follow {before.file.name}: they are of two histories")
        self.log_id = self.segments[0].log_id

    def head(self) -> Head:
        """Offset and digest of the last sealed entry."""
        last = self.segments[-1]
        return Head(offset=last.last, digest=last.digest)

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last``, their digest chain checked."""
        lowest, head = self.segments[0].first, self.head().offset
        end = head if last is None else last
        if end < first <= head + 1:
            return
        if first < lowest or end > head:
            raise MissingEntry(f"entries {first}..{end} were asked for; the segments hold {lowest}..{head}")
        for segment in self.segments:
            if segment.first <= end and segment.last >= first:
                for entry in _records(segment):
                    if first <= entry.offset <= end:
                        yield entry


def _footer(found: Any) -> dict[str, Any]:
    fields = {name: found[name] for name in ("log_id", "first", "last", "previous", "digest")}
    if found["count"] != fields["last"] - fields["first"] + 1:
        raise ValueError(f"the footer counts {found['count']} entries for {fields['first']}..{fields['last']}")
    return fields


def _records(segment: Segment) -> Iterator[Entry]:
    previous, expected = segment.previous, segment.first
    with segment.file.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise CorruptEntry(f"{segment.file} is not a segment of this format")
        while file.tell() < segment.records_end:
            digest, header_bytes, payload_bytes = _RECORD.unpack(file.read(_RECORD.size))
            if header_bytes + payload_bytes > MAX_ENTRY_BYTES:
                raise CorruptEntry(f"{segment.file}: entry {expected} has {header_bytes + payload_bytes} bytes")
            entry = unseal(file.read(header_bytes), file.read(payload_bytes), digest.hex(), previous)
            if entry.offset != expected:
                raise CorruptEntry(f"{segment.file} holds entry {entry.offset} where entry {expected} belongs")
            yield entry
            previous, expected = entry.digest, expected + 1
    if expected != segment.last + 1 or previous != segment.digest:
        raise CorruptEntry(f"{segment.file} ends with entry {expected - 1}; its footer names {segment.last}")
