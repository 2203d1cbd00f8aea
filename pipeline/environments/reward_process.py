"""The reward child's own side: scores what comes in, says where a score is none, and asks the user's filter rule.

    parent                                             child
    {"spec": "module:function", "rule": "module:function" or null}  ->
                                            <-         {"ready": true}  or  {"unusable": message}
    {"samples": [[row, prompt, completion, columns]]}  ->
                                            <-         {"scores": [float]}  or  {"failed": message}
    {"group": [row, prompt, completions, rewards, columns]}  ->
                                            <-         {"refused": bool}    or  {"failed": message}

Rule: whatever a reward raises is an answer; the child itself only ends when its parent does. ``pipes`` has the frames.
"""

import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rollog.pipeline.environments.filters import Rule, resolve_rule
from rollog.pipeline.environments.pipes import MESSAGE_CHARS, own_pipes, read, write
from rollog.pipeline.environments.rewards import Reward, resolve
from rollog.pipeline.errors import PlanError


def main() -> None:
    """Serve until the pipe closes."""
    asks, answers = own_pipes()
    hello = read(asks)
    if not hello:
        return
    spec, rule_spec = hello["spec"], hello["rule"]
    try:
        reward = resolve(spec)
        rule = None if rule_spec is None else resolve_rule(rule_spec)
    except PlanError as error:
        write(answers, {"unusable": str(error)})
        return
    write(answers, {"ready": True})
    while ask := read(asks):
        if "samples" in ask:
            write(answers, answer(reward, spec, ask["samples"]))
        else:
            assert rule is not None
            write(answers, judge(rule, rule_spec, *ask["group"]))
        sys.stdout.flush()


def answer(reward: Reward, spec: str, samples: Sequence[tuple[int, Any, str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Scores of all samples, or the message of the first that has none.

    A sample: index of the row, prompt, completion, the other columns.
    """
    scores = []
    for row, prompt, completion, columns in samples:
        try:
            score = reward(prompt=prompt, completion=completion, **columns)
            number = float(score) if isinstance(score, numbers.Real) else math.nan
        except (Exception, SystemExit) as error:  # noqa: BLE001  becomes a Retry of kind data
            what = f"raised {type(error).__name__}: {str(error)[:MESSAGE_CHARS]}"
            return {"failed": f"reward {spec} {what} for row {row} of the data set"}
        if not math.isfinite(number):
            what = f"gave {score!r:.{MESSAGE_CHARS}} where a finite float is needed"
            return {"failed": f"reward {spec} {what}, for row {row} of the data set"}
        scores.append(number)
    return {"scores": scores}


def judge(
    rule: Rule, spec: str, row: int, prompt: Any, completions: Sequence[str], rewards: Sequence[float],
    columns: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Whether the rule refuses a group, or the message that says why there is no answer."""
    try:
        refused = rule(prompt=prompt, completions=completions, rewards=rewards, **columns)
    except (Exception, SystemExit) as error:  # noqa: BLE001  becomes a Retry of kind data
        what = f"raised {type(error).__name__}: {str(error)[:MESSAGE_CHARS]}"
        return {"failed": f"filter {spec} {what} for row {row} of the data set"}
    if not isinstance(refused, bool):
        what = f"gave {refused!r:.{MESSAGE_CHARS}} where true (refused) or false is needed"
        return {"failed": f"filter {spec} {what}, for row {row} of the data set"}
    return {"refused": refused}


if __name__ == "__main__":
    main()
