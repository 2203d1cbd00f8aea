"""Forks of random histories, at random entries, under random changes, each played to its end and audited from entry 1.

The audit holds the fork's whole line to every law: nothing of the parent's part is skipped, repeated or left behind.
"""

import random
from collections import Counter

import pytest

from rollog.events.vocabulary import FinishReason, Fork
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError
from rollog.pipeline.forking import NoFork
from rollog.pipeline.simulate import Outcome
from rollog.pipeline.simulation.forks import play_fork
from rollog.pipeline.simulation.histories import draw, play
from rollog.replay.projector import fold_all
from rollog.replay.state import State

CHANGES = ("nothing", "sampler", "prompts_per_step", "seed", "rows")


def terms(before: State, what: str, rng: random.Random) -> tuple[Plan, int]:
    """The plan and the rows of a fork that changes ``what``."""
    settings, num_rows = Plan.from_settings(before.settings).settings(), before.num_rows
    match what:
        case "sampler":
            settings["sampler"] = {"name": rng.choice(["windowed", "ready_first"]), "max_staleness": rng.randint(0, 3)}
            settings["failure"] |= {"on_dropped_prompt": "shrink", "max_replacement_attempts": 1, "reserve_prompts": 1}
            settings["failure"] |= {"evicted_prompts": "drop", "max_requeues": 1}
            settings["determinism"] = "off"
        case "prompts_per_step":
            settings["grpo"]["prompts_per_step"] = rng.randint(1, 6)
            settings["flow"]["min_groups_for_streaming"] = None
        case "seed":
            settings["seed"] = 77
        case "rows":
            num_rows += rng.randint(1, 20)
    return Plan.from_settings(settings), num_rows


def forks_of(seed: int, counts: "Counter[str]") -> list[Outcome]:
    """The parent is played; each fork begins in the one before it."""
    history, rng = draw(seed), random.Random(seed)
    line = [play(history)]
    for _ in range(3):
        parent = line[-1]
        log = parent.world.server.log()
        offset, what = rng.randint(1, log.head().offset), rng.choice(CHANGES)
        try:
            plan, num_rows = terms(fold_all(log.read(1, offset)), what, rng)
            fork = play_fork(parent, offset, plan, num_rows, history.script)
        except (NoFork, PlanError) as refused:
            counts[type(refused).__name__] += 1
            continue
        counts[what] += 1
        state = fork.state
        if state.finish is FinishReason.EXHAUSTED:
            left = plan.derived(num_rows, state.slate).num_prompts - state.handed_out
            assert left < plan.grpo.prompts_per_step, f"seed {seed}: {left} prompts were never handed out"
        same_end = (state.finish, state.version) == (parent.state.finish, parent.state.version)
        if what == "nothing" and plan.determinism == "pinned" and parent.state.rules == state.rules and same_end:
            counts["pinned"] += 1
            assert fork.weights == parent.weights, f"seed {seed}: a fork at {offset} ends with other weights"
        line.append(fork)
    return line


def test_forks_of_random_histories_obey_every_law_from_the_first_entry_on() -> None:
    counts: Counter[str] = Counter()
    lines = [forks_of(seed, counts) for seed in range(24)]

    assert all(counts[what] >= 3 for what in CHANGES), counts
    longest = max(lines, key=len)
    assert len(longest) == 4
    entries = longest[-1].world.server.log().read()
    assert any(isinstance(event, Fork) for entry in entries for event in entry.events)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_forks_of_many_random_histories_obey_every_law() -> None:
    counts: Counter[str] = Counter()
    for seed in range(20_000, 20_300):
        forks_of(seed, counts)

    assert sum(counts[what] for what in CHANGES) > 400, counts
    assert counts["pinned"] > 3, counts
