"""A scripted generator: answers after a while, fails, hangs, or dies."""

from typing import Final

from rollog.events.messages import (
    Ending,
    GroupCancelled,
    GroupDone,
    GroupFailed,
    NewWeights,
    Order,
    Result,
    WeightsLoaded,
    WorkerJoined,
)
from rollog.events.vocabulary import FailureKind, Role
from rollog.pipeline.environments.filters import rule_of
from rollog.pipeline.inputs import WorkerGone
from rollog.pipeline.simulation.world import World, befalls, digest, unit

LATE_S: Final = (1.0, 30.0)
STARTS_WITHIN_S: Final = 0.5


class Generator:
    """Answers orders after a while. Its blobs depend on the prompt, on its data failures, and on the weights."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world, self.name, self.incarnation = world, name, incarnation
        self.desk = world.server.desk()
        self.alive = True
        self.epoch = 0
        self.read_to: str | None = None
        self.weights: dict[int, str] = {}
        self.newest = -1
        self.version, self.digest = -1, ""
        self.running: dict[int, Order] = {}
        self.born: dict[int, int] = {}
        self.pinned = world.plan.determinism == "pinned"
        self.judges = rule_of(world.plan.failure.filter) is not None
        self.refresh_at = world.now
        world.at(STARTS_WITHIN_S, self.join)

    def join(self) -> None:
        """The process is there: later than the launcher's word, in the same breath, that the one before it is gone."""
        self.report(WorkerJoined(worker=self.name, role=Role.GENERATOR, machine={}))
        self.beat()

    def beat(self) -> None:
        """Twice a second: refresh leases that are due, load weights, take orders; or die."""
        if not self.alive:
            return
        world = self.world
        if world.strikes(world.script.generator_deaths_per_s / 2):
            self.die("killed")
            return
        if world.now >= self.refresh_at:
            self._refresh()
        self._read_control()
        self._take()
        world.at(0.5, self.beat)

    def _refresh(self) -> None:
        """As often as a real worker does. An order whose lease is gone is aborted."""
        self.refresh_at = self.world.now + self.world.plan.flow.lease_s / 3
        claims = [(f"worker:{self.name}", self.incarnation)]
        claims += [(f"p:{prompt}", order.attempt) for prompt, order in self.running.items()]
        for key in self.desk.refresh(self.name, claims):
            if key.startswith("worker:"):
                self.alive = False
            else:
                self.running.pop(int(key[2:]), None)

    def _read_control(self) -> None:
        epoch = self.desk.epoch()
        if epoch != self.epoch:
            self.epoch, self.read_to = epoch, None
        for id, notice in self.desk.control(epoch, self.read_to, 0.0):
            self.read_to = id
            match notice:
                case NewWeights(version=version, digest=name, oldest_useful=oldest):
                    self.weights[version], self.newest = name, max(version, self.newest)
                    if oldest:
                        self._cancel(oldest)
                case Ending():
                    self.alive = False
                case _:
                    pass
        if not self.pinned and self.newest >= 0:
            self._load(self.newest, self.weights[self.newest])

    def _load(self, version: int, name: str) -> None:
        """The newest weights, once: they are named again with every version that follows them."""
        if (version, name) != (self.version, self.digest):
            self.version, self.digest = version, name
            self.report(WeightsLoaded(worker=self.name, version=version, digest=name))

    def _cancel(self, oldest_useful: int) -> None:
        for prompt in [prompt for prompt in self.running if self.born[prompt] < oldest_useful]:
            order = self.running.pop(prompt)
            cancelled = GroupCancelled(
                prompt=prompt, attempt=order.attempt, cause=order.cause, born=self.born[prompt], worker=self.name
            )
            self.report(cancelled, f"p:{prompt}")

    def _take(self) -> None:
        room = 1 if self.pinned else self.world.script.orders_per_generator
        while self.alive and len(self.running) < room:
            order = self.desk.take(self.name, self.epoch, self.newest)
            if order is None:
                return
            script, rng = self.world.script, self.world.rng
            self.running[order.prompt] = order
            key = (order.prompt, order.attempt)
            self.world.started[key] = self.world.started.get(key, 0) + 1
            born = self.born[order.prompt] = order.weights if self.pinned else self.version
            if self.world.strikes(script.hang_rate):
                continue
            wait_s = script.slow_s if self.world.strikes(script.slow_rate) else rng.uniform(*script.group_s)
            self.world.at(wait_s, lambda order=order, born=born: self._finish(order, born))  # type: ignore[misc]

    def _finish(self, order: Order, born: int) -> None:
        if not self.alive or self.running.get(order.prompt) != order:
            return
        script, lease = self.world.script, f"p:{order.prompt}"
        late = self.world.strikes(script.late_rate)
        if self.world.strikes(script.infra_rate):
            self._fail(order, FailureKind.INFRA, "played time-out")
        elif befalls(script.data_rate, script.seed, "data", order.prompt, order.data_failures):
            self._fail(order, FailureKind.DATA, "played error of the reward function")
        else:
            done = born if self.pinned else self.version
            rollouts = self.world.plan.grpo.rollouts_per_prompt
            made = GroupDone(
                prompt=order.prompt,
                attempt=order.attempt,
                cause=order.cause,
                blob=digest("blob", order.prompt, order.data_failures, self.weights[born]),
                born=born,
                done=done,
                rollouts=rollouts,
                rows=rollouts,
                tokens=rollouts * 3,
                reward_mean=unit(script.seed, "reward", order.prompt),
                reward_std=0.0 if befalls(script.equal_rate, script.seed, "equal", order.prompt) else 0.5,
                worker=self.name,
                refused=self.judges and befalls(script.refused_rate, script.seed, "refused", order.prompt),
            )
            if late:
                self.world.at(self.world.rng.uniform(*LATE_S), lambda: self._hand_in(made, lease))
            else:
                self._hand_in(made, lease)
        self.running.pop(order.prompt, None)

    def _hand_in(self, made: GroupDone, lease: str) -> None:
        """Report it. While the lease stands nothing has ended the attempt: this result must be the one that counts."""
        held = self.desk.leases().by_key.get(lease)
        if self.alive and held is not None and (held.number, held.worker) == (made.attempt, made.worker):
            self.world.reported[made.prompt] = self.world.reported.get(made.prompt, 0) + 1
        self.report(made, lease)

    def _fail(self, order: Order, kind: FailureKind, error: str) -> None:
        failed = GroupFailed(
            prompt=order.prompt, attempt=order.attempt, cause=order.cause, kind=kind, error=error, worker=self.name
        )
        self.report(failed, f"p:{order.prompt}")

    def report(self, result: Result, lease: str | None = None) -> None:
        """Into the results stream, as long as the process lives; now and then it arrives twice."""
        if self.alive:
            self.desk.report(result, lease)
            if self.world.strikes(self.world.script.twice_rate):
                self.desk.report(result)

    def die(self, reason: str) -> None:
        """Without a word; the launcher sees the dead process."""
        self.alive = False
        self.world.dead.append(WorkerGone(worker=self.name, role=Role.GENERATOR, reason=reason))
