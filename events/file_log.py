"""Sealed segments: a stretch of the log in one file, readable without a server.

Rule 1: the bytes of an entry are copied as they were written; the digest chain is checked while reading.
Rule 2: the last 32 bytes are the blake2b-256 of everything before them, and a file is checked whole before its first
        entry is used: one flipped bit anywhere is ``CorruptEntry``.
Rule 3: a segment is there whole or not at all: temporary name, fsync, rename, fsync of the folder.
Rule 4: segments of one folder belong to one log and follow each other without a gap.
Rule 5: an archive of a run (``archive_file``) holds them as they are, and they are read inside it.

File: MAGIC, then a record for each entry (digest 16 bytes, header length and payload length as big-endian uint32,
header, payload), then the footer (a MessagePack map), its length as uint32, and the hash.
"""

import mmap
import os
import struct
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
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
_MAX_FOOTER_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed file, or a part of one: it begins at the byte ``start``.

    ``previous``: the digest before its first entry; ``digest``: that of its last; ``hash``: the segment's own.
    """

    file: Path
    log_id: str
    first: int
    last: int
    previous: str
    digest: str
    hash: str
    records_end: int
    start: int = 0


def seal_tail(
    reader: Reader, folder: Path, log_id: str, last: int | None = None, known: Sequence[Segment] = ()
) -> Segment | None:
    """Seal what ``folder`` does not hold yet into one more segment, read it back, and return it; None if all is sealed.

    ``last``: up to this entry; None is the head. ``known``: segments that need not be checked again. Raises
    ``CorruptEntry`` when the folder holds another history than the reader.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sealed = FileLog(folder, known).head() if any(folder.glob(f"*{SUFFIX}")) else Head(offset=0, digest=GENESIS)
    head = reader.head()
    if sealed.offset > head.offset:
        raise CorruptEntry(f"{folder} is sealed up to entry {sealed.offset}, but the log ends with {head.offset}")
    if sealed.offset > 0:
        (again,) = reader.read(sealed.offset, sealed.offset)
        if again.digest != sealed.digest:
            raise CorruptEntry(f"{folder} holds another entry {sealed.offset} than the log: move its files away")
    end = head.offset if last is None else last
    if sealed.offset >= end:
        return None
    return write_segment(folder, log_id, reader.read(sealed.offset + 1, end), sealed.digest)


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
    again = FileLog(sealed)
    for _ in again.read(first.offset, last.offset):
        pass
    return again.segments[0]


