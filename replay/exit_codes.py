"""Exit codes, in one place: every error class and what the process ends with.

    0 yes    1 no, or failed at run time    2 usage    4 server unreachable or refused    5 log unreadable

Rule 1: ``exit_code_of`` decides by class; an error that carries an ``exit_code`` decides for itself.
Rule 2: an error that a person can mend, a full disk too, is one message on stderr, never a traceback; our own bugs keep
        theirs.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Final, ParamSpec

import typer

from rollog.events.durable import ADVICE, advice_of
from rollog.events.errors import (
    Conflict,
    CorruptEntry,
    LogError,
    LogUncertain,
    LostTail,
    MissingEntry,
    ServerRefused,
    ServerUnreachable,
    UnknownEvent,
)
from rollog.replay.errors import ReplayError

YES: Final = 0
NO: Final = 1
USAGE: Final = 2
SERVER: Final = 4
UNREADABLE: Final = 5

_OF_LOG_ERRORS: Final = {
    ServerUnreachable: SERVER,
    ServerRefused: SERVER,
    LogUncertain: SERVER,
    CorruptEntry: UNREADABLE,
    UnknownEvent: UNREADABLE,
    MissingEntry: UNREADABLE,
    LostTail: UNREADABLE,
    Conflict: UNREADABLE,
}

P = ParamSpec("P")


def exit_code_of(error: BaseException) -> int:
    """What the process ends with after this error."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    return next((code for kind, code in _OF_LOG_ERRORS.items() if isinstance(error, kind)), NO)


def mendable(*kinds: type[Exception]) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A decorator for verbs: these errors, and those of events and replay, become a message and an exit code."""
    caught: tuple[type[Exception], ...] = (LogError, ReplayError, *kinds)

    def decorate(verb: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(verb)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                verb(*args, **kwargs)
            except caught as error:
                print(f"rollog: {error}", file=sys.stderr)
                raise typer.Exit(exit_code_of(error)) from None
            except BrokenPipeError:  # the reader of our output has seen enough; stdout is closed at exit once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(YES) from None
            except OSError as error:
                if error.errno not in ADVICE:
                    raise
                print(f"rollog: {error}: {advice_of(error)}", file=sys.stderr)
                raise typer.Exit(NO) from None

        return guarded

    return decorate
