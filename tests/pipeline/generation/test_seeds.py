"""Seeds of rollouts."""

import pytest

from rollog.pipeline.generation.seeds import group_seeds, rollout_seed


def test_a_seed_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert rollout_seed(run_seed=0, ordinal=0, rollout=0, data_failures=0) == 1098360644608038131
    assert rollout_seed(run_seed=-5, ordinal=17, rollout=3, data_failures=1) == 8052269777077536671


def test_each_part_of_what_a_rollout_is_changes_its_seed() -> None:
    base = {"run_seed": 0, "ordinal": 0, "rollout": 0, "data_failures": 0}
    seeds = {rollout_seed(**{**base, name: value}) for name in base for value in range(20)}

    assert len(seeds) == 1 + 4 * 19
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_groups_seeds_are_those_of_its_rollouts() -> None:
    seeds = group_seeds(run_seed=4, ordinal=9, rollouts=3, data_failures=2)

    assert seeds == tuple(rollout_seed(run_seed=4, ordinal=9, rollout=i, data_failures=2) for i in range(3))


def test_numbers_that_no_rollout_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        rollout_seed(run_seed=0, ordinal=-1, rollout=0, data_failures=0)
    with pytest.raises(ValueError, match="64 bits"):
        rollout_seed(run_seed=2**63, ordinal=0, rollout=0, data_failures=0)
