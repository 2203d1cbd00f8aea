"""Reading a log in a Redis stream. It disturbs nobody and needs no pen.

Rule 1: offsets are stream ids, ``<offset>-0``; the digests are chained while reading.
Rule 2: what the stream no longer holds is read from the archive; what is nowhere is ``MissingEntry``.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from rollog.events.codec import unseal
from rollog.events.connection import Address, Connection, Patience
from rollog.events.errors import CorruptEntry, MissingEntry
from rollog.events.keys import Keys, entry_id
from rollog.events.log import GENESIS, Entry, Head, Reader

ENTRIES_PER_READ: Final = 256

T = TypeVar("T")


class RedisReader:
    """``Reader`` on a Redis or Valkey server."""

    def __init__(
        self,
        address: Address,
        run: str,
        *,
        archive: Reader | None = None,
        answer_within_s: float = 30.0,
        revive: Callable[[], object] | None = None,
    ) -> None:
        """``archive``: where entries lie that the stream no longer holds."""
        self.keys = Keys(run)
        self._connection: Connection = address.connect()
        self._archive = archive
        self._answer_within_s = answer_within_s
        self._revive = revive

    def head(self) -> Head:
        """Offset and digest of the last entry; (0, GENESIS) before the first controller."""
        offset, digest = self._insist(lambda: self._connection.call("HMGET", self.keys.meta, "offset", "digest"))
        if offset is None or digest is None:
            return Head(offset=0, digest=GENESIS)
        return Head(offset=whole_number(offset, f"{self.keys.meta} offset"), digest=text_of(digest))

    def log_id(self) -> str | None:
        """The id of the log that the server holds; None if it holds none."""
        found = self._insist(lambda: self._connection.call("HGET", self.keys.meta, "log_id"))
        return None if found is None else text_of(found)

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last``, in order, their digest chain checked."""
        head = self.head()
        end = head.offset if last is None else last
        if first < 1 or end > head.offset:
            raise MissingEntry(f"entries {first}..{end} were asked for; the log holds 1..{head.offset}")
        previous = self._digest_before(first) if first <= end else ""
        while first <= end:
            page = self._page(first, end)
            begins = page[0][0] if page else end + 1
            for entry in self._archived(first, begins - 1) if begins > first else ():
                yield entry
                previous, first = entry.digest, entry.offset + 1
            for offset, fields in page:
                if offset != first:
                    raise MissingEntry(
                        f"entry {first} is missing, the stream goes on with {offset}: the server's data was damaged; "
                        "restore it, or the log from an archive"
                    )
                entry = open_fields(fields, previous)
                if entry.offset != offset:
                    raise CorruptEntry(f"the stream holds entry {entry.offset} under the id of entry {offset}")
                yield entry
                previous, first = entry.digest, first + 1

    def digest_at(self, offset: int) -> str | None:
        """The digest that stands at ``offset`` in the stream; None if it is not there."""
        found = self._page(offset, offset)
        return text_of(found[0][1].get(b"digest", b"")) if found else None

    def last_in_stream(self) -> Head | None:
        """The stream's last entry, whatever meta says; None if every entry is archived or there is none."""
        found = self._insist(lambda: self._connection.call("XREVRANGE", self.keys.log, "+", "-", "COUNT", 1))
        if not found:
            return None
        offset, fields = _message(found[0])
        return Head(offset=offset, digest=text_of(fields.get(b"digest", b"")))

    def wait_beyond(self, offset: int, block_s: float) -> bool:
        """Whether an entry after ``offset`` is in the stream; waits up to ``block_s`` (at most 2) seconds for it."""
        return bool(self._insist(lambda: self._connection.call(
            "XREAD", "COUNT", 1, "BLOCK", max(1, int(block_s * 1000)), "STREAMS", self.keys.log, entry_id(offset)
        )))  # fmt: skip

    def results_after(self, id: str | None) -> Iterator[bytes]:
        """The bodies of the results after this one that lie in the stream now; they came from workers."""
        while page := self._insist(
            lambda id=id: stream_messages(self._connection, self.keys.results, id, 0.0, ENTRIES_PER_READ)  # type: ignore[misc]
        ):
            yield from (body for _, body in page)
            id = page[-1][0]

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _patience(self) -> Patience:
        return Patience(self._answer_within_s)

    def _insist(self, ask: Callable[[], T]) -> T:
        return self._patience().insist(ask, self._revive)

    def _archived(self, first: int, last: int) -> Iterator[Entry]:
        """What the stream does not hold, or holds no more: it may be cut while somebody reads."""
        if self._archive is None:
            raise MissingEntry(
                f"entry {first} is neither in the stream nor in a segment: restore the server's data or the segments"
            )
        yield from self._archive.read(first, last)

    def _digest_before(self, first: int) -> str:
        if first == 1:
            return GENESIS
        digest = self.digest_at(first - 1)
        if digest is None:
            (before,) = self._archived(first - 1, first - 1)
            digest = before.digest
        return digest

    def _page(self, first: int, last: int) -> list[tuple[int, dict[bytes, bytes]]]:
        found = self._insist(lambda: self._connection.call(
            "XRANGE", self.keys.log, entry_id(first), entry_id(last), "COUNT", ENTRIES_PER_READ
        ))  # fmt: skip
        return [_message(message) for message in found]


def open_fields(fields: dict[bytes, bytes], previous: str) -> Entry:
    """The entry that stands in a stream message or a segment's record."""
    try:
        header, digest, payload = fields[b"header"], fields[b"digest"].decode("ascii"), fields[b"payload"]
    except (KeyError, UnicodeDecodeError) as error:
        raise CorruptEntry(f"a message of the log has the fields {sorted(fields)}: something else wrote it") from error
    return unseal(header, payload, digest, previous)


def whole_number(found: bytes, what: str) -> int:
    """The number that stands there. Raises ``CorruptEntry``."""
    try:
        return int(found)
    except ValueError as error:
        raise CorruptEntry(
            f"{what} reads {found!r}: something else wrote into the run's keys, or the server's data was damaged; "
            "restore the log from an archive"
        ) from error


def text_of(found: bytes) -> str:
    """What is damaged becomes a text that fits nothing."""
    return found.decode("ascii", "replace")


def _message(raw: Any) -> tuple[int, dict[bytes, bytes]]:
    id, flat = raw
    milliseconds, _, sequence = id.decode().partition("-")
    if sequence != "0":
        raise CorruptEntry(f"the log holds a message {id.decode()}: something else wrote it")
    return int(milliseconds), dict(zip(flat[::2], flat[1::2], strict=True))


def stream_messages(
    connection: Connection, key: str, after: str | None, block_s: float, count: int
) -> list[tuple[str, bytes]]:
    """``(id, body)`` of the messages after an id in a derived stream; waits up to ``block_s`` for the first."""
    block = ["BLOCK", str(max(1, int(block_s * 1000)))] if block_s > 0 else []
    found = connection.call("XREAD", "COUNT", count, *block, "STREAMS", key, after or "0-0")
    if not found:
        return []
    return [(id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)).get(b"m", b"")) for id, flat in found[0][1]]
