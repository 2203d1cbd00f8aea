"""One contract for all logs whose older entries lie in segments: planted after an archive, or cut off behind one."""

from pathlib import Path
from typing import Any

import pytest

from rollog.events.errors import Conflict, Fenced, LostTail, MissingEntry
from rollog.events.file_log import FileLog, seal_tail
from rollog.events.log import Head, Shortening
from rollog.events.memory_log import MemoryServer
from rollog.events.redis_log import RedisLog
from rollog.events.rewriting import wait_for
from rollog.events.server import start
from rollog.events.vocabulary import Note


@pytest.fixture
def sealed(store: Any, writer: Any) -> FileLog:
    """Another log of seven entries, sealed where ``store`` looks for old entries."""
    parent = MemoryServer(clock=lambda: 0.0).log()
    pen = writer(parent)
    for number in range(7):
        pen.say(Note(what="old", text=str(number)))
    seal_tail(parent, store.segments, "history")
    return FileLog(store.segments)


def planted(store: Any, sealed: FileLog, epoch: int = 3) -> Any:
    log = store.log()
    log.plant(sealed.head(), epoch, sealed.log_id)
    return log


def test_a_planted_log_goes_on_where_the_archive_ends(store: Any, writer: Any, sealed: FileLog) -> None:
    log = planted(store, sealed)
    assert log.head() == sealed.head()
    assert list(log.read()) == list(sealed.read())

    pen = writer(log)
    assert (pen.pen.epoch, pen.pen.log_id, pen.pen.head) == (4, "history", sealed.head())
    entry = pen.say()

    assert entry.offset == 8
    assert list(store.log().read()) == [*sealed.read(), entry]
    assert list(store.log().read(7, 8)) == [*sealed.read(7, 7), entry]
    assert list(store.log().read(8)) == [entry]
    assert list(store.log().read(2, 4)) == list(sealed.read(2, 4))


def test_planting_twice_is_planting_once_and_another_log_is_not_overwritten(
    store: Any, writer: Any, sealed: FileLog
) -> None:
    log = planted(store, sealed)
    planted(store, sealed)
    pen = writer(log)
    pen.say()
    planted(store, sealed)

    assert store.log().head().offset == 8
    with pytest.raises(Conflict, match="another log"):
        store.log().plant(Head(offset=2, digest="ab" * 16), 1, "other")


def test_a_planted_log_that_loses_its_own_entries_is_refused(server: Any, writer: Any) -> None:
    log = RedisLog(server.address(), "planted")
    log.plant(Head(offset=7, digest="ab" * 16), 3, "history")
    writer(log).say()
    log._connection.call("DEL", log.keys.log)

    with pytest.raises(LostTail, match="gone"):
        log.open("next")
    log.close()


def test_what_lies_in_a_segment_can_be_cut_off_and_is_read_there(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    written = [pen.say() for _ in range(9)]
    seal_tail(pen.log, store.segments, pen.pen.log_id, 6)

    begun = pen.log.trim(6)

    assert begun.under_way == (store.kind != "memory")
    assert wait_for(pen.log.shortening) == Shortening()
    assert list(store.log().read()) == written
    assert list(store.log().read(3, 7)) == written[2:7]
    assert list(store.log().read(7)) == written[6:]
    written.append(pen.say())
    again = writer(store.log(), "again")
    assert list(again.log.read()) == written
    assert pen.head == again.pen.head


def test_what_was_cut_off_and_lies_nowhere_is_an_error(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    for _ in range(4):
        pen.say()
    pen.log.trim(2)
    with pytest.raises(MissingEntry):
        list(store.log().read())
    assert [entry.offset for entry in store.log().read(4)] == [4]


def test_only_the_holder_of_the_pen_cuts_and_never_the_last_entry(store: Any, writer: Any) -> None:
    older = writer(store.log(), "a")
    older.say()
    older.say()
    with pytest.raises(ValueError, match="log ends with 2"):
        older.log.trim(2)
    writer(store.log(), "b")
    with pytest.raises(Fenced):
        older.log.trim(1)
    assert len(list(store.log().read())) == 2


def test_a_folder_of_segments_is_read_while_it_grows(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    reader = store.log()
    written = [pen.say() for _ in range(3)]
    for last in (1, 2):
        seal_tail(pen.log, store.segments, pen.pen.log_id, last)
        pen.log.trim(last)
        assert list(reader.read()) == written


def test_a_read_may_begin_in_the_middle_of_a_segment(sealed: FileLog, store: Any) -> None:
    whole = list(sealed.read())
    for first in range(1, 8):
        assert list(FileLog(store.segments).read(first)) == whole[first - 1 :]


def test_a_run_whose_planted_server_was_emptied_is_refused_by_its_mark(
    run_folder: Path, log_of: Any, writer: Any, tmp_path: Path
) -> None:
    server = start(run_folder)
    parent = MemoryServer(clock=lambda: 0.0).log()
    pen = writer(parent)
    pen.say()
    seal_tail(parent, tmp_path, "history")
    log = log_of(run_folder, archive=FileLog(tmp_path))
    log.plant(pen.head, pen.pen.epoch, "history")
    log._connection.call("DEL", log.keys.meta)

    with pytest.raises(LostTail, match="holds no log"):
        log_of(run_folder, archive=FileLog(tmp_path)).open("next")
    server.shutdown()
