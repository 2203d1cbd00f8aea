"""Logs that rollogs recorded from real processes: today's rollog folds each to what it meant then.

``tests/record_history.py`` recorded them and says how a new one is made.
"""

import json
from pathlib import Path

import pytest

from record_history import HISTORIES, folded
from rollog.events.reading import open_reader
from rollog.replay.verification import verify

NAMES = sorted(path.stem for path in HISTORIES.glob("*.rollog"))
NEEDED = {
    "Borrow", "Repay", "Replace", "Divert", "Retry", "Drop", "Shrink", "Filter", "Cancel", "Evict", "Requeue", "Resume",
    "Fork", "Configure", "Stop", "Finish", "Checkpoint", "Leave",
}  # fmt: skip


def known(name: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((HISTORIES / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_log_folds_to_the_facts_and_to_the_states_that_were_written_down(name: str) -> None:
    with open_reader(HISTORIES / f"{name}.rollog") as log:
        facts, states = folded(log.read())

    assert facts == known(name)["facts"]
    assert states == known(name)["states"], f"the shape of a State? python tests/record_history.py --again {name}"


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_log_obeys_every_law(name: str) -> None:
    with open_reader(HISTORIES / f"{name}.rollog") as log:
        verdict = verify(log)

    assert verdict.holds, verdict
    assert verdict.entries == known(name)["facts"]["entries"]


def test_the_recorded_logs_show_loans_retries_filters_requeues_resumes_and_forks() -> None:
    shown = {kind for name in NAMES for kind in known(name)["facts"]["events"]}  # type: ignore[attr-defined]
    assert shown >= NEEDED
    assert {path.stem for path in HISTORIES.glob("*.json")} == set(NAMES)
    assert all(Path(HISTORIES / f"{name}.rollog").stat().st_size < 100_000 for name in NAMES)
