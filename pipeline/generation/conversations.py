"""Attempts of several turns: an environment and the model take turns in every rollout of a group.

    environment --Asked--> conversation --request--> engine --answer--> conversation --reply--> environment
         |                                                                                           ^
         +--Played--> (all rollouts of the group have ended) --> reward --> Made                     |
         +--Broken--> the whole group: Unmade                        a summary: the next request, no reply

Rule 1: every turn is a request of its own, with a seed of its own, so tokens depend on weights, context and seed alone.
Rule 2: a group ends as a whole. When one rollout breaks its siblings are aborted: no group is ever half made.
Rule 3: nothing waits while the engine has work. When it has none, the environment is waited for, briefly: leases and
        new weights are looked after in between.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

from rollog.events.messages import Order
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.conversation import Conversation, Window, Wording
from rollog.pipeline.environments.environment_child import Asked, Broken, Played, Said
from rollog.pipeline.environments.reward_child import RewardChild, Sample
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.errors import DataError, RewardFailure
from rollog.pipeline.generation.attempts import Asking, AttemptFailed, Made, RowsByIndex, Unmade, key_of
from rollog.pipeline.generation.engine import AnswerEnd, Engine, EngineError, Failed, Finished, Request
from rollog.pipeline.generation.seeds import group_seeds, turn_seed
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts, Rollout
from rollog.pipeline.tables import Row

WAIT_S: Final = 0.05
"""Longest wait for the environment while nothing is being written."""


class Environments(Protocol):
    """Who plays the environment's part; ``EnvironmentChild`` fills this."""

    def begin(self, id: str, row_index: int, row: Row) -> None:
        """Begin a conversation."""
        ...

    def reply(self, id: str, text: str, cut: bool) -> None:
        """What the model replied."""
        ...

    def cancel(self, id: str) -> None:
        """Nobody waits for this conversation any more."""
        ...

    def hear(self, wait_s: float) -> list[Said]:
        """What was said since; waits up to ``wait_s`` seconds for the first."""
        ...


@dataclass(slots=True)
class _Playing:
    """One rollout. ``turns``: requests so far, summaries included."""

    conversation: Conversation
    seed: int
    turns: int = 0
    born: int | None = None
    last_reply: str = ""
    played: Played | None = None


@dataclass(slots=True)
class _Group:
    order: Order
    row: Row
    rollouts: list[_Playing] = field(default_factory=list)


