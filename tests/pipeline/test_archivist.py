"""Old entries move off the server while a run goes on; whenever it dies, nothing is lost or out of order."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rollog.events.errors import MissingEntry
from rollog.events.file_log import FileLog, GrowingLog, seal_tail
from rollog.events.log import Log
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Archive
from rollog.pipeline.archivist import Archivist
from rollog.pipeline.inputs import Sealed
from rollog.pipeline.simulate import Death, Outcome, simulate
from rollog.pipeline.simulation.histories import small_plan
from rollog.pipeline.simulation.world import Clock, Script
from rollog.replay import snapshots
from rollog.replay.projector import fold_all
from rollog.replay.state import State

EVERY, PIECE, SNAPSHOT_EVERY = 40, 15, 10


@dataclass
class Played:
    """An archivist, and who saves snapshots for it. ``dies_after_sealing``: this often the process dies just then."""

    archivist: Archivist
    saved: Path
    dies_after_sealing: int = 0
    seals: int = 0

    def next(self, state: State) -> Sealed | None:
        done = snapshots.offsets(self.saved)
        if state.offset - (done[0] if done else 0) >= SNAPSHOT_EVERY:
            snapshots.save(self.saved, state)
        sealed = self.archivist.next(state)
        if sealed is not None:
            self.seals += 1
            if self.dies_after_sealing and self.seals % self.dies_after_sealing == 0:
                raise Death
        return sealed


def play(tmp_path: Path, script: Script, *, dies_after_sealing: int = 0, num_rows: int = 60) -> Outcome:
    """A run that archives everything it can, over a log whose old entries are read in the segments."""
    segments, saved = tmp_path / "segments", tmp_path / "snapshots"
    segments.mkdir()
    seen = []

    def server(clock: Clock) -> MemoryServer:
        seen.append(MemoryServer(clock, archive=GrowingLog(segments)))
        return seen[-1]

    def archive(log: Log) -> Played:
        made = Archivist(log, segments, saved, lambda: "memory", every=EVERY, piece=PIECE)
        return Played(made, saved, dies_after_sealing)

    plan = small_plan(checkpoint={"every_steps": 2})
    outcome = simulate(plan, num_rows, script, make_server=server, archive=archive)
    outcome.world.server = seen[0]
    return outcome


def test_a_run_that_archives_trains_the_same_and_keeps_a_short_log_on_the_server(tmp_path: Path) -> None:
    archived, plain = (
        play(tmp_path, Script(seed=5)),
        simulate(small_plan(checkpoint={"every_steps": 2}), 60, Script(seed=5)),
    )

    assert archived.steps == plain.steps
    assert archived.weights == plain.weights
    log = archived.world.server.log()
    told = [event for entry in log.read() for event in entry.events if isinstance(event, Archive)]
    sealed = FileLog(tmp_path / "segments")
    assert [(each.first, each.last, each.file, each.digest) for each in told] == [
        (segment.first, segment.last, segment.file.name, segment.hash) for segment in sealed.segments
    ]
    assert len(told) >= 4
    assert archived.state.archived == sealed.head().offset
    assert len(archived.world.server.entries) == log.head().offset - sealed.head().offset
    assert fold_all(log.read()) == archived.state


@pytest.mark.parametrize("seed", range(6))
def test_whenever_it_dies_the_order_is_kept_and_the_line_is_whole(tmp_path: Path, seed: int) -> None:
    script = Script(seed=seed, controller_death_rate=0.05, uncertain_rate=0.03, trainer_deaths_per_s=0.02)

    outcome = play(tmp_path, script, dies_after_sealing=2)

    assert outcome.deaths > 5
    assert outcome.state.archived > EVERY
    log, sealed = outcome.world.server.log(), FileLog(tmp_path / "segments")
    assert outcome.state.archived <= sealed.head().offset
    assert list(sealed.read()) == list(log.read(1, sealed.head().offset))


def test_nothing_is_archived_beyond_the_older_snapshot_and_the_newest_checkpoint(tmp_path: Path) -> None:
    outcome = play(tmp_path, Script(seed=1))
    state, saved = outcome.state, tmp_path / "snapshots"
    archivist = Archivist(outcome.world.server.log(), tmp_path / "segments", saved, lambda: "memory", every=EVERY)

    ordered = state.saves[max(state.checkpoints)].offset
    assert archivist.limit(state) == min(snapshots.offsets(saved)[1], ordered)
    for file in sorted(saved.iterdir())[:-1]:
        file.unlink()
    assert archivist.limit(state) == 0


def test_what_was_sealed_at_a_stop_is_announced_as_it_lies_there(tmp_path: Path) -> None:
    outcome = simulate(small_plan(checkpoint={"every_steps": 2}), 60, Script(seed=2))
    log, saved, segments = outcome.world.server.log(), tmp_path / "snapshots", tmp_path / "segments"
    stop = log.head().offset // 2
    seal_tail(log, segments, "memory", stop)
    for offset in (stop - 1, stop + 9):
        snapshots.save(saved, fold_all(log.read(1, offset)))
    archivist = Archivist(log, segments, saved, lambda: "memory", every=EVERY, piece=PIECE)
    assert archivist.next(outcome.state) is None, "the segment reaches beyond the older snapshot"

    snapshots.save(saved, fold_all(log.read(1, stop + 19)))
    sealed = archivist.next(outcome.state)

    assert sealed is not None
    assert (sealed.first, sealed.last) == (1, stop)
    assert len(list(segments.iterdir())) == 1


def test_nothing_is_cut_off_that_no_segment_holds(tmp_path: Path) -> None:
    outcome = simulate(small_plan(), 40, Script(seed=2))
    archivist = Archivist(
        outcome.world.server.log(), tmp_path / "none", tmp_path / "snapshots", lambda: "memory", every=10**6
    )
    outcome.state.archived = 20

    with pytest.raises(MissingEntry, match="put the missing segments back"):
        archivist.next(outcome.state)
    assert archivist.next(replace(outcome.state, archived=0)) is None
