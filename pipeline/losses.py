"""Going on from a log that lost its tail, because a person says so (``rollog resume --accept-loss``).

    mark.json, checkpoints, segments  --know of entries that the log lacks-->  Loss  --set_aside-->  kept, unused

Rule 1: the log as it is counts. Whatever was made of entries that are gone is put aside under another name: once the
        log has grown over the gap, nothing must take it for its own. Nothing is deleted.
Rule 2: it is put aside when the run is driven, not when it is only looked at.
"""

from dataclasses import dataclass
from pathlib import Path

from rollog.events.errors import LostTail
from rollog.events.file_log import GrowingLog
from rollog.events.reading import mark_of, segments_of
from rollog.events.redis_log import RedisLog
from rollog.pipeline.checkpoint_store import CheckpointStore
from rollog.pipeline.checkpoints import Manifest
from rollog.pipeline.run_folder import RunFolder

ASIDE = "lost-"
"""Before the name of what is put aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is known of the entries that are gone. ``head``: the last entry that is there."""

    head: int
    entries: int
    """How many are known to be missing after ``head``; 0 when others stand in their places."""
    checkpoints: tuple[Manifest, ...]
    segments: tuple[Path, ...]

    def __str__(self) -> str:
        """For people."""
        missing = f"{self.entries:,} entries" if self.entries else "entries in whose places others stand"
        names = [manifest.folder.name for manifest in self.checkpoints]
        checkpoints = f"checkpoint{'s' * (len(names) > 1)} {', '.join(names)}" if names else "no checkpoint"
        segments = "".join(f", segment {path.name}" for path in self.segments)
        return f"{missing}, of a log that now ends with entry {self.head:,}; {checkpoints}{segments}"


def loss_of(folder: RunFolder, log: RedisLog, store: CheckpointStore) -> Loss | None:
    """What the run's folder knows of and the log does not hold; None when the log is whole.

    Raises ``LostTail`` when there is no log at all.
    """
    head = log.head().offset
    checkpoints = tuple(store.lost())
    archive = GrowingLog(segments_of(folder.path))
    archive.head()
    segments = [
        segment for segment in archive.segments
        if segment.last > head or log.digest_at(segment.last) not in (None, segment.digest)
    ]  # fmt: skip
    known = [manifest.ordered.offset for manifest in checkpoints] + [segment.last for segment in segments]
    try:
        log.check_mark()
    except LostTail:
        if log.log_id() is None or (mark := mark_of(folder.path).read()) is None:
            raise
        known.append(mark.offset)
    if not known:
        return None
    return Loss(
        head=head,
        entries=max(0, max(known) - head),
        checkpoints=checkpoints,
        segments=tuple(segment.file for segment in segments),
    )


def set_aside(loss: Loss) -> None:
    """Put what was made of the missing entries aside."""
    for manifest in loss.checkpoints:
        manifest.folder.rename(_aside(manifest.folder))
    for segment in loss.segments:
        segment.rename(_aside(segment).with_suffix(".aside"))


def _aside(path: Path) -> Path:
    """A free name beside it: the same may have been lost before."""
    beside = len(list(path.parent.glob(f"{ASIDE}*")))
    return path.with_name(f"{ASIDE}{beside}-{path.name}")
