"""A generator: turns work orders into finished groups.

    control --> new weights, the end          take --> an order, its lease
                   |                                     |
                   v                                     v
              engine.load  -------------------->  attempts.step()  --> blob --> result

Rule 1: one loop, one thread (and a heartbeat). Weights are loaded and orders taken between two steps of the engine.
Rule 2: an order is begun only with weights at least as new as it names; pinned: with exactly those.
Rule 3: the blob is durable before the result that names it is reported.
Rule 4: an order whose lease is gone is forgotten without a word: somebody has decided about it already.
Rule 5: only a failed attempt becomes a message; anything else ends the process, and its orders are given again.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

from rollog.events.blobs import Blobs
from rollog.events.errors import BlobError
from rollog.events.log import Desk
from rollog.events.messages import (
    Ending,
    FleetSize,
    GroupCancelled,
    GroupDone,
    GroupFailed,
    NewWeights,
    Notice,
    Order,
    WeightsLoaded,
    WorkerJoined,
    WorkerLeft,
)
from rollog.events.vocabulary import FailureKind, Role
from rollog.pipeline import fleet
from rollog.pipeline.config import Plan
from rollog.pipeline.environments.environment_child import environment_of
from rollog.pipeline.environments.filters import rule_of
from rollog.pipeline.environments.reward_child import RewardChild
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.generation.attempts import AttemptFailed, Attempts, Made, Unmade, key_of
from rollog.pipeline.generation.engine import Engine, EngineLost
from rollog.pipeline.heartbeat import Heartbeat
from rollog.pipeline.machine import describe
from rollog.pipeline.parent_death import end_with_parent
from rollog.pipeline.rollout_codec import encode
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.worker_desk import PatientDesk, Reading

IDLE_BLOCK_S: Final = 2.0
REPORT_AFTER_S: Final = 0.1
"""Finished groups are reported together, but one with a quick reward waits no longer than this for a slow one."""
KEPT_WEIGHTS: Final = 64
"""Versions that are remembered: far more than any order can name."""


class BlobStore(Protocol):
    """Where finished groups go."""

    def put(self, data: bytes) -> str:
        """Store the bytes durably; returns their digest. Raises ``BlobError`` when the disk does not take them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorTerms:
    """What a generator needs of the plan. ``max_inflight``: orders that all ``generators`` hold at most.

    ``patience_s``: how long published weights may be unreadable before the generator ends.
    """

    max_inflight: int
    generators: int
    pinned: bool
    patience_s: float

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The terms at its start; the fleet's size can change."""
        return cls(
            max_inflight=plan.flow.max_inflight_prompts,
            generators=plan.generation.workers,
            pinned=plan.determinism == "pinned",
            patience_s=plan.flow.lease_s,
        )

    @property
    def room(self) -> int:
        """Orders that one generator holds at most: a fair share."""
        return -(-self.max_inflight // self.generators)


@dataclass(slots=True, kw_only=True)
class Generator:
    """One generator process. ``weights`` is the folder of published weights, ``machine`` what it says of itself."""

    name: str
    desk: Desk
    heartbeat: Heartbeat
    engine: Engine
    attempts: Attempts
    blobs: BlobStore
    weights: Path
    terms: GeneratorTerms
    machine: Mapping[str, Any]
    orders: dict[str, Order] = field(default_factory=dict)
    published: dict[int, NewWeights] = field(default_factory=dict)
    loaded: NewWeights | None = None
    unreadable: NewWeights | None = None
    unreadable_since: float = 0.0
    clock: Callable[[], float] = time.monotonic
    ending: str | None = None

    def run(self) -> str:
        """Work until the run ends; returns why. Raises ``Orphaned``, ``Replaced`` and whatever the engine raises."""
        control: Reading[Notice] = Reading(self.desk.epoch, self.desk.control)
        self.desk.report(WorkerJoined(worker=self.name, role=Role.GENERATOR, machine=self.machine))
        while self.ending is None:
            for notice in control.next(0.0 if self.orders else IDLE_BLOCK_S):
                self._hear(notice)
            if self._is_surplus() and not self.orders:
                self.ending = self.ending or f"the fleet has {self.terms.generators} generators now"
            self._forget_lost()
            self._cancel_useless()
            if not self.terms.pinned:
                self._load_newest()
            while self.ending is None and (taken := self._take(control.epoch)):
                for order in taken:
                    self._begin(order)
            self._hand_in(self.attempts.step())
        self.desk.report(WorkerLeft(worker=self.name, role=Role.GENERATOR, reason=self.ending))
        return self.ending

    def _hear(self, notice: Notice) -> None:
        match notice:
            case NewWeights():
                self.published.pop(notice.version, None)
                self.published[notice.version] = notice
                for version in sorted(self.published)[:-KEPT_WEIGHTS]:
                    del self.published[version]
            case FleetSize():
                self.terms = replace(self.terms, generators=notice.generators)
            case Ending():
                self.ending = f"the run ended: {notice.reason}"
            case _:
                pass

    def _is_surplus(self) -> bool:
        """Whether it is to leave, when what it holds is finished."""
        return not fleet.belongs(self.name, self.terms.generators)

    def _forget_lost(self) -> None:
        for key, attempt in self.heartbeat.lost():
            order = next((o for o in self.orders.values() if (f"p:{o.prompt}", o.attempt) == (key, attempt)), None)
            if order is not None:
                self.attempts.abort(key_of(order))
                self._let_go(order)

    def _cancel_useless(self) -> None:
        """End what was born of weights too old for every step to come. What has not begun yet will be young enough."""
        oldest = self.published[max(self.published)].oldest_useful if self.published else 0
        for key, born in list(self.attempts.running().items()):
            if born is not None and born < oldest:
                order = self.orders[key]
                self.attempts.abort(key)
                cancelled = GroupCancelled(
                    prompt=order.prompt, attempt=order.attempt, cause=order.cause, born=born, worker=self.name
                )
                self.desk.report(cancelled, f"p:{order.prompt}")
                self._let_go(order)

    def _load_newest(self) -> None:
        """Never a lower version; the same version again when it was published anew with other bytes."""
        newest = max(self.published.values(), key=lambda weights: weights.version, default=None)
        if newest is None or newest == self.loaded or (self.loaded and newest.version < self.loaded.version):
            return
        try:
            self._load(newest)
        except EngineLost:
            raise
        except PipelineError:
            # Only the newest two versions are kept: this one can have been deleted since its notice was read, and then
            # a newer notice is on its way.
            if newest != self.unreadable:
                self.unreadable, self.unreadable_since = newest, self.clock()
            if self.clock() - self.unreadable_since > self.terms.patience_s:
                raise

    def _load(self, weights: NewWeights) -> None:
        self.engine.load(self.weights / weights.file, weights.version, weights.digest)
        self.loaded = weights
        self.desk.report(WeightsLoaded(worker=self.name, version=weights.version, digest=weights.digest))

    def _take(self, epoch: int) -> Sequence[Order]:
        """Orders that may begin now. Pinned: what runs is finished first, then others' weights are loaded."""
        room, pinned = self.terms.room - len(self.orders), self.terms.pinned
        if room <= 0 or self._is_surplus():
            return ()
        if self.loaded is not None and (taken := self._taken(room, epoch, self.loaded.version)):
            return taken
        if pinned and not self.orders:
            for version, weights in sorted(self.published.items()):
                if weights != self.loaded and (taken := self._taken(room, epoch, version)):
                    self._load(weights)
                    return taken
        return ()

    def _taken(self, room: int, epoch: int, version: int) -> Sequence[Order]:
        taken = self.desk.take_up_to(room, self.name, epoch, version, exactly=self.terms.pinned)
        self._hold(*taken)
        return taken

    def _begin(self, order: Order) -> None:
        try:
            self.attempts.begin(order)
        except AttemptFailed as failed:
            self._fail(order, failed.kind, str(failed))

    def _hand_in(self, attempts: Iterable[Made | Unmade]) -> None:
        """Report what is finished, together: each report alone would wait for the server's disk."""
        made: list[tuple[Order, GroupDone | GroupFailed]] = []
        began = self.clock()
        for ended in attempts:
            order = self.orders[ended.key]
            made.append((order, self._result(order, ended)))
            if self.clock() - began > REPORT_AFTER_S:
                self._report(made)
                made, began = [], self.clock()
        self._report(made)

    def _report(self, made: Sequence[tuple[Order, GroupDone | GroupFailed]]) -> None:
        if made:
            self.desk.report_all([(result, f"p:{order.prompt}") for order, result in made])
            self._let_go(*(order for order, _ in made))

    def _result(self, order: Order, ended: Made | Unmade) -> GroupDone | GroupFailed:
        """What has become of this order; its blob is durable."""
        if isinstance(ended, Unmade):
            return self._failed(order, ended.kind, ended.error)
        group = ended.group
        try:
            blob = self.blobs.put(encode(group))
        except BlobError as error:
            return self._failed(order, FailureKind.INFRA, str(error))
        return GroupDone(
            prompt=order.prompt,
            attempt=order.attempt,
            cause=order.cause,
            blob=blob,
            born=group.born,
            done=group.done,
            rollouts=group.num_rollouts,
            rows=group.num_rows,
            tokens=group.num_tokens,
            reward_mean=group.reward_mean,
            reward_std=group.reward_std,
            worker=self.name,
            refused=ended.refused,
            row_counts=group.row_counts,
        )

    def _fail(self, order: Order, kind: FailureKind, error: str) -> None:
        self._report([(order, self._failed(order, kind, error))])

    def _failed(self, order: Order, kind: FailureKind, error: str) -> GroupFailed:
        return GroupFailed(
            prompt=order.prompt, attempt=order.attempt, cause=order.cause, kind=kind, error=error, worker=self.name
        )

    def _hold(self, *orders: Order) -> None:
        self.orders.update((key_of(order), order) for order in orders)
        self._tell_heartbeat()

    def _let_go(self, *orders: Order) -> None:
        for order in orders:
            self.orders.pop(key_of(order), None)
        self._tell_heartbeat()

    def _tell_heartbeat(self) -> None:
        self.heartbeat.hold((f"p:{order.prompt}", order.attempt) for order in self.orders.values())


def main() -> None:
    """``python -m rollog.pipeline.generation.worker --run FOLDER --name gen-0 --incarnation N``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    arguments = parser.parse_args()
    folder = RunFolder(arguments.run)
    plan = folder.plan()
    claim = (f"worker:{arguments.name}", arguments.incarnation)
    with (
        Heartbeat.of(plan, folder, arguments.name, (claim,)) as heartbeat,  # before the imports, which take seconds
        RewardChild(plan.reward, plan.flow.reward_timeout_s, rule=rule_of(plan.failure.filter)) as reward,
        environment_of(plan.environment) as environment,
    ):
        import torch

        from rollog.pipeline.generation.torch_worker import make_attempts, make_engine
        from rollog.pipeline.training.models import deterministic

        if plan.determinism == "pinned":
            deterministic(threads=torch.get_num_threads())
        engine = make_engine(plan)
        generator = Generator(
            name=arguments.name,
            desk=PatientDesk(folder.desk(plan), heartbeat),
            heartbeat=heartbeat,
            engine=engine,
            attempts=make_attempts(plan, engine, reward, environment),
            blobs=Blobs(folder.blobs),
            weights=folder.weights,
            terms=GeneratorTerms.of(plan),
            machine=describe(threads=torch.get_num_threads()),
        )
        try:
            print(f"{arguments.name}: {generator.run()}", flush=True)
        except EngineLost as error:
            print(f"{arguments.name}: {error}", flush=True)
            os._exit(1)  # an orderly end would wait for a silent engine, and let it talk after the reason


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # so multiprocessing calls this file in the processes that an engine starts
    end_with_parent()
