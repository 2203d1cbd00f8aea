"""A failing history made smaller while it still fails, so that a person can read it.

Rule 1: greedy: each change that keeps a failure is kept, until none does. Any failure counts: a smaller history may
        fail differently, and whatever it shows is as wrong.
Rule 2: the seed of the world stays; what is taken away are rows, epochs, workers, faults and changes of settings.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Final

from rollog.pipeline.simulation.histories import History, without
from rollog.pipeline.simulation.world import Script

MAX_TRIES: Final = 200
CALM: Final = Script()
KEPT: Final = ("seed", "limit_s", "group_s", "step_s", "slow_s", "orders_per_generator")

Fails = Callable[[History], str | None]
"""What is broken when it is played; None when nothing is."""


def shrink(history: History, fails: Fails, max_tries: int = MAX_TRIES) -> tuple[History, str]:
    """The smallest history found that fails, and how it fails. ``history`` must fail."""
    how = fails(history)
    assert how is not None, f"the history of seed {history.seed} does not fail"
    tries, found = 0, True
    while found and tries < max_tries:
        found = False
        for smaller in _smaller(history):
            tries += 1
            if (broken := fails(smaller)) is not None:
                history, how, found = smaller, broken, True
                break
            if tries >= max_tries:
                break
    return history, how


def _smaller(history: History) -> Iterator[History]:
    """Histories with a little less, the largest steps first."""
    if history.others:
        yield replace(history, others=())
        for left_out in range(len(history.others)):
            rest = tuple(plan for at, plan in enumerate(history.others) if at != left_out)
            if rest:
                yield replace(history, others=rest)
    size = history.plan.grpo.prompts_per_step
    for fewer in (history.num_rows // 2, history.num_rows - size, history.num_rows - 1):
        if size <= fewer < history.num_rows:
            yield replace(history, num_rows=fewer)
    script = history.script
    for name in [field.name for field in fields(Script) if field.name not in KEPT]:
        value, calm = getattr(script, name), getattr(CALM, name) if name != "generators" else 1
        if value != calm:
            yield without(history, **{name: calm})


def described(history: History) -> list[str]:
    """What is left of it, for a person."""
    plan, script = history.plan, history.script
    world = {field.name: getattr(script, field.name) for field in fields(Script)}
    faults = ", ".join(f"{name}={value}" for name, value in world.items() if value != getattr(CALM, name))
    changes = f", or {len(history.others)} other plans after a restart" if history.others else ""
    return [
        f"rows {history.num_rows} x {plan.data.epochs} epochs, {plan.grpo.prompts_per_step} prompts a step{changes}",
        f"sampler {plan.sampler}",
        f"failure {plan.failure}",
        f"flow {plan.flow}",
        f"checkpoint {plan.checkpoint}, determinism {plan.determinism}",
        f"world {faults}",
    ]
