"""Reward functions, and how a setting names one.

Rule 1: a reward is ``(prompt, completion, answer, **row) -> float``: the row's prompt, what the model answered as text,
        the right answer, and every other column of the row by its name.
Rule 2: it is a finite number; larger is better. Only differences inside a group matter to the training.
Rule 3: it may raise. That fails the attempt as the data's fault, and names the function and the row.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from rollog.pipeline import named_code
from rollog.pipeline.errors import PlanError

Reward = Callable[..., float]


def exact(prompt: object, completion: str, answer: object, **row: object) -> float:
    """1 if the completion is the answer, apart from white space around it; else 0."""
    return float(completion.strip() == str(answer).strip())


def share_of_right_positions(prompt: object, completion: str, answer: object, **row: object) -> float:
    """Characters that stand where the answer has them, out of the length of the longer of the two; white space aside.

    In [0, 1], and 1 only for the answer itself: too short and too long both cost.
    """
    got, wanted = "".join(completion.split()), "".join(str(answer).split())
    if not got and not wanted:
        return 1.0
    return sum(a == b for a, b in zip(got, wanted, strict=False)) / max(len(got), len(wanted))


def reasoning_gym(prompt: object, completion: str, answer: object, **row: Any) -> float:
    """The task's own score, in [0, 1], of what stands in the last <answer> tag, or of the whole completion without one.

    Needs rows of ``data.path: reasoning_gym:<task>``, which carry the task's name in ``metadata``.
    """
    tagged = re.findall(r"<answer>(.*?)</answer>", completion, flags=re.DOTALL)
    entry = {"question": prompt, "answer": answer, "metadata": row["metadata"]}
    return float(_scorer(row["metadata"]["source_dataset"])((tagged[-1] if tagged else completion).strip(), entry))


def math_verify(prompt: object, completion: str, answer: object, **row: object) -> float:
    """1 if the mathematics in the completion equals the answer's, else 0: ``1/2``, ``0.5`` and a LaTeX fraction agree.

    What stands in the last ``\\boxed{}`` counts, else the last formula or number. Raises ``ValueError`` when there is
    none in the answer. The reward's deadline bounds the time, as for any reward.
    """
    from math_verify import parse, verify

    wanted = parse(str(answer), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"the answer {answer!r:.80} holds no mathematics")
    return float(verify(wanted, parse(completion, parsing_timeout=None), timeout_seconds=None))


@cache
def _scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym import get_score_answer_fn

    score: Callable[[str, dict[str, Any]], float] = get_score_answer_fn(task)
    return score


def resolve(spec: str) -> Reward:
    """The function that ``module:function`` or ``file.py:function`` names. PlanError says what is wrong with the name.

    This runs the module's own code, so the run does it in the reward child only.
    """
    function = named_code.load("reward", spec, "function")
    if not callable(function):
        raise PlanError(f"reward={spec}: it is a {type(function).__name__} and no function. Name a function.")
    _check_signature(function, spec)
    reward: Reward = function
    return reward


def _check_signature(function: Callable[..., Any], spec: str) -> None:
    """Refuse a function that the run could not call, before it has cost a generation."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C tell nothing
        return
    try:
        signature.bind(prompt="", completion="", answer="", source="", any_other_column="")
    except TypeError as error:
        raise PlanError(
            f"reward={spec}: cannot be called with a row: {error}. Give it the signature "
            f"(prompt, completion, answer, **row) -> float."
        ) from error
