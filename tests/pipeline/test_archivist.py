"""Old entries move off the server while a run goes on; whenever it dies, nothing is lost or out of order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rollog.events.errors import MissingEntry
from rollog.events.file_log import FileLog, GrowingLog, seal_tail
from rollog.events.log import Log, Shortening
from rollog.events.memory_log import MemoryLog, MemoryServer
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


class SlowServer(MemoryServer):
    """A server whose file takes ``looks`` looks to be rewritten, and then is, or is not. ``trims``, ``looked``: so far.

    ``busy``: looks at a rewriting that was under way when entries were cut off again.
    """

    looks, failure = 30, ""
    trims, looked, busy, left = 0, 0, 0, 0

    def log(self) -> "SlowLog":
        """A controller's connection."""
        return SlowLog(self)


class SlowLog(MemoryLog):
    """A connection to it."""

    _server: SlowServer

    def trim(self, last: int) -> Shortening:
        """Cut off; the rewriting begins."""
        super().trim(last)
        self._server.trims += 1
        self._server.busy += self._server.left > 0
        self._server.left = self._server.looks
        return Shortening(under_way=True)

    def shortening(self) -> Shortening:
        """One look nearer to its end."""
        self._server.looked += 1
        self._server.left = max(0, self._server.left - 1)
        over = self._server.left == 0
        return Shortening(under_way=not over, failed=(self._server.failure or None) if over else None)


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


def play(
    tmp_path: Path,
    script: Script,
    *,
    dies_after_sealing: int = 0,
    num_rows: int = 60,
    kind: type[MemoryServer] = MemoryServer,
    warn: Callable[[str], None] = print,
) -> Outcome:
    """A run that archives everything it can, over a log whose old entries are read in the segments."""
    segments, saved = tmp_path / "segments", tmp_path / "snapshots"
    segments.mkdir()
    seen = []

    def server(clock: Clock) -> MemoryServer:
        seen.append(kind(clock, archive=GrowingLog(segments)))
        return seen[-1]

    def archive(log: Log) -> Played:
        made = Archivist(log, segments, saved, lambda: "memory", every=EVERY, piece=PIECE, warn=warn)
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


def test_a_run_goes_on_while_the_servers_file_is_rewritten_and_cuts_nothing_off_meanwhile(tmp_path: Path) -> None:
    warned: list[str] = []
    outcome = play(tmp_path, Script(seed=5), num_rows=120, kind=SlowServer, warn=warned.append)

    server = outcome.world.server
    assert isinstance(server, SlowServer)
    assert outcome.steps == simulate(small_plan(checkpoint={"every_steps": 2}), 120, Script(seed=5)).steps
    assert server.trims >= 2
    assert (server.looked >= 30 * (server.trims - 1), server.busy) == (True, 0)
    assert warned == []


def test_a_file_that_cannot_be_rewritten_is_warned_about_and_asked_for_again_at_the_next_archive(
    tmp_path: Path,
) -> None:
    class FullDisk(SlowServer):
        looks, failure = 1, "no room"

    warned: list[str] = []
    outcome = play(tmp_path, Script(seed=5), num_rows=120, kind=FullDisk, warn=warned.append)

    server = outcome.world.server
    assert isinstance(server, FullDisk)
    assert server.trims >= 2
    assert warned == ["no room"] * len(warned)
    assert server.trims - 1 <= len(warned) <= server.trims, "the last one may still be under way at the end"


def test_the_end_of_a_run_waits_for_a_rewriting_that_is_under_way(tmp_path: Path) -> None:
    outcome = play(tmp_path, Script(seed=5))
    server = SlowServer(lambda: 0.0, archive=GrowingLog(tmp_path / "segments"))
    server.entries, log = outcome.world.server.entries, server.log()
    log.open("pen")
    archivist = Archivist(log, tmp_path / "segments", tmp_path / "snapshots", lambda: "memory", every=EVERY)
    archivist.close()
    assert server.looked == 0, "there is nothing to wait for"
    archivist.next(outcome.state)
    assert (server.trims, server.looked) == (1, 0)

    archivist.close()
    assert (server.left, server.looked) == (0, 30)


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
