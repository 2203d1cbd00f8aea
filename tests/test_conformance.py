"""Every recorded decision is ours too, and the adapters would see it if one were not."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import conformance
from adapters import sampler
from rollog.pipeline.samplers import InOrder, ReadyFirst, Sampler, WeightFifo, Windowed
from rollog.pipeline.settings import Sampler as SamplerSettings
from rollog.replay.state import State

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "tests" / "vectors" / name for name in ("samplers.jsonl", "pump.jsonl")]


@cache
def scenarios() -> tuple[conformance.Scenario, ...]:
    """All that were recorded."""
    return tuple(scenario for path in FILES for scenario in conformance.read(path))


def test_every_vector_passes() -> None:
    mismatches = [str(mismatch) for scenario in scenarios() for mismatch in conformance.replay(scenario)]

    assert mismatches == []
    assert Counter(scenario["kind"] for scenario in scenarios()) == {
        "sampler": 205,
        "context_compaction": 10,
        "retry": 30,
        "pump": 30,
        "step_floor": 20,
        "frontier": 30,
    }


# --- the adapters are checked -----------------------------------------------------------------------------------------


def one_late(kind: type[InOrder] | type[ReadyFirst]) -> type[InOrder] | type[ReadyFirst]:
    class OneLate(kind):  # type: ignore[misc, valid-type]
        def gate_open(self, state: State) -> bool:
            return bool(state.cursor < state.version + self.window - 1)

    return OneLate


class GateNeverCloses(WeightFifo):
    def gate_open(self, state: State) -> bool:
        return True


class AnyStep(InOrder):
    def eligible(self, state: State) -> Iterator[int]:
        return iter(state.ready.by_slot.values())


class KeepsClosedSteps(InOrder):
    def too_old(self, state: State) -> Sequence[int]:
        return ()


class NoStamp(InOrder):
    stamps = False


class NoOldest(Windowed):
    def eligible(self, state: State) -> Iterator[int]:
        return iter(state.ready.by_slot.values())


class NeverAborts(Windowed):
    def oldest_useful(self, state: State) -> int:
        return 0


class EvictsTheOldestAllowed(Windowed):
    def too_old(self, state: State) -> Sequence[int]:
        return list(state.ready.older_than(self._oldest(state) + 1))


class BySlotAlways(Windowed):
    def __init__(self, max_staleness: int, freshest_first: bool = False) -> None:
        super().__init__(max_staleness)


class LastComeFirstServed(ReadyFirst):
    def eligible(self, state: State) -> Iterator[int]:
        return reversed(list(super().eligible(state)))


class AllWeights(WeightFifo):
    def eligible(self, state: State) -> Iterator[int]:
        return self.rest(state)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("in_order", one_late(InOrder)),
        ("in_order", AnyStep),
        ("in_order", KeepsClosedSteps),
        ("in_order", NoStamp),
        ("windowed", NoOldest),
        ("windowed", NeverAborts),
        ("windowed", EvictsTheOldestAllowed),
        ("windowed", BySlotAlways),
        ("ready_first", one_late(ReadyFirst)),
        ("ready_first", LastComeFirstServed),
        ("weight_fifo", GateNeverCloses),
        ("weight_fifo", AllWeights),
    ],
)
def test_a_sampler_with_one_rule_broken_gives_mismatches(name: str, broken: Callable[..., Sampler]) -> None:
    def make(settings: SamplerSettings) -> Sampler:
        more = (settings.freshest_first,) if name == "windowed" else ()
        return broken(settings.window, *more)

    own = [s for s in scenarios() if s["kind"] == "sampler" and s["sampler"]["name"] == name]

    assert any(list(sampler.run(scenario, make)) for scenario in own)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in here that is no container."""
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def altered(scenario: conformance.Scenario, path: tuple[Any, ...]) -> conformance.Scenario:
    """The same scenario with another value there."""
    copy: Any = deepcopy(scenario)
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = ["something", "else"]
    return dict(copy)


EXPECTED = {
    "sampler": {"facts", "final", "expect"},
    "context_compaction": {"expect"},
    "retry": {"prompts", "slot_log", "stats"},
    "pump": {"expect"},
    "step_floor": {"expect"},
}
"""Kind -> the keys under which stands what was recorded."""


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_recorded_value_is_compared(kind: str) -> None:
    scenario = next(s for s in scenarios() if s["kind"] == kind)
    recorded = [path for path in leaves(scenario) if EXPECTED[kind].intersection(path)]
    assert recorded

    unseen = [path for path in recorded if not conformance.replay(altered(scenario, path))]
    assert unseen == [path for path in recorded if "gym_row" in str(path[-1])], (
        "ours tries no single row of a group again"
    )


def test_a_skipped_or_repeated_prompt_of_a_resume_would_be_seen() -> None:
    scenario = next(s for s in scenarios() if s["id"] == "frontier-002")
    assert scenario["expect"]["resumed_batches"] == [[], [4, 5], [6, 7], [8, 9]]

    for batches in ([[], [5], [6, 7], [8, 9]], [[3], [4, 5], [6, 7], [8, 9]]):
        wrong = {**scenario, "expect": {**scenario["expect"], "resumed_batches": batches}}
        assert [mismatch.where for mismatch in conformance.replay(wrong)] == ["sent after the resume"]


def test_a_history_in_which_ours_has_gone_another_way_is_a_mismatch_and_no_crash() -> None:
    scenario = next(s for s in scenarios() if s["id"] == "pump-004")
    gone_astray = {**scenario, "events": [["commit", "p0", 0], *scenario["events"]]}

    assert conformance.replay(gone_astray)[-1].where == "the replay cannot go on"


# --- the command ------------------------------------------------------------------------------------------------------


def run(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.conformance", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_counts_scenarios_and_mismatches_and_fails_on_any(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.jsonl", tmp_path / "wrong.jsonl"
    floors = [scenario for scenario in scenarios() if scenario["kind"] == "step_floor"]
    right.write_text("".join(json.dumps(floor) + "\n" for floor in floors))
    wrong.write_text(json.dumps(altered(floors[0], ("expect", "error"))) + "\n")

    passed = run(right)
    assert (passed.returncode, passed.stderr) == (0, "")
    assert passed.stdout.splitlines()[-1].split() == ["all", "20", "scenarios", "0", "mismatches"]

    failed = run(right, wrong)
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1].split() == ["all", "21", "scenarios", "1", "mismatches"]
    assert failed.stdout.startswith("floor-000: step: expected {'error': ['something', 'else']}, got")


def test_the_command_refuses_what_is_no_vector_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.jsonl"
    for text, says in (('{"kind": "weather"}\n', "1: no scenario"), ("\n", "1: not JSON")):
        other.write_text(text)
        assert conformance.main([str(other)]) == 2
        assert f"{other}:{says}" in capsys.readouterr().err

    assert conformance.main([]) == conformance.main([str(tmp_path / "missing.jsonl")]) == 2
