"""Random histories of the whole controller: deaths at every call, lost answers, dead workers, stops, clock jumps.

A failing history is named by its seed; ``history(seed)`` makes it again.
"""

import random
from typing import Any

import pytest

from rollog.events.vocabulary import FinishReason
from rollog.pipeline.config import Plan
from rollog.pipeline.simulate import Outcome, simulate
from rollog.pipeline.simulation.world import Script


def make_plan(**sections: Any) -> Plan:
    """A small plan; a section given is laid over the defaults of this file."""
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


SAMPLERS = ("in_order", "windowed", "ready_first", "weight_fifo")


def draw_plan(rng: random.Random, size: int, pinned: bool, fixed: dict[str, Any]) -> Plan:
    """Settings that a resume may change, drawn; ``fixed`` may not change."""
    name = "in_order" if pinned else rng.choice(("in_order", *SAMPLERS))
    window = rng.randint(0, 4)
    failure: dict[str, Any] = {
        "max_skipped_prompts": 0 if pinned else 100,
        "max_consecutive_dropped_prompts": 0 if pinned else 3,
        "max_data_attempts": rng.choice([1, 2, 5]),
        "min_step_fraction": rng.choice([0.01, 0.5]),
        "filter": "none" if pinned else rng.choice(["none", "equal_rewards"]),
    }
    if name == "in_order" and not pinned and rng.random() < 0.6:
        failure["on_dropped_prompt"] = "replace"
        failure["max_replacement_attempts"] = rng.randint(1, 3)
        failure["reserve_prompts"] = rng.randint(1, 2 * size)
    if name in ("windowed", "weight_fifo"):
        failure["evicted_prompts"] = rng.choice(["drop", "requeue"])
        failure["max_requeues"] = rng.randint(1, 2)
    window_name = "lookahead" if name == "in_order" else "max_staleness"
    return make_plan(
        **fixed,
        grpo={"prompts_per_step": size},
        sampler={"name": name, window_name: window, "freshest_first": name == "windowed" and rng.random() < 0.5},
        flow={
            "max_inflight_prompts": rng.choice([1, 3, 32]),
            "min_groups_for_streaming": None if pinned else rng.choice([None, 1, max(1, size // 2)]),
        },
        failure=failure,
    )


def draw(seed: int) -> tuple[Plan, list[Plan], int, Script]:
    """Settings, other settings to resume under, rows and a world, all drawn from one seed."""
    rng = random.Random(seed)
    pinned = rng.random() < 0.15
    size = rng.randint(1, 5)
    fixed = {
        "data": {"epochs": rng.randint(1, 2)},
        "checkpoint": {"every_steps": rng.randint(1, 4), "keep_last": rng.randint(1, 3)},
        "determinism": "pinned" if pinned else "off",
    }
    plan = draw_plan(rng, size, pinned, fixed)
    changing = not pinned and rng.random() < 0.5
    others = [draw_plan(rng, size, pinned, fixed) for _ in range(3)] if changing else []
    script = Script(
        seed=seed,
        generators=rng.randint(1, 3),
        slow_rate=rng.choice([0, 0.1]),
        infra_rate=rng.choice([0, 0.05]),
        data_rate=rng.choice([0, 0.1]),
        equal_rate=0.2,
        controller_death_rate=rng.choice([0, 0.02, 0.1]),
        uncertain_rate=rng.choice([0, 0.05]),
        generator_deaths_per_s=rng.choice([0, 0.05]),
        trainer_deaths_per_s=rng.choice([0, 0.02, 0.1]),
        stop_rate=rng.choice([0, 0.01]),
        clock_jump_s=rng.choice([0, 100]),
        broken_manifest_rate=rng.choice([0, 0.3]),
        limit_s=1e5,
    )
    return plan, others, rng.randint(size, 60), script


def history(seed: int) -> Outcome:
    """One history, with everything that must hold at its end asserted. The audit has checked every offset."""
    plan, others, num_rows, script = draw(seed)
    outcome = simulate(plan, num_rows, script, others=others)
    state, size = outcome.state, plan.grpo.prompts_per_step

    requeues = any(
        one.failure.evicted_prompts == "requeue" or one.sampler.name == "windowed" for one in (plan, *others)
    )
    if not requeues:
        generated_twice = {prompt for prompt, times in outcome.world.reported.items() if times > 1}
        assert not generated_twice, f"seed {seed}: a result had reached the stream and was made again"
    if state.finish is FinishReason.FAILED:
        return outcome
    assert not state.loans, f"seed {seed}: a loan is never repaid"
    if not others:
        whole = plan.sampler.name == "in_order" and plan.failure.on_dropped_prompt == "shrink"
        if whole and state.dropped + state.filtered == 0:
            for step, prompts in outcome.steps.items():
                assert sorted(prompts) == list(range(step * size, (step + 1) * size)), f"seed {seed}: step {step}"
        if plan.sampler.name != "ready_first":
            assert outcome.audit.max_staleness <= plan.sampler.window, f"seed {seed}: too stale"
    if state.finish is FinishReason.EXHAUSTED:
        assert plan.derived(num_rows).num_prompts - state.handed_out < size, f"seed {seed}: prompts never handed out"
        assert len(state.groups) < size, f"seed {seed}: a whole step is left over"
    if plan.determinism == "pinned":
        calm = simulate(plan, num_rows, Script(seed=seed, data_rate=script.data_rate))
        same = calm.state.finish is not state.finish or calm.weights == outcome.weights
        assert same, f"seed {seed}: killed and calm runs end with other weights"
    return outcome


def test_a_calm_run_trains_every_prompt_once_and_in_order() -> None:
    outcome = simulate(make_plan(), 200, Script())

    assert outcome.state.finish is FinishReason.EXHAUSTED
    assert outcome.steps == {step: tuple(outcome.steps[step]) for step in range(50)}
    assert sorted(prompt for prompts in outcome.steps.values() for prompt in prompts) == list(range(200))
    assert outcome.audit.max_staleness <= 1


@pytest.mark.parametrize("block", range(8))
def test_no_history_skips_repeats_or_hangs(block: int) -> None:
    outcomes = [history(seed) for seed in range(block * 25, (block + 1) * 25)]

    assert sum(outcome.deaths for outcome in outcomes) > 100, "the controller must really have died"
    assert sum(outcome.state.trained for outcome in outcomes) > 500


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_history_of_many_skips_repeats_or_hangs() -> None:
    deaths = sum(history(seed).deaths for seed in range(10_000, 12_000))

    assert deaths > 20_000
