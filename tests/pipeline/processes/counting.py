"""An environment of several turns for the quickstart's model: say the successor of a digit, again and again.

3 -> 4 <end>    6 -> 7 <end>    9 -> 0 <end>    2 -> 3 <end>
"""

from typing import Any

from rollog.pipeline.environments.multi_turn import Chat
from rollog.pipeline.training.quickstart_model import SEP, successor


async def count_on(chat: Chat, *, prompt: str, answer: str, turns: int = 4, **row: Any) -> float:
    """The mean score over all turns, in [0, 1]."""
    digit, score = int(prompt), 0.0
    for turn in range(turns):
        reply = await chat.ask(str(digit) if turn == 0 else f"{digit} {SEP}")
        score += successor(str(digit), reply.text, str((digit + 1) % 10))
        digit = (digit + 3) % 10
    return score / turns
