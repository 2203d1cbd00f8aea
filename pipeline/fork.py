"""``rollog fork``: a new run that begins with the first entries of another, in a folder that depends on nothing.

    parent's entries 1..X --> segments    blobs, checkpoints --> links    its own first entry --> a segment

Rule 1: the parent is only read; it may run, have ended or have crashed.
Rule 2: the folder appears whole, by a rename, or not at all. Its server is told where the segments end when it starts.
Rule 3: the log's id stays: it names the history, which goes on. So a checkpoint's manifest, which names an entry of
        it, is as good in the fork.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollog.events.blobs import Blobs
from rollog.events.file_log import SUFFIX, FileLog, seal_tail, write_segment
from rollog.events.log import Entry, Reader
from rollog.events.planting import Planting, note_planting
from rollog.events.reading import log_id_of, segments_of
from rollog.pipeline.config import Plan, changes, resumed_plan
from rollog.pipeline.durable import AlreadyThere, keep, new_folder
from rollog.pipeline.forking import NoFork, Terms, evicts, fork_entry, newest_start
from rollog.pipeline.links import link_blobs, link_file, link_folder
from rollog.pipeline.log_server import check_server
from rollog.pipeline.policy import Policy
from rollog.pipeline.run_folder import RUNS, RunFolder, UsedName
from rollog.pipeline.runner import check
from rollog.pipeline.starting_point import StartingPoint, starting_point
from rollog.replay import snapshots
from rollog.replay.state import Place, State
from rollog.replay.tally import follow_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A fork as it was made. ``before``, ``after``: the parent's State at the entry, the fork's own after its first.

    ``again``: finished groups whose blobs are gone, and which are generated again.
    """

    folder: Path
    parent: str
    before: State
    after: State
    start: StartingPoint
    changes: Mapping[str, Any]
    again: int


def fork(
    parent: RunFolder, log: Reader, offset: int, name: str, overrides: Mapping[str, Any], reason: str,
    *, runs: Path = RUNS, now: float | None = None,
) -> Forked:  # fmt: skip
    """Make the run ``name`` out of the parent's entries up to ``offset``, under other settings.

    ``overrides``: dotted paths -> values. ``now``: wall time in seconds. Raises ``NoFork``, ``PlanError`` and
    ``UsedName``.
    """
    if (runs / name).exists():
        raise UsedName(f"{runs / name} exists: choose another name for the fork")
    before, sums = snapshots.tallied(parent.snapshots, log, offset)
    if before.offset == 0 or not before.settings:
        raise NoFork(f"entry {offset:,} holds no run yet: fork at @1 or later")
    plan, terms = _terms(before, name, overrides, reason, time.time() if now is None else now)
    blobs, log_id = Blobs(parent.blobs), log_id_of(log)
    start = StartingPoint(version=0, manifest=None)
    if "model.path" not in terms.changes:
        newest = newest_start(before, terms)
        start = starting_point(before, newest, log, log_id, parent.checkpoints, blobs.exists)
    entry = fork_entry(before, terms, start.checkpoint, blobs.exists)
    after, sums = follow_all((entry,), before.copy(), sums)
    check_server(plan)
    with new_folder(runs) as folder:
        folder.chmod(0o700)
        made = RunFolder(folder)
        made.prepare()
        made.write_plan(plan)
        try:
            _take_over(parent, made, after, start)
        except FileNotFoundError as error:
            raise NoFork(f"{error.filename} was deleted while it was taken over: fork once more") from error
        _seal(parent, made, log, log_id, entry)
        snapshots.save(made.snapshots, after, sums)
        note_planting(folder, Planting(log_id=log_id, offset=entry.offset, digest=entry.digest, epoch=entry.epoch))
        try:
            path = keep(folder, name)
        except AlreadyThere:
            raise UsedName(f"{runs / name} exists: choose another name for the fork") from None
    again = before.count(Place.BUFFER) - after.count(Place.BUFFER) if not evicts(before, terms) else 0
    return Forked(
        folder=path, parent=before.run, before=before, after=after, start=start, changes=terms.changes, again=again
    )


def _terms(state: State, name: str, overrides: Mapping[str, Any], reason: str, now: float) -> tuple[Plan, Terms]:
    recorded = Plan.from_settings(state.settings, origin="recorded settings")
    plan = resumed_plan(recorded.settings(), {**overrides, "run": name})
    loader, _ = check(plan, state.slate)
    changed = changes(recorded.settings(), plan.settings())
    changed.pop("run", None)
    terms = Terms(
        run=name,
        parent=state.run,
        reason=reason,
        dataset=loader.fingerprint,
        seed=plan.seed,
        num_rows=loader.num_rows,
        changes=changed,
        time=now,
    )
    if evicts(state, terms):
        Policy.of(plan, loader, (state.filling, state.handed_out))  # refuses when no step is left
    return plan, terms


def _take_over(parent: RunFolder, made: RunFolder, after: State, start: StartingPoint) -> None:
    """Link what the fork's State counts on."""
    for manifest in [*([start.manifest] if start.manifest else []), *start.others]:
        link_folder(manifest.folder, made.checkpoints / manifest.folder.name)
    link_blobs(needed_blobs(after), Blobs(parent.blobs), Blobs(made.blobs))


def needed_blobs(state: State) -> Iterator[str]:
    """The blobs that a run needs to go on from this State: of recorded selections, and of the buffer."""
    for step in state.steps.values():
        yield from (member.finished.blob for member in step.members())
    for group in state.at(Place.BUFFER):
        if group.finished is not None:
            yield group.finished.blob


def _seal(parent: RunFolder, made: RunFolder, log: Reader, log_id: str, entry: Entry) -> None:
    """The parent's entries and the fork's first one: whole segments of the parent are linked, the rest is written."""
    own = segments_of(made.path)
    own.mkdir(mode=0o700)
    theirs = segments_of(parent.path)
    sealed = FileLog(theirs).segments if any(theirs.glob(f"*{SUFFIX}")) else []
    for segment in sealed:
        if segment.last < entry.offset:
            link_file(segment.file, own / segment.file.name)
    seal_tail(log, own, log_id, entry.offset - 1)
    seal_own(made, log_id, entry, FileLog(own).head().digest)


def seal_own(made: RunFolder, log_id: str, entry: Entry, previous: str) -> None:
    """Seal a fork's first own entry, in a segment of its own."""
    write_segment(segments_of(made.path), log_id, iter((entry,)), previous)


def lines(forked: Forked) -> Iterable[str]:
    """What was made, for a person."""
    before, after, start = forked.before, forked.after, forked.start
    what = "the model that the run began with" if start.manifest is None else f"checkpoint {start.manifest.folder.name}"
    yield f"run {after.run} begins at entry {after.offset:,}, after entry {before.offset:,} of {forked.parent}"
    yield f"weights     v{before.version} there; it really starts from v{start.version}, {what}" + (
        f"; steps {start.version} to {before.version - 1} are trained again" if start.version < before.version else ""
    )
    yield (
        f"prompts     {after.count(Place.BUFFER)} finished, {after.count(Place.SELECTED)} selected, "
        f"{after.count(Place.WAITING)} waiting, {after.evicted - before.evicted} evicted"
        + (f", {forked.again} generated again because their blobs are gone" if forked.again else "")
    )
    yield from (f"changed     {path} = {value!r}" for path, value in forked.changes.items())
    yield f"go on with:  rollog resume {after.run}"
