"""What can go wrong with a history, by who must act.

``exit_code`` is what the command line ends with (interface: 0 yes, 1 no, 2 usage, 5 log unreadable).
"""

from typing import ClassVar


class ReplayError(Exception):
    """Base of all errors of this folder."""

    exit_code: ClassVar[int] = 1


class BrokenHistory(ReplayError):
    """An event that cannot follow from what stands before it: the log was not written by a correct controller."""


class BrokenInvariant(ReplayError):
    """A law that must hold at every offset does not. ``law`` is its name, a key of ``invariants.ALL_LAWS``."""

    def __init__(self, offset: int, law: str, how: str) -> None:
        super().__init__(f"at offset {offset}: not {law}: {how}")
        self.offset, self.law, self.how = offset, law, how


class NoSuchMoment(ReplayError):
    """A reference that names no entry of this log; the message says what there is."""


class BadReference(ReplayError, ValueError):
    """Not of the form of a reference, a path or a condition: the caller must write it anew."""

    exit_code = 2


class NoSuchRun(ReplayError):
    """No run of that name: the message says where it was looked for and what is there."""

    exit_code = 2
