"""From groups to micro batches: which rows a rank computes together. Plain numpy.

Rule 1: rows enter a step in the order of their ordinals, so sums do not depend on the order of arrival.
Rule 2: a block of rows is padded to a multiple of Q = ranks x lcm(micro batch, logprob batch) with copies of a row of
it that carry advantage 0 and no valid token; every rank gets the same number of rows of every block.
Rule 3: under context compaction a block is one group, as groups differ in rows. Without it all groups have one row per
rollout, and a block is the whole chunk: a block of one group would be padded for nothing.
Rule 4: rows of different length are filled up on the right. A causal model never looks right, so no attention mask is
needed and the filling changes nothing on the left of it.

The numbers per block, with r rows: pad = (-r) mod Q, (r + pad) / ranks rows and (r + pad) / (ranks x micro batch) micro
batches on every rank. With Q = 4, groups of 4, 7 and 2 rows are padded by 0, 1 and 2.

Shapes: B rows, T tokens of the longest of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rollog.pipeline.rollouts import GroupRollouts, Row
from rollog.pipeline.training.advantages import group_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How rows are cut: `micro_batch` rows per forward and backward, `logprob_batch` per forward alone, `ranks`
    share."""

    micro_batch: int = 8
    logprob_batch: int = 8
    ranks: int = 1
    block_per_group: bool = False

    @property
    def multiple(self) -> int:
        """Q: every block is padded to a multiple of this many rows."""
        return self.ranks * math.lcm(self.micro_batch, self.logprob_batch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainRow:
    """A row to be trained, with its rollout's advantage. `padding`: a copy without advantage and valid tokens."""

    row: Row
    advantage: float
    padding: bool = False

    @property
    def num_valid(self) -> int:
        """Tokens that the loss counts."""
        return 0 if self.padding else self.row.num_written


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows filled up to rectangles. Column t of the last three belongs to the prediction of token t + 1.

    `tokens` [B, T] int64; `valid` [B, T - 1] bool; `generator` [B, T - 1] float32 log probabilities; `advantages` [B]
    float32.
    """

    tokens: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    generator: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]


def train_rows(group: GroupRollouts) -> list[TrainRow]:
    """The rows of a group. The advantage is computed once per rollout and copied to its rows."""
    advantages = group_norm(group.rewards)
    return [
        TrainRow(row=row, advantage=advantage)
        for rollout, advantage in zip(group.rollouts, advantages, strict=True)
        for row in rollout.rows
    ]


def blocks(groups: Sequence[GroupRollouts], shape: BatchShape) -> list[list[TrainRow]]:
    """Padded blocks of rows in ordinal order (rules 1 to 3)."""
    ordered = [train_rows(group) for group in sorted(groups, key=lambda group: group.prompt)]
    if not shape.block_per_group:
        ordered = [[row for rows in ordered for row in rows]] if ordered else []
    return [pad(rows, shape.multiple) for rows in ordered]


def pad(rows: Sequence[TrainRow], multiple: int) -> list[TrainRow]:
    """The rows and as many untrained copies of the shortest of them as make a multiple."""
    shortest = min(rows, key=lambda row: len(row.row.tokens))
    copy = replace(shortest, advantage=0.0, padding=True)
    return [*rows, *[copy] * (-len(rows) % multiple)]


def shard(block: Sequence[TrainRow], rank: int, ranks: int) -> list[TrainRow]:
    """What one rank computes of a padded block: every `ranks`-th row."""
    return list(block[rank::ranks])


def micro_batches(rows: Sequence[TrainRow], size: int) -> Iterator[MicroBatch]:
    """Cut rows into micro batches of `size`, in order; the last may be smaller if the rows were not padded."""
    for start in range(0, len(rows), size):
        yield collate(rows[start : start + size])


def collate(rows: Sequence[TrainRow]) -> MicroBatch:
    """One micro batch of the rows, filled up on the right with token 0."""
    width = max(len(row.row.tokens) for row in rows)
    valid = _rectangle([row.row.written & (not row.padding) for row in rows], width, np.bool_)
    return MicroBatch(
        tokens=_rectangle([row.row.tokens for row in rows], width, np.int64),
        valid=valid[:, 1:],
        generator=_rectangle([row.row.logprobs for row in rows], width, np.float32)[:, 1:],
        advantages=np.array([row.advantage for row in rows], dtype=np.float32),
    )


def _rectangle(arrays: Sequence[npt.NDArray[Any]], width: int, kind: type[np.generic]) -> npt.NDArray[Any]:
    filled = np.zeros((len(arrays), width), dtype=kind)
    for line, array in zip(filled, arrays, strict=True):
        line[: len(array)] = array
    return filled
