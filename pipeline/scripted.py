"""Scripted workers and a virtual clock: the world that ``simulate`` puts around the real controller.

Generators answer after a while or fail; the trainer's "weights" are a hash chain over what it was fed; processes die.
They speak to the log as real workers do, through a ``Desk``, and lie about nothing. One seed gives one history.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from rollog.events.memory_log import MemoryServer
from rollog.events.messages import (
    CheckpointDone,
    Chunk,
    Ending,
    GroupCancelled,
    GroupDone,
    GroupFailed,
    NewWeights,
    Order,
    Result,
    StepDone,
    TrainMessage,
    WeightsLoaded,
    WeightsReady,
    WorkerJoined,
)
from rollog.events.vocabulary import FailureKind, Role
from rollog.pipeline.config import Plan
from rollog.pipeline.inputs import WorkerGone
from rollog.replay.state import SavedCheckpoint, State

START_S = 1_000_000.0
"""The virtual clock's first moment, in seconds."""


class Hang(AssertionError):
    """The run waits for itself: nothing will ever happen any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the world behaves. Rates are probabilities: per attempt, per call of the log, or per second of a worker."""

    seed: int = 0
    generators: int = 2
    orders_per_generator: int = 4
    group_s: tuple[float, float] = (0.5, 3.0)
    slow_rate: float = 0.0
    slow_s: float = 60.0
    step_s: float = 1.0
    infra_rate: float = 0.0
    data_rate: float = 0.0
    """Of prompts whose reward function fails on their first tokens; a data retry draws new ones."""
    equal_rate: float = 0.0
    """Of prompts whose rollouts all get the same reward."""
    controller_death_rate: float = 0.0
    uncertain_rate: float = 0.0
    generator_deaths_per_s: float = 0.0
    trainer_deaths_per_s: float = 0.0
    stop_rate: float = 0.0
    clock_jump_s: float = 0.0
    broken_manifest_rate: float = 0.0
    limit_s: float = 1e6


@dataclass(slots=True)
class Manifest:
    """A checkpoint on the played disk."""

    saved: SavedCheckpoint
    weights: str
    whole: bool = True


@dataclass(slots=True)
class World:
    """The virtual clock, the server, the disk, and who is alive."""

    script: Script
    plan: Plan
    now: float = START_S
    skew: float = 0.0
    rng: random.Random = field(init=False)
    server: MemoryServer = field(init=False)
    agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    tick: Iterator[int] = field(default_factory=itertools.count)
    disk: dict[str, Manifest] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    generators: dict[str, "Generator"] = field(default_factory=dict)
    trainer: "Trainer | None" = None
    dead: list[WorkerGone] = field(default_factory=list)
    started: dict[tuple[int, int], int] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)
    """Prompt -> finished groups that reached the results stream."""
    model: str = field(default_factory=lambda: digest("model"))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.script.seed)
        self.server = MemoryServer(clock=lambda: self.now)

    def at(self, delay_s: float, do: Callable[[], None]) -> None:
        """Put something on the agenda."""
        heapq.heappush(self.agenda, (self.now + delay_s, next(self.tick), do))

    def run_for(self, seconds: float, until: Callable[[], bool]) -> None:
        """Let the world go on for so long, or until something is so."""
        end = self.now + seconds
        while not until() and self.agenda and self.agenda[0][0] <= end:
            self.now, _, do = heapq.heappop(self.agenda)
            do()
        if not until():
            self.now = end
        if self.now > START_S + self.script.limit_s:
            raise Hang(f"seed {self.script.seed}: no end after {self.script.limit_s:.0f} virtual seconds")

    def strikes(self, rate: float) -> bool:
        """Whether something of this probability happens now."""
        return rate > 0 and self.rng.random() < rate


def digest(*parts: object) -> str:
    """64 hexadecimal digits that stand for these parts."""
    return blake2b("|".join(map(str, parts)).encode(), digest_size=32).hexdigest()


def unit(*parts: object) -> float:
    """A number in [0, 1) that depends on these parts and on nothing else."""
    return int(digest(*parts)[:13], 16) / 16**13


