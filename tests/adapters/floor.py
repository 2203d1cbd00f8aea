"""kind "step_floor": how many groups a step closes with, and when it may not close at all."""

from collections.abc import Iterator, Mapping
from typing import Any

from adapters.ledger import Ledger
from adapters.mismatch import Mismatch, compare
from rollog.events.vocabulary import Shrink, Stop
from rollog.pipeline.scheduling import schedule


def run(scenario: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Let the step lose what it lost, and ask the scheduler what it does when the step is to be filled."""
    ledger = Ledger(
        grpo={"prompts_per_step": scenario["num_prompts_per_step"]},
        failure={"min_step_fraction": scenario["min_step_batch_fraction"]},
    )
    for prompt in range(scenario["shortfall"]):
        ledger.append(Shrink(step=0, prompt=prompt))
    match schedule(ledger.state, ledger.policy, ledger.now):
        case (Stop(),):
            got: dict[str, Any] = {"error": "RuntimeError"}
        case _:
            got = {"target": ledger.state.target(0)}
    yield from compare(scenario, "step", scenario["expect"], got)