def open_segment(file: Path, start: int = 0, num_bytes: int | None = None) -> Segment:
    """Check the whole segment against its hash, and read its footer. It is the file, or ``num_bytes`` of it."""
    try:
        end = file.stat().st_size if num_bytes is None else start + num_bytes
        whole, left = blake2b(digest_size=_HASH_BYTES), end - start - _HASH_BYTES
        if left < len(MAGIC) + _LENGTH.size:
            raise CorruptEntry(f"{file} is no whole segment: it has {end - start} bytes")
        with file.open("rb") as opened:
            opened.seek(start)
            while left > 0 and (data := opened.read(min(_CHUNK_BYTES, left))):
                whole.update(data)
                left -= len(data)
            if left != 0 or opened.read(_HASH_BYTES) != whole.digest():
                raise CorruptEntry(f"{file} is damaged: its hash does not fit. Take it from a copy")
            opened.seek(end - _HASH_BYTES - _LENGTH.size)
            (length,) = _LENGTH.unpack(opened.read(_LENGTH.size))
            records_end = end - _HASH_BYTES - _LENGTH.size - length
            if length > _MAX_FOOTER_BYTES or records_end < start + len(MAGIC):
                raise CorruptEntry(f"{file} is not a segment: its footer would have {length} bytes")
            opened.seek(records_end)
            footer = _footer(msgpack.unpackb(opened.read(length)))
    except FileNotFoundError as error:
        raise MissingEntry(f"{file} does not exist") from error
    except (struct.error, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise CorruptEntry(f"{file} is not a segment: {error}") from error
    return Segment(file=file, hash=whole.hexdigest(), records_end=records_end, start=start, **footer)


def segments_at(path: Path, known: Sequence[Segment] = ()) -> list[Segment]:
    """The segments of a folder, of an archive of a run, or the one in a file; those ``known`` are not checked again."""
    if path.is_dir():
        checked = {segment.file: segment for segment in known}
        found = [checked.get(file) or open_segment(file) for file in path.glob(f"*{SUFFIX}")]
    elif path.is_file() and not is_segment(path) and tarfile.is_tarfile(path):
        try:
            with tarfile.open(path, "r:") as tar:
                members = [member for member in tar if member.isreg() and member.name.endswith(SUFFIX)]
        except (tarfile.TarError, EOFError) as error:
            raise CorruptEntry(f"{path} is no whole archive of a run: {error}") from error
        found = [open_segment(path, member.offset_data, member.size) for member in members]
    else:
        found = [open_segment(path)]
    return sorted(found, key=lambda segment: segment.first)


def is_segment(path: Path) -> bool:
    """Whether a file begins as a segment does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class FileLog:
    """``Reader`` on the segments of a folder, of an archive of a run, or on one."""

    def __init__(self, path: Path, known: Sequence[Segment] = ()) -> None:
        """Opens and checks every file that is not among ``known``.

        Raises ``MissingEntry`` where no segment is, ``CorruptEntry`` for a damaged one.
        """
        self.segments = segments_at(path, known)
        if not self.segments:
            raise MissingEntry(f"{path} holds no segment")
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            fits = (before.log_id, before.last + 1, before.digest) == (after.log_id, after.first, after.previous)
            if not fits:
                raise CorruptEntry(f"{after.file.name} does not follow {before.file.name}: they are of two histories")
        self.log_id = self.segments[0].log_id
        self._places: dict[int, array[int]] = {}

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
                yield from self._records(segment, max(first, segment.first), min(end, segment.last))

    def _records(self, segment: Segment, first: int, last: int) -> Iterator[Entry]:
        """The segment's entries ``first``..``last``. What lies before them is skipped: its hash has been checked."""
        with segment.file.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
            if data[segment.start : segment.start + len(MAGIC)] != MAGIC:
                raise CorruptEntry(f"{segment.file} is not a segment of this format")
            at, previous = segment.start + len(MAGIC), segment.previous
            if first > segment.first:
                before = self._places_of(segment, data)[first - 1 - segment.first]
                digest, header_bytes, payload_bytes = _RECORD.unpack_from(data, before)
                at, previous = before + _RECORD.size + header_bytes + payload_bytes, digest.hex()
            for offset in range(first, last + 1):
                entry, at = _record(segment, data, at, previous)
                if entry.offset != offset:
                    raise CorruptEntry(f"{segment.file} holds entry {entry.offset} where entry {offset} belongs")
                yield entry
                previous = entry.digest
            if last == segment.last and (at, previous) != (segment.records_end, segment.digest):
                raise CorruptEntry(f"{segment.file} does not end with the entry {segment.last} that its footer names")

    def _places_of(self, segment: Segment, data: mmap.mmap) -> "array[int]":
        """Where each record begins, in bytes of the file: walked through once, when a read begins in the middle."""
        if segment.first not in self._places:
            places, at = array("Q"), segment.start + len(MAGIC)
            for _ in range(segment.first, segment.last + 1):
                if at + _RECORD.size > segment.records_end:
                    raise CorruptEntry(f"{segment.file} ends before the entry {segment.last} that its footer names")
                places.append(at)
                _, header_bytes, payload_bytes = _RECORD.unpack_from(data, at)
                at += _RECORD.size + header_bytes + payload_bytes
            self._places[segment.first] = places
        return self._places[segment.first]


class GrowingLog:
    """``Reader`` on a folder of segments to which others are added meanwhile; it may hold none yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: FileLog | None = None

    @property
    def segments(self) -> Sequence[Segment]:
        """Those that it has seen by now."""
        return () if self._log is None else self._log.segments

    def head(self) -> Head:
        """Offset and digest of the last entry sealed by now."""
        if not any(self._folder.glob(f"*{SUFFIX}")):
            return Head(offset=0, digest=GENESIS)
        self._log = FileLog(self._folder, self.segments)
        return self._log.head()

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last``; the folder is looked at again when they are not known yet."""
        if self._log is None or last is None or last > self._log.head().offset:
            self.head()
        if self._log is None:
            raise MissingEntry(f"entry {first} was asked for; {self._folder} holds no segment")
        yield from self._log.read(first, last)


def _footer(found: Any) -> dict[str, Any]:
    fields = {name: found[name] for name in ("log_id", "first", "last", "previous", "digest")}
    first, last = fields["first"], fields["last"]
    texts = all(type(fields[name]) is str for name in ("log_id", "previous", "digest"))
    if not texts or type(first) is not int or type(last) is not int or not 1 <= first <= last:
        raise ValueError("its footer has fields of other types")
    if found["count"] != last - first + 1:
        raise ValueError(f"the footer counts {found['count']} entries for {first}..{last}")
    return fields


def _record(segment: Segment, data: mmap.mmap, at: int, previous: str) -> tuple[Entry, int]:
    """The entry at this byte, and where the next one begins."""
    if at + _RECORD.size > segment.records_end:
        raise CorruptEntry(f"{segment.file} ends before the entry {segment.last} that its footer names")
    digest, header_bytes, payload_bytes = _RECORD.unpack_from(data, at)
    header, payload = at + _RECORD.size, at + _RECORD.size + header_bytes
    end = payload + payload_bytes
    if header_bytes + payload_bytes > MAX_ENTRY_BYTES or end > segment.records_end:
        raise CorruptEntry(f"{segment.file}: an entry of {header_bytes + payload_bytes} bytes cannot stand there")
    return unseal(data[header:payload], data[payload:end], digest.hex(), previous), end
