"""Rows, padding, shards and micro batches: only counts and order matter here."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.training.advantages import group_norm
from rollog.pipeline.training.batching import BatchShape, blocks, micro_batches, shard, train_rows

GroupMaker = Callable[..., GroupRollouts]


def test_the_example_of_four_ranks(random_group: GroupMaker) -> None:
    shape = BatchShape(micro_batch=1, logprob_batch=1, ranks=4, block_per_group=True)
    groups = [random_group(0, rows=(1, 3)), random_group(1, rows=(2, 5)), random_group(2, rows=(1, 1))]

    padded = blocks(groups, shape)

    assert [len(block) for block in padded] == [4, 8, 4]
    assert [sum(row.padding for row in block) for block in padded] == [0, 1, 2]
    per_rank = [[batch for block in padded for batch in micro_batches(shard(block, rank, 4), 1)] for rank in range(4)]
    assert [len(batches) for batches in per_rank] == [4, 4, 4, 4]


def test_the_example_of_different_batches(random_group: GroupMaker) -> None:
    shape = BatchShape(micro_batch=2, logprob_batch=3, ranks=2, block_per_group=True)

    padded = blocks([random_group(0, rows=(1, 1)), random_group(1, rows=(2, 5))], shape)

    assert shape.multiple == 12
    assert [sum(row.padding for row in block) for block in padded] == [10, 5]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    shape=st.builds(
        BatchShape,
        micro_batch=st.integers(1, 4),
        logprob_batch=st.integers(1, 4),
        ranks=st.integers(1, 3),
        block_per_group=st.booleans(),
    ),
)
def test_every_valid_token_is_in_exactly_one_micro_batch_of_one_rank(
    random_group: GroupMaker, rows: list[list[int]], shape: BatchShape
) -> None:
    groups = [random_group(prompt, rows=counts) for prompt, counts in enumerate(rows)]

    batches_of = [
        [
            batch
            for block in blocks(groups, shape)
            for batch in micro_batches(shard(block, rank, shape.ranks), shape.micro_batch)
        ]
        for rank in range(shape.ranks)
    ]

    valid = sum(int(batch.valid.sum()) for batches in batches_of for batch in batches)
    assert valid == sum(group.num_tokens for group in groups)
    assert len({len(batches) for batches in batches_of}) == 1, "every rank computes as many micro batches"
    assert all(len(batch.tokens) == shape.micro_batch for batches in batches_of for batch in batches)


def test_padding_copies_a_row_without_advantage_and_valid_tokens(random_group: GroupMaker) -> None:
    (block,) = blocks([random_group(0, rows=(1, 2))], BatchShape(micro_batch=8, logprob_batch=8))
    copies = [row for row in block if row.padding]

    assert len(copies) == 5
    assert all(copy.advantage == 0 and copy.num_valid == 0 for copy in copies)
    assert all(any(copy.row is row.row for row in block[:3]) for copy in copies)
    (batch,) = micro_batches(block, 8)
    assert not batch.valid[3:].any()


def test_rows_enter_in_the_order_of_ordinals_however_groups_arrive(random_group: GroupMaker) -> None:
    groups = [random_group(prompt) for prompt in range(5)]

    def order(arrived: list[GroupRollouts]) -> list[int]:
        return [id(row.row) for block in blocks(arrived, BatchShape()) for row in block if not row.padding]

    assert order([groups[i] for i in (3, 0, 4, 2, 1)]) == order(groups)


def test_an_advantage_is_computed_once_per_rollout_and_copied_to_its_rows(random_group: GroupMaker) -> None:
    group = random_group(0, rows=(3, 1, 2))
    first, second, third = group_norm(group.rewards)

    assert [row.advantage for row in train_rows(group)] == [first, first, first, second, third, third]


def test_a_column_of_a_micro_batch_belongs_to_the_prediction_of_the_next_token(random_group: GroupMaker) -> None:
    group = random_group(0, rows=(1, 1))
    (batch,) = micro_batches(train_rows(group), 2)

    for line, row in enumerate(group.rows):
        length = len(row.tokens)
        np.testing.assert_array_equal(batch.tokens[line, :length], row.tokens)
        np.testing.assert_array_equal(batch.valid[line, : length - 1], row.written[1:])
        np.testing.assert_array_equal(batch.generator[line, : length - 1], row.logprobs[1:])
        assert not batch.valid[line, length - 1 :].any()


def test_nothing_selected_makes_no_block() -> None:
    assert blocks([], BatchShape()) == []


def test_a_chunk_is_one_block_unless_contexts_are_compacted(random_group: GroupMaker) -> None:
    groups = [random_group(prompt) for prompt in range(4)]

    assert [len(block) for block in blocks(groups, BatchShape(micro_batch=16, logprob_batch=16))] == [16]
    shape = BatchShape(micro_batch=16, logprob_batch=16, block_per_group=True)
    assert [len(block) for block in blocks(groups, shape)] == [16] * 4


@pytest.mark.parametrize(("micro", "logprob", "ranks", "multiple"), [(8, 8, 1, 8), (2, 3, 2, 12), (4, 6, 1, 12)])
def test_blocks_are_a_multiple_of_ranks_times_both_batches(micro: int, logprob: int, ranks: int, multiple: int) -> None:
    assert BatchShape(micro_batch=micro, logprob_batch=logprob, ranks=ranks).multiple == multiple
