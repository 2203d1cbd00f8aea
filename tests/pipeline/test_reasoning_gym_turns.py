"""A reasoning-gym task in several tries: what is said after a wrong one, and what the rollout is worth."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from rollog.pipeline.environments.multi_turn import Message, Reply
from rollog.pipeline.environments.reasoning_gym_turns import hint, solve
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data, Task

OPTIONS = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 1}
ROW = Loader.open(
    Data(path="reasoning_gym:leg_counting", task=Task(size=20, options=OPTIONS)), seed=0, prompts_per_step=1
).row(0)
LEGS = int(ROW["answer"])


@dataclass
class Says:
    """A model that says these one after the other."""

    replies: list[str]
    heard: list[str | Sequence[Message]] = field(default_factory=list)

    async def ask(self, message: str | Sequence[Message], *, role: str = "user") -> Reply:
        self.heard.append(message)
        return Reply(self.replies[len(self.heard) - 1])


@pytest.mark.parametrize(
    ("replies", "hints", "worth"),
    [
        ([LEGS], [], 1.0),
        ([LEGS + 1, LEGS], ["Too high."], 0.8),
        ([LEGS - 1, "many", LEGS], ["Too low.", "Wrong."], 0.64),
        ([LEGS - 1] * 3, ["Too low."] * 2, 0.0),
    ],
)
def test_each_wrong_try_costs_and_says_where_the_answer_lies(
    replies: list[object], hints: list[str], worth: float
) -> None:
    chat = Says([str(reply) for reply in replies])

    assert asyncio.run(solve(chat, tries=3, **ROW)) == pytest.approx(worth)
    assert chat.heard == [ROW["prompt"], *hints]


def test_tries_that_are_numbers_are_worth_something_to_a_model_that_knows_nothing() -> None:
    chat = Says(["many", str(LEGS - 1), "", "few"])

    assert asyncio.run(solve(chat, tries=4, for_numbers=0.4, **ROW)) == pytest.approx(0.1)


@pytest.mark.parametrize(("tried", "said"), [("3", "Too low."), ("5.5", "Too high."), ("", "Wrong."), ("x", "Wrong.")])
def test_a_hint_compares_numbers(tried: str, said: str) -> None:
    assert hint(tried, "4") == said
    assert hint(tried, "no number") == "Wrong."
