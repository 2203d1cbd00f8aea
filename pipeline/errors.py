"""What can go wrong when a run is prepared or driven, by who must act.

Rule 1: a message says what happened, with the value, and what to do next.
Rule 2: ``exit_code`` is what the command line ends with.
"""

from typing import ClassVar

from rollog.events.vocabulary import FailureKind


class PipelineError(Exception):
    """Base of all errors of this folder."""

    exit_code: ClassVar[int] = 1


class PlanError(PipelineError, ValueError):
    """A setting is unknown, wrong, or at odds with another: whoever wrote the settings must correct it."""

    exit_code = 2


class DataError(PipelineError, ValueError):
    """The data set cannot be read: its owner must mend the file, line or column named."""

    exit_code = 2


class ModelError(PipelineError, ValueError):
    """The model cannot be loaded: correct ``model.path`` or its files."""

    exit_code = 2


class RewardFailure(PipelineError):
    """An answer could not be scored; becomes a failed attempt of the given kind."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RunFailed(PipelineError):
    """The run cannot go on: the message names the cause; mend it, then resume. Nothing that was logged is lost."""
