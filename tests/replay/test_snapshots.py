"""Snapshots: fold(0..n) == fold(snapshot(k), k..n); only this log's own, whole, of this very fold is ever used."""

from pathlib import Path

import pytest

from rollog.events.codec import seal
from rollog.events.log import Log, Outbox
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Note, Open
from rollog.pipeline.observers import SavesSnapshots
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.histories import draw
from rollog.replay import snapshots
from rollog.replay.openings import last_machine
from rollog.replay.projector import fold, fold_all
from rollog.replay.state import State
from rollog.replay.status import status
from rollog.replay.tally import follow_all
from rollog.replay.verification import SAVED, verify

NOTE = Note(what="n", text="x")


def a_run(seed: int) -> Log:
    """The log of a run with drops, loans, retries, resumes and changes of sampler."""
    history = draw(seed)
    return simulate(history.plan, history.num_rows, history.script, others=history.others).world.server.log()


@pytest.mark.parametrize("seed", [0, 3, 8])
def test_the_tail_folded_onto_any_snapshot_is_the_fold_of_everything(seed: int) -> None:
    entries = list(a_run(seed).read())
    saved, state = {}, State()
    for entry in entries:
        fold(state, entry)
        saved[entry.offset] = snapshots.encode(state)

    assert len(saved) > 50
    for offset, data in saved.items():
        recalled = snapshots.decode(data)
        assert recalled is not None
        assert fold_all(entries[offset:], recalled.state) == state, f"snapshot at {offset}"


def test_two_snapshots_are_kept_and_the_newest_that_fits_is_used(tmp_path: Path) -> None:
    log = a_run(3)
    state = State()
    for entry in log.read():
        fold(state, entry)
        if entry.offset in (10, 20, 30):
            snapshots.save(tmp_path, state)

    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"{offset:016d}.snapshot" for offset in (20, 30)]
    assert snapshots.newest(tmp_path, log) == fold_all(log.read(1, 30))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no message"])
def test_a_broken_snapshot_means_an_older_one(tmp_path: Path, damage: str) -> None:
    log = a_run(3)
    older, newer = (snapshots.save(tmp_path, fold_all(log.read(1, offset))) for offset in (20, 30))
    data = newer.read_bytes()
    at = data.index(b"handed_out") + len(b"handed_out")
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    newer.write_bytes({"cut": data[:-9], "flipped": flipped, "empty": b"", "no message": b"\xc1\xc1"}[damage])

    assert snapshots.newest(tmp_path, log).offset == 20

    older.unlink()
    assert snapshots.newest(tmp_path, log) == State()


def test_a_snapshot_of_another_log_or_beyond_the_head_is_not_used(tmp_path: Path) -> None:
    one, other = a_run(3), a_run(8)
    snapshots.save(tmp_path, fold_all(one.read(1, 30)))

    assert snapshots.newest(tmp_path, other) == State()
    assert snapshots.newest(tmp_path, MemoryServer(clock=lambda: 0.0).log()) == State()


def test_a_snapshot_of_another_fold_is_not_used(tmp_path: Path) -> None:
    log = a_run(3)
    path = snapshots.save(tmp_path, fold_all(log.read(1, 30)))
    version = snapshots.fold_version().encode()
    path.write_bytes(path.read_bytes().replace(version, version[::-1]))

    assert snapshots.newest(tmp_path, log) == State()


def test_the_state_stays_small() -> None:
    log = a_run(5)

    assert (
        max(len(snapshots.encode(fold_all(log.read(1, offset)))) for offset in range(1, log.head().offset, 9)) < 100_000
    )


def test_the_sums_of_a_status_go_on_from_a_snapshot(tmp_path: Path) -> None:
    log = a_run(8)
    head = log.head().offset
    snapshots.save(tmp_path, *follow_all(log.read(1, head // 2)))
    snapshots.save(tmp_path, fold_all(log.read(1, head // 2 + 5)))

    assert status(*snapshots.tallied(tmp_path, log, head)) == status(*follow_all(log.read()))
    assert status(*snapshots.tallied(tmp_path, log, 7)) == status(*follow_all(log.read(1, 7)))
    assert [found.state.offset for found in snapshots.fitting(tmp_path, log, head)] == [head // 2 + 5, head // 2]


def test_whoever_saves_follows_what_is_durable_and_reads_what_nobody_told(tmp_path: Path) -> None:
    log = a_run(8)
    entries = list(log.read(1, 60))
    saver = SavesSnapshots(tmp_path, log, every=20)

    for entry in entries:
        if entry.offset % 7:
            saver.entry(State(), entry)

    assert snapshots.offsets(tmp_path) == [60, 40]
    assert snapshots.newest(tmp_path, log) == fold_all(entries)
    again = SavesSnapshots(tmp_path, log, every=20)
    for entry in log.read(61, 80):
        again.entry(State(), entry)
    assert snapshots.offsets(tmp_path) == [80, 60]
    assert snapshots.tallied(tmp_path, log, 80) == follow_all(log.read(1, 80))


def test_verify_takes_nothing_from_a_snapshot_and_compares_it(tmp_path: Path) -> None:
    log = a_run(3)
    snapshots.save(tmp_path, fold_all(log.read(1, 30)))
    assert verify(log, tmp_path).holds

    wrong = fold_all(log.read(1, 30))
    wrong.trained += 1
    snapshots.save(tmp_path, wrong)
    verdict = verify(log, tmp_path)

    assert (verdict.first_broken, verdict.holds) == (30, False)
    assert [law.law for law in verdict.laws if law.holds is False] == [SAVED]
    assert verify(log).holds


def test_the_machine_of_the_last_controller_is_found_by_halving() -> None:
    other = MemoryServer(clock=lambda: 0.0).log()
    for number in range(4):
        pen = other.open(f"nonce-{number}")
        for event in (Open(epoch=pen.epoch, reason="x", rollog="x", machine={"ranks": number + 1}), *[NOTE] * 5):
            head = other.head()
            entry = seal(
                offset=head.offset + 1, epoch=pen.epoch, time=0.0, input=None, events=[event], previous=head.digest
            )
            other.append([(entry, Outbox())])
    for offset in range(1, 25):
        assert last_machine(other, offset) == {"ranks": (offset + 5) // 6}
    assert last_machine(other, 0) == {}
