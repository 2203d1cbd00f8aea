"""The server's files are torn, flipped or replaced: the log loads as it was, or is refused with what to do.

The append-only file has no checksum: a server loads most single flipped bits without a word. The digest chain, the mark
and the messages' own digests have to notice.
"""

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollog.events.codec import unpack_message
from rollog.events.connection import Address
from rollog.events.errors import (
    Conflict,
    CorruptEntry,
    LostTail,
    MalformedMessage,
    MissingEntry,
    ServerRefused,
)
from rollog.events.log import Entry
from rollog.events.messages import GroupDone, Message, Order
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.events.server import is_running
from server_files import ServerFiles

REFUSALS = (ServerRefused, LostTail, CorruptEntry, MissingEntry, Conflict)
SAYS_WHAT_TO_DO = ("restore", "another program", "something else wrote", "ended at its start")


@dataclass
class Written:
    """What a run's server holds; the server has ended. The mark knows of the last entry."""

    folder: Path
    entries: Sequence[Entry]
    results: Sequence[Message]
    files: ServerFiles


@pytest.fixture
def written(run_folder: Path, serve: Any, writer: Any, log_of: Any) -> Written:
    """Orders, leases, two results that nobody has answered, and entries after them."""
    server = serve(run_folder)
    pen = writer(log_of(run_folder))
    for prompt in range(4):
        pen.dispatch(prompt)
    with closing(RedisDesk(Address.embedded(run_folder, "worker"), "run")) as desk:
        results = [result_of(order) for order in desk.take_up_to(2, "w", 1, 0)]
        desk.report_all([(result, f"p:{result.prompt}") for result in results])
    pen.say(time=20.0)
    pen.say(time=30.0)
    entries = list(pen.log.read())
    server.shutdown()
    return Written(run_folder, entries, results, ServerFiles(run_folder))


def result_of(order: Order) -> GroupDone:
    return GroupDone(
        prompt=order.prompt, attempt=order.attempt, cause=order.cause, blob="ab" * 32, born=0, done=0, rollouts=4,
        rows=4, tokens=100, reward_mean=0.5, reward_std=0.25, worker="w",
    )  # fmt: skip


def load(folder: Path, written: Written, serve: Any, writer: Any, log_of: Any) -> str:
    """Start a server there, take the pen and read everything: ``right``, or the kind of the refusal.

    An error of another kind, another entry or another result fail the test.
    """
    try:
        serve(folder)
        log: RedisLog = log_of(folder)
        log.open("again")
        entries = list(log.read())
    except REFUSALS as refused:
        helpful = any(words in str(refused).lower() for words in SAYS_WHAT_TO_DO)
        return type(refused).__name__ if helpful else f"no advice: {refused}"
    assert entries == written.entries
    for delivery in log.results(None, 0):
        try:
            assert unpack_message(delivery.body) in written.results
        except MalformedMessage:
            return "right, a result is malformed"
    return "right"


def test_a_torn_tail_is_refused_wherever_it_is_torn_before_the_mark(
    written: Written, serve: Any, writer: Any, log_of: Any, kill: Any
) -> None:
    whole = written.files.whole
    assert load(written.folder, written, serve, writer, log_of) == "right"
    kill(written.folder)
    for cut in (1, 40, 400, len(whole) // 2, len(whole) - 10, len(whole)):
        written.files.put_back(whole[: len(whole) - cut])
        assert load(written.folder, written, serve, writer, log_of) == "LostTail"
        kill(written.folder)


def test_a_tail_that_was_torn_while_it_was_written_is_cut_off_and_the_log_goes_on(
    written: Written, serve: Any, writer: Any, log_of: Any, kill: Any
) -> None:
    """Half an entry that nobody has acknowledged, as a power cut leaves it."""
    last = written.files.last_block
    for part in (len(last) // 2, len(last) - 1):
        written.files.put_back(written.files.whole + last[:part])
        assert load(written.folder, written, serve, writer, log_of) == "right"
        kill(written.folder)
    serve(written.folder)
    pen = writer(log_of(written.folder), "later")
    pen.say()
    assert pen.log.head().offset == 7


def test_a_flipped_bit_in_an_entry_is_found(written: Written, serve: Any, writer: Any, log_of: Any, kill: Any) -> None:
    whole = bytearray(written.files.whole)
    whole[whole.index(b"\xa4what") + 6] ^= 1
    written.files.put_back(whole)
    assert load(written.folder, written, serve, writer, log_of) == "CorruptEntry"


def test_a_flipped_bit_in_a_waiting_result_makes_it_malformed_and_not_another_result(
    written: Written, serve: Any, writer: Any, log_of: Any, kill: Any
) -> None:
    whole = bytearray(written.files.whole)
    whole[whole.index(b"reward_mean") + 14] ^= 1
    written.files.put_back(whole)
    assert load(written.folder, written, serve, writer, log_of) == "right, a result is malformed"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_60_single_flipped_bits_load_right_or_are_refused(
    written: Written, serve: Any, writer: Any, log_of: Any, kill: Any, tmp_path: Path
) -> None:
    """In all of the server's files, most of them where most of the bytes are."""
    rng = random.Random(60)
    files = sorted(file for file in written.files.folder.iterdir() if file.stat().st_size > 0)
    targets = [*(rng.choice(files) for _ in range(6)), *[written.files.last] * 54]
    seen: Counter[str] = Counter()
    for number, target in enumerate(targets):
        folder = tmp_path / f"flip-{number}"
        shutil.copytree(written.folder, folder)
        copy = folder / target.relative_to(written.folder)
        data = bytearray(copy.read_bytes())
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << (bit % 8)
        copy.write_bytes(data)
        try:
            seen[load(folder, written, serve, writer, log_of)] += 1
        finally:
            if is_running(folder):
                kill(folder)
            shutil.rmtree(folder, ignore_errors=True)  # a killed server's rewrite may still be writing there
    assert seen.total() == 60
    assert not [outcome for outcome in seen if outcome.startswith("no advice")]
    assert seen["CorruptEntry"] > 5
    assert seen["right"] > 5


def test_an_older_copy_of_the_data_folder_is_refused(
    written: Written, serve: Any, writer: Any, log_of: Any, kill: Any, tmp_path: Path
) -> None:
    """Somebody restored a backup: the server is sound, and behind."""
    backup = tmp_path / "backup"
    shutil.copytree(written.folder / "log", backup)
    server = serve(written.folder)
    writer(log_of(written.folder), "later").say(time=40.0)
    server.shutdown()
    shutil.rmtree(written.folder / "log")
    shutil.copytree(backup, written.folder / "log")
    serve(written.folder)
    with pytest.raises(LostTail, match=r"1 acknowledged entries are missing.*restore the server's data"):
        log_of(written.folder).open("again")


def test_the_data_folder_of_another_run_is_refused(
    written: Written, serve: Any, writer: Any, log_of: Any, kill: Any, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    server = serve(other)
    pen = writer(log_of(other), "other")
    for _ in range(8):
        pen.say()
    server.shutdown()
    shutil.rmtree(written.folder / "log")
    shutil.copytree(other / "log", written.folder / "log")
    serve(written.folder)
    with pytest.raises(LostTail, match="the server holds the log other, this run's log is first: restore"):
        log_of(written.folder).open("again")
