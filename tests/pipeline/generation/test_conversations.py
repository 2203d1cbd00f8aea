"""Groups of several turns on the real engine: rows are what was seen, siblings end together, weights label tokens.

The environment here is played by the test: it repeats what it was told until it has asked often enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from rollog.events.messages import Cause, Order
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.conversation import Window
from rollog.pipeline.environments.environment_child import Asked, Broken, EnvironmentChild, Played, Said
from rollog.pipeline.environments.reward_child import RewardChild, Sample
from rollog.pipeline.environments.single_turn import SingleTurn, Tokenizer
from rollog.pipeline.generation.attempts import Asking, Made, Unmade
from rollog.pipeline.generation.conversations import MultiTurnAttempts
from rollog.pipeline.generation.torch_engine import TorchEngine
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.settings import Environment
from rollog.pipeline.training.logprobs import Forward, token_logprobs
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.weights import publish

BOS, SEP, EOS = 10, 11, 12


class Words:
    """The quickstart's tokenizer without its file: digits, <bos>, <sep>, <eos>."""

    chat_template: Any = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        digits = [int(digit) for digit in text if digit.isdigit()]
        return [BOS, *digits, SEP] if add_special_tokens else [*digits, SEP]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return "".join(str(token) for token in token_ids if token < 10)

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        raise AssertionError("these tests ask without a template")


class Rows:
    def row(self, index: int) -> dict[str, Any]:
        return {"prompt": str(index % 10), "answer": "4", "source": "test"}


@dataclass
class Playhouse:
    """Asks ``turns`` times in each conversation, then ends with the reply's length, or with its text."""

    turns: int = 3
    scores: bool = True
    breaks_at: str = ""
    silent: bool = False
    asked: dict[str, int] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def begin(self, id: str, row_index: int, row: dict[str, Any]) -> None:
        self.asked[id] = 0
        self._ask(id, row["prompt"])

    def reply(self, id: str, text: str, cut: bool) -> None:
        if id == self.breaks_at:
            self.said.append(Broken(id=id, kind=FailureKind.INFRA, error="it broke"))
        elif self.asked[id] < self.turns:
            self._ask(id, "3")
        else:
            score = float(len(text)) if self.scores else None
            self.said.append(Played(id=id, score=score, text=None if self.scores else text + "!"))

    def cancel(self, id: str) -> None:
        self.cancelled.append(id)

    def hear(self, wait_s: float) -> list[Said]:
        said, self.said = ([], self.said) if self.silent else (self.said, [])
        return said

    def _ask(self, id: str, content: str) -> None:
        self.asked[id] += 1
        self.said.append(Asked(id=id, messages=[{"role": "user", "content": content}]))


