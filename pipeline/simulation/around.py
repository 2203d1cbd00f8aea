"""What stands around a simulated controller: its launcher, its disk, its data set, and who watches it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollog.events.log import Entry, Log
from rollog.events.vocabulary import Role, Stall, StopReason
from rollog.pipeline.inputs import StopAsked, WorkerGone
from rollog.pipeline.permutation import row_index
from rollog.pipeline.simulation.generator import Generator
from rollog.pipeline.simulation.trainer import Trainer
from rollog.pipeline.simulation.world import World
from rollog.pipeline.waiting import Wait
from rollog.replay.state import SavedCheckpoint, State


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A data set of which only the number of rows is known; the permutation is the real one."""

    num_rows: int
    seed: int

    def row_index(self, ordinal: int) -> int:
        """The row of an ordinal."""
        return row_index(ordinal, num_rows=self.num_rows, seed=self.seed)


class PlayedLauncher:
    """Starts scripted workers, by the same rules as the local launcher."""

    def __init__(self, world: World, log: Log) -> None:
        self._world, self._log = world, log

    def reconcile(self, state: State) -> Sequence[WorkerGone]:
        """Start what is missing; report the dead."""
        world = self._world
        dead, world.dead = world.dead, []
        if state.finish is not None:
            return dead
        for number in range(world.script.generators):
            name = f"gen-{number}"
            worker = world.generators.get(name)
            if worker is None or not worker.alive:
                self._log.put_lease(f"worker:{name}", state.offset, name)
                world.generators[name] = Generator(world, name, state.offset)
        if world.trainer is None or world.trainer.generation != state.generation:
            rank = self._log.leases().by_key.get("rank:0")
            if rank is None or rank.number != state.generation:
                self._log.put_lease("rank:0", state.generation, "rank-0")
                if world.trainer is not None:
                    world.trainer.alive = False
                world.trainer = Trainer(world, state)
        return [gone for gone in dead if gone.role is Role.GENERATOR or not self._trainer_lives()]

    def _trainer_lives(self) -> bool:
        return self._world.trainer is not None and self._world.trainer.alive

    def end(self, worker: str) -> None:
        """End a generator that hangs."""
        hung = self._world.generators.get(worker)
        if hung is not None and hung.alive:
            hung.die("it hung")

    def close(self, *, kill: bool) -> None:
        """Nothing runs by itself here."""


@dataclass(frozen=True, slots=True)
class PlayedDisk:
    """The checkpoints on the played disk."""

    world: World

    def whole(self, state: State) -> Sequence[SavedCheckpoint]:
        """Those that are whole; now and then one turns out broken that is not the last one."""
        manifests = sorted(self.world.disk.values(), key=lambda manifest: manifest.saved.version)
        kept = [m for m in manifests if m.whole and m.saved.version >= state.oldest_kept_checkpoint()]
        if len({m.saved.version for m in kept}) > 1 and self.world.strikes(self.world.script.broken_manifest_rate):
            kept[-1].whole = False
        return [m.saved for m in kept if m.whole]


@dataclass(slots=True)
class Watcher:
    """A person: asks for a stop now and then, and ends a trainer that hangs when the log says that the run stalls.

    The same person's machine sets its clock, and runs short of memory.
    """

    world: World
    ask: Callable[[StopAsked], None]
    stalls: int = 0

    def entry(self, state: State, entry: Entry) -> None:
        """Read the remarks."""
        for event in entry.events:
            if isinstance(event, Stall):
                self.stalls += 1
                if self.world.trainer is not None and state.stopping is None:
                    self.world.trainer.end_by_hand()

    def waiting(self, state: State, wait: Wait) -> None:
        """Now and then something happens."""
        world, script = self.world, self.world.script
        if world.strikes(script.stop_rate):
            self.ask(StopAsked(reason=StopReason.REQUEST, within_s=world.rng.choice([0.0, 2.0, 60.0])))
        if script.clock_jump_s and world.strikes(0.02):
            world.skew = world.rng.uniform(-script.clock_jump_s, script.clock_jump_s)
        if world.strikes(script.pressure_rate):
            world.pressed_until = world.now + world.rng.uniform(1.0, 60.0)
