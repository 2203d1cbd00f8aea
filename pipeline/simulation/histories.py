"""Random histories: settings, changes of settings, a world full of faults, and what must hold whatever happens.

    seed --draw--> History --play--> Outcome, or an error that says what is broken

Rule 1: a history is named by its seed; the same seed draws and plays the same one, on any log.
Rule 2: every law is checked at every offset by the audit (``replay.invariants``); here stands only what a whole history
        promises: nothing skipped, nothing repeated, no debt left, no hang, and the same weights if they are pinned.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import FinishReason
from rollog.pipeline.config import Plan
from rollog.pipeline.simulate import Outcome, simulate
from rollog.pipeline.simulation.world import MakeServer, Script
from rollog.replay.state import Place

SAMPLERS: Final = ("in_order", "windowed", "ready_first", "weight_fifo")
MAX_ROWS: Final = 32
LIMIT_S: Final = 1e5
RULE: Final = "played:refuses"
"""Names no function: scripted generators say by themselves what the user's rule refuses."""


class BrokenPromise(AssertionError):
    """A whole history shows what must never happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is played. ``others``: plans that a restart may go on under."""

    seed: int
    plan: Plan
    others: tuple[Plan, ...]
    num_rows: int
    script: Script


def small_plan(**sections: Any) -> Plan:
    """N = 4, two rollouts, a checkpoint every 3 steps; a section given is laid over these."""
    settings: dict[str, Any] = {
        "run": "simulated",
        "model": {"path": "none"},
        "data": {"path": "none.jsonl"},
        "grpo": {"prompts_per_step": 4, "rollouts_per_prompt": 2},
        "checkpoint": {"every_steps": 3},
    }
    for name, section in sections.items():
        both = isinstance(section, dict) and isinstance(settings.get(name), dict)
        settings[name] = {**settings[name], **section} if both else section
    return Plan.from_settings(settings)


def draw(seed: int) -> History:
    """Settings, other settings to resume under, rows and a world, all drawn from one seed."""
    rng = random.Random(seed)
    pinned = rng.random() < 0.15
    size = rng.randint(1, 5)
    fixed = {
        "data": {"epochs": rng.randint(1, 2)},
        "checkpoint": {"every_steps": rng.randint(1, 4), "keep_last": rng.randint(1, 3)},
        "determinism": "pinned" if pinned else "off",
    }
    plan = _draw_plan(rng, size, pinned, fixed)
    changing = not pinned and rng.random() < 0.5
    others = tuple(_draw_plan(rng, size, pinned, fixed) for _ in range(3)) if changing else ()
    return History(
        seed=seed, plan=plan, others=others, num_rows=rng.randint(size, MAX_ROWS), script=_draw_script(rng, seed)
    )


def _draw_script(rng: random.Random, seed: int) -> Script:
    return Script(
        seed=seed,
        generators=rng.randint(1, 3),
        slow_rate=rng.choice([0, 0.1]),
        hang_rate=rng.choice([0, 0, 0.1]),
        trainer_hang_rate=rng.choice([0, 0, 0.05]),
        infra_rate=rng.choice([0, 0.05]),
        data_rate=rng.choice([0, 0.1]),
        equal_rate=0.2,
        refused_rate=0.2,
        controller_death_rate=rng.choice([0, 0.02, 0.1]),
        uncertain_rate=rng.choice([0, 0.05]),
        rival_rate=rng.choice([0, 0, 0.01]),
        twice_rate=rng.choice([0, 0, 0.1]),
        late_rate=rng.choice([0, 0, 0.05]),
        generator_deaths_per_s=rng.choice([0, 0.05]),
        trainer_deaths_per_s=rng.choice([0, 0.02, 0.1]),
        stop_rate=rng.choice([0, 0.01]),
        clock_jump_s=rng.choice([0, 100]),
        broken_manifest_rate=rng.choice([0, 0.3]),
        pressure_rate=rng.choice([0, 0, 0.01]),
        limit_s=LIMIT_S,
    )


