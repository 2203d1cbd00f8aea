"""How far the generator's log probabilities are from the trainer's under the same weights.

Rule 1: the gap is an error of the machinery only where both sides used the same weights. On rows written by older
weights the difference is drift, which training makes on purpose.
Rule 2: it is measured on rows that the trainer's own version wrote; if a step has none, on the rows of one group that a
single version wrote, computed again under that version's published weights. If those are gone, there is no number.
Rule 3: measuring changes nothing: the older weights go into a copy of the model.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from rollog.pipeline.rollouts import GroupRollouts, Row
from rollog.pipeline.training.batching import TrainRow, train_rows
from rollog.pipeline.training.logprobs import Forward, row_logprobs
from rollog.pipeline.training.weights import load_into, published

Gaps = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobGap:
    """Generator against trainer under the weights `version`, over `tokens` written tokens.

    `mean` and `largest` are of the absolute difference of the two natural logarithms.
    """

    version: int
    tokens: int
    mean: float
    largest: float


class GapMeter:
    """Collects the gaps of one step. `weights` is the folder of published weights, None if there is none."""

    def __init__(self, weights: Path | None) -> None:
        self._weights = weights
        self._gaps: list[Gaps] = []
        self._older: dict[int, GroupRollouts] = {}  # of each older version the first whole group
        self._scratch: PreTrainedModel | None = None
        self._scratch_digest = ""

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

    def close(self, model: PreTrainedModel, version: int, forward: Forward) -> LogprobGap | None:
        """The gap of the step that `model`, at `version`, is about to close. Begins a new step."""
        gap = _summary(version, self._gaps)
        if gap is None:
            for older in sorted(self._older, reverse=True):
                if self._load(model, older):
                    gap = self._computed_again(self._older[older], older, forward)
                    break
        self._gaps, self._older = [], {}
        return gap

    def _load(self, model: PreTrainedModel, version: int) -> bool:
        """Put the published weights of `version` into the copy. False if there is not exactly one such file."""
        files = [weights for weights in published(self._weights) if weights.version == version] if self._weights else []
        if self._weights is None or len(files) != 1:
            return False
        if self._scratch is None:
            self._scratch = copy.deepcopy(model).requires_grad_(False)
            self._scratch.zero_grad(set_to_none=True)
        if self._scratch_digest != files[0].digest:
            load_into(self._scratch, self._weights / files[0].file, files[0].digest)
            self._scratch_digest = files[0].digest
        return True

    def _computed_again(self, group: GroupRollouts, version: int, forward: Forward) -> LogprobGap | None:
        assert self._scratch is not None
        rows = train_rows(group)
        logprobs = row_logprobs(self._scratch, rows, forward)
        return _summary(version, [_absolute(row.row, computed) for row, computed in zip(rows, logprobs, strict=True)])


def _written_by(row: Row) -> int | None:
    """The version that wrote every token of the row, or None if there are several."""
    return row.spans[0].version if len({span.version for span in row.spans}) == 1 else None


def _absolute(row: Row, logprobs: torch.Tensor) -> Gaps:
    """|trainer - generator| of every written token of the row."""
    written = row.written[1:]
    computed: npt.NDArray[Any] = logprobs.cpu().numpy().astype(np.float64)
    gaps: Gaps = np.abs(computed[written] - row.logprobs[1:][written])
    return gaps


def _summary(version: int, gaps: Sequence[Gaps]) -> LogprobGap | None:
    if not gaps:
        return None
    every = np.concatenate(gaps)
    return LogprobGap(version=version, tokens=every.size, mean=float(every.mean()), largest=float(every.max()))
