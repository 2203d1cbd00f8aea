"""A reasoning-gym task in several tries: the model is told that it was wrong, and in which direction, and tries again.

data: {path: "reasoning_gym:leg_counting"}
environment: {play: rollog.pipeline.environments.reasoning_gym_turns:solve, options: {tries: 4}}
"""

from typing import Any

from rollog.pipeline.environments.multi_turn import Chat
from rollog.pipeline.environments.rewards import reasoning_gym


async def solve(
    chat: Chat,
    *,
    prompt: str,
    answer: str,
    tries: int = 3,
    discount: float = 0.8,
    for_numbers: float = 0.0,
    **row: Any,
) -> float:
    """The task's own score, in [0, 1], of the last try, times ``discount`` for each try before it.

    A try that the task gives full marks is the last one. ``tries``: at most. ``for_numbers``: added for the share of
    tries that were numbers at all, which is what a model made from nothing learns first. Needs rows of
    ``data.path: reasoning_gym:<task>``.
    """
    reply = await chat.ask(prompt)
    numbers = 0
    for before in range(tries):
        numbers += _number(reply.text) is not None
        score = reasoning_gym(prompt, reply.text, answer, **row)
        if score >= 1 or before == tries - 1:
            break
        reply = await chat.ask(hint(reply.text, answer))
    return score * discount**before + for_numbers * numbers / (before + 1)


def hint(tried: str, answer: str) -> str:
    """What is said after a wrong try: where the answer lies, if both are numbers."""
    said, wanted = _number(tried), _number(answer)
    if said is None or wanted is None:
        return "Wrong."
    return "Too low." if said < wanted else "Too high."


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
