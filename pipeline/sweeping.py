"""``rollog gc``: what lies in a run's folder and nothing needs any more.

Rule 1: a blob is needed while a recorded selection or the buffer names it (selections are kept back to the oldest kept
        checkpoint), or a result that no entry has answered yet; so are the weights of such a result. A fork has links
        of its own and needs none of these.
Rule 2: files are listed first, then the waiting results are read, then the log: what was needed at any of these
        moments stays. What is younger than the grace time stays, whatever it is: its worker may not have reported it.
Rule 3: a worker that writes the same bytes again makes the blob young. So it is taken out of the way first, then looked
        at once more, and put back if it has become young.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from rollog.events.blobs import DIGEST
from rollog.pipeline.checkpoints import list_manifests
from rollog.pipeline.durable import TEMPORARY, delete_folder
from rollog.pipeline.fork import needed_blobs
from rollog.pipeline.halves import controllers_halves
from rollog.pipeline.run_folder import RunFolder
from rollog.replay.state import State

GRACE_S: Final = 3600.0
"""A worker reports a blob seconds after it has written it."""


class Kind(StrEnum):
    """What is left over."""

    BLOB = "blob"
    """A finished group that is trained for good, or whose attempt was lost."""
    WEIGHTS = "weights"
    """Published weights that no generator will be asked for."""
    CHECKPOINT = "checkpoint"
    """Older than the oldest that the log keeps."""
    HALF = "half"
    """Begun under a temporary name by a process that died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A file or folder to be deleted."""

    path: Path
    kind: Kind
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What was there before anything was asked."""

    blobs: tuple[Path, ...]
    weights: tuple[Path, ...]
    halves: tuple[Path, ...]


def listing(folder: RunFolder) -> Listing:
    """Look, before the results and the log are read."""
    blobs = tuple(sorted(path for path in folder.blobs.glob("*/*") if DIGEST.fullmatch(path.name)))
    roots = (folder.weights, folder.checkpoints)
    halves = [path for root in roots for pattern in (f"{TEMPORARY}*", f"*/{TEMPORARY}*") for path in root.glob(pattern)]
    halves += [*folder.blobs.glob("*/*.tmp"), *folder.log.glob("*.tmp"), *controllers_halves(folder)]
    weights = tuple(sorted(path for path in folder.weights.iterdir() if not path.name.startswith(TEMPORARY)))
    return Listing(blobs, weights, tuple(sorted(halves)))


def leftovers(
    folder: RunFolder, there: Listing, state: State, reported: Collection[str], log_id: str, now: float, grace_s: float
) -> Iterator[Leftover]:
    """What ``there`` was and nothing needs. ``now``: wall time in seconds.

    ``reported``: the names of blobs and weights of waiting results.
    """
    needed = {*needed_blobs(state), *reported}
    published = {*(weights.file for weights in state.published.values()), *reported}
    found: list[tuple[Kind, Path]] = [(Kind.BLOB, path) for path in there.blobs if path.name not in needed]
    found += [(Kind.WEIGHTS, path) for path in there.weights if path.name not in published]
    found += [(Kind.HALF, path) for path in there.halves]
    for manifest in list_manifests(folder.checkpoints):
        if manifest.ordered.log == log_id and manifest.version < state.oldest_kept_checkpoint():
            found.append((Kind.CHECKPOINT, manifest.folder))
    for kind, path in found:
        if now - _changed(path) > grace_s:
            yield Leftover(path=path, kind=kind, num_bytes=sum(map(_size, _files(path))))


def sweep(found: Iterable[Leftover], clock: Callable[[], float], grace_s: float) -> list[Leftover]:
    """Delete them; returns what was deleted. What has become young meanwhile stays."""
    return [each for each in found if _delete(each, clock, grace_s)]


def _delete(each: Leftover, clock: Callable[[], float], grace_s: float) -> bool:
    if each.path.is_dir():
        delete_folder(each.path)
        return True
    aside = each.path.with_name(f"{each.path.name}.swept.tmp")
    try:
        each.path.rename(aside)
    except FileNotFoundError:
        return False
    stays = clock() - aside.stat().st_mtime <= grace_s
    if stays and not each.path.exists():
        os.link(aside, each.path)
    aside.unlink()
    return not stays


def _changed(path: Path) -> float:
    """When it was last written; infinitely late if it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
