"""Finished groups of rollouts, as values. Their bytes are in rollout_codec.py. No torch here.

Rule 1: a rollout is a list of rows. It has more than one where its context was compacted on the way; a row is what the
model saw and wrote in one context.
Rule 2: a row marks what the model wrote (`written`). Only these tokens carry a log probability and are trained.
Rule 3: every written token is labelled with the version of the weights that wrote it, as spans in the order of writing.
Rule 4: a value that exists is right: what does not fit together is CorruptRollouts when it is made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from rollog.pipeline.errors import PipelineError

# Means and squares of rewards stay finite.
LARGEST_REWARD: Final = 1e100


class CorruptRollouts(PipelineError):
    """Bytes or values that are no group of rollouts. The group must be generated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The next `tokens` written tokens of a row were written by the weights `version`."""

    version: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One token sequence. Arrays are read only.

    `tokens` [T] int32; `written` [T] bool, never true for the first token, which nothing predicts; `logprobs` [T]
    float32, natural logarithms under the distribution the token was drawn from, 0 where not written.
    """

    tokens: npt.NDArray[np.int32]
    written: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for array in (self.tokens, self.written, self.logprobs):
            array.flags.writeable = False
        _check_row(self)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Row)
            and self.spans == other.spans
            and np.array_equal(self.tokens, other.tokens)
            and np.array_equal(self.written, other.written)
            and np.array_equal(self.logprobs, other.logprobs)
        )

    @property
    def num_written(self) -> int:
        """Tokens that the model wrote."""
        return int(self.written.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled answer with its reward."""

    rows: tuple[Row, ...]
    reward: float

    def __post_init__(self) -> None:
        if not self.rows:
            raise CorruptRollouts("a rollout has no row; it needs at least one")
        if not abs(self.reward) <= LARGEST_REWARD:  # NaN is not
            raise CorruptRollouts(
                f"a rollout has reward {self.reward}; it must be a number of at most {LARGEST_REWARD}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRollouts:
    """All rollouts of one attempt at a prompt. `metadata` holds short texts for people; nothing is decided from it."""

    prompt: int
    attempt: int
    rollouts: tuple[Rollout, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.prompt < 0 or self.attempt < 1:
            raise CorruptRollouts(
                f"prompt {self.prompt}, attempt {self.attempt}: prompts count from 0, attempts from 1"
            )
        if not self.rollouts:
            raise CorruptRollouts(f"the group of prompt {self.prompt} has no rollout; it needs at least one")

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, rollout by rollout."""
        return tuple(row for rollout in self.rollouts for row in rollout.rows)

    @property
    def rewards(self) -> tuple[float, ...]:
        """One reward per rollout."""
        return tuple(rollout.reward for rollout in self.rollouts)

    @property
    def born(self) -> int:
        """The oldest weights that wrote a token of it."""
        return min(span.version for row in self.rows for span in row.spans)

    @property
    def done(self) -> int:
        """The newest weights that wrote a token of it."""
        return max(span.version for row in self.rows for span in row.spans)

    @property
    def num_rollouts(self) -> int:
        return len(self.rollouts)

    @property
    def num_rows(self) -> int:
        return sum(len(rollout.rows) for rollout in self.rollouts)

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The rows of each rollout; empty when each has one: what a Commit calls row_counts."""
        counts = tuple(len(rollout.rows) for rollout in self.rollouts)
        return counts if max(counts) > 1 else ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the model wrote: what a Commit calls tokens."""
        return sum(row.num_written for row in self.rows)

    @property
    def reward_mean(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards)

    @property
    def reward_std(self) -> float:
        """Standard deviation over the group (not a sample's); exactly 0 if and only if all rewards are equal.

        The mean of equal numbers can differ from them by a rounding, and the squares of tiny differences can vanish.
        """
        if min(self.rewards) == max(self.rewards):
            return 0.0
        mean = self.reward_mean
        spread = math.hypot(*(reward - mean for reward in self.rewards)) / math.sqrt(len(self.rewards))
        return max(spread, math.ulp(0.0))


def answer_row(
    *, prompt: Sequence[int], answer: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
) -> Row:
    """The row of a single answer to a prompt; `logprobs` and `versions` have one item for each token of the answer."""
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    written = np.arange(len(tokens)) >= len(prompt)
    filled = np.zeros(len(tokens), dtype=np.float32)
    filled[len(prompt) :] = logprobs
    spans = tuple(Span(version=version, tokens=len(list(run))) for version, run in groupby(versions))
    return Row(tokens=tokens, written=written, logprobs=filled, spans=spans)


def _check_row(row: Row) -> None:
    """Raises CorruptRollouts unless arrays, marks and spans of a row belong together."""
    length = len(row.tokens)
    for name, array, kind in (
        ("tokens", row.tokens, np.int32),
        ("written", row.written, np.bool_),
        ("logprobs", row.logprobs, np.float32),
    ):
        require(array.dtype == kind and array.shape == (length,), f"{name} has {array.dtype} {list(array.shape)}")
    require(length >= 2, f"a row has {length} tokens; it needs a prompt and an answer")
    require(bool((row.tokens >= 0).all()), "a token is negative")
    require(not row.written[0], "the first token of a row is marked as written")
    require(
        bool(np.isfinite(row.logprobs).all() and (row.logprobs <= 0).all()), "a log probability is above 0 or no number"
    )
    require(not row.logprobs[~row.written].any(), "a token that was not written has a log probability")
    require(all(span.version >= 0 and span.tokens >= 1 for span in row.spans), "a span is empty or has no version")
    labelled, written = sum(span.tokens for span in row.spans), row.num_written
    require(written >= 1, "the model wrote nothing in a row")
    require(labelled == written, f"the spans of a row label {labelled} tokens, {written} were written")


def require(condition: bool, what: str) -> None:
    """Raises CorruptRollouts that says `what`, unless `condition` holds."""
    if not condition:
        raise CorruptRollouts(f"these are no rollouts: {what}; the group must be generated again")
