"""From a work order to a scored group of rollouts. Here: one question, one answer.

    order --begin--> request --engine--> answers --reward--> Made or Unmade

Rule 1: what is asked follows from the order and the plan alone: row, seeds, lengths. Any worker asks the same.
Rule 2: who is to blame decides what is tried again: a row or a reward that cannot work is the data's failure, a missed
        deadline or a dead reward process the machinery's. Both become a failed attempt, nothing else does.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rollog.events.messages import Order
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.reward_child import RewardChild
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.errors import DataError, PipelineError, RewardFailure
from rollog.pipeline.generation.engine import Engine, EngineError, Failed, Finished, Request
from rollog.pipeline.generation.seeds import group_seeds
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts, Rollout, answer_row


class AttemptFailed(PipelineError):
    """This attempt cannot be finished; becomes a ``GroupFailed``."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The attempt ``key`` has ended with a scored group. ``refused``: by the user's filter rule."""

    key: str
    group: GroupRollouts
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmade:
    """The attempt ``key`` has failed."""

    key: str
    kind: FailureKind
    error: str


class Attempts(Protocol):
    """Plays orders on an engine. Several run at once; ``key_of`` names them."""

    def begin(self, order: Order) -> None:
        """Start to play an order with the next step. Raises ``AttemptFailed`` when its row cannot be asked."""
        ...

    def step(self) -> Iterator[Made | Unmade]:
        """Move everything that runs on; what has ended is scored while it is iterated."""
        ...

    def running(self) -> Mapping[str, int | None]:
        """The keys that run, each with the version that wrote its first token (None before its first token)."""
        ...

    def abort(self, key: str) -> bool:
        """Forget an attempt and what was written for it. False if no such key runs."""
        ...


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


class SingleTurnAttempts:
    """Fills ``Attempts``: a group is one request. ``environment`` gives tokens and texts, ``reward`` the scores."""

    def __init__(
        self, engine: Engine, asking: Asking, rows: RowsByIndex, environment: SingleTurn, reward: RewardChild
    ) -> None:
        self._engine = engine
        self._orders: dict[str, Order] = {}
        self._asking = asking
        self._rows = rows
        self._environment = environment
        self._reward = reward

    def begin(self, order: Order) -> None:
        """Ask the engine. Raises ``AttemptFailed`` when the order's row cannot be asked."""
        try:
            self._engine.submit(self._request(order))
        except (DataError, EngineError) as error:
            raise AttemptFailed(FailureKind.DATA, f"row {order.row}: {error}") from error
        self._orders[key_of(order)] = order

    def step(self) -> Iterator[Made | Unmade]:
        """One step of the engine."""
        return map(self._ended, self._engine.step())

    def running(self) -> Mapping[str, int | None]:
        """As the engine says."""
        return self._engine.running()

    def abort(self, key: str) -> bool:
        """Forget an attempt."""
        self._orders.pop(key, None)
        return self._engine.abort(key)

    def _request(self, order: Order) -> Request:
        asking = self._asking
        return Request(
            key=key_of(order),
            prompt_tokens=tuple(self._environment.prompt_tokens(self._rows.row(order.row))),
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

    def _ended(self, ended: Finished | Failed) -> Made | Unmade:
        key = ended.request.key
        order = self._orders.pop(key)
        if isinstance(ended, Failed):
            return Unmade(key=key, kind=ended.kind, error=f"row {order.row}: {ended.error}")
        try:
            group, refused = self._group(order, ended)
        except RewardFailure as error:
            return Unmade(key=key, kind=error.kind, error=str(error))
        except CorruptRollouts as error:
            return Unmade(key=key, kind=FailureKind.DATA, error=f"row {order.row}: {error}")
        return Made(key=key, group=group, refused=refused)

    def _group(self, order: Order, finished: Finished) -> tuple[GroupRollouts, bool]:
        """The scored group, and whether the user's filter rule refuses it."""
        row = self._rows.row(order.row)
        samples = [self._environment.sample(order.row, row, answer.tokens) for answer in finished.answers]
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
