"""The reward child's own side: scores what comes in, says where a score is none, and asks the user's filter rule.

    frame = 4 bytes length, big endian, then MessagePack

    parent                                             child
    {"spec": "module:function", "rule": "module:function" or null}  ->
                                            <-         {"ready": true}  or  {"unusable": message}
    {"samples": [[row, prompt, completion, columns]]}  ->
                                            <-         {"scores": [float]}  or  {"failed": message}
    {"group": [row, prompt, completions, rewards, columns]}  ->
                                            <-         {"refused": bool}    or  {"failed": message}

Rule 1: stdout belongs to the frames. Before any user's code runs, what prints there goes to stderr, C libraries too.
Rule 2: whatever a reward raises is an answer; the child itself only ends when its parent does.
Rule 3: data comes as plain values; nothing that is read can run code.
"""

import ctypes
import math
import numbers
import os
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

import msgpack

from rollog.pipeline.environments.filters import Rule, resolve_rule
from rollog.pipeline.environments.rewards import Reward, resolve
from rollog.pipeline.errors import PlanError

LENGTH: Final = struct.Struct(">I")
PR_SET_PDEATHSIG: Final = 1
MESSAGE_CHARS: Final = 300


def main() -> None:
    """Serve until the pipe closes."""
    _end_with_parent()
    asks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    hello = _read(asks)
    if not hello:
        return
    spec, rule_spec = hello["spec"], hello["rule"]
    try:
        reward = resolve(spec)
        rule = None if rule_spec is None else resolve_rule(rule_spec)
    except PlanError as error:
        _write(answers, {"unusable": str(error)})
        return
    _write(answers, {"ready": True})
    while ask := _read(asks):
        if "samples" in ask:
            _write(answers, answer(reward, spec, ask["samples"]))
        else:
            assert rule is not None
            _write(answers, judge(rule, rule_spec, *ask["group"]))
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


def _end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, even while user's code never comes back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(pipe: BinaryIO) -> dict[str, Any]:
    """The next frame; empty at the end of the pipe."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return {}
    frame: dict[str, Any] = msgpack.unpackb(pipe.read(*LENGTH.unpack(head)))
    return frame


def _write(pipe: BinaryIO, frame: Mapping[str, Any]) -> None:
    body = msgpack.packb(frame, unicode_errors="replace")
    pipe.write(LENGTH.pack(len(body)) + body)
    pipe.flush()


if __name__ == "__main__":
    main()
