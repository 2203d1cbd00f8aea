"""The mark outside the server: a small synced file that remembers how far the log had come.

A server that lost its tail, was flushed, or got an older disk back still looks sound from inside. The mark tells.
Rule 1: it is written after the answer, never before; it may lag behind the log, the log must not lag behind it.
Rule 2: whole or not at all: temporary name, fsync, rename, fsync of the folder.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rollog.events.durable import must_last, write_synced
from rollog.events.errors import LostTail
from rollog.events.log import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An acknowledged entry, its log and the writer epoch."""

    log_id: str
    offset: int
    digest: str
    epoch: int


class MarkFile:
    """The mark of one run, a file beside the server's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Mark | None:
        """The last mark; None when none was ever kept. Raises ``LostTail`` for a file that is no mark."""
        try:
            found = json.loads(self.path.read_text())
            return Mark(
                log_id=str(found["log_id"]),
                offset=int(found["offset"]),
                digest=str(found["digest"]),
                epoch=int(found["epoch"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LostTail(
                f"{self.path} is damaged ({error}): it would tell whether the log is whole. "
                "If you are sure that it is, delete the file"
            ) from error

    def keep(self, mark: Mark) -> None:
        """Remember this entry. Raises ``DiskRefused``."""
        with must_last(f"the mark {self.path}"):
            write_synced(self.path, json.dumps(asdict(mark)).encode() + b"\n")


def check_mark(mark: Mark, log_id: str | None, head: Head, digest_at_mark: str | None) -> None:
    """Raise ``LostTail`` when the log is not the one that the mark saw, or shorter.

    ``log_id``: None when the server holds no log. ``digest_at_mark``: that of the entry at the mark's offset, None when
    it lies in an archive.
    """
    advice = "restore the server's data, or go on from the newest checkpoint with --accept-loss"
    if log_id is None:
        raise LostTail(
            f"the server holds no log; {mark.offset} entries were acknowledged. It was emptied: "
            "restore the server's data, or begin anew from an archive (rollog import)"
        )
    if log_id != mark.log_id:
        raise LostTail(f"the server holds the log {log_id}, this run's log is {mark.log_id}: {advice}")
    if head.offset < mark.offset:
        missing = mark.offset - head.offset
        raise LostTail(
            f"{missing} acknowledged entries are missing: the log ends at {head.offset}, "
            f"entry {mark.offset} was acknowledged: {advice}"
        )
    if digest_at_mark is not None and digest_at_mark != mark.digest:
        raise LostTail(
            f"entry {mark.offset} has the digest {digest_at_mark}, but {mark.digest} was acknowledged: "
            f"the log was written anew from an older state: {advice}"
        )
