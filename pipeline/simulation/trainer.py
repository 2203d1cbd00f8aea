"""A scripted trainer: its weights are a hash chain over what it was fed, so that one wrong group shows for ever."""

from typing import Final

from rollog.events.messages import (
    CheckpointDone,
    Chunk,
    Ending,
    Result,
    StepDone,
    TrainMessage,
    WeightsReady,
    WorkerJoined,
)
from rollog.events.vocabulary import Role
from rollog.pipeline.inputs import WorkerGone
from rollog.pipeline.simulation.world import Manifest, World, digest
from rollog.replay.state import SavedCheckpoint, State

PATIENCE_S: Final = 200.0
"""Somebody ends a trainer that hangs for so long, whether or not the log says that the run stalls."""


class Trainer:
    """One rank. Its weights are a hash chain over the blobs of each step, in ordinal order."""

    def __init__(self, world: World, state: State) -> None:
        self.world, self.generation = world, state.generation
        self.desk = world.server.desk()
        self.alive = True
        self.epoch = 0
        self.read_to: str | None = None
        self.heard_to: str | None = None
        self.version, self.publish_from = state.standing, state.publish_from
        self.chunk = 0
        self.blobs: list[tuple[int, str]] = []
        self.saved: set[int] = set()
        self.busy = self.hangs = False
        self.refresh_at = world.now
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
        """Twice a second: refresh the lease when it is due, read the next order; or die."""
        if not self.alive:
            return
        world = self.world
        if world.strikes(world.script.trainer_deaths_per_s / 2):
            self.die("killed")
            return
        if world.now >= self.refresh_at:
            self.refresh_at = world.now + world.plan.flow.lease_s / 3
            if self.desk.refresh("rank-0", [("rank:0", self.generation)]):
                self.alive = False
                return
        if not self.busy:
            self._read()
        world.at(0.5, self.beat)

    def _read(self) -> None:
        epoch = self.desk.epoch()
        if epoch != self.epoch:
            self.epoch, self.read_to, self.heard_to = epoch, None, None
        for id, notice in self.desk.control(epoch, self.heard_to, 0.0):
            self.heard_to = id
            if isinstance(notice, Ending):
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
            self.hangs = self.world.strikes(self.world.script.trainer_hang_rate)
            if self.hangs:
                self.world.at(PATIENCE_S, self.end_by_hand)
            else:
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
        """Into the results stream; now and then it arrives twice."""
        if self.alive:
            self.desk.report(result)
            if self.world.strikes(self.world.script.twice_rate):
                self.desk.report(result)

    def end_by_hand(self) -> None:
        """Somebody ends it if it hangs."""
        if self.alive and self.hangs:
            self.die("ended by hand: it hangs")

    def die(self, reason: str) -> None:
        """Without a word; the launcher sees the dead process."""
        self.alive = False
        self.world.dead.append(WorkerGone(worker="rank-0", role=Role.TRAINER, reason=reason))
