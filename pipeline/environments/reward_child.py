"""Rewards and filter rules run in a child process: a user's code may hang, print, crash or leak, and the
generator goes on.

Rule 1: every question has a deadline. A child that misses it is killed; the next question starts a new one.
Rule 2: who is to blame decides what is tried again: a raise, a score that is no finite float and a judgement that is
        no bool are the data's failure, a missed deadline or a dead child is the machinery's.
Rule 3: MessagePack over pipes (``reward_process`` has the messages); nothing is pickled.
Rule 4: a child belongs to the thread that asks: Linux ends it when that thread ends.
"""

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments import pipes
from rollog.pipeline.environments.pipes import CHUNK_BYTES, START_TIMEOUT_S, frame, is_whole, take_frames
from rollog.pipeline.errors import PlanError, RewardFailure


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to be scored."""

    row: int
    """Index of the row in the data set, for messages."""
    prompt: Any
    completion: str
    columns: Mapping[str, Any]
    """Every column of the row but the prompt, the answer among them."""


class RewardChild:
    """Scores samples with the reward function that ``spec`` names, and judges groups. One user at a time."""

    def __init__(
        self, spec: str, timeout_s: float, clock: Callable[[], float] = time.monotonic, *, rule: str | None = None
    ) -> None:
        """``timeout_s``: longest one question may take, in seconds, the start of a child not counted.

        ``rule``: the filter rule (``filters``); None: no group is refused.
        """
        self._spec = spec
        self._rule = rule
        self._timeout_s = timeout_s
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the child unless it runs. PlanError: the reward is unusable; RewardFailure: the child died or hung."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = pipes.start("rollog.pipeline.environments.reward_process")
        reply = self._ask({"spec": self._spec, "rule": self._rule}, START_TIMEOUT_S, "was loading")
        if "unusable" in reply:
            self.close()
            raise PlanError(reply["unusable"])

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """One finite float a sample, in their order.

        RewardFailure of kind DATA names the function and the row; of kind INFRA the deadline or the child's death.
        """
        self.start()
        question = {"samples": [[sample.row, sample.prompt, sample.completion, sample.columns] for sample in samples]}
        rows = ", ".join(str(row) for row in sorted({sample.row for sample in samples}))
        reply = self._ask(question, self._timeout_s, f"was scoring row {rows} of the data set")
        if "failed" in reply:
            raise RewardFailure(FailureKind.DATA, reply["failed"])
        scores: list[float] = reply["scores"]
        return scores

    def refuses(self, samples: Sequence[Sample], rewards: Sequence[float]) -> bool:
        """Whether the filter rule refuses the group that these samples of one row are. Raises as ``score`` does."""
        if self._rule is None:
            return False
        self.start()
        first, completions = samples[0], [sample.completion for sample in samples]
        question = {"group": [first.row, first.prompt, completions, list(rewards), first.columns]}
        reply = self._ask(question, self._timeout_s, f"was judging row {first.row} of the data set by {self._rule}")
        if "failed" in reply:
            raise RewardFailure(FailureKind.DATA, reply["failed"])
        return bool(reply["refused"])

    def close(self) -> None:
        """End the child and what it started, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            pipes.close(process)

    def _ask(self, question: Mapping[str, Any], timeout_s: float, doing: str) -> dict[str, Any]:
        """Send one frame and read one, before the deadline."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = self._clock() + timeout_s
        to_send, received = memoryview(frame(question)), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not is_whole(received):
                left_s = deadline - self._clock()
                ready = selector.select(left_s) if left_s > 0 else []
                if not ready:
                    self._give_up(
                        f"took longer than {timeout_s:g} s while it {doing}. Raise flow.reward_timeout_s or mend it"
                    )
                for key, events in ready:
                    if events & selectors.EVENT_WRITE:
                        try:
                            to_send = to_send[os.write(key.fd, to_send[:CHUNK_BYTES]) :]
                        except BrokenPipeError:
                            to_send = to_send[:0]  # the read below finds the end of the pipe and says so
                        if not to_send:
                            selector.unregister(self._process.stdin)
                    else:
                        part = os.read(key.fd, CHUNK_BYTES)
                        if not part:
                            self._give_up(f"died ({pipes.ending(self._process)}) while it {doing}")
                        received += part
        return next(take_frames(received))

    def _give_up(self, what: str) -> NoReturn:
        self.close()
        raise RewardFailure(FailureKind.INFRA, f"reward {self._spec} {what}.")