class MultiTurnAttempts:
    """Fills ``Attempts``."""

    def __init__(
        self,
        engine: Engine,
        asking: Asking,
        rows: RowsByIndex,
        asks: SingleTurn,
        environment: Environments,
        reward: RewardChild,
        window: Window | None,
    ) -> None:
        """``asks``: the tokenizer and how it is used. ``window``: None: contexts are not compacted."""
        self._engine = engine
        self._asking = asking
        self._rows = rows
        self._wording = Wording(asks)
        self._environment = environment
        self._reward = reward
        self._window = window
        self._groups: dict[str, _Group] = {}
        self._broken: list[Unmade] = []

    def begin(self, order: Order) -> None:
        """Begin a conversation for each rollout. Raises ``AttemptFailed`` when the row cannot be read."""
        asking, key = self._asking, key_of(order)
        try:
            row = self._rows.row(order.row)
        except DataError as error:
            raise AttemptFailed(FailureKind.DATA, f"row {order.row}: {error}") from error
        seeds = group_seeds(
            run_seed=asking.run_seed,
            ordinal=order.prompt,
            rollouts=asking.rollouts,
            data_failures=order.data_failures,
        )
        group = _Group(order, row)
        for number, seed in enumerate(seeds):
            conversation = Conversation(self._wording, max_tokens=asking.max_tokens, window=self._window)
            group.rollouts.append(_Playing(conversation, seed))
            self._environment.begin(f"{key}/{number}", order.row, row)
        self._groups[key] = group

    def step(self) -> Iterator[Made | Unmade]:
        """One step of the engine, and what the environment says; groups that have ended are scored on the way."""
        for ended in self._engine.step():
            key = _key(ended.request.key)
            if key not in self._groups:  # a sibling's request was given up in this very step
                continue
            if isinstance(ended, Failed):
                self._break(key, ended.kind, f"row {self._groups[key].order.row}: {ended.error}")
            else:
                self._answered(ended)
        writing = bool(self._engine.running())
        for said in self._environment.hear(0.0 if writing or not self._groups else WAIT_S):
            if (group := self._groups.get(_key(said.id))) is not None:
                self._hear(group, said)
        over = [key for key, group in self._groups.items() if all(each.played for each in group.rollouts)]
        broken, self._broken = self._broken, []
        return chain(broken, map(self._ended, over))

    def running(self) -> Mapping[str, int | None]:
        """What runs, each with the oldest weights known to have written a token of it."""
        born: dict[str, int | None] = {
            key: min((each.born for each in group.rollouts if each.born is not None), default=None)
            for key, group in self._groups.items()
        }
        for request, version in self._engine.running().items():
            before = born[_key(request)]
            born[_key(request)] = version if before is None else min(before, before if version is None else version)
        return born

    def abort(self, key: str) -> bool:
        """Forget an attempt: its requests are aborted, its conversations cancelled."""
        group = self._groups.pop(key, None)
        if group is None:
            return False
        for number in range(len(group.rollouts)):
            self._environment.cancel(f"{key}/{number}")
        for number, rollout in enumerate(group.rollouts):
            self._engine.abort(f"{key}/{number}/{rollout.turns}")
        return True

    def _answered(self, finished: Finished) -> None:
        """The model has ended an answer: the environment hears it, unless it was a summary."""
        key, number, _ = finished.request.key.split("/")
        group, (answer,) = self._groups[key], finished.answers
        rollout = group.rollouts[int(number)]
        oldest = min(answer.versions)
        rollout.born = oldest if rollout.born is None else min(rollout.born, oldest)
        try:
            text = rollout.conversation.take(answer.tokens, answer.logprobs, answer.versions)
            if text is None:
                self._write(key, int(number), rollout)
            else:
                rollout.last_reply = text
                self._environment.reply(f"{key}/{number}", text, answer.end is AnswerEnd.LENGTH)
        except (DataError, EngineError) as error:
            self._break(key, FailureKind.DATA, f"row {group.order.row}: {error}")

    def _hear(self, group: _Group, said: Said) -> None:
        key, _, number = said.id.partition("/")
        rollout = group.rollouts[int(number)]
        match said:
            case Asked():
                try:
                    rollout.conversation.ask(said.messages)
                    self._write(key, int(number), rollout)
                except (DataError, EngineError) as error:
                    self._break(key, FailureKind.DATA, f"row {group.order.row}: {error}")
            case Played():
                rollout.played = said
            case Broken():
                self._break(key, said.kind, said.error)

    def _write(self, key: str, number: int, rollout: _Playing) -> None:
        """Let the model continue a conversation. Raises ``EngineError`` when the engine cannot take it."""
        rollout.turns += 1
        request = Request(
            key=f"{key}/{number}/{rollout.turns}",
            prompt_tokens=rollout.conversation.context,
            seeds=(turn_seed(rollout.seed, rollout.turns),),
            max_tokens=self._asking.max_tokens,
            temperature=self._asking.temperature,
            stop_tokens=self._asking.stop_tokens,
        )
        self._engine.submit(request)

    def _break(self, key: str, kind: FailureKind, error: str) -> None:
        self.abort(key)
        self._broken.append(Unmade(key=key, kind=kind, error=error))

    def _ended(self, key: str) -> Made | Unmade:
        """The group of an attempt whose rollouts have all ended."""
        group = self._groups.pop(key)
        try:
            made, refused = self._scored(group)
        except RewardFailure as error:
            return Unmade(key=key, kind=error.kind, error=str(error))
        except CorruptRollouts as error:
            return Unmade(key=key, kind=FailureKind.DATA, error=f"row {group.order.row}: {error}")
        return Made(key=key, group=made, refused=refused)

    def _scored(self, group: _Group) -> tuple[GroupRollouts, bool]:
        """The group with its rewards, and whether the user's filter rule refuses it."""
        order, columns = group.order, {name: value for name, value in group.row.items() if name != "prompt"}
        samples, rewards, unscored = [], [], []
        for number, rollout in enumerate(group.rollouts):
            assert rollout.played is not None
            text, score = rollout.played.text, rollout.played.score
            samples.append(
                Sample(order.row, group.row["prompt"], rollout.last_reply if text is None else text, columns)
            )
            rewards.append(0.0 if score is None else score)
            if score is None:
                unscored.append(number)
        if unscored:
            found = self._reward.score([samples[number] for number in unscored])
            for number, reward in zip(unscored, found, strict=True):
                rewards[number] = reward
        rollouts = tuple(
            Rollout(rows=rollout.conversation.rows, reward=reward)
            for rollout, reward in zip(group.rollouts, rewards, strict=True)
        )
        made = GroupRollouts(prompt=order.prompt, attempt=order.attempt, rollouts=rollouts)
        return made, self._reward.refuses(samples, rewards)


def _key(id: str) -> str:
    """The attempt that a rollout or a request belongs to."""
    return id.partition("/")[0]
