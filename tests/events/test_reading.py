"""A run is read wherever its log lies."""

from pathlib import Path
from typing import Any

import pytest

from rollog.events.connection import Address
from rollog.events.errors import MissingEntry
from rollog.events.file_log import FileLog, seal_tail
from rollog.events.log import Outbox
from rollog.events.reading import open_reader, segments_of
from rollog.events.server import is_running, start, start_for_reading
from rollog.events.vocabulary import Finish, FinishReason


def test_a_run_is_read_while_it_runs_after_a_crash_and_when_it_is_sealed(
    run_folder: Path, writer: Any, kill: Any, log_of: Any
) -> None:
    server = start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    pen.say()
    with open_reader(run_folder, "run") as reader:
        assert list(reader.read()) == list(log.read())
    assert is_running(run_folder)
    kill(run_folder)
    server.shutdown()
    with open_reader(run_folder, "run") as reader:
        assert [entry.offset for entry in reader.read()] == [1]
        assert is_running(run_folder)
    assert not is_running(run_folder)

    server = start(run_folder)
    pen = writer(log, "resumed")
    pen.say(Finish(reason=FinishReason.STOPPED, left=()))
    sealed = seal_tail(log, segments_of(run_folder), pen.pen.log_id)
    everything = list(log.read())
    server.shutdown()
    assert sealed is not None
    with open_reader(run_folder, "run") as reader:
        assert isinstance(reader, FileLog)
        assert list(reader.read()) == everything
    with open_reader(sealed.file) as reader:
        assert list(reader.read()) == everything
    assert not is_running(run_folder)

    start(run_folder)
    writer(log, "resumed again").say()
    kill(run_folder)
    with open_reader(run_folder, "run") as reader:
        assert [entry.offset for entry in reader.read()] == [1, 2, 3]


def test_a_server_that_only_readers_want_ends_with_the_last_of_them(run_folder: Path) -> None:
    start(run_folder).shutdown()
    with start_for_reading(run_folder), start_for_reading(run_folder) as second:
        assert not second.ours
    assert not is_running(run_folder)
    with start_for_reading(run_folder):
        start(run_folder)
    assert is_running(run_folder)


def test_where_no_log_is_the_reader_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingEntry, match="holds no log"), open_reader(tmp_path):
        pass
    assert not (tmp_path / "log").exists()


def test_entries_that_left_the_stream_are_read_from_the_segments(run_folder: Path, writer: Any, log_of: Any) -> None:
    start(run_folder)
    log = log_of(run_folder)
    pen = writer(log)
    log.append(pen.window(20))
    everything = list(log.read())
    seal_tail(log, segments_of(run_folder), pen.pen.log_id)
    log.append([(pen.sealed(), Outbox())])
    admin = Address.embedded(run_folder, "controller").connect()
    admin.call("XTRIM", "{run}:log", "MINID", "11-0")
    with pytest.raises(MissingEntry, match="neither in the stream"):
        list(log.read())
    with open_reader(run_folder, "run") as reader:
        assert list(reader.read())[:20] == everything
        assert list(reader.read(11, 12)) == everything[10:12]
        assert list(reader.read(4, 5)) == everything[3:5]
    admin.call("XTRIM", "{run}:log", "MAXLEN", 0)
    writer(log, "again").say()
    assert log.head().offset == 22
    admin.close()
