"""What a trainer's process asks of the trainer. No engine is imported here.

Rule 1: a rank stands at a version; `close_step` is the only thing that moves it, by one.
Rule 2: what it writes (weights, checkpoints) is whole and durable when the call returns.
Rule 3: the ranks of one trainer are asked the same, in the same order. What is one for all, rank 0 writes and reports;
the others help and return None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollog.pipeline.checkpoints import Manifest, Ordered
from rollog.pipeline.rollouts import GroupRollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One optimizer step. `loss` per valid token, `grad_norm` before clipping, `rows` without the `padding` rows.

    `logprob_gap`: mean absolute difference to the generators' log probabilities, None when there is no number.
    """

    loss: float
    grad_norm: float
    tokens: int
    rows: int
    padding: int
    logprob_gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """Weights that lie ready: the folder's name under weights/, and the digest of its tensors."""

    file: str
    digest: str


class Rank(Protocol):
    """A trainer with its files."""

    @property
    def version(self) -> int:
        """Steps behind it."""
        ...

    def accumulate(self, groups: Sequence[GroupRollouts]) -> None:
        """Add a chunk's gradients to the open step."""
        ...

    def close_step(self) -> StepFacts:
        """Take the optimizer step."""
        ...

    def publish(self) -> PublishedFile | None:
        """Write the weights for generators, and delete those that nobody needs any more."""
        ...

    def save(self, ordered: Ordered) -> Manifest | None:
        """Write a checkpoint of the version that it stands at."""
        ...