def _draw_plan(rng: random.Random, size: int, pinned: bool, fixed: Mapping[str, Any]) -> Plan:
    """Settings that a resume may change, drawn; ``fixed`` may not change."""
    name = "in_order" if pinned else rng.choice(("in_order", *SAMPLERS))
    window = rng.randint(0, 4)
    failure: dict[str, Any] = {
        "max_skipped_prompts": 0 if pinned else 100,
        "max_consecutive_dropped_prompts": 0 if pinned else 3,
        "max_data_attempts": rng.choice([1, 2, 5]),
        "min_step_fraction": rng.choice([0.01, 0.5]),
        "filter": "none" if pinned else rng.choice(["none", "equal_rewards", RULE]),
    }
    if name == "in_order" and not pinned and rng.random() < 0.6:
        failure["on_dropped_prompt"] = "replace"
        failure["max_replacement_attempts"] = rng.randint(1, 3)
        failure["reserve_prompts"] = rng.randint(1, 2 * size)
    if name in ("windowed", "weight_fifo"):
        failure["evicted_prompts"] = rng.choice(["drop", "requeue"])
        if failure["evicted_prompts"] == "requeue":
            failure["max_requeues"] = rng.randint(1, 2)
    sampler: dict[str, Any] = {"name": name, "lookahead" if name == "in_order" else "max_staleness": window}
    if name == "windowed":
        sampler["freshest_first"] = rng.random() < 0.5
    hurried = rng.random() < 0.5
    return small_plan(
        **fixed,
        grpo={"prompts_per_step": size},
        sampler=sampler,
        flow={
            "max_inflight_prompts": rng.choice([1, 3, 32]),
            "min_groups_for_streaming": None if pinned else rng.choice([None, 1, max(1, size // 2)]),
            "reward_timeout_s": 15.0,
            "rollout_timeout_s": 20.0 if hurried else 100.0,
            "stall_timeout_s": 35.0 if hurried else 150.0,
            "stall_action": "abort" if rng.random() < 0.1 else "warn",
        },
        failure=failure,
    )


def play(history: History, make_server: MakeServer = MemoryServer) -> Outcome:
    """Play it to its end. Raises ``BrokenPromise``, and what ``simulate`` raises."""
    outcome = simulate(history.plan, history.num_rows, history.script, others=history.others, make_server=make_server)
    for how in _broken(history, outcome):
        raise BrokenPromise(f"seed {history.seed}: {how}")
    return outcome


def _broken(history: History, outcome: Outcome) -> Iterator[str]:
    """What this history shows that must not be."""
    state, plan = outcome.state, history.plan
    plans = (plan, *history.others)
    if not any(each.failure.evicted_prompts == "requeue" or each.sampler.name == "windowed" for each in plans):
        twice = sorted(prompt for prompt, times in outcome.world.reported.items() if times > 1)
        if twice:
            yield f"the results of {twice} had reached the stream and were made again"
    if state.finish is FinishReason.FAILED:
        return
    if state.loans:
        yield f"the loans {sorted(state.loans)} are never repaid"
    if not history.others:
        yield from _broken_steps(plan, outcome)
    if state.finish is FinishReason.EXHAUSTED:
        size = plan.grpo.prompts_per_step
        never = plan.derived(history.num_rows).num_prompts - state.handed_out
        if never >= size:
            yield f"{never} prompts were never handed out"
        # Spares are drained in whole batches, finished groups down to the floor: less than a step of each can be left.
        spares = state.count(Place.RESERVE)
        if spares >= size or len(state.groups) - spares >= size:
            yield f"a whole step is left over: {sorted(state.groups)}, {spares} of them in the reserve"
    if plan.determinism == "pinned":
        calm = simulate(
            plan, history.num_rows, Script(seed=history.script.seed, data_rate=history.script.data_rate), audited=False
        )
        if calm.state.finish is state.finish and calm.weights != outcome.weights:
            yield "the run and one that nothing disturbs end with other weights"


def _broken_steps(plan: Plan, outcome: Outcome) -> Iterator[str]:
    """What the steps of a run under one plan show."""
    state, size = outcome.state, plan.grpo.prompts_per_step
    shrinks = plan.sampler.name == "in_order" and plan.failure.on_dropped_prompt == "shrink"
    if shrinks and state.dropped + state.filtered == 0:
        for step, prompts in outcome.steps.items():
            if sorted(prompts) != list(range(step * size, (step + 1) * size)):
                yield f"step {step} trained {sorted(prompts)}"
    if plan.sampler.name != "ready_first" and outcome.audit.max_staleness > plan.sampler.window:
        yield f"a group {outcome.audit.max_staleness} versions old was trained, K is {plan.sampler.window}"


def without(history: History, **changes: Any) -> History:
    """The same history with some of its script's settings changed."""
    return replace(history, script=replace(history.script, **changes))
