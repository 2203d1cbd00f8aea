"""The witness of the soak goes red when something that was acknowledged is not in the log."""

from pathlib import Path

import pytest

from rollog.events.codec import pack_message
from rollog.events.log import Entry
from rollog.events.messages import Cause, CheckpointDone, GroupDone
from stage import Stage, small_plan
from witness import compare


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    stage = Stage(small_plan())
    stage.train_steps(1)
    return stage.entries()


def heard(folder: Path, *lines: str, torn: str = "") -> Path:
    (folder / "controller-1").write_text("".join(f"{line}\n" for line in lines) + torn)
    return folder


def line_of(entry: Entry) -> str:
    return f"ENTRY {entry.offset} {entry.digest}"


def test_what_the_log_holds_and_has_answered_is_counted(tmp_path: Path, entries: list[Entry]) -> None:
    lines = [*map(line_of, entries), "RESULT group 0 1", "RESULT step 0 1"]
    counted = compare(heard(tmp_path, *lines, torn="ENTRY 9999 a half of a dig"), entries, [])
    assert counted == {"ENTRY": len(entries), "RESULT": 2}


@pytest.mark.parametrize("line", ["RESULT group 0 2", "RESULT group 99 1", "RESULT step 7 1", "RESULT checkpoint 9-9"])
def test_a_result_without_an_answer_is_found(tmp_path: Path, entries: list[Entry], line: str) -> None:
    with pytest.raises(AssertionError, match=rf"1 acknowledged and not in the log: \['{line}'\]"):
        compare(heard(tmp_path, line), entries, [])


def test_an_entry_that_is_gone_or_is_another_is_found(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(AssertionError, match=f"ENTRY {len(entries)}"):
        compare(heard(tmp_path, *map(line_of, entries)), entries[:-1], [])
    with pytest.raises(AssertionError, match="ENTRY 3"):
        compare(heard(tmp_path, f"ENTRY 3 {entries[3].digest}"), entries, [])


def test_a_result_that_waits_still_is_not_lost(tmp_path: Path, entries: list[Entry]) -> None:
    cause = Cause(offset=1, epoch=1, digest="ab" * 16)
    group = GroupDone(
        prompt=99, attempt=1, cause=cause, blob="ab" * 32, born=0, done=0, rollouts=1, rows=1, tokens=1,
        reward_mean=0.0, reward_std=0.0, worker="w",
    )  # fmt: skip
    saved = CheckpointDone(generation=1, version=9, manifest="9-9-9", digest="ab" * 32, worker="r")
    waiting = [pack_message(group), pack_message(saved)]
    lines = ["RESULT group 99 1", "RESULT checkpoint 9-9-9"]
    assert compare(heard(tmp_path, *lines), entries, waiting) == {"RESULT": 2}
