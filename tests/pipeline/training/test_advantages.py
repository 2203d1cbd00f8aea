"""Group-normalised advantages."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.pipeline.training.advantages import group_norm

REWARDS = st.lists(st.integers(0, 10).map(lambda tenth: tenth / 10), min_size=1, max_size=16)


def test_an_advantage_is_the_reward_in_standard_deviations_from_the_mean() -> None:
    assert group_norm([0, 0, 1, 1]) == pytest.approx([-1, -1, 1, 1], abs=1e-5)
    assert group_norm([3, 1]) == pytest.approx([1, -1], abs=1e-5)


def test_equal_rewards_give_exactly_nothing() -> None:
    assert group_norm([0.1] * 3) == [0, 0, 0]
    assert group_norm([7]) == [0]


@given(REWARDS)
def test_advantages_add_up_to_nothing_and_have_unit_deviation(rewards: list[float]) -> None:
    advantages = group_norm(rewards)

    assert sum(advantages) == pytest.approx(0, abs=1e-6)
    if len(set(rewards)) > 1:
        assert statistics.pstdev(advantages) == pytest.approx(1, abs=1e-4)
        assert all(math.isfinite(advantage) for advantage in advantages)


def test_a_group_without_rewards_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        group_norm([])
