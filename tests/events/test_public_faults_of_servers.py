"""Public faults of logs on real servers: trimmed by somebody, evicted under memory pressure, counted by the server.

Each docstring names the fault by its number and its report. The reports are about pending lists and consumer groups;
here the same faults are played on dense offsets, which the log counts itself.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollog.events.errors import LostTail, MissingEntry, ServerRefused
from rollog.events.file_log import GrowingLog, seal_tail
from rollog.events.redis_log import RedisLog
from rollog.events.server import EmbeddedServer
from rollog.events.server_settings import settings_check

RUNS = itertools.count(1)


@pytest.fixture
def run() -> str:
    return f"reports-{next(RUNS)}"


@pytest.fixture
def admin(server: EmbeddedServer) -> Iterator[Any]:
    connection = server.address().connect()
    yield connection
    connection.close()


@pytest.fixture
def log(server: EmbeddedServer, run: str, tmp_path: Path) -> Iterator[RedisLog]:
    segments = tmp_path / "segments"
    segments.mkdir()
    made = RedisLog(server.address(), run, archive=GrowingLog(segments))
    yield made
    made.close()


def test_entries_that_somebody_trimmed_are_missing_by_their_number_and_never_passed_over(
    server: EmbeddedServer, log: Any, writer: Any, admin: Any, run: str
) -> None:
    """B67, redis#10756: what was read, not done, and trimmed came back as an id without a value."""
    pen = writer(log)
    entries = [pen.say() for _ in range(5)]
    assert list(log.read(1, 2)) == entries[:2], "read, and its reader dies before anything came of it"
    admin.call("XTRIM", f"{{{run}}}:log", "MINID", "4-0")
    restarted = RedisLog(server.address(), run)
    for first in (1, 2, 3):  # the entry before it is read too: the digests chain
        with pytest.raises(MissingEntry, match=f"entry {max(1, first - 1)} is neither in the stream nor in a segment"):
            next(restarted.read(first))
    assert restarted.open("second").head.offset == 5
    assert list(restarted.read(5)) == entries[4:]
    restarted.close()


def test_a_server_that_may_evict_keys_is_refused_and_a_key_that_went_is_not_made_anew(
    server: EmbeddedServer, log: Any, writer: Any, admin: Any, run: str
) -> None:
    """B71, redis#6576: at maxmemory with allkeys-lru the whole stream was evicted."""
    try:
        for policy in ("allkeys-lru", "volatile-ttl"):
            admin.call("CONFIG", "SET", "maxmemory-policy", policy)
            with pytest.raises(ServerRefused, match="put the line `maxmemory-policy noeviction`"):
                settings_check(admin)
    finally:
        admin.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    settings_check(admin)

    pen = writer(log)
    pen.say()
    admin.call("DEL", f"{{{run}}}:log")
    with pytest.raises(LostTail, match="log of this run is gone"):
        pen.say()
    with pytest.raises(LostTail, match="log of this run is gone"):
        writer(log, "second")
    assert admin.call("EXISTS", f"{{{run}}}:log") == 0


def test_how_far_a_reader_is_behind_is_counted_by_the_logs_own_offsets_whatever_was_trimmed(
    log: Any, writer: Any, admin: Any, run: str, tmp_path: Path
) -> None:
    """B82, redis#13957: the lag that the server counts is wrong after a trim."""
    pen = writer(log)
    entries = [pen.say() for _ in range(6)]
    read_to = entries[1].offset
    assert log.head().offset - read_to == len(list(log.read(read_to + 1))) == 4
    seal_tail(log, tmp_path / "segments", "id", 4)
    log.trim(4)

    assert admin.call("XLEN", f"{{{run}}}:log") == 2
    assert log.head().offset - read_to == len(list(log.read(read_to + 1))) == 4
    assert list(log.read(read_to + 1)) == entries[2:]
