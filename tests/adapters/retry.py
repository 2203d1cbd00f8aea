"""kind "retry": the budgets of a prompt and of the run, by the controller's own decision about each failure.

Taken away: the prompt that stops the run is backing off in ours and not lost, so that it is not among those dropped in
a row yet; the vectors count it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from adapters.ledger import BLOB, Ledger
from adapters.mismatch import Mismatch, compare
from rollog.events.messages import GroupDone, GroupFailed
from rollog.events.vocabulary import Dispatch, Drop, Event, FailureKind, Retry, Stop
from rollog.pipeline.decisions import decide
from rollog.pipeline.inputs import Answer

RAISES = {FailureKind.DATA: "raise:RolloutDataFailure", FailureKind.INFRA: "raise:RolloutRedispatchExhausted"}


def run(scenario: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Play the script of attempts and compare prompt by prompt, then slot by slot and in total."""
    bench = Bench(scenario["policy"])
    script = iter(scenario["script"])
    for number, expected in enumerate(scenario["prompts"]):
        yield from compare(scenario, f"prompt {number}", expected, bench.prompt(script))
    yield from compare(scenario, "script left", [], list(script))
    yield from compare(scenario, "slot_log", scenario["slot_log"], bench.slot_log)
    recorded = {name: value for name, value in scenario["stats"].items() if "gym_row" not in name}
    yield from compare(scenario, "stats", recorded, bench.stats())


class Bench:
    """One run in which prompts are tried one after the other."""

    def __init__(self, policy: Mapping[str, Any]) -> None:
        names = (
            "max_infra_attempts",
            "max_data_attempts",
            "backoff_base_s",
            "max_skipped_prompts",
            "max_consecutive_dropped_prompts",
        )
        failure = {name: policy[name] for name in names}
        self.ledger = Ledger(failure=failure | {"backoff_max_s": policy["max_backoff_s"]})
        self.ledger.admit()
        self.slot_log: list[list[str]] = []
        self.events: list[Event] = []
        self.attempts = 0
        self.most_in_a_row = 0

    def prompt(self, script: Iterator[str]) -> dict[str, Any]:
        """One prompt's attempts, until it is finished, given up, or stops the run."""
        ledger, state = self.ledger, self.ledger.state
        prompt = ledger.dispatch(weights=0, step=0)
        outcomes: list[str] = []
        backoffs: list[float] = []
        stopped_by: FailureKind | None = None
        events: tuple[Event, ...] = ()
        while True:
            self.slot_log.append(["reserve", f"a{self.attempts}"])
            if (outcome := next(script, None)) is None:  # ours tries more often than the recording
                break
            outcomes.append(outcome)
            events = self._answered(prompt, outcome)
            self.slot_log.append(["commit" if outcome == "ok" else "remove", f"a{self.attempts}"])
            self.attempts += 1
            match events:
                case (Retry(kind=kind), Stop()):
                    stopped_by = kind
                    break
                case (Retry(kind=kind, not_before=due),):
                    if kind is FailureKind.INFRA:
                        backoffs.append(due - ledger.now)
                    ledger.now = due
                    attempt = state.groups[prompt].attempt + 1
                    ledger.append(Dispatch(prompt=prompt, attempt=attempt, step=0, weights=0))
                case _:
                    break
        dropped = any(isinstance(event, Drop) for event in events)
        return {
            "attempts": outcomes,
            "outcome": RAISES[stopped_by] if stopped_by else "skipped" if dropped else "committed",
            "backoffs": backoffs,
            "skipped_so_far": state.skipped,
            "consecutive_infra_drops": state.consecutive_drops + (stopped_by is FailureKind.INFRA),
        }

    def _answered(self, prompt: int, outcome: str) -> tuple[Event, ...]:
        ledger = self.ledger
        group = ledger.state.groups[prompt]
        assert group.order is not None
        attempt: dict[str, Any] = {
            "prompt": prompt,
            "attempt": group.attempt,
            "cause": group.order,
            "worker": "gen-0",
        }
        result: GroupDone | GroupFailed
        if outcome == "ok":
            num = ledger.plan.grpo.rollouts_per_prompt
            made: dict[str, Any] = {"blob": BLOB, "born": 0, "done": 0, "rollouts": num, "rows": num, "tokens": num}
            result = GroupDone(**attempt, **made, reward_mean=0.5, reward_std=0.5)
        else:
            result = GroupFailed(**attempt, kind=FailureKind(outcome), error="as recorded")
        events = ledger.append(*decide(ledger.state, ledger.policy, Answer(id="0-1", result=result), ledger.now))
        self.events.extend(events)
        self.most_in_a_row = max(self.most_in_a_row, ledger.state.consecutive_drops)
        return events

    def stats(self) -> dict[str, float]:
        """The run's totals. A failure that stopped the run was no second try."""
        stopped = any(isinstance(event, Stop) for event in self.events)
        retries = [event.kind for event in self.events if isinstance(event, Retry)]
        last = retries.pop() if stopped else None
        drops = [event.kind for event in self.events if isinstance(event, Drop)]
        return {
            "rollout/committed_total": float(self.ledger.state.commits),
            "rollout/skipped_total": float(len(drops)),
            "rollout/redispatch_total": float(retries.count(FailureKind.INFRA)),
            "rollout/data_retry_total": float(retries.count(FailureKind.DATA)),
            "rollout/data_failures_total": float(drops.count(FailureKind.DATA) + (last is FailureKind.DATA)),
            "rollout/infra_drops_total": float(drops.count(FailureKind.INFRA)),
            "rollout/max_consecutive_infra_drops": float(self.most_in_a_row),
        }
