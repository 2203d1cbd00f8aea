"""A reasoning-gym task in several tries: the model is told that it was wrong, and in which direction, and tries again.

data: {path: "reasoning_gym:basic_arithmetic"}
environment: {play: rollog.pipeline.environments.reasoning_gym_turns:solve, options: {tries: 4}}
"""

from typing import Any

from rollog.pipeline.environments.multi_turn import Chat
from rollog.pipeline.environments.rewards import reasoning_gym


async def solve(chat: Chat, *, prompt: str, answer: str, tries: int = 3, discount: float = 0.8, **row: Any) -> float:
    """The task's own score, in [0, 1], of the last try, times ``discount`` for each try before it.

    A try that the task gives full marks is the last one. ``tries``: at most. Needs rows of
    ``data.path: reasoning_gym:<task>``.
    """
    reply = await chat.ask(prompt)
    for number in range(tries):
        score = reasoning_gym(prompt, reply.text, answer, **row)
        if score >= 1 or number == tries - 1:
            break
        reply = await chat.ask(hint(reply.text, answer))
    return float(score * discount**number)


def hint(tried: str, answer: str) -> str:
    """What is said after a wrong try: where the answer lies, if both are numbers."""
    try:
        low = float(tried) < float(answer)
    except ValueError:
        return "Wrong."
    return "Too low." if low else "Too high."
