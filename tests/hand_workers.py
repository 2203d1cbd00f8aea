"""Workers that move only when a test tells them to: a generator and a trainer rank that keep the rules of workers.

They speak to the log through a ``Desk``, as real workers do. The trainer's weights are a hash chain over what it was
fed, so that two runs can be compared to the bit; a group's blob depends on its prompt, its data failures and the
weights that made it, and on nothing else.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollog.events.log import Desk
from rollog.events.messages import (
    CheckpointDone,
    Chunk,
    GroupDone,
    GroupFailed,
    NewWeights,
    Order,
    SaveOrder,
    StepDone,
    TrainMessage,
    WeightsLoaded,
    WeightsReady,
    WorkerJoined,
)
from rollog.events.vocabulary import FailureKind, Role
from rollog.pipeline.simulation.world import digest
from rollog.replay.state import SavedCheckpoint, State

FIRST_MODEL = digest("the model that the run began with")


@dataclass(slots=True)
class OnDisk:
    """A checkpoint folder. Not whole: its manifest is missing or does not fit its files."""

    saved: SavedCheckpoint
    weights: str
    whole: bool = True


@dataclass(slots=True)
class HandGenerator:
    """Takes orders and finishes or fails them when told. ``orders``: what it holds, with the weights that began it."""

    desk: Desk
    rollouts: int
    name: str = "gen-0"
    pinned: bool = False
    alive: bool = True
    version: int = -1
    files: dict[int, str] = field(default_factory=dict)
    orders: dict[int, tuple[Order, int]] = field(default_factory=dict)
    reward_std: float = 0.25
    """Of every group that it reports from now on; 0: all rewards of a group are equal."""

    def join(self) -> None:
        """Say that it is there, and under which lease."""
        self.desk.report(WorkerJoined(worker=self.name, role=Role.GENERATOR, machine={}))

    def load(self) -> int:
        """Load the newest published weights; -1 when there are none."""
        notices = [notice for _, notice in self.desk.control(self.desk.epoch(), None, 0.0)]
        self.files.update({notice.version: notice.digest for notice in notices if isinstance(notice, NewWeights)})
        newest = max(self.files, default=-1)
        if newest > self.version:
            self.version = newest
            self.desk.report(WeightsLoaded(worker=self.name, version=newest, digest=self.files[newest]))
        return self.version

    def take(self, most: int = 1000) -> tuple[int, ...]:
        """Take free orders, and return the prompts taken."""
        taken = []
        while len(taken) < most and (order := self.desk.take(self.name, self.desk.epoch(), self.version)) is not None:
            self.orders[order.prompt] = (order, order.weights if self.pinned else self.version)
            taken.append(order.prompt)
        return tuple(taken)

    def finish(self, prompt: int, *, born: int | None = None, done: int | None = None) -> GroupDone:
        """Report the group of a prompt that it holds; what was reported can be delivered again."""
        order, began = self.orders.pop(prompt)
        begun = began if born is None else born
        ended = done if done is not None else begun if self.pinned else self.version
        result = self.result(order, begun, ended)
        self.desk.report(result, f"p:{prompt}")
        return result

    def result(self, order: Order, born: int, done: int) -> GroupDone:
        """The finished group of an order."""
        return GroupDone(
            prompt=order.prompt,
            attempt=order.attempt,
            cause=order.cause,
            blob=digest("blob", order.prompt, order.data_failures, self.files.get(born, born)),
            born=born,
            done=done,
            rollouts=self.rollouts,
            rows=self.rollouts,
            tokens=self.rollouts * 3,
            reward_mean=0.5,
            reward_std=self.reward_std,
            worker=self.name,
        )

    def fail(self, prompt: int, kind: FailureKind = FailureKind.INFRA, error: str = "played") -> GroupFailed:
        """Report that the attempt of a prompt failed."""
        order, _ = self.orders.pop(prompt)
        result = GroupFailed(
            prompt=prompt, attempt=order.attempt, cause=order.cause, kind=kind, error=error, worker=self.name
        )
        self.desk.report(result, f"p:{prompt}")
        return result

    def refresh(self) -> None:
        """Renew its leases; let go of the orders whose lease is gone."""
        if self.alive:
            claims = [(f"p:{prompt}", order.attempt) for prompt, (order, _) in self.orders.items()]
            for key in self.desk.refresh(self.name, claims):
                del self.orders[int(key.removeprefix("p:"))]


@dataclass(slots=True)
class HandTrainer:
    """One rank. It reads the train stream in order, skips what it has, and refuses a gap."""

    desk: Desk
    disk: dict[str, OnDisk]
    generation: int
    version: int
    publish_from: int
    weights: str
    alive: bool = True
    epoch: int = -1
    read_to: str | None = None
    chunk: int = 0
    blobs: list[tuple[int, str]] = field(default_factory=list)
    todo: deque[TrainMessage] = field(default_factory=deque)
    saved: set[int] = field(default_factory=set)
    dies: Callable[[str, int], bool] = lambda point, version: False
    """Asked at its own points ("in a checkpoint", "before a checkpoint's report", "before a step's report")."""

    @classmethod
    def of(cls, state: State, desk: Desk, disk: dict[str, OnDisk]) -> "HandTrainer":
        """The rank that the State's trainer generation asks for: it loads the checkpoint that Resume names."""
        checkpoint = state.checkpoints.get(state.standing)
        weights = FIRST_MODEL if checkpoint is None else disk[checkpoint.manifest].weights
        return cls(desk, disk, state.generation, state.standing, state.version, weights)

    def start(self, *, first: bool) -> None:
        """Join, write checkpoint 0 if there is none, and publish when it stands at the version by loading."""
        self.desk.report(WorkerJoined(worker="rank-0", role=Role.TRAINER, machine={}))
        if first:
            self.save(self.generation)
        if self.alive and self.version >= self.publish_from:
            file, name = self._publish()
            self.desk.report(
                WeightsReady(generation=self.generation, version=self.version, file=file, digest=name, worker="rank-0")
            )

    def pull(self) -> Sequence[TrainMessage]:
        """Read the train stream; from its start after a new writer epoch. Returns what it has to do."""
        epoch = self.desk.epoch()
        if epoch != self.epoch:
            self.epoch, self.read_to = epoch, None
            self.todo.clear()
        for id, message in self.desk.train(epoch, self.read_to, 0.0):
            self.read_to = id
            if message.generation > self.generation:
                self.alive = False
            elif message.generation == self.generation:
                self.todo.append(message)
        return [message for message in self.todo if self._new(message)]

    def work(self, messages: int = 1000) -> None:
        """Obey what the stream holds, up to so many messages that are new to it."""
        self.pull()
        while self.todo and messages and self.alive:
            message = self.todo.popleft()
            if self._new(message):
                messages -= 1
                self._obey(message)

    def step(self, *, report: bool = True) -> None:
        """Train one step, obeying the Saves before it."""
        before = self.version
        while self.version == before:
            todo = self.pull()
            assert todo, f"the train stream holds no chunk of step {before}"
            while not self._new(self.todo[0]):
                self.todo.popleft()
            self._obey(self.todo.popleft(), report=report)

    def _new(self, message: TrainMessage) -> bool:
        if isinstance(message, SaveOrder):
            return message.version >= self.version and message.version not in self.saved
        return (message.step, message.chunk) >= (self.version, self.chunk)

    def _obey(self, message: TrainMessage, *, report: bool = True) -> None:
        match message:
            case SaveOrder():
                assert message.version == self.version, f"asked to save {message.version} while at {self.version}"
                self.save(message.cause.offset)
            case Chunk():
                gap = f"chunk {message.step}.{message.chunk} comes while at {self.version}.{self.chunk}"
                assert (message.step, message.chunk) == (self.version, self.chunk), gap
                self.chunk += 1
                self.blobs += zip(message.prompts, message.blobs, strict=True)
                if message.last:
                    self._close(report)

    def _close(self, report: bool) -> None:
        step, self.version, self.chunk = self.version, self.version + 1, 0
        self.weights = digest("step", self.weights, *[blob for _, blob in sorted(self.blobs)])
        self.blobs = []
        file, name = self._publish() if self.version >= self.publish_from else ("", "")
        self.alive = not self.dies("before a step's report", step)
        if report and self.alive:
            self.desk.report(self.done(step, file, name))

    def done(self, step: int, file: str = "", name: str = "") -> StepDone:
        """The report of a step."""
        return StepDone(
            generation=self.generation,
            step=step,
            loss=0.0,
            grad_norm=1.0,
            tokens=1,
            rows=1,
            padding=0,
            seconds=1.0,
            logprob_gap=None,
            file=file,
            digest=name,
            worker="rank-0",
        )

    def save(self, offset: int, *, report: bool = True, whole: bool = True) -> None:
        """Write a checkpoint, its manifest last; on request not whole, or not reported."""
        name = f"{self.version}-{offset}-{self.generation}"
        saved = SavedCheckpoint(version=self.version, manifest=name, digest=digest("manifest", name, self.weights))
        if self.dies("in a checkpoint", self.version):
            self.alive = whole = False
        self.disk[name] = OnDisk(saved, self.weights, whole)
        self.saved.add(self.version)
        if self.alive and self.dies("before a checkpoint's report", self.version):
            self.alive = False
        if report and whole and self.alive:
            self.desk.report(
                CheckpointDone(
                    generation=self.generation,
                    version=self.version,
                    manifest=name,
                    digest=saved.digest,
                    worker="rank-0",
                )
            )

    def _publish(self) -> tuple[str, str]:
        return f"{self.version}-{self.weights}", self.weights
