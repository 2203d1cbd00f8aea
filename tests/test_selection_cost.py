"""No question about the buffer, and no event, costs more because the buffer is full: counted in calls, not in time."""

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from rollog.replay.projector import fold


def load() -> ModuleType:
    """The benchmark that measures the same in microseconds."""
    path = Path(__file__).resolve().parent.parent / "benchmarks" / "selection.py"
    spec = spec_from_file_location("benchmark_selection", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["benchmark_selection"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = load()


def calls(what: Callable[..., object], *arguments: object) -> int:
    """Calls of functions, of C functions, and resumptions of generators while this runs."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        what(*arguments)
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("sampler", benchmark.SAMPLERS)
def test_selecting_scheduling_and_folding_do_not_grow_with_the_buffer(sampler: str) -> None:
    costs = []
    for size in (benchmark.SMALL, 20 * benchmark.SMALL):
        buffer = benchmark.build(sampler, size)
        assert len(buffer.state.ready.by_slot) == size
        cost = {
            "selecting": calls(benchmark.selecting, buffer),
            "scheduling": calls(benchmark.scheduling, buffer),
            "folding": sum(calls(fold, buffer.state, entry) for entry in benchmark.life(buffer, 1)),
        }
        buffer.append(*benchmark.selection(buffer))
        cost["waiting"] = calls(benchmark.scheduling, buffer)
        costs.append(cost)

    few, many = costs
    assert {what: cost for what, cost in many.items() if cost > 2 * few[what]} == {}


def test_a_question_that_looks_at_each_buffered_group_would_be_seen() -> None:
    few, many = (benchmark.build("in_order", size).state for size in (benchmark.SMALL, 20 * benchmark.SMALL))

    def looks(state: object) -> int:
        return calls(lambda: sum(group.step == 0 for group in state.groups.values()))  # type: ignore[attr-defined]

    assert looks(many) > 2 * looks(few)
