"""The file operations of a process, one after another, with a chance to end it at each.

An operation is a call of the interpreter that changes a disk or waits for it. Whoever ends the process before one ends
it as SIGKILL would: the operations before it are done, nothing is flushed, nothing is cleaned up.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

OPERATIONS = frozenset({
    "open", "write", "writelines", "flush", "truncate", "ftruncate", "fsync", "fdatasync", "rename", "replace", "link",
    "symlink", "unlink", "remove", "rmdir", "mkdir", "sendfile", "copy_file_range", "serialize_file",
})  # fmt: skip


class Operations:
    """A profile function: calls ``strike(number, name)`` before every operation, counted from 0."""

    def __init__(self, strike: Callable[[int, str], None]) -> None:
        self._strike = strike
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in OPERATIONS:
            number, self.count = self.count, self.count + 1
            self._strike(number, argument.__name__)


@contextmanager
def operations(strike: Callable[[int, str], None] = lambda number, name: None) -> Iterator[Operations]:
    """Watch this thread meanwhile."""
    watched = Operations(strike)
    sys.setprofile(watched)
    try:
        yield watched
    finally:
        sys.setprofile(None)
