"""Tools for environments: the model calls them by name, and reads what they answer.

    <tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>

is what the model writes (the form that Qwen's and Hermes' chat templates teach), and the tool's answer is what it is
told next, as a message of the role ``tool``.

Rule 1: a tool is a function, async or not, that takes its arguments by name and gives a text. One that is not async
        runs in a thread, so that it holds up no other rollout.
Rule 2: a call that cannot be made is the model's mistake: it is told so, as text, and may try again.
Rule 3: what a tool raises is not caught: who is to blame is decided as for the environment itself.
"""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from rollog.pipeline.environments.multi_turn import Chat, Message, Reply

Tool = Callable[..., Awaitable[str] | str]

CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", flags=re.DOTALL)


async def ask_with_tools(
    chat: Chat, message: str | list[Message], tools: Mapping[str, Tool], *, max_calls: int = 8
) -> Reply:
    """Ask, answer the model's calls, and return its first reply without one; after ``max_calls`` rounds, the last."""
    reply = await chat.ask(message)
    for _ in range(max_calls):
        calls = CALL.findall(reply.text)
        if not calls:
            break
        answers = [await _answer(call, tools) for call in calls]
        reply = await chat.ask("\n".join(answers), role="tool")
    return reply


async def _answer(call: str, tools: Mapping[str, Tool]) -> str:
    """What a tool answers to one call, or what is wrong with the call."""
    try:
        asked = json.loads(call)
        tool, arguments = tools[asked["name"]], asked.get("arguments", {})
    except (ValueError, KeyError, TypeError, AttributeError):
        return f'error: no tool call; write {{"name": ..., "arguments": {{...}}}} with a name of {", ".join(tools)}'
    try:
        inspect.signature(tool).bind(**arguments)
    except TypeError as error:
        return f"error: {asked['name']}: {error}"
    return await _call(tool, arguments)


async def _call(tool: Tool, arguments: Mapping[str, Any]) -> str:
    if inspect.iscoroutinefunction(tool):
        return str(await tool(**arguments))
    return str(await asyncio.to_thread(tool, **arguments))
