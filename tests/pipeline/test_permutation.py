"""The order of the rows, as a theorem."""

import subprocess
import sys
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.pipeline.permutation import key_of, permute, row_index


@pytest.mark.parametrize("size", [*range(1, 201), 1023, 1024, 1025, 7473])
def test_every_row_stands_at_exactly_one_position(size: int) -> None:
    key = key_of(3, size)
    assert sorted(permute(position, size, key) for position in range(size)) == list(range(size))


@given(size=st.integers(1, 2**40), seed=st.integers(), position=st.data())
def test_a_row_of_any_large_set_is_in_it(size: int, seed: int, position: st.DataObject) -> None:
    at = position.draw(st.integers(0, size - 1))
    assert 0 <= permute(at, size, key_of(seed, 0)) < size


def test_two_positions_of_a_huge_set_never_meet() -> None:
    key = key_of(0, 0)
    assert len({permute(position, 10**12, key) for position in range(5_000)}) == 5_000


def test_every_epoch_hands_out_every_row_once_in_another_order() -> None:
    epochs = [[row_index(epoch * 50 + at, num_rows=50, seed=0) for at in range(50)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_another_seed_is_another_order() -> None:
    orders = {tuple(row_index(at, num_rows=50, seed=seed) for at in range(50)) for seed in (-1, 0, 1, 2**64)}
    assert len(orders) == 4


def test_the_order_never_changes_between_versions_and_machines() -> None:
    assert [row_index(o, num_rows=10, seed=0) for o in range(20)] == [
        6, 8, 0, 2, 9, 5, 1, 7, 3, 4,
        0, 7, 6, 4, 5, 3, 9, 8, 1, 2,
    ]  # fmt: skip
    assert [row_index(o, num_rows=10**6, seed=1) for o in (0, 1, 2, 10**6, 10**9)] == [
        182115, 97811, 742796, 138363, 424483,
    ]  # fmt: skip


def test_the_order_is_the_same_in_another_process_with_another_hash_seed() -> None:
    ask = "[row_index(o, num_rows=99, seed=5) for o in range(20)]"
    script = f"from rollog.pipeline.permutation import row_index; print({ask})"
    told = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == str([row_index(o, num_rows=99, seed=5) for o in range(20)])


def test_all_orders_of_a_small_set_are_about_as_likely() -> None:
    seen = Counter(tuple(permute(at, 4, key_of(seed, 0)) for at in range(4)) for seed in range(4_800))
    assert set(seen) == set(permutations(range(4)))
    # 200 expected each, standard deviation 14: six deviations either way.
    assert min(seen.values()) > 116
    assert max(seen.values()) < 284


@pytest.mark.parametrize(("position", "size"), [(-1, 5), (5, 5), (0, 0)])
def test_a_position_outside_the_set_is_refused(position: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"position {position} is not in"):
        permute(position, size, key_of(0, 0))
