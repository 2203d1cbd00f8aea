"""The environment of a run, in a child process of the generator: a user's code may hang, print, crash or leak.

Rule 1: nothing here waits longer than it is told to: what is to be said is queued, what was said is taken.
Rule 2: the child keeps the deadlines of its conversations itself. One that cannot, because the user's code blocks its
        loop, is killed ``GRACE_S`` later.
Rule 3: when the child dies, the conversations in which it was the environment's turn fail as the machinery's; the
        others are lost through no fault of theirs. The next conversation starts a new child.
"""

import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments import pipes
from rollog.pipeline.environments.multi_turn import Message
from rollog.pipeline.errors import PipelineError, PlanError
from rollog.pipeline.settings import Environment

GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The environment says ``messages`` and waits for a reply."""

    id: str
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The conversation has ended: with its reward (``score``), or with a ``text`` that the run's reward scores."""

    id: str
    score: float | None
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The conversation cannot be ended."""

    id: str
    kind: FailureKind
    error: str


Said = Asked | Played | Broken


def environment_of(terms: Environment) -> "EnvironmentChild | nullcontext[None]":
    """To be entered: the environment that these settings name; None when they name none."""
    return nullcontext() if terms.play is None else EnvironmentChild(terms)


class EnvironmentChild:
    """Plays conversations, many at once; each has an ``id`` of the caller's. One user at a time."""

    def __init__(
        self, terms: Environment, clock: Callable[[], float] = time.monotonic, *, grace_s: float = GRACE_S
    ) -> None:
        self._terms = terms
        self._clock = clock
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._to_send, self._received = bytearray(), bytearray()
        self._thinking: dict[str, float | None] = {}
        """Since when it has been the environment's turn in each conversation; None: it is the model's."""
        self._said: deque[Said] = deque()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the child unless it runs. PlanError: the environment is unusable."""
        if self._process is not None:
            return
        self._to_send.clear()
        self._received.clear()
        self._process = pipes.start("rollog.pipeline.environments.environment_process")
        terms = self._terms
        hello = {"spec": terms.play, "options": dict(terms.options), "timeout_s": terms.timeout_s}
        self._to_send += pipes.frame(hello | {"max_turns": terms.max_turns})
        deadline = self._clock() + pipes.START_TIMEOUT_S
        while not pipes.is_whole(self._received):
            left_s = deadline - self._clock()
            alive = left_s > 0 and self._exchange(left_s)
            if not alive and not pipes.is_whole(self._received):
                what = "takes too long" if left_s <= 0 else f"died ({pipes.ending(self._process)})"
                self.close()
                raise PipelineError(f"environment {terms.play} {what} while it was loading; see the lines above")
        reply = next(pipes.take_frames(self._received))
        if "unusable" in reply:
            self.close()
            raise PlanError(reply["unusable"])

    def begin(self, id: str, row_index: int, row: Mapping[str, Any]) -> None:
        """Begin a conversation about a row of the data set, number ``row_index``."""
        self.start()
        columns = {name: value for name, value in row.items() if name != "prompt"}
        self._send({"begin": id, "row": row_index, "prompt": row["prompt"], "columns": columns})
        self._thinking[id] = self._clock()

    def reply(self, id: str, text: str, cut: bool) -> None:
        """What the model replied."""
        if id in self._thinking:
            self._send({"reply": id, "text": text, "cut": cut})
            self._thinking[id] = self._clock()

    def cancel(self, id: str) -> None:
        """Nobody waits for this conversation any more."""
        if self._thinking.pop(id, False) is not False:
            self._send({"cancel": id})

    def hear(self, wait_s: float) -> list[Said]:
        """What was said since; waits up to ``wait_s`` seconds for the first."""
        alive = self._process is None or self._exchange(0.0 if self._said else wait_s)
        for frame in pipes.take_frames(self._received):
            self._take(frame)
        if not alive:
            assert self._process is not None
            self._lose(f"environment {self._terms.play} died ({pipes.ending(self._process)})", self._waited_for())
        hung_since = self._clock() - self._terms.timeout_s - self._grace_s
        if hung := {id for id in self._waited_for() if (self._thinking[id] or 0.0) < hung_since}:
            what = f"took longer than environment.timeout_s={self._terms.timeout_s:g} s over a turn, and does not await"
            self._lose(f"environment {self._terms.play} {what}", hung)
        said, self._said = list(self._said), deque()
        return said

    def close(self) -> None:
        """End the child and what it started, if it runs; its conversations are forgotten."""
        process, self._process = self._process, None
        self._thinking.clear()
        if process is not None:
            pipes.close(process)

    def _take(self, frame: Mapping[str, Any]) -> None:
        """One frame; nothing if it is about a conversation that nobody waits for."""
        match frame:
            case {"ask": id, "messages": messages} if id in self._thinking:
                self._thinking[id] = None
                self._said.append(Asked(id=id, messages=messages))
            case {"ended": id} if id in self._thinking:
                del self._thinking[id]
                self._said.append(Played(id=id, score=frame.get("score"), text=frame.get("text")))
            case {"failed": id, "kind": kind, "error": error} if id in self._thinking:
                del self._thinking[id]
                self._said.append(Broken(id=id, kind=FailureKind(kind), error=error))
            case _:
                pass

    def _waited_for(self) -> set[str]:
        """The conversations in which it is the environment's turn."""
        return {id for id, since in self._thinking.items() if since is not None}

    def _lose(self, what: str, to_blame: set[str]) -> None:
        """End the child, and with it every conversation."""
        for id in self._thinking:
            kind = FailureKind.INFRA if id in to_blame else FailureKind.LOST
            self._said.append(Broken(id=id, kind=kind, error=f"{what}."))
        self.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._to_send += pipes.frame(message)

    def _exchange(self, wait_s: float) -> bool:
        """Write what can be written, read what is there; waits up to ``wait_s`` for the latter. False: it is dead."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = self._clock() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if self._to_send:
                selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while ready := selector.select(max(0.0, deadline - self._clock())):
                for key, events in ready:
                    if events & selectors.EVENT_WRITE:
                        try:
                            del self._to_send[: os.write(key.fd, self._to_send[: pipes.CHUNK_BYTES])]
                        except BrokenPipeError:
                            return False
                        if not self._to_send:
                            selector.unregister(self._process.stdin)
                    else:
                        part = os.read(key.fd, pipes.CHUNK_BYTES)
                        if not part:
                            return False
                        self._received += part
                        deadline = self._clock()  # something has come: take the rest that is there, wait no more
        return True
