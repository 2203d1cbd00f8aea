"""What can go wrong with a history, by who must act."""


class ReplayError(Exception):
    """Base of all errors of this folder."""


class BrokenHistory(ReplayError):
    """An event that cannot follow from what stands before it: the log was not written by a correct controller."""


class BrokenInvariant(ReplayError):
    """A law that must hold at every offset does not."""


class NoSuchMoment(ReplayError, ValueError):
    """A reference that names no entry of this log."""