class Scores:
    """Scores by the number of digits, and remembers what it was asked."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def score(self, samples: list[Sample]) -> list[float]:
        self.samples += samples
        return [float(number) for number, _ in enumerate(samples)]

    def refuses(self, samples: list[Sample], rewards: list[float]) -> bool:
        return sum(rewards) == 0


def order(prompt: int = 3) -> Order:
    cause = Cause(offset=7, epoch=1, digest="ab")
    return Order(prompt=prompt, attempt=1, step=0, weights=0, row=prompt, data_failures=0, cause=cause)


Playing = Callable[..., MultiTurnAttempts]


@pytest.fixture
def engine(model_folder: Path) -> TorchEngine:
    return TorchEngine.from_folder(model_folder)


@pytest.fixture
def playing(engine: TorchEngine) -> Playing:
    def make(
        house: Playhouse, *, window: Window | None = None, reward: Scores | None = None, rollouts: int = 3
    ) -> MultiTurnAttempts:
        asking = Asking(run_seed=1, rollouts=rollouts, max_tokens=3, temperature=1.0, stop_tokens=frozenset({EOS}))
        asks = SingleTurn(cast(Tokenizer, Words()), chat_template=False)
        return MultiTurnAttempts(engine, asking, Rows(), asks, house, cast(RewardChild, reward or Scores()), window)

    return make


def play(attempts: MultiTurnAttempts, *orders: Order) -> list[Made | Unmade]:
    for each in orders:
        attempts.begin(each)
    ended: list[Made | Unmade] = []
    for _ in range(200):
        ended += attempts.step()
        if len(ended) == len(orders):
            return ended
    raise AssertionError("the conversations do not end")


def made(attempts: MultiTurnAttempts, *orders: Order) -> list[GroupRollouts]:
    ended = play(attempts, *orders)
    assert all(isinstance(each, Made) for each in ended), ended
    return [each.group for each in ended if isinstance(each, Made)]


def test_every_rollout_is_one_row_of_all_its_turns_without_compaction(playing: Playing) -> None:
    (group,) = made(playing(Playhouse(turns=3)), order())

    assert (group.prompt, group.num_rollouts, group.num_rows) == (3, 3, 3)
    for row in group.rows:
        assert row.tokens[:3].tolist() == [BOS, 3, SEP]
        assert 3 <= row.num_written <= 9
    assert group.born == group.done == 0


@pytest.mark.parametrize(
    "window",
    [
        Window(max_context_tokens=14, keep_tokens=9),
        Window(max_context_tokens=18, keep_tokens=9, summary_prompt="9"),
    ],
)
def test_log_probabilities_are_those_of_the_row_as_it_stands(
    playing: Playing, model_folder: Path, window: Window
) -> None:
    """What the trainer computes from a row is what the model saw: no turn was cut, padded or encoded again."""
    (group,) = made(playing(Playhouse(turns=5), window=window), order())
    model = load_model(model_folder).eval()

    assert group.num_rows > group.num_rollouts
    for row in group.rows:
        assert len(row.tokens) <= window.max_context_tokens
        with torch.no_grad():
            found = token_logprobs(model, torch.from_numpy(row.tokens[None].astype("int64")), Forward())[0].numpy()
        assert abs(found - row.logprobs[1:])[row.written[1:]].max() < 1e-4


def test_a_group_is_the_same_whatever_runs_beside_it(playing: Playing) -> None:
    window = Window(max_context_tokens=14, keep_tokens=9)
    (alone,) = made(playing(Playhouse(), window=window), order(3))
    beside = made(playing(Playhouse(), window=window), order(1), order(3), order(5))
    (again,) = [group for group in beside if group.prompt == 3]

    assert again.rollouts == alone.rollouts


def test_turns_draw_different_numbers(playing: Playing) -> None:
    (group,) = made(playing(Playhouse(turns=6), rollouts=8), order())
    written = {tuple(row.logprobs[row.written].round(4).tolist()) for row in group.rows}

    assert len(written) == 8


def test_a_text_at_the_end_is_scored_by_the_runs_reward_and_a_number_is_the_reward(playing: Playing) -> None:
    reward = Scores()
    (scored,) = made(playing(Playhouse(scores=False), reward=reward), order())
    assert scored.rewards == (0.0, 1.0, 2.0)
    assert [sample.completion[-1] for sample in reward.samples] == ["!"] * 3
    assert reward.samples[0].columns == {"answer": "4", "source": "test"}

    reward = Scores()
    (own,) = made(playing(Playhouse(), reward=reward), order())
    assert reward.samples == []
    assert all(value in (0.0, 1.0, 2.0, 3.0) for value in own.rewards)


def test_the_filter_rule_judges_the_whole_group(playing: Playing) -> None:
    ended = play(playing(Playhouse(scores=False), rollouts=1), order())

    assert [isinstance(each, Made) and each.refused for each in ended] == [True]


def test_one_rollout_that_breaks_ends_the_whole_group(playing: Playing, engine: TorchEngine) -> None:
    house = Playhouse(breaks_at="3.1/1")
    attempts = playing(house)
    (ended,) = play(attempts, order())

    assert ended == Unmade(key="3.1", kind=FailureKind.INFRA, error="it broke")
    assert attempts.running() == {}
    assert engine.running() == {}
    assert set(house.cancelled) == {"3.1/0", "3.1/1", "3.1/2"}


def test_a_first_message_without_room_is_the_datas_fault(playing: Playing) -> None:
    (ended,) = play(playing(Playhouse(), window=Window(max_context_tokens=5, keep_tokens=2)), order())

    assert isinstance(ended, Unmade)
    assert ended.kind is FailureKind.DATA
    assert "row 3: a context of 3 tokens (first message 3) leaves no room" in ended.error


def test_an_engine_that_cannot_take_a_turn_fails_the_attempt(playing: Playing) -> None:
    """The model holds 64 positions, and nothing is compacted."""
    (ended,) = play(playing(Playhouse(turns=40)), order())

    assert isinstance(ended, Unmade)
    assert ended.kind is FailureKind.DATA
    assert "may reach 6" in ended.error


def test_an_aborted_attempt_leaves_nothing_behind(playing: Playing, engine: TorchEngine) -> None:
    house = Playhouse()
    attempts = playing(house)
    attempts.begin(order())
    list(attempts.step())
    list(attempts.step())
    assert attempts.running() == {"3.1": 0}
    assert attempts.abort("3.1")

    assert attempts.running() == engine.running() == {}
    assert set(house.cancelled) == {"3.1/0", "3.1/1", "3.1/2"}
    assert not attempts.abort("3.1")
    house.said.append(Played(id="3.1/0", score=1.0, text=None))
    assert list(attempts.step()) == []


def test_an_attempt_that_waits_for_its_environment_runs_and_has_no_weights_yet(playing: Playing) -> None:
    attempts = playing(Playhouse(silent=True))
    attempts.begin(order())
    list(attempts.step())

    assert attempts.running() == {"3.1": None}


def test_weights_that_change_between_turns_label_the_later_tokens(
    playing: Playing, engine: TorchEngine, model_folder: Path, tmp_path: Path
) -> None:
    newer = publish(load_model(model_folder), 1, tmp_path)
    attempts = playing(Playhouse(turns=4))
    attempts.begin(order())
    ended = [*attempts.step(), *attempts.step()]
    engine.load(tmp_path / newer.file, 1, newer.digest)
    while not ended:
        assert attempts.running() == {"3.1": 0}
        ended += attempts.step()

    (group,) = [each.group for each in ended if isinstance(each, Made)]
    assert (group.born, group.done) == (0, 1)
    assert [[span.version for span in row.spans] for row in group.rows] == [[0, 1]] * 3


def test_with_the_real_environments_process_conversations_end_with_its_rewards(playing: Playing) -> None:
    counting = Path(__file__).parent.parent / "processes" / "counting.py"
    with EnvironmentChild(Environment(play=f"{counting}:count_on", options={"turns": 3})) as child:
        attempts = playing(cast(Playhouse, child), window=Window(max_context_tokens=10, keep_tokens=4))
        groups = made(attempts, order(2), order(7))

    assert sorted(group.prompt for group in groups) == [2, 7]
    for group in groups:
        assert all(0 <= reward <= 1 for reward in group.rewards)
        assert {len(rollout.rows) for rollout in group.rollouts} <= {2, 3}