class Generator:
    """Answers orders after a while. Its blobs depend on the prompt, on its data failures, and on the weights."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world, self.name, self.incarnation = world, name, incarnation
        self.desk = world.server.desk()
        self.alive = True
        self.epoch = 0
        self.read_to: str | None = None
        self.weights: dict[int, str] = {}
        self.version = -1
        self.running: dict[int, Order] = {}
        self.born: dict[int, int] = {}
        self.pinned = world.plan.determinism == "pinned"
        self.report(WorkerJoined(worker=name, role=Role.GENERATOR, machine={}))
        world.at(0.0, self.beat)

    def beat(self) -> None:
        """Twice a second: refresh leases, load weights, take orders; or die."""
        if not self.alive:
            return
        world = self.world
        if world.strikes(world.script.generator_deaths_per_s / 2):
            self.die("killed")
            return
        claims = [(f"worker:{self.name}", self.incarnation)]
        claims += [(f"p:{prompt}", order.attempt) for prompt, order in self.running.items()]
        for key in self.desk.refresh(self.name, claims):
            if key.startswith("worker:"):
                self.alive = False
                return
            self.running.pop(int(key[2:]), None)
        self._read_control()
        self._take()
        world.at(0.5, self.beat)

    def _read_control(self) -> None:
        epoch = self.desk.epoch()
        if epoch != self.epoch:
            self.epoch, self.read_to = epoch, None
        for id, notice in self.desk.control(epoch, self.read_to, 0.0):
            self.read_to = id
            match notice:
                case NewWeights(version=version, digest=name, oldest_useful=oldest):
                    self.weights[version] = name
                    self._cancel(oldest)
                    if not self.pinned and version >= self.version:
                        self.version = version
                        self.report(WeightsLoaded(worker=self.name, version=version, digest=name))
                case Ending():
                    self.alive = False
                case _:
                    pass

    def _cancel(self, oldest_useful: int) -> None:
        for prompt in [prompt for prompt in self.running if self.born[prompt] < oldest_useful]:
            order = self.running.pop(prompt)
            cancelled = GroupCancelled(
                prompt=prompt, attempt=order.attempt, cause=order.cause, born=self.born[prompt], worker=self.name
            )
            self.report(cancelled, f"p:{prompt}")

    def _take(self) -> None:
        room = 1 if self.pinned else self.world.script.orders_per_generator
        newest = max(self.weights, default=-1)
        while self.alive and len(self.running) < room:
            order = self.desk.take(self.name, self.epoch, newest)
            if order is None:
                return
            script, rng = self.world.script, self.world.rng
            self.running[order.prompt] = order
            key = (order.prompt, order.attempt)
            self.world.started[key] = self.world.started.get(key, 0) + 1
            born = self.born[order.prompt] = order.weights if self.pinned else self.version
            wait_s = script.slow_s if self.world.strikes(script.slow_rate) else rng.uniform(*script.group_s)
            self.world.at(wait_s, lambda order=order, born=born: self._finish(order, born))  # type: ignore[misc]

    def _finish(self, order: Order, born: int) -> None:
        if not self.alive or self.running.get(order.prompt) != order:
            return
        script, lease = self.world.script, f"p:{order.prompt}"
        if self.world.strikes(script.infra_rate):
            self._fail(order, FailureKind.INFRA, "played time-out")
        elif unit(script.seed, "data", order.prompt, order.data_failures) < script.data_rate:
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
                reward_std=0.0 if unit(script.seed, "equal", order.prompt) < script.equal_rate else 0.5,
                worker=self.name,
            )
            self.world.reported[order.prompt] = self.world.reported.get(order.prompt, 0) + 1
            self.report(made, lease)
        self.running.pop(order.prompt, None)

    def _fail(self, order: Order, kind: FailureKind, error: str) -> None:
        failed = GroupFailed(
            prompt=order.prompt, attempt=order.attempt, cause=order.cause, kind=kind, error=error, worker=self.name
        )
        self.report(failed, f"p:{order.prompt}")

    def report(self, result: Result, lease: str | None = None) -> None:
        """Into the results stream."""
        self.desk.report(result, lease)

    def die(self, reason: str) -> None:
        """Without a word; the launcher sees the dead process."""
        self.alive = False
        self.world.dead.append(WorkerGone(worker=self.name, role=Role.GENERATOR, reason=reason))


class Trainer:
    """One rank. Its weights are a hash chain over the blobs of each step, in ordinal order."""

    def __init__(self, world: World, state: State) -> None:
        self.world, self.generation = world, state.generation
        self.desk = world.server.desk()
        self.alive = True
        self.epoch = 0
        self.read_to: str | None = None
        self.version, self.publish_from = state.standing, state.version
        self.chunk = 0
        self.blobs: list[tuple[int, str]] = []
        self.saved: set[int] = set()
        self.busy = False
        checkpoint = state.checkpoints.get(state.standing)
        self.weights = world.model if checkpoint is None else world.disk[checkpoint.manifest].weights
        self.report(WorkerJoined(worker="rank-0", role=Role.TRAINER, machine={}))
        if checkpoint is None:
            self._save(state.generation)
        if self.version >= self.publish_from:
            file, name = self._publish()
            ready = WeightsReady(
                generation=self.generation, version=self.version, file=file, digest=name, worker="rank-0"
            )
            self.report(ready)
        world.at(0.0, self.beat)

    def beat(self) -> None:
        """Twice a second: refresh the lease, read the next order; or die."""
        if not self.alive:
            return
        world = self.world
        if world.strikes(world.script.trainer_deaths_per_s / 2):
            self.die("killed")
            return
        if self.desk.refresh("rank-0", [("rank:0", self.generation)]):
            self.alive = False
            return
        if not self.busy:
            self._read()
        world.at(0.5, self.beat)

    def _read(self) -> None:
        epoch = self.desk.epoch()
        if epoch != self.epoch:
            self.epoch, self.read_to = epoch, None
        if any(isinstance(notice, Ending) for _, notice in self.desk.control(epoch, None, 0.0)):
            self.alive = False
            return
        for id, message in self.desk.train(epoch, self.read_to, 0.0):
            self.read_to = id
            if message.generation > self.generation:
                self.alive = False
            elif message.generation == self.generation and self._obey(message):
                return

    def _obey(self, message: TrainMessage) -> bool:
        """Do it; True when the rank is busy from now on."""
        if not isinstance(message, Chunk):
            if message.version == self.version and message.version not in self.saved:
                self._save(message.cause.offset)
            return False
        if (message.step, message.chunk) < (self.version, self.chunk):
            return False
        assert (message.step, message.chunk) == (self.version, self.chunk), "a gap in the train stream"
        self.chunk += 1
        self.blobs += zip(message.prompts, message.blobs, strict=True)
        if message.last:
            self.busy = True
            self.world.at(self.world.script.step_s, self._close_step)
        return message.last

    def _close_step(self) -> None:
        if not self.alive:
            return
        step, self.version, self.chunk, self.busy = self.version, self.version + 1, 0, False
        self.weights = digest("step", self.weights, *[blob for _, blob in sorted(self.blobs)])
        self.blobs = []
        file, name = self._publish() if self.version >= self.publish_from else ("", "")
        done = StepDone(
            generation=self.generation,
            step=step,
            loss=0.0,
            grad_norm=1.0,
            tokens=1,
            rows=1,
            padding=0,
            seconds=self.world.script.step_s,
            logprob_gap=None,
            file=file,
            digest=name,
            worker="rank-0",
        )
        if self.world.strikes(self.world.script.trainer_deaths_per_s):
            self.die("killed before its report")
            return
        self.report(done)

    def _publish(self) -> tuple[str, str]:
        file = f"{self.version}-{self.weights}"
        self.world.files[file] = self.weights
        return file, self.weights

    def _save(self, offset: int) -> None:
        name = f"{self.version}-{offset}-{self.generation}"
        saved = SavedCheckpoint(version=self.version, manifest=name, digest=digest("manifest", name, self.weights))
        self.world.disk[name] = Manifest(saved, self.weights)
        self.saved.add(self.version)
        if self.world.strikes(self.world.script.trainer_deaths_per_s):
            self.die("killed between the manifest and its report")
            return
        done = CheckpointDone(
            generation=self.generation, version=self.version, manifest=name, digest=saved.digest, worker="rank-0"
        )
        self.report(done)

    def report(self, result: Result) -> None:
        """Into the results stream."""
        if self.alive:
            self.desk.report(result)

    def die(self, reason: str) -> None:
        """Without a word; the launcher sees the dead process."""
        self.alive = False
        self.world.dead.append(WorkerGone(worker="rank-0", role=Role.TRAINER, reason=reason))
