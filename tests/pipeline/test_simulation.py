"""Random histories of the whole controller: deaths at every call, lost answers, dead workers, stops, clock jumps.

A failing history is named by its seed; ``history(seed)`` makes it again.
"""

import random
from typing import Any

import pytest

from rollog.events.vocabulary import FinishReason
from rollog.pipeline.config import Plan
from rollog.pipeline.scripted import Script
from rollog.pipeline.simulate import Outcome, simulate


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


def draw(seed: int) -> tuple[Plan, int, Script]:
    """Settings, rows and a world, all drawn from one seed."""
    rng = random.Random(seed)
    pinned = rng.random() < 0.3
    size = rng.randint(1, 5)
    plan = make_plan(
        grpo={"prompts_per_step": size},
        sampler={"lookahead": rng.randint(0, 4)},
        data={"epochs": rng.randint(1, 2)},
        checkpoint={"every_steps": rng.randint(1, 4), "keep_last": rng.randint(1, 3)},
        flow={
            "max_inflight_prompts": rng.choice([1, 3, 32]),
            "min_groups_for_streaming": None if pinned else rng.choice([None, 1]),
        },
        failure={
            "max_skipped_prompts": 0 if pinned else 100,
            "max_consecutive_dropped_prompts": 0 if pinned else 3,
            "max_data_attempts": rng.choice([2, 5]),
            "min_step_fraction": 0.01,
        },
        determinism="pinned" if pinned else "off",
    )
    script = Script(
        seed=seed,
        generators=rng.randint(1, 3),
        slow_rate=rng.choice([0, 0.1]),
        infra_rate=rng.choice([0, 0.05]),
        data_rate=rng.choice([0, 0.05]),
        controller_death_rate=rng.choice([0, 0.02, 0.1]),
        uncertain_rate=rng.choice([0, 0.05]),
        generator_deaths_per_s=rng.choice([0, 0.05]),
        trainer_deaths_per_s=rng.choice([0, 0.02, 0.1]),
        stop_rate=rng.choice([0, 0.01]),
        clock_jump_s=rng.choice([0, 100]),
        broken_manifest_rate=rng.choice([0, 0.3]),
    )
    return plan, rng.randint(size, 60), script


def history(seed: int) -> Outcome:
    """One history, with everything that must hold at its end asserted. The audit has checked every offset."""
    plan, num_rows, script = draw(seed)
    outcome = simulate(plan, num_rows, script)
    state, size = outcome.state, plan.grpo.prompts_per_step

    generated_twice = {prompt for prompt, times in outcome.world.reported.items() if times > 1}
    assert not generated_twice, f"seed {seed}: a result had reached the stream and was made again"
    if state.dropped == 0:
        for step, prompts in outcome.steps.items():
            assert sorted(prompts) == list(range(step * size, (step + 1) * size)), f"seed {seed}: step {step}"
    if state.finish is FinishReason.EXHAUSTED:
        assert state.trained + state.dropped == plan.derived(num_rows).max_steps * size, f"seed {seed}"
        assert not state.groups, f"seed {seed}: something is left over"
    if plan.determinism == "pinned" and state.finish is FinishReason.EXHAUSTED:
        calm = simulate(plan, num_rows, Script(seed=seed, data_rate=script.data_rate))
        assert calm.weights == outcome.weights, f"seed {seed}: killed and calm runs end with other weights"
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
