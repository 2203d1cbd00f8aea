"""Random histories of the whole controller: deaths at every call, lost answers, dead and hung workers, stops.

A failing history is named by its seed; ``rollog simulate --histories 1 --seed N`` plays it again and makes it smaller.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from rollog.events.vocabulary import Event, FinishReason, Join, Leave, Load, Stall
from rollog.pipeline.simulate import Outcome, Script, simulate
from rollog.pipeline.simulation.histories import draw, play, small_plan
from rollog.pipeline.simulation.real_server import real_server
from rollog.pipeline.simulation.world import MakeServer

LONG = 4_700
"""Histories of ``make test-long``; with those of ``make test`` they are 5,000."""


def test_a_calm_run_trains_every_prompt_once_and_in_order() -> None:
    outcome = simulate(small_plan(), 200, Script())

    assert outcome.state.finish is FinishReason.EXHAUSTED
    assert outcome.steps == {step: tuple(outcome.steps[step]) for step in range(50)}
    assert sorted(prompt for prompts in outcome.steps.values() for prompt in prompts) == list(range(200))
    assert outcome.audit.max_staleness <= 1


def test_without_the_audit_the_same_history_is_played() -> None:
    script = Script(seed=3, infra_rate=0.1, generator_deaths_per_s=0.02)

    audited, plain = (simulate(small_plan(), 40, script, audited=audited) for audited in (True, False))

    assert plain.state == audited.state


def test_a_generator_leaves_before_its_successor_joins() -> None:
    outcome = simulate(small_plan(), 60, Script(seed=5, generator_deaths_per_s=0.3))

    seen: dict[str, list[type[Event]]] = {"gen-0": [], "gen-1": []}
    for event in events(outcome):
        if isinstance(event, (Join, Leave)) and event.worker in seen:
            seen[event.worker].append(type(event))
    for came_and_went in seen.values():
        assert len(came_and_went) > 4, "it must really have died"
        assert came_and_went == ([Join, Leave] * len(came_and_went))[: len(came_and_went)]


def test_a_generator_reports_each_version_once_as_a_real_one_does() -> None:
    outcome = simulate(small_plan(), 60, Script(seed=5))

    loads = [(event.worker, event.version) for event in events(outcome) if isinstance(event, Load)]
    assert len(loads) > outcome.state.version
    assert len(set(loads)) == len(loads)


def totals(seeds: range) -> Counter[str]:
    """What happened in these histories, of which none broke a promise."""
    found: Counter[str] = Counter()
    for seed in seeds:
        outcome = play(draw(seed))
        found.update(deaths=outcome.deaths, fenced=outcome.fenced, stalls=outcome.stalls, trained=outcome.state.trained)
    return found


@pytest.mark.parametrize("block", range(12))
def test_no_history_skips_repeats_or_hangs(block: int) -> None:
    found = totals(range(block * 25, (block + 1) * 25))

    assert found["deaths"] > 50, "the controller must really have died"
    assert found["stalls"] > 0, "a run must really have stalled"
    assert found["trained"] > 250


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(10))
def test_no_history_of_many_skips_repeats_or_hangs(block: int) -> None:
    size = LONG // 10

    found = totals(range(10_000 + block * size, 10_000 + (block + 1) * size))

    assert found["deaths"] > 2_000
    assert found["fenced"] > 10


def test_generators_that_never_answer_stall_the_run_and_it_goes_on() -> None:
    flow = {"reward_timeout_s": 15.0, "rollout_timeout_s": 20.0, "stall_timeout_s": 35.0}
    failure = {"max_infra_attempts": 50}

    outcome = simulate(small_plan(flow=flow, failure=failure), 16, Script(seed=2, hang_rate=0.8))

    assert outcome.state.finish is FinishReason.EXHAUSTED
    assert outcome.state.trained == 16
    stalls = [event.text for event in events(outcome) if isinstance(event, Stall)]
    assert any("the oldest in flight is prompt" in text for text in stalls)


def events(outcome: Outcome) -> Iterator[Event]:
    for entry in outcome.world.server.log().read():
        yield from entry.events


@pytest.fixture(scope="module")
def real() -> Iterator[Callable[[str], MakeServer]]:
    """Real servers' logs by name."""
    with real_server("embedded", "simulated") as make:
        yield make


SMALL = [0, 1, 4, 5]
MORE = list(range(100, 120))


@pytest.mark.parametrize("seed", [*SMALL, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE)])
def test_a_history_makes_the_same_decisions_on_a_real_server(real: Callable[[str], MakeServer], seed: int) -> None:
    in_memory, on_a_server = play(draw(seed)), play(draw(seed), real(str(seed)))

    assert list(events(on_a_server)) == list(events(in_memory))
    assert on_a_server.deaths == in_memory.deaths
