"""Rollouts of several rows in one step: how many rows each rank gets, and that the maths does not notice."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollog.pipeline.rollout_codec import decode, encode
from rollog.pipeline.rollouts import GroupRollouts, Rollout, Row, Span
from rollog.pipeline.training.batching import BatchShape, MicroBatch, TrainRow, blocks, micro_batches, shard
from rollog.pipeline.training.grpo_loss import LossSettings
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.torch_trainer import TorchTrainer, TrainerSettings

GroupMaker = Callable[..., GroupRollouts]
Gradient = dict[str, torch.Tensor]


def shares(groups: Sequence[GroupRollouts], shape: BatchShape) -> list[list[list[TrainRow]]]:
    """[rank][group] -> the rows that the rank computes of it."""
    padded = blocks(groups, shape)
    return [[shard(block, rank, shape.ranks) for block in padded] for rank in range(shape.ranks)]


def batches(share: Sequence[Sequence[TrainRow]], shape: BatchShape) -> list[MicroBatch]:
    """The micro batches of one rank, group by group."""
    return [batch for rows in share for batch in micro_batches(rows, shape.micro_batch)]


def test_the_worked_example_of_six_rollouts_on_four_ranks(random_group: GroupMaker) -> None:
    """Rows 1+3, 2+5 and 1+1, micro batch 1, logprob batch 1, four ranks: Q = 4."""
    shape = BatchShape(micro_batch=1, logprob_batch=1, ranks=4, block_per_group=True)
    groups = [random_group(0, rows=(1, 3)), random_group(1, rows=(2, 5)), random_group(2, rows=(1, 1))]

    padded = blocks(groups, shape)
    rows = [row for block in padded for row in block]

    assert shape.multiple == 4
    assert [group.num_rows for group in groups] == [4, 7, 2]
    assert [len(block) for block in padded] == [4, 8, 4]
    assert sum(group.num_rollouts for group in groups) == 6
    assert (len(rows), sum(not row.padding for row in rows), sum(row.padding for row in rows)) == (16, 13, 3)
    assert [len(batches(share, shape)) for share in shares(groups, shape)] == [4, 4, 4, 4]
    assert [[len(rows) for rows in share] for share in shares(groups, shape)] == [[1, 2, 1]] * 4
    assert sum(row.num_valid for row in rows) == sum(group.num_tokens for group in groups)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=5),
    micro=st.integers(1, 5),
    logprob=st.integers(1, 5),
    ranks=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_each_real_token_counts_once_padding_never_and_ranks_are_equal(
    random_group: GroupMaker, counts: list[list[int]], micro: int, logprob: int, ranks: int, seed: int
) -> None:
    shape = BatchShape(micro_batch=micro, logprob_batch=logprob, ranks=ranks, block_per_group=True)
    groups = [random_group(prompt, rows=rows, seed=seed) for prompt, rows in enumerate(counts)]
    by_rank = shares(groups, shape)

    for number, group in enumerate(groups):
        of_group = [share[number] for share in by_rank]
        padded = group.num_rows + (-group.num_rows) % shape.multiple
        assert {len(rows) for rows in of_group} == {padded // ranks}
        assert all(len(rows) % micro == len(rows) % logprob == 0 for rows in of_group)
        trained = Counter(id(row.row) for rows in of_group for row in rows if not row.padding)
        assert trained == Counter(id(row) for row in group.rows), "each row once"
        copies = [row for rows in of_group for row in rows if row.padding]
        assert len(copies) < shape.multiple
        assert all(copy.advantage == 0 and id(copy.row) in trained for copy in copies), "of a row of the same group"
    computed = [batches(share, shape) for share in by_rank]
    assert len({len(of_rank) for of_rank in computed}) == 1
    assert all(batch.tokens.shape[0] == micro for of_rank in computed for batch in of_rank)
    valid = sum(int(batch.valid.sum()) for of_rank in computed for batch in of_rank)
    assert valid == sum(group.num_tokens for group in groups)


# --- the gradient -----------------------------------------------------------------------------------------------------


def a_row(tokens: Sequence[int], written: Sequence[bool], logprobs: Sequence[float]) -> Row:
    marks = np.array(written, dtype=np.bool_)
    return Row(
        tokens=np.array(tokens, dtype=np.int32),
        written=marks,
        logprobs=np.where(marks, logprobs, 0).astype(np.float32),
        spans=(Span(version=0, tokens=int(marks.sum())),),
    )


def in_one_row(numbers: np.random.Generator, replies: int) -> Row:
    """A prompt, and replies with something said between them."""
    marks = [False] * 3
    for _ in range(replies):
        marks += [True] * int(numbers.integers(1, 4)) + [False] * 2
    length = len(marks)
    return a_row(numbers.integers(0, 13, length), marks, list(-3 * numbers.random(length)))


def split(row: Row) -> tuple[Row, ...]:
    """One row for each reply; each sees all that came before its reply, as it did in one row."""
    rows, end = [], 0
    for written, run in groupby(row.written.tolist()):
        begin, end = end, end + len(list(run))
        if written:
            marks = np.zeros(end, dtype=np.bool_)
            marks[begin:end] = True
            rows.append(a_row(row.tokens[:end], list(marks), list(row.logprobs[:end])))
    return tuple(rows)


def gradient(folder: Path, groups: Sequence[GroupRollouts], shape: BatchShape) -> Gradient:
    loss = LossSettings(importance_cap=math.inf)
    trainer = TorchTrainer(load_model(folder), TrainerSettings(max_steps=9, shape=shape, loss=loss))
    trainer.accumulate(groups)
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def test_a_rollout_split_into_rows_that_see_the_same_context_has_the_gradient_of_one_row(model_folder: Path) -> None:
    numbers = np.random.default_rng(5)
    whole, parted = [], []
    for prompt in range(3):
        one = [(in_one_row(numbers, replies), float(numbers.integers(0, 5))) for replies in (1, 3, 2, 5)]
        for made, rows_of in ((whole, lambda row: (row,)), (parted, split)):
            rollouts = tuple(Rollout(rows=rows_of(row), reward=reward) for row, reward in one)
            made.append(GroupRollouts(prompt=prompt, attempt=1, rollouts=rollouts))
    assert [group.num_rows for group in parted] == [11, 11, 11]

    shape = BatchShape(micro_batch=3, logprob_batch=2, block_per_group=True)
    before, after = gradient(model_folder, whole, shape), gradient(model_folder, parted, shape)

    largest = max(float(tensor.abs().max()) for tensor in before.values())
    difference = max(float((before[name] - after[name]).abs().max()) for name in before)
    print(f"largest gradient {largest:.3g}, largest difference {difference:.3g}")
    assert largest > 1e-3
    assert difference < 1e-5 * largest


def test_the_order_of_groups_and_of_rollouts_and_the_padding_change_nothing(
    model_folder: Path, random_group: GroupMaker
) -> None:
    groups = [random_group(0, rows=(1, 3)), random_group(1, rows=(2, 5)), random_group(2, rows=(1, 1))]
    turned = [
        GroupRollouts(prompt=group.prompt, attempt=1, rollouts=tuple(reversed(group.rollouts)))
        for group in reversed(groups)
    ]
    plain = gradient(model_folder, groups, BatchShape(micro_batch=1, logprob_batch=1, block_per_group=True))

    for shape in (BatchShape(micro_batch=5, logprob_batch=3, block_per_group=True), BatchShape(micro_batch=4)):
        other = gradient(model_folder, turned, shape)
        largest = max(float(tensor.abs().max()) for tensor in plain.values())
        assert max(float((plain[name] - other[name]).abs().max()) for name in plain) < 1e-5 * largest


def test_a_group_with_several_rows_is_trained_after_its_blob_was_read_again(
    model_folder: Path, random_group: GroupMaker
) -> None:
    """B31, NVIDIA-NeMo/RL#4200: rollouts of 1, 3, 2 and 1 rows, one reward each, padding that is not trained."""
    group = random_group(0, rows=(1, 3, 2, 1))
    restored = decode(encode(group))
    shape = BatchShape(micro_batch=4, logprob_batch=4, block_per_group=True)
    (block,) = blocks([restored], shape)

    assert restored == group
    assert (restored.row_counts, len(restored.rewards)) == ((1, 3, 2, 1), 4)
    assert [row.padding for row in block] == [False] * 7 + [True]
    before, after = gradient(model_folder, [group], shape), gradient(model_folder, [restored], shape)
    assert all(torch.equal(before[name], after[name]) for name in before)
