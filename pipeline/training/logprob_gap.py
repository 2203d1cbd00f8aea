"""How far the generator's log probabilities are from the trainer's under the same weights.

Rule 1: the gap is an error of the machinery only where both sides used the same weights. On rows written by older
weights the difference is drift, which training makes on purpose.
Rule 2: it is measured on rows that the trainer's own version wrote; if a step has none, on the rows of one group that a
single version wrote, computed again under that version's published weights. If those are gone, there is no number.
Rule 3: measuring changes nothing: who computes under older weights leaves the trained ones as they were.
Rule 4: ranks that share a step's rows measure their own and add up; what is computed again, each computes whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rollog.pipeline.rollouts import GroupRollouts, Row
from rollog.pipeline.training.batching import TrainRow, train_rows

Gaps = npt.NDArray[np.float64]

Again = Callable[[int, Sequence[TrainRow]], Sequence[torch.Tensor] | None]
"""The log probabilities [T - 1] of rows under the published weights of a version; None when those are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobGap:
    """Generator against trainer under the weights `version`, over `tokens` written tokens.

    `mean` and `largest` are of the absolute difference of the two natural logarithms.
    """

    version: int
    tokens: int
    mean: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSums:
    """What ranks add up (`largest`: the largest of all)."""

    tokens: int
    total: float
    largest: float


def alone(sums: GapSums) -> GapSums:
    """The sums over all ranks, when there is one."""
    return sums


class GapMeter:
    """Collects the gaps of one step."""

    def __init__(self) -> None:
        self._gaps: list[Gaps] = []
        self._older: dict[int, GroupRollouts] = {}  # of each older version the first whole group

    def add(self, rows: Sequence[TrainRow], logprobs: Sequence[torch.Tensor], version: int) -> None:
        """Rows of the step and the trainer's log probabilities [T - 1] of each, computed by the weights `version`."""
        self._gaps += [
            _absolute(row.row, computed)
            for row, computed in zip(rows, logprobs, strict=True)
            if not row.padding and _written_by(row.row) == version
        ]

    def add_groups(self, groups: Sequence[GroupRollouts]) -> None:
        """Remember groups that could be computed again."""
        for group in sorted(groups, key=lambda group: group.prompt):
            if group.born == group.done:
                self._older.setdefault(group.born, group)

    def close(self, version: int, again: Again, together: Callable[[GapSums], GapSums] = alone) -> LogprobGap | None:
        """The gap of the step that the weights `version` are about to close. Begins a new step."""
        gap = _gap(version, together(_sums(self._gaps)))
        if gap is None:
            for older in sorted(self._older, reverse=True):
                rows = train_rows(self._older[older])
                if (logprobs := again(older, rows)) is not None:
                    gaps = [_absolute(row.row, computed) for row, computed in zip(rows, logprobs, strict=True)]
                    gap = _gap(older, _sums(gaps))
                    break
        self._gaps, self._older = [], {}
        return gap


def _written_by(row: Row) -> int | None:
    """The version that wrote every token of the row, or None if there are several."""
    return row.spans[0].version if len({span.version for span in row.spans}) == 1 else None


def _absolute(row: Row, logprobs: torch.Tensor) -> Gaps:
    """|trainer - generator| of every written token of the row."""
    written = row.written[1:]
    computed: npt.NDArray[Any] = logprobs.cpu().numpy().astype(np.float64)
    gaps: Gaps = np.abs(computed[written] - row.logprobs[1:][written])
    return gaps


def _sums(gaps: Sequence[Gaps]) -> GapSums:
    every = np.concatenate([*gaps, np.zeros(0)])
    return GapSums(tokens=every.size, total=float(every.sum()), largest=float(every.max(initial=0.0)))


def _gap(version: int, sums: GapSums) -> LogprobGap | None:
    if not sums.tokens:
        return None
    return LogprobGap(version=version, tokens=sums.tokens, mean=sums.total / sums.tokens, largest=sums.largest)
