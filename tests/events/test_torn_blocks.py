"""A kill tears the append-only file inside the block of commands that one append is: no acknowledged entry pays for it.

Redis cuts such a file after its last whole command, behind an open MULTI; ``rewriting`` says what follows from that.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import servers
from rollog.events.connection import Address
from rollog.events.log import Entry
from rollog.events.reading import mark_of
from rollog.events.redis_log import RedisLog
from server_files import ServerFiles


@dataclass
class Killed:
    """A run whose server was killed after these entries."""

    folder: Path
    entries: Sequence[Entry]
    files: ServerFiles


@pytest.fixture
def killed(run_folder: Path, serve: Any, writer: Any, log_of: Any, kill: Any) -> Killed:
    """Five appended entries."""
    serve(run_folder)
    pen = writer(log_of(run_folder))
    pen.log.append(pen.window(5))
    entries = list(pen.log.read())
    kill(run_folder)
    return Killed(run_folder, entries, ServerFiles(run_folder))


def cuts_of(block: bytes) -> list[int]:
    """Before, after and inside each line of the block, which is every kind of place that a write can end at."""
    ends = [found.end() for found in re.finditer(rb"\r\n", block)]
    inside = [(first + after) // 2 for first, after in zip([0, *ends], ends, strict=False)]
    return sorted({*ends[:-1], *(end - 1 for end in ends), *inside} - {0})


def tear(killed: Killed, cut: int) -> None:
    """Leave so many bytes of the last block: its entry was never acknowledged."""
    torn = len(killed.files.last_block) - cut
    killed.files.put_back(killed.files.whole[:-torn])
    mark_of(killed.folder).path.unlink()


def survives(killed: Killed, cut: int, serve: Any, writer: Any, log_of: Any, kill: Any) -> None:
    """Tear the last block there, append two entries, kill at once, and look for all that was acknowledged."""
    tear(killed, cut)
    serve(killed.folder)
    pen = writer(log_of(killed.folder), f"after-{cut}")
    assert pen.head.offset == 4
    pen.log.append(pen.window(2))
    acknowledged = list(pen.log.read())
    kill(killed.folder)
    serve(killed.folder)
    assert list(log_of(killed.folder).read()) == acknowledged
    assert acknowledged[:4] == killed.entries[:4]
    kill(killed.folder)


@pytest.mark.parametrize("program", servers.ALL, indirect=True)
def test_what_is_acknowledged_after_a_torn_block_stays(
    killed: Killed, serve: Callable[..., Any], writer: Any, log_of: Any, kill: Any
) -> None:
    cuts = cuts_of(killed.files.last_block)
    for cut in cuts[3 :: len(cuts) // 4]:
        survives(killed, cut, serve, writer, log_of, kill)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_acknowledged_after_a_block_torn_in_any_of_its_lines_stays(
    killed: Killed, serve: Callable[..., Any], writer: Any, log_of: Any, kill: Any
) -> None:
    cuts = cuts_of(killed.files.last_block)
    assert len(cuts) > 80
    for cut in cuts[:: len(cuts) // 40]:
        survives(killed, cut, serve, writer, log_of, kill)


@pytest.mark.parametrize("program", servers.ALL, indirect=True)
def test_a_pen_waits_while_the_server_saves_for_others(
    killed: Killed, serve: Callable[..., Any], writer: Any, log_of: Any, kill: Any
) -> None:
    """A backup's BGSAVE: the server begins no new file before that has ended."""
    tear(killed, len(killed.files.last_block) * 3 // 5)
    serve(killed.folder)
    with closing(Address.embedded(killed.folder, "controller").connect()) as connection:
        connection.call("CONFIG", "SET", "rdb-key-save-delay", "500000")  # microseconds a key
        connection.call("BGSAVE")
        connection.call("CONFIG", "SET", "rdb-key-save-delay", "0")
    pen = writer(log_of(killed.folder), "after")
    pen.log.append(pen.window(2))
    acknowledged = list(pen.log.read())
    kill(killed.folder)
    serve(killed.folder)
    assert list(log_of(killed.folder).read()) == acknowledged


@pytest.mark.parametrize("program", servers.ALL, indirect=True)
def test_a_writer_that_lives_on_leaves_the_torn_block_of_another_run_behind(
    run_folder: Path, serve: Callable[..., Any], writer: Any, log_of: Any, kill: Any
) -> None:
    """Two runs on one server. The one whose block is torn has no controller; the other's never opens its log again."""
    serve(run_folder)
    with closing(RedisLog(Address.embedded(run_folder, "controller"), "other")) as log:
        other = writer(log)
        other.say()
        gone = writer(log_of(run_folder))
        gone.log.append(gone.window(5))
        kill(run_folder)
        killed = Killed(run_folder, (), ServerFiles(run_folder))
        tear(killed, len(killed.files.last_block) * 3 // 10)
        serve(run_folder)
        for _ in range(3):
            other.say()
        kill(run_folder)
        serve(run_folder)
        assert [entry.offset for entry in log.read()] == [1, 2, 3, 4]
    assert writer(log_of(run_folder), "resumed").head.offset == 4
