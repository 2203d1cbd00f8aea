"""Conversations of several turns: what an environment is, and what it is given.

    async def guess(chat: Chat, *, prompt, answer, tries=3, **row) -> float:
        reply = await chat.ask(prompt)
        for _ in range(tries - 1):
            if reply.text.strip() == answer:
                return 1.0
            reply = await chat.ask("That is not it. Try again.")
        return float(reply.text.strip() == answer)

Rule 1: an environment is ``async (chat, prompt, answer, **row) -> float | str``. One call plays one rollout: it asks
        the model as often as it likes, and ends with the rollout's reward, or with a text that the run's reward scores.
        Besides the row it gets ``environment.options`` by name.
Rule 2: it awaits whatever takes time (``asyncio.to_thread`` for what blocks): all rollouts of a worker are played by
        one event loop in a child process.
Rule 3: it has ``environment.timeout_s`` between a reply and its next question or its end, tools included. After that,
        and when nobody waits for the rollout any more, it is cancelled: ``asyncio.CancelledError`` is raised where it
        awaits, and its ``finally`` runs.
Rule 4: what it raises fails the attempt: a connection that breaks, a timeout and a server's error (status 408, 429,
        500 and above) are the machinery's fault, anything else is the data's.
Rule 5: it depends on its arguments and the replies alone, so that a rollout that is played again under the same weights
        is the same one.
Rule 6: it knows nothing of tokens and contexts. Under compaction the model may have forgotten the middle of a
        conversation (``conversation``); what it must know is said again by the environment.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rollog.events.vocabulary import FailureKind
from rollog.pipeline import named_code
from rollog.pipeline.errors import PlanError

Message = dict[str, str]
"""``{"role": ..., "content": ...}``."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered, special tokens left out. ``cut``: it reached ``model.max_tokens`` without an end."""

    text: str
    cut: bool = False


class Chat(Protocol):
    """The model, in one conversation."""

    async def ask(self, message: str | Sequence[Message], *, role: str = "user") -> Reply:
        """Say something and wait for the model's reply; a text is a message of this ``role``.

        The first messages of a conversation may be anything that a prompt may be. One question at a time.
        """
        ...


Environment = Callable[..., Awaitable[float | str]]

DEEPEST_CAUSE: Final = 8
"""Of a chain of causes, so many are looked at."""


def resolve(spec: str, options: Mapping[str, Any]) -> Environment:
    """The environment that ``module:function`` or ``file.py:function`` names. PlanError says what is wrong with it.

    This runs the module's own code, so the run does it in the environment's process only.
    """
    function = named_code.load("environment.play", spec, "function")
    if not inspect.iscoroutinefunction(function):
        raise PlanError(
            f"environment.play={spec}: it is no `async def`. Write it as async def "
            f"{spec.rpartition(':')[2]}(chat, *, prompt, answer, **row) -> float | str."
        )
    try:
        inspect.signature(function).bind(None, prompt="", answer="", source="", any_other_column="", **options)
    except TypeError as error:
        raise PlanError(
            f"environment.play={spec}: cannot be called with a row and environment.options={dict(options)}: {error}. "
            f"Give it the signature (chat, *, prompt, answer, <options>, **row) -> float | str."
        ) from error
    environment: Environment = function
    return environment


def blame(error: BaseException) -> FailureKind:
    """Whose fault it is: looks along the chain of causes for something that only the machinery does."""
    seen: BaseException | None = error
    for _ in range(DEEPEST_CAUSE):
        if seen is None:
            break
        status = getattr(seen, "status_code", getattr(seen, "status", None))
        if isinstance(status, int):
            return FailureKind.INFRA if status >= 500 or status in (408, 429) else FailureKind.DATA
        if isinstance(seen, (ConnectionError, TimeoutError, asyncio.IncompleteReadError)):
            return FailureKind.INFRA
        seen = seen.__cause__
    return FailureKind.DATA
