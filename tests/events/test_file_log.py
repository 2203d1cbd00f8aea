"""Sealed segments give back the log, or say that they were damaged."""

import random
from pathlib import Path
from typing import Any

import pytest

from rollog.events.errors import CorruptEntry, MissingEntry
from rollog.events.file_log import FileLog, open_segment, seal_tail
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Note


@pytest.fixture
def log() -> Any:
    return MemoryServer(clock=lambda: 0.0).log()


def test_a_sealed_log_is_the_same_log(log: Any, writer: Any, tmp_path: Path) -> None:
    pen = writer(log)
    for number in range(9):
        pen.say(Note(what="n", text=str(number)))
    segment = seal_tail(log, tmp_path, "id")
    assert segment is not None
    sealed = FileLog(tmp_path)
    assert list(sealed.read()) == list(log.read())
    assert sealed.head() == log.head()
    assert list(sealed.read(3, 5)) == list(log.read(3, 5))
    assert (sealed.log_id, segment.first, segment.last) == ("id", 1, 9)
    assert list(FileLog(segment.file).read()) == list(log.read())


def test_sealing_goes_on_where_it_ended(log: Any, writer: Any, tmp_path: Path) -> None:
    pen = writer(log)
    pen.say()
    seal_tail(log, tmp_path, "id")
    assert seal_tail(log, tmp_path, "id") is None
    pen.say()
    pen.say()
    seal_tail(log, tmp_path, "id")
    assert len(list(tmp_path.iterdir())) == 2
    sealed = FileLog(tmp_path)
    assert list(sealed.read()) == list(log.read())
    assert list(sealed.read(2, 2)) == list(log.read(2, 2))


def test_what_is_not_sealed_is_missing(log: Any, writer: Any, tmp_path: Path) -> None:
    with pytest.raises(MissingEntry):
        FileLog(tmp_path)
    writer(log).say()
    seal_tail(log, tmp_path, "id")
    for first, last in [(0, 1), (1, 2), (3, 3)]:
        with pytest.raises(MissingEntry):
            list(FileLog(tmp_path).read(first, last))
    with pytest.raises(MissingEntry):
        FileLog(tmp_path / "none.segment")


def test_every_flipped_bit_is_found(log: Any, writer: Any, tmp_path: Path) -> None:
    pen = writer(log)
    pen.say()
    pen.say()
    segment = seal_tail(log, tmp_path, "id")
    assert segment is not None
    whole = segment.file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.Random(place).randrange(8)
        segment.file.write_bytes(damaged)
        with pytest.raises(CorruptEntry):
            FileLog(tmp_path)
    for length in range(0, len(whole), 7):
        segment.file.write_bytes(whole[:length])
        with pytest.raises(CorruptEntry):
            FileLog(tmp_path)
    segment.file.write_bytes(whole)
    assert len(list(FileLog(tmp_path).read())) == 2


def test_segments_of_two_histories_are_refused(writer: Any, tmp_path: Path) -> None:
    logs = [MemoryServer(clock=lambda: 0.0).log() for _ in range(2)]
    for number, log in enumerate(logs):
        pen = writer(log)
        for _ in range(number + 1):
            pen.say(Note(what="n", text=str(number)))
    seal_tail(logs[0], tmp_path, "id")
    with pytest.raises(CorruptEntry, match="another entry 1"):
        seal_tail(logs[1], tmp_path, "id")
    with pytest.raises(CorruptEntry, match="sealed up to entry 1"):
        seal_tail(MemoryServer(clock=lambda: 0.0).log(), tmp_path, "id")
    other = tmp_path / "other"
    segment = seal_tail(logs[1], other, "id")
    assert segment is not None
    segment.file.rename(tmp_path / segment.file.name)
    with pytest.raises(CorruptEntry, match="two histories"):
        FileLog(tmp_path)


def test_a_draft_left_by_a_crash_is_no_segment(log: Any, writer: Any, tmp_path: Path) -> None:
    (tmp_path / "77.tmp").write_bytes(b"half")
    writer(log).say()
    segment = seal_tail(log, tmp_path, "id")
    assert segment is not None
    assert open_segment(segment.file) == segment
    assert FileLog(tmp_path).head() == log.head()
