"""What can go wrong with a log, by who must act."""


class LogError(Exception):
    """Base of all errors of this folder."""


class CorruptEntry(LogError):
    """Bytes are not what was written: the reader must stop and restore the log from an archive."""


class UnknownEvent(LogError):
    """An event of a newer rollog: the reader must be updated."""


class MissingEntry(LogError):
    """An offset that is nowhere: neither in the stream nor in a segment."""


class Fenced(LogError):
    """Another controller holds the pen: this one must stop."""


class Conflict(LogError):
    """Two different entries claim one offset: a person must look."""


class LostTail(LogError):
    """The log is shorter than what was acknowledged or checkpointed: a person must decide."""


class LogUncertain(LogError):
    """No answer in time: the controller opens again with a new epoch and folds."""


class ServerUnreachable(LogError):
    """The server does not answer: start it, or correct the address."""


class ServerRefused(LogError):
    """The server answers but its settings, version or data folder would lose entries: mend what the message names."""


class DiskRefused(LogError):
    """A disk does not take what must be durable: make room or mend it, then resume."""


class MalformedMessage(LogError):
    """A worker's message that is not one: it is answered with Late and has no effect."""


class BlobError(LogError):
    """A blob is missing, too large, or not what its name says."""
