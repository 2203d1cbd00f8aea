"""From a work order to a request, and from its answers to a scored group of rollouts.

Rule 1: what is asked follows from the order and the plan alone: row, seeds, lengths. Any worker asks the same.
Rule 2: who is to blame decides what is tried again: a row or a reward that cannot work is the data's failure, a missed
        deadline or a dead reward process the machinery's. Both become a failed attempt, nothing else does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rollog.events.messages import Order
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.reward_child import RewardChild
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.errors import DataError, PipelineError, RewardFailure
from rollog.pipeline.generation.engine import EngineError, Finished, Request
from rollog.pipeline.generation.seeds import group_seeds
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts, Rollout, answer_row


class AttemptFailed(PipelineError):
    """This attempt cannot be finished; becomes a ``GroupFailed``."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RowsByIndex(Protocol):
    """The data set; the loader fills this."""

    def row(self, index: int) -> dict[str, Any]:
        """The row under the names that the run uses."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How every prompt of this run is asked."""

    run_seed: int
    rollouts: int
    max_tokens: int
    temperature: float
    stop_tokens: frozenset[int]


class Attempts:
    """Makes requests of orders and groups of answers. ``environment`` gives tokens and texts, ``reward`` the scores."""

    def __init__(self, asking: Asking, rows: RowsByIndex, environment: SingleTurn, reward: RewardChild) -> None:
        self._asking = asking
        self._rows = rows
        self._environment = environment
        self._reward = reward

    def request(self, order: Order) -> Request:
        """What the engine is asked for this order. Raises ``AttemptFailed`` when its row cannot be asked."""
        asking = self._asking
        try:
            tokens = self._environment.prompt_tokens(self._rows.row(order.row))
            return Request(
                key=key_of(order),
                prompt_tokens=tuple(tokens),
                seeds=group_seeds(
                    run_seed=asking.run_seed,
                    ordinal=order.prompt,
                    rollouts=asking.rollouts,
                    data_failures=order.data_failures,
                ),
                max_tokens=asking.max_tokens,
                temperature=asking.temperature,
                stop_tokens=asking.stop_tokens,
            )
        except (DataError, EngineError) as error:
            raise AttemptFailed(FailureKind.DATA, f"row {order.row}: {error}") from error

    def group(self, order: Order, finished: Finished) -> tuple[GroupRollouts, bool]:
        """The scored group, and whether the user's filter rule refuses it.

        Raises ``AttemptFailed`` when an answer has no finite score, or the group no judgement, in time.
        """
        row = self._rows.row(order.row)
        samples = [self._environment.sample(order.row, row, answer.tokens) for answer in finished.answers]
        try:
            rewards = self._reward.score(samples)
            rollouts = tuple(
                Rollout(
                    rows=(
                        answer_row(
                            prompt=finished.request.prompt_tokens,
                            answer=answer.tokens,
                            logprobs=answer.logprobs,
                            versions=answer.versions,
                        ),
                    ),
                    reward=reward,
                )
                for answer, reward in zip(finished.answers, rewards, strict=True)
            )
            group = GroupRollouts(prompt=order.prompt, attempt=order.attempt, rollouts=rollouts)
            return group, self._reward.refuses(samples, rewards)
        except RewardFailure as error:
            raise AttemptFailed(error.kind, str(error)) from error
        except CorruptRollouts as error:
            raise AttemptFailed(FailureKind.DATA, f"row {order.row}: {error}") from error


def key_of(order: Order) -> str:
    """What the engine calls this order."""
    return f"{order.prompt}.{order.attempt}"


def stop_tokens(model_folder: Path, tokenizer_eos: int | None) -> frozenset[int]:
    """The tokens that end an answer: the tokenizer's end token and all that the model's own settings name."""
    found = set() if tokenizer_eos is None else {tokenizer_eos}
    for name in ("generation_config.json", "config.json"):
        file = model_folder / name
        settings: Mapping[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        named = settings.get("eos_token_id")
        found.update(named if isinstance(named, list) else [] if named is None else [named])
    return frozenset(found)
