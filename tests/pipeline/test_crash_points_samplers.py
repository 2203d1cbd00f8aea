"""Crash everywhere, under replacement and under the samplers that stamp nothing.

Arrival order decides here which prompts a step trains, with or without kills. What must hold however often something
dies: every ordinal settles once, none is skipped, a group whose result had arrived is not generated again unless it was
handed out again, and being killed spends no budget.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from crashes import BLOWS, Once, everything_dies
from play import Play
from rollog.events.vocabulary import FailureKind, Finish, FinishReason, Requeue, Retry
from rollog.pipeline.config import Plan
from stage import small_plan
from watched_log import Moment

SKIPS = {"max_skipped_prompts": "unlimited", "max_data_attempts": 2, "min_step_fraction": 0.1}
REPLACES = {"on_dropped_prompt": "replace", "max_replacement_attempts": 2, "reserve_prompts": 2}
REQUEUES = {"evicted_prompts": "requeue", "max_requeues": 2}

PLANS: dict[str, dict[str, Any]] = {
    "replace": {"sampler": {"lookahead": 1}, "failure": REPLACES},
    "replace far ahead": {"sampler": {"lookahead": 2}, "failure": {**REPLACES, "reserve_prompts": 1}},
    "windowed": {"sampler": {"name": "windowed", "max_staleness": 0}, "failure": REQUEUES},
    "windowed wide": {"sampler": {"name": "windowed", "max_staleness": 2}, "failure": REQUEUES},
    "ready_first": {"sampler": {"name": "ready_first", "max_staleness": 1}},
    "weight_fifo": {"sampler": {"name": "weight_fifo", "max_staleness": 0}, "failure": REQUEUES},
    "weight_fifo wide": {"sampler": {"name": "weight_fifo", "max_staleness": 1}, "failure": REQUEUES},
}


def plan(name: str) -> Plan:
    """N = 2, streaming, a checkpoint every two steps."""
    sections = PLANS[name]
    return small_plan(
        grpo={"prompts_per_step": 2},
        checkpoint={"every_steps": 2},
        sampler=sections["sampler"],
        flow={"min_groups_for_streaming": 1},
        failure={**SKIPS, **sections.get("failure", {})},
    )


def play(name: str, blow: Callable[[Play, Moment], None] = lambda play, moment: None) -> Play:
    """16 prompts: 3 fails once by the machinery, 0 and 6 always by themselves; a stop at version 3."""
    always = frozenset({0, 6})
    return Play(plan(name), 16, blow, fails_once=frozenset({3}), fails_always=always, stop_at=3).run()


def assert_kept(run: Play, what: object) -> None:
    """The promises that hold under every sampler."""
    state, stage = run.stage.state, run.stage
    assert stage.events(Finish)[-1].reason is FinishReason.EXHAUSTED
    assert state.handed_out == state.settled() + len(state.groups), what
    assert len(state.groups) < 2, f"{what}: {sorted(state.groups)} fill no step, and more than that is left"
    again = Counter(prompt for event in stage.events(Requeue) for prompt in event.prompts)
    twice = {prompt for prompt, times in run.reported.items() if times > 1 + again[prompt]}
    assert not twice, f"{what}: {twice} were generated again although their results had arrived"
    spent = Counter(event.prompt for event in stage.events(Retry) if event.kind is not FailureKind.LOST)
    assert spent == {3: 1, 0: 1, 6: 1}, f"{what}: budgets were spent"
    assert state.dropped == 2


def crash_everywhere(name: str, blow: Callable[[Play], None], *whens: str) -> int:
    """One death at each of these moments of the run that nobody interrupts; returns how many."""
    calm = play(name)
    assert_kept(calm, "nobody died")
    moments = [moment for moment in dict.fromkeys(calm.moments) if not whens or moment.when in whens]
    for moment in moments:
        assert_kept(play(name, Once(moment, blow)), (moment, blow.__name__))
    return len(moments)


@pytest.mark.parametrize("name", ["replace far ahead", "windowed"])
def test_the_death_of_everything_after_any_entry_keeps_every_promise(name: str) -> None:
    assert crash_everywhere(name, everything_dies, "after append") > 80


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("blow", BLOWS)
@pytest.mark.parametrize("name", PLANS)
def test_one_death_at_any_moment_keeps_every_promise(name: str, blow: Callable[[Play], None]) -> None:
    assert crash_everywhere(name, blow) > 150
