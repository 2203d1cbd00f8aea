"""kind "pump": a run in which prompts are dropped, spares stand in and later steps lend, and no step is trained.

The recording fixes the order of what happens: dispatches, commits and drops are inputs; what is admitted or diverted,
who stands in, who lends and what is left are ours.

    dispatch P S    the scheduler must answer with this very order, or P is a spare whose order went out with the drop
    commit P S      the group is finished
    drop P S        the attempt fails for the last time: decide says the rest, in one entry
    borrow B L M    what that entry must have said: M moved from L to B (null: nobody lends)

No trainer: version 1 was made and its trainer is gone, so that the scheduler selects nothing; the recording's step s is
ours s + 1. The gate is never closed: a lookahead beyond every batch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from adapters.ledger import Ledger
from adapters.mismatch import Mismatch, compare
from rollog.events.messages import GroupFailed
from rollog.events.vocabulary import Borrow, Dispatch, Event, FailureKind, Replace, Resume
from rollog.pipeline.decisions import decide
from rollog.pipeline.inputs import Answer
from rollog.pipeline.scheduling import schedule
from rollog.replay.state import Place

FIRST_STEP = 1
NEVER = 1000
"""Batches, steps and drops: more than any recording has."""


def run(scenario: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Replay the inputs in their order."""
    bench = Bench(scenario)
    for number, (name, *arguments) in enumerate(scenario["events"]):
        where = f"event {number} {name}"
        match name, arguments:
            case "dispatch", [prompt, step]:
                yield from compare(scenario, where, [prompt, step], bench.dispatched(ordinal(prompt)))
            case "commit", [prompt, step]:
                yield from compare(scenario, where, step, bench.committed(ordinal(prompt)))
            case "drop", [prompt, step]:
                yield from compare(scenario, where, step, bench.dropped(ordinal(prompt)))
            case "borrow", _:
                yield from compare(scenario, where, arguments, bench.borrowed)
                bench.borrowed = None
            case _:
                raise ValueError(f"the vectors' README knows no event {name!r}")
        if name != "borrow":
            following = scenario["events"][number + 1 :][:1]
            unsaid = bench.borrowed if not following or following[0][0] != "borrow" else None
            yield from compare(scenario, f"{where}: a spare that nothing recorded", None, unsaid)
    yield from compare(scenario, "end", scenario["expect"], bench.end())


class Bench:
    """One run without a trainer."""

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        failure = scenario["rollout_failure"]
        size = scenario["num_prompts_per_step"]
        self.ledger = Ledger(
            num_rows=sum(len(batch) for batch in scenario["batches"]),
            grpo={"prompts_per_step": size},
            sampler={"lookahead": NEVER},
            flow={"max_inflight_prompts": scenario["max_inflight_prompts"]},
            failure={
                "on_dropped_prompt": failure["on_dropped_prompt"],
                "max_replacement_attempts": failure["max_replacement_attempts"],
                "reserve_prompts": failure["replacement_reserve_prompts"],
                "min_step_fraction": failure["min_step_batch_fraction"],
                "max_infra_attempts": 1,
                "max_consecutive_dropped_prompts": NEVER,
            },
        )
        self.ledger.policy = replace(self.ledger.policy, max_steps=NEVER)
        self.ledger.admit()
        self.ledger.train()
        self.ledger.append(Resume(version=0, checkpoint="", reason="the trainer is gone"))
        self.borrowed: list[Any] | None = None
        self.promotions: Counter[str] = Counter()
        self.replacements: Counter[str] = Counter()
        self._admit()

    def dispatched(self, prompt: int) -> list[Any]:
        """[prompt, step] of the order that goes out now."""
        group = self.ledger.state.groups.get(prompt)
        if group is None or group.place is not Place.IN_FLIGHT:
            match self._answer():
                case (Dispatch() as order,):
                    self.ledger.append(order)
                    self._admit()
                    return [f"p{order.prompt}", shown(order.step)]
                case other:
                    return [other, None]
        return [f"p{prompt}", shown(group.step)]

    def committed(self, prompt: int) -> int | None:
        """The step of the group that is finished."""
        group = self.ledger.state.groups[prompt]
        self.ledger.commit(prompt, done=group.weights)
        self._admit()
        if group.nth:
            self.replacements[str(shown(group.step))] += 1
        return shown(group.step)

    def dropped(self, prompt: int) -> int | None:
        """The step of the prompt that is given up."""
        ledger = self.ledger
        group = ledger.state.groups[prompt]
        step = group.step
        assert group.order is not None
        failed = GroupFailed(
            prompt=prompt,
            attempt=group.attempt,
            cause=group.order,
            kind=FailureKind.INFRA,
            error="as recorded",
            worker="gen-0",
        )
        for event in ledger.append(*decide(ledger.state, ledger.policy, Answer(id="0-1", result=failed), ledger.now)):
            match event:
                case Borrow(borrower=borrower, lender=lender, prompt=moved):
                    self.borrowed = [shown(borrower), shown(lender), f"p{moved}"]
                    self.promotions[str(shown(borrower))] += 1
                case Replace(step=borrower):
                    self.borrowed = [shown(borrower), None, None]
        self._admit()
        return shown(step)

    def end(self) -> dict[str, Any]:
        """The buffer and the books as the recording writes them down."""
        state = self.ledger.state
        finished = sorted(state.at(Place.BUFFER), key=lambda group: group.slot)
        return {
            "slots": [[f"p{group.prompt}", shown(group.step)] for group in finished],
            "shortfall": {str(shown(step)): what.shortfall for step, what in state.steps.items() if what.shortfall},
            "replacements": dict(self.replacements),
            "promotions": dict(self.promotions),
            "reserve_left": [f"p{prompt}" for prompt in state.places[Place.RESERVE]],
            "capacity_permits_held": state.num_open(),
            "dispatch_index": shown(state.cursor),
        }

    def _answer(self) -> object:
        return schedule(self.ledger.state, self.ledger.policy, self.ledger.now)

    def _admit(self) -> None:
        """Let the scheduler take its turn: everything but the next order, which the recording times."""
        while isinstance(answer := self._answer(), tuple) and not isinstance(answer[0], Dispatch):
            events: tuple[Event, ...] = answer
            self.ledger.append(*events)


def ordinal(prompt: str) -> int:
    """The recording names prompts in the order in which the loader gives them."""
    return int(prompt.removeprefix("p"))


def shown(step: int | None) -> int | None:
    """Our step as the recording numbers it."""
    return None if step is None else step - FIRST_STEP
