"""Random histories under context compaction: full of kills and failures, and no step is ever short."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Event, FinishReason, Replace, Shrink, Stop
from rollog.pipeline.config import Plan
from rollog.pipeline.simulate import Outcome
from rollog.pipeline.simulation.histories import History, draw, play

SEEDS = range(500, 540)


def compacting(plan: Plan) -> Plan:
    """The same settings under compaction."""
    settings = plan.settings()
    settings["model"]["max_tokens"] = 8
    settings["environment"]["play"] = "played:conversations"
    settings["compaction"] |= {"enabled": True, "max_context_tokens": 64}
    settings["failure"]["on_dropped_prompt"] = "replace"
    settings["environment"]["timeout_s"] = 10.0
    if settings["sampler"]["name"] != "in_order":
        settings["flow"]["min_groups_for_streaming"] = None
    if settings["determinism"] == "pinned":
        settings["failure"] |= {"max_skipped_prompts": 0, "filter": "none"}
    return Plan.from_settings(settings)


def drawn(seed: int) -> History:
    history = draw(seed)
    return replace(history, plan=compacting(history.plan), others=tuple(map(compacting, history.others)))


@dataclass
class Played:
    history: History
    outcome: Outcome
    events: list[Event]


def played(seed: int) -> Played:
    servers: list[MemoryServer] = []

    def make(clock: Callable[[], float]) -> MemoryServer:
        servers.append(MemoryServer(clock=clock))
        return servers[-1]

    history = drawn(seed)
    outcome = play(history, make)
    return Played(history, outcome, [event for entry in servers[0].log().read() for event in entry.events])


@pytest.fixture(scope="module")
def runs() -> list[Played]:
    return [played(seed) for seed in SEEDS]


def test_every_step_has_all_its_groups_whatever_dies(runs: list[Played]) -> None:
    for run in runs:
        trained = [prompts for step, prompts in run.outcome.steps.items() if step < run.outcome.state.version]
        sizes = {len(prompts) for prompts in trained}
        assert sizes <= {run.history.plan.grpo.prompts_per_step}, run.history.seed
        assert not [event for event in run.events if isinstance(event, Shrink)], run.history.seed


def test_spares_stand_in(runs: list[Played]) -> None:
    assert sum(isinstance(event, Replace) for run in runs for event in run.events) > 10


def test_a_run_that_cannot_fill_a_step_says_how_many_rollouts_it_has(runs: list[Played]) -> None:
    said = [event.detail or "" for run in runs for event in run.events if isinstance(event, Stop)]

    assert any(re.search(r"step \d+ has \d+ of its \d+ rollouts \(\d prompts x 2\)", detail) for detail in said)


def test_most_runs_reach_their_end(runs: list[Played]) -> None:
    ends = [run.outcome.state.finish for run in runs]

    assert None not in ends
    assert ends.count(FinishReason.FAILED) < len(ends) / 2
