"""The environment's own side: plays many conversations on one event loop.

    parent                                                     child
    {"spec", "options", "timeout_s", "max_turns"}  ->
                                                   <-          {"ready": true}  or  {"unusable": message}
    {"begin": id, "row", "prompt", "columns"}      ->
                                                   <-          {"ask": id, "messages": [message]}
    {"reply": id, "text", "cut"}                   ->
                                                   <-          {"ended": id, "score": float}  or  {"ended": id, "text"}
                                                   <-          {"failed": id, "kind", "error"}
    {"cancel": id}                                 ->          (nothing more is said of it)

Rule 1: whatever an environment raises is an answer; the child itself only ends when its parent does.
Rule 2: the clock of ``environment.timeout_s`` runs while the environment thinks and stands while the model writes.
"""

import asyncio
import math
import numbers
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgpack

from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.multi_turn import Environment, Message, Reply, blame, resolve
from rollog.pipeline.environments.pipes import LENGTH, MESSAGE_CHARS, own_pipes, read, write
from rollog.pipeline.errors import PlanError


def main() -> None:
    """Serve until the pipe closes."""
    asks, answers = own_pipes()
    hello = read(asks)
    if not hello:
        return
    try:
        environment = resolve(hello["spec"], hello["options"])
    except PlanError as error:
        write(answers, {"unusable": str(error)})
        return
    write(answers, {"ready": True})
    theater = Theater(
        environment=environment,
        name=hello["spec"],
        options=hello["options"],
        timeout_s=hello["timeout_s"],
        max_turns=hello["max_turns"],
        answers=answers,
    )
    asyncio.run(theater.serve(asks))


@dataclass(slots=True, kw_only=True)
class Talk:
    """One conversation as the environment sees it; fills ``Chat``."""

    id: str
    answers: BinaryIO
    timeout_s: float
    max_turns: int
    deadline: asyncio.Timeout
    replies: "asyncio.Queue[Reply]" = field(default_factory=asyncio.Queue)
    turns: int = 0
    asked: bool = False

    async def ask(self, message: str | Sequence[Message], *, role: str = "user") -> Reply:
        """Say something and wait for the model's reply."""
        if self.asked:
            raise RuntimeError("the environment asks while it waits for a reply; ask one question at a time")
        if self.turns == self.max_turns:
            raise RuntimeError(f"the environment asks more than environment.max_turns={self.max_turns} times")
        messages = [{"role": role, "content": message}] if isinstance(message, str) else message
        if not _are_messages(messages):
            raise TypeError(f"{message!r:.80} is neither a text nor a list of messages with role and content")
        self.turns, self.asked = self.turns + 1, True
        write(self.answers, {"ask": self.id, "messages": messages})
        self.deadline.reschedule(None)
        try:
            return await self.replies.get()
        finally:
            self.asked = False
            self.deadline.reschedule(asyncio.get_running_loop().time() + self.timeout_s)


@dataclass(slots=True, kw_only=True)
class Theater:
    """Plays every conversation that the parent begins."""

    environment: Environment
    name: str
    options: dict[str, Any]
    timeout_s: float
    max_turns: int
    answers: BinaryIO
    talks: dict[str, Talk] = field(default_factory=dict)
    tasks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    async def serve(self, asks: BinaryIO) -> None:
        """Take frames until the pipe closes."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), asks)
        while True:
            try:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                said = msgpack.unpackb(await reader.readexactly(length))
            except asyncio.IncompleteReadError:
                return
            if "begin" in said:
                self.tasks[said["begin"]] = asyncio.create_task(self.play(said["begin"], said))
            elif "reply" in said and said["reply"] in self.talks:
                self.talks[said["reply"]].replies.put_nowait(Reply(said["text"], said["cut"]))
            elif "cancel" in said and said["cancel"] in self.tasks:
                self.tasks[said["cancel"]].cancel()

    async def play(self, id: str, begun: dict[str, Any]) -> None:
        """One conversation to its end; says how it ended."""
        ended: dict[str, Any]
        row, deadline = begun["row"], asyncio.timeout(self.timeout_s)
        try:
            async with deadline:
                talk = Talk(
                    id=id, answers=self.answers, timeout_s=self.timeout_s, max_turns=self.max_turns, deadline=deadline
                )
                self.talks[id] = talk
                result = await self.environment(talk, prompt=begun["prompt"], **{**begun["columns"], **self.options})
            ended = self._ended(id, row, result)
        except (Exception, SystemExit) as error:  # noqa: BLE001  becomes a Retry
            if deadline.expired():
                what = f"took longer than environment.timeout_s={self.timeout_s:g} s over a turn"
                kind = FailureKind.INFRA
            else:
                what, kind = f"raised {type(error).__name__}: {str(error)[:MESSAGE_CHARS]}", blame(error)
            ended = {"failed": id, "kind": kind.value, "error": self._error(what, row)}
        finally:
            self.talks.pop(id, None)
            self.tasks.pop(id, None)
            sys.stdout.flush()
        write(self.answers, ended)

    def _ended(self, id: str, row: int, result: object) -> dict[str, Any]:
        if isinstance(result, str):
            return {"ended": id, "text": result}
        score = float(result) if isinstance(result, numbers.Real) else math.nan
        if math.isfinite(score):
            return {"ended": id, "score": score}
        what = f"gave {result!r:.{MESSAGE_CHARS}} where a finite float or a text is needed"
        return {"failed": id, "kind": FailureKind.DATA.value, "error": self._error(what, row)}

    def _error(self, what: str, row: int) -> str:
        return f"environment {self.name} {what}, for row {row} of the data set"


def _are_messages(said: object) -> bool:
    return isinstance(said, list) and bool(said) and all(map(_is_message, said))


def _is_message(said: object) -> bool:
    return isinstance(said, dict) and all(isinstance(said.get(key), str) for key in ("role", "content"))


if __name__ == "__main__":
    main()
