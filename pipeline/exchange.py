"""``rollog archive`` and ``rollog import``: a run into one file, and out of it again.

Rule 1: archiving only reads. The log goes in as it is sealed; what is not sealed yet is sealed beside it.
Rule 2: blobs and checkpoints go in on request: those that the State at the head counts on. With both, the imported run
        can be resumed and forked; without, it can be read.
Rule 3: a run is imported under its own name. Another name is another run: it is then a fork at the head.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollog.events.archive_file import Contents, read_contents, unpack, write_archive
from rollog.events.blobs import Blobs
from rollog.events.errors import CorruptEntry
from rollog.events.file_log import SUFFIX, FileLog, seal_tail
from rollog.events.log import Entry, Reader
from rollog.events.planting import Planting, note_planting
from rollog.events.reading import log_id_of, segments_of
from rollog.pipeline.checkpoints import Manifest, list_manifests
from rollog.pipeline.config import Plan
from rollog.pipeline.durable import AlreadyThere, keep, new_folder
from rollog.pipeline.fork import needed_blobs, seal_own
from rollog.pipeline.forking import Terms, fork_entry, newest_start
from rollog.pipeline.links import link_file
from rollog.pipeline.log_server import check_server
from rollog.pipeline.run_folder import RUNS, RunFolder, UsedName
from rollog.pipeline.starting_point import starting_point
from rollog.replay import snapshots
from rollog.replay.state import State
from rollog.replay.tally import follow_all


def archive_run(
    folder: RunFolder, log: Reader, file: Path, *, with_blobs: bool = False, with_checkpoints: bool = False
) -> Contents:
    """Write the run up to its present head into ``file``. Raises ``CorruptEntry``, ``MissingEntry``."""
    head = log.head()
    state = snapshots.at(folder.snapshots, log, head.offset)
    (last,) = log.read(head.offset, head.offset)
    about = Contents(
        run=state.run, log_id=log_id_of(log), head=head, epoch=last.epoch, settings=state.settings, files={}
    )
    with new_folder(file.parent) as beside:
        members = [(f"log/{path.name}", path) for path in _sealed(folder, log, about, beside)]
        if with_blobs:
            blobs = Blobs(folder.blobs)
            here = sorted({digest for digest in needed_blobs(state) if blobs.exists(digest)})
            members += [(f"blobs/{digest[:2]}/{digest}", blobs.path(digest)) for digest in here]
        if with_checkpoints:
            members += _files("checkpoints", folder.checkpoints, [m.folder for m in _kept(folder, about, state)])
            published = [folder.weights / weights.file for weights in state.published.values()]
            members += _files("weights", folder.weights, [path for path in published if path.is_dir()])
        return write_archive(file, about, members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A run that came out of a file. ``resumable``: whether its checkpoint and all blobs it needs came along."""

    folder: Path
    state: State
    resumable: bool


def import_run(file: Path, name: str | None = None, *, runs: Path = RUNS, now: float | None = None) -> Imported:
    """Make a run's folder of the file. Raises ``CorruptEntry``, ``UsedName``, ``NoFork``, ``PlanError``."""
    contents = read_contents(file)
    name = name or contents.run
    if (runs / name).exists():
        raise UsedName(f"{runs / name} exists: import under another name, rollog import {file} NAME")
    with new_folder(runs) as path:
        path.chmod(0o700)
        made = RunFolder(path)
        made.prepare()
        segments_of(path).mkdir(mode=0o700)
        unpack(file, {
            "log": segments_of(path), "blobs": made.blobs, "checkpoints": made.checkpoints, "weights": made.weights,
        })  # fmt: skip
        log = FileLog(segments_of(path))
        if (log.head(), log.log_id) != (contents.head, contents.log_id):
            raise CorruptEntry(f"{file}: its segments end with {log.head()}, its contents say {contents.head}")
        state, sums = snapshots.tallied(made.snapshots, log, contents.head.offset)
        epoch = contents.epoch
        if name != state.run:
            entry = _renamed(made, log, state, name, time.time() if now is None else now)
            (state, sums), epoch = follow_all((entry,), state.copy(), sums), entry.epoch
        plan = Plan.from_settings(state.settings, origin=f"settings in {file}")
        check_server(plan)
        made.write_plan(plan)
        snapshots.save(made.snapshots, state, sums)
        note_planting(path, Planting(log_id=contents.log_id, offset=state.offset, digest=state.digest, epoch=epoch))
        resumable = _resumable(made, log, state)
        try:
            return Imported(folder=keep(path, name), state=state, resumable=resumable)
        except AlreadyThere:
            raise UsedName(f"{runs / name} exists: import under another name, rollog import {file} NAME") from None


def _sealed(folder: RunFolder, log: Reader, about: Contents, beside: Path) -> Iterator[Path]:
    """The log's segments up to its head: the run's own, and its tail in one more."""
    theirs = segments_of(folder.path)
    if any(theirs.glob(f"*{SUFFIX}")):
        for segment in FileLog(theirs).segments:
            if segment.last <= about.head.offset:
                link_file(segment.file, beside / segment.file.name)
    seal_tail(log, beside, about.log_id, about.head.offset)
    yield from sorted(beside.glob(f"*{SUFFIX}"))


def _kept(folder: RunFolder, about: Contents, state: State) -> Iterator[Manifest]:
    for manifest in list_manifests(folder.checkpoints):
        recent = state.oldest_kept_checkpoint() <= manifest.version <= state.version
        if recent and manifest.ordered.log == about.log_id and manifest.ordered.offset <= about.head.offset:
            yield manifest


def _files(name: str, root: Path, folders: list[Path]) -> list[tuple[str, Path]]:
    return [
        (f"{name}/{path.relative_to(root).as_posix()}", path)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def _renamed(made: RunFolder, log: FileLog, state: State, name: str, now: float) -> Entry:
    """Seal the first own entry of the run ``name``, a fork without changes."""
    blob_exists = Blobs(made.blobs).exists
    terms = Terms(
        run=name, parent=state.run, reason="imported", dataset=state.dataset, seed=state.seed,
        num_rows=state.num_rows, time=now,
    )  # fmt: skip
    start = starting_point(state, newest_start(state, terms), log, log.log_id, made.checkpoints, blob_exists)
    entry = fork_entry(state, terms, start.checkpoint, blob_exists)
    seal_own(made, log.log_id, entry, state.digest)
    return entry


def _resumable(made: RunFolder, log: FileLog, state: State) -> bool:
    blobs = Blobs(made.blobs)
    whole = all(blobs.exists(digest) for digest in needed_blobs(state))
    return whole and (state.newest_checkpoint() is None or bool(list_manifests(made.checkpoints)))
