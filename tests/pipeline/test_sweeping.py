"""What a sweep takes: only what no recorded selection, no buffer, no waiting result and no young worker can need."""

import os
from pathlib import Path

import pytest

from rollog.events.blobs import Blobs
from rollog.events.vocabulary import Commit
from rollog.pipeline.checkpoints import Ordered, write
from rollog.pipeline.fork import needed_blobs
from rollog.pipeline.halves import sweep_at_start
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.simulate import Script, simulate
from rollog.pipeline.simulation.histories import small_plan
from rollog.pipeline.sweeping import GRACE_S, Kind, Leftover, leftovers, listing, sweep
from rollog.replay.projector import fold_all
from rollog.replay.state import State

NOW = 10_000_000.0
OLD = NOW - GRACE_S - 1


def put(path: Path, time: float = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (time, time))
    return path


class Swept:
    """A run's folder at one moment of a played run, with every blob that was ever made in it."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.folder = RunFolder(path)
        self.folder.prepare()
        self.blobs = Blobs(self.folder.blobs)
        log = simulate(small_plan(checkpoint={"every_steps": 2}), 80, Script(seed=4)).world.server.log()
        self.state: State = fold_all(log.read(1, log.head().offset * 2 // 3))
        made = (event for entry in log.read(1, self.state.offset) for event in entry.events)
        self.made = {event.blob for event in made if isinstance(event, Commit)}
        for digest in self.made:
            put(self.blobs.path(digest))

    def found(self, reported: set[str] = frozenset()) -> list[Leftover]:  # type: ignore[assignment]
        there = listing(self.folder)
        return list(leftovers(self.folder, there, self.state, reported, "log", NOW, GRACE_S))


@pytest.fixture
def swept(tmp_path: Path) -> Swept:
    return Swept(tmp_path / "run")


def test_only_blobs_that_nothing_needs_are_taken(swept: Swept) -> None:
    needed = set(needed_blobs(swept.state))
    assert needed
    assert swept.made - needed

    deleted = sweep(swept.found(), lambda: NOW, GRACE_S)

    assert {each.path.name for each in deleted} == swept.made - needed
    assert {digest for digest in swept.made if swept.blobs.exists(digest)} == needed
    assert swept.found() == []


def test_what_waits_in_the_results_stream_stays(swept: Swept) -> None:
    waiting = put(swept.blobs.path("ab" * 32)).name
    lost = put(swept.blobs.path("cd" * 32)).name

    weights = [put(swept.folder.weights / f"99-{digit * 64}" / "model.safetensors").parent for digit in "ab"]
    for path in weights:
        os.utime(path, (OLD, OLD))

    names = {each.path.name for each in swept.found({waiting, weights[0].name})}

    assert (waiting in names, lost in names) == (False, True)
    assert [path.name in names for path in weights] == [False, True]


def test_what_is_young_stays_and_so_does_what_becomes_young_before_it_is_deleted(swept: Swept) -> None:
    young = put(swept.blobs.path("ab" * 32), NOW - 1)
    data = b"the same bytes once more"
    digest = swept.blobs.put(data)
    os.utime(swept.blobs.path(digest), (OLD, OLD))
    found = swept.found()
    assert young.name not in {each.path.name for each in found}
    assert digest in {each.path.name for each in found}

    os.utime(swept.blobs.path(digest), (NOW, NOW))  # as ``put`` does with a blob that is there
    deleted = sweep(found, lambda: NOW, GRACE_S)

    assert digest not in {each.path.name for each in deleted}
    assert swept.blobs.get(digest) == data
    assert young.exists()


def test_putting_bytes_that_are_there_makes_them_young(swept: Swept) -> None:
    digest = swept.blobs.put(b"x")
    path = swept.blobs.path(digest)
    os.utime(path, (OLD, OLD))

    assert swept.blobs.put(b"x") == digest
    assert path.stat().st_mtime > OLD


def test_a_start_sweeps_what_the_controller_before_it_left_half_written_and_nothing_of_the_workers(
    swept: Swept,
) -> None:
    folder = swept.folder
    own = [
        put(path, NOW)
        for path in (
            folder.path / ".tmp-config",
            folder.path / "mark.json.x.tmp",
            folder.log / "segments" / "12.tmp",
            folder.log / "snapshots" / "0000000000000007.snapshot.x.tmp",
            folder.logs / "gen-0.pid.x.tmp",
        )
    ]
    theirs = [
        put(folder.weights / ".tmp-half" / "model.safetensors"),
        put(folder.checkpoints / ".tmp-half" / "manifest.json"),
        put(folder.blobs / "ab" / "abab.xyz.tmp"),
        put(folder.path / "config.yaml"),
        put(folder.log / "segments" / "000000000001-000000000012.segment"),
    ]
    assert set(own) <= set(listing(folder).halves)

    sweep_at_start(folder)

    assert [path for path in own if path.exists()] == []
    assert [path for path in theirs if not path.exists()] == []


def test_old_weights_old_checkpoints_and_halves_go(swept: Swept) -> None:
    folder, state = swept.folder, swept.state
    oldest = state.oldest_kept_checkpoint()
    assert oldest > 0
    kept = next(iter(state.published.values())).file

    def ordered(version: int, log: str) -> Ordered:
        return Ordered(log=log, offset=1, digest="ab" * 16, epoch=1, version=version, generation=1)

    stale = write(folder.checkpoints, ordered(0, "log"), lambda made: put(made / "file"))
    foreign = write(folder.checkpoints, ordered(1, "another"), lambda made: put(made / "file"))
    current = write(folder.checkpoints, ordered(oldest, "log"), lambda made: put(made / "file"))
    for name in (kept, "0-" + "ef" * 32, ".tmp-half"):
        put(folder.weights / name / "model.safetensors")
    put(folder.blobs / "ab" / "abab.xyz.tmp")
    for path in (*folder.weights.iterdir(), *folder.checkpoints.iterdir()):
        os.utime(path, (OLD, OLD))

    deleted = sweep(swept.found(), lambda: NOW, GRACE_S)

    kinds = {(each.kind, each.path.name) for each in deleted if each.kind is not Kind.BLOB}
    assert kinds == {
        (Kind.CHECKPOINT, stale.folder.name),
        (Kind.WEIGHTS, "0-" + "ef" * 32),
        (Kind.HALF, ".tmp-half"),
        (Kind.HALF, "abab.xyz.tmp"),
    }
    assert foreign.folder.is_dir()
    assert current.folder.is_dir()
    assert (folder.weights / kept).is_dir()
    assert not stale.folder.exists()
