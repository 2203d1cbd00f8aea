"""The user's filter rule: the name that ``failure.filter`` gives it, and how the reward child asks it."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.filters import resolve_rule, rule_of
from rollog.pipeline.environments.reward_child import RewardChild, Sample
from rollog.pipeline.errors import PlanError, RewardFailure
from rollog.pipeline.rollouts import GroupRollouts, Rollout, answer_row

EXACT = "rollog.pipeline.environments.rewards:exact"
GROUP = [Sample(7, "1+1", text, {"answer": "2", "source": "toy"}) for text in ("2", "3")]

Child = Callable[..., RewardChild]


@pytest.fixture
def child_with(tmp_path: Path) -> Iterator[Child]:
    """A reward child with the filter rule ``body``."""
    made: list[RewardChild] = []

    def child(body: str, timeout_s: float = 20) -> RewardChild:
        path = tmp_path / "mine.py"
        path.write_text("def refuse(prompt, completions, rewards, **row):\n    " + dedent(body))
        made.append(RewardChild(EXACT, timeout_s, rule=f"{path}:refuse"))
        return made[-1]

    yield child
    for each in made:
        each.close()


def test_the_built_in_filters_name_no_function() -> None:
    assert [rule_of(value) for value in ("none", "equal_rewards", "mine.py:refuse")] == [None, None, "mine.py:refuse"]


def test_a_rule_sees_the_whole_group_and_every_column_of_its_row(child_with: Child) -> None:
    child = child_with(
        "return (prompt, completions, rewards, row) == "
        "('1+1', ['2', '3'], [1.0, 0.0], {'answer': '2', 'source': 'toy'})"
    )

    assert child.refuses(GROUP, [1.0, 0.0]) is True
    assert child.refuses(GROUP, [1.0, 1.0]) is False
    assert child.score(GROUP) == [1.0, 0.0]


def test_without_a_rule_no_group_is_refused() -> None:
    assert RewardChild(EXACT, 20).refuses(GROUP, [1.0, 1.0]) is False


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "raised ZeroDivisionError: division by zero for row 7"),
        ("return 1", "gave 1 where true .* is needed, for row 7"),
        ("return None", "gave None where"),
    ],
)
def test_a_rule_that_gives_no_judgement_is_the_datas_failure(child_with: Child, body: str, says: str) -> None:
    with pytest.raises(RewardFailure, match=says) as raised:
        child_with(body).refuses(GROUP, [1.0, 0.0])

    assert raised.value.kind is FailureKind.DATA
    assert "mine.py:refuse" in str(raised.value)


def test_a_rule_that_never_answers_is_the_machinerys_failure(child_with: Child) -> None:
    with pytest.raises(RewardFailure, match=r"took longer than 0\.5 s while it was judging row 7") as raised:
        child_with("while True: pass", timeout_s=0.5).refuses(GROUP, [1.0, 0.0])

    assert raised.value.kind is FailureKind.INFRA


def test_a_rule_that_cannot_be_called_with_a_group_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def refuse(prompt, completion, answer): return False\nnumber = 3\n")

    with pytest.raises(PlanError, match=r"failure\.filter=.*Give it the signature .prompt, completions, rewards"):
        RewardChild(EXACT, 20, rule=f"{path}:refuse").start()
    with pytest.raises(PlanError, match="is a int and no function"):
        resolve_rule(f"{path}:number")


def group_of(rewards: list[float]) -> GroupRollouts:
    row = answer_row(prompt=[1], answer=[2], logprobs=[-1.0], versions=[0])
    return GroupRollouts(prompt=0, attempt=1, rollouts=tuple(Rollout(rows=(row,), reward=each) for each in rewards))


@given(reward=st.floats(-1e100, 1e100), count=st.integers(1, 9))
def test_equal_rewards_have_exactly_no_spread(reward: float, count: int) -> None:
    assert group_of([reward] * count).reward_std == 0.0


@given(rewards=st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=9).filter(lambda found: len(set(found)) > 1))
def test_unequal_rewards_never_look_equal(rewards: list[float]) -> None:
    spread = group_of(rewards).reward_std

    assert spread > 0.0
    assert math.isfinite(spread)
