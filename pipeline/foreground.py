"""A run in the foreground of a terminal: live progress, signals, and the exit code.

Rule 1: a signal handler only puts a wish into the mailbox. The second Ctrl-C ends everything at once; what was logged
        is not lost, and the run can be resumed.
Rule 2: the order of the end: Finish, workers leave, the tail is sealed, the embedded server ends.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from rollog.events.errors import Fenced
from rollog.events.vocabulary import StopReason
from rollog.pipeline import runner, verbs
from rollog.pipeline.inputs import StopAsked
from rollog.pipeline.launch.local import Crew
from rollog.pipeline.log_server import LogServer
from rollog.pipeline.manner import Manner
from rollog.pipeline.progress import progress_of

DRAIN_S: Final = 60.0
"""The first Ctrl-C and ``rollog stop`` let what runs finish for so long."""


def foreground(ready: runner.Ready, server: LogServer, crew: Crew | None = None, manner: Manner | None = None) -> int:
    """Drive the run with live progress, seal its log, end its server; returns the exit code."""
    manner = manner or Manner()
    progress = progress_of(manner, ready.policy.max_steps)
    manner.say(verbs.headline(ready))
    shutdown = True
    try:
        with _signals() as listen:
            end = runner.drive(ready, server, progress, time.time, listen, crew)
            server.seal()
    except Fenced:
        shutdown = False  # it is another controller's now
        raise
    except KeyboardInterrupt:
        manner.say(f"aborted; nothing that was logged is lost. resume with:  rollog resume {ready.plan.run}")
        return 130
    finally:
        progress.close()
        server.close(shutdown=shutdown)
    manner.say(verbs.farewell(ready.plan.run, end))
    manner.answer(verbs.end_model(ready.plan.run, end))
    return end.exit_code


Ask = Callable[[StopAsked], None]


@contextmanager
def _signals() -> Iterator[Callable[[Ask], None]]:
    """Signals become wishes while the run is driven; gives what tells us where to put them."""
    wishes: list[Ask] = []
    interrupts = 0

    def listen(ask: Ask) -> None:
        wishes.append(ask)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1 or not wishes:
            raise KeyboardInterrupt
        wishes[-1](StopAsked(reason=StopReason.INTERRUPT, within_s=DRAIN_S))

    def terminate(number: int, frame: FrameType | None) -> None:
        if not wishes:
            raise KeyboardInterrupt
        wishes[-1](StopAsked(reason=StopReason.TERMINATE, within_s=0.0))

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate, signal.SIGUSR1: terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
