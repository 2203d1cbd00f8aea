"""The real controller in a played world: every history that a run can have, from a seed, in milliseconds.

Everything that decides is real: controller, mailbox, decisions, scheduling, fold, and a log with its scripts' meaning.
Time passes only while the controller waits for results. A death of the controller is an exception that no code of
rollog catches, raised at any call of the log, before or after it took effect, or in the middle of a window.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollog.events.errors import LogUncertain
from rollog.events.log import Delivery, Entry, Log, Outbox, Pen
from rollog.events.vocabulary import FinishReason, Role, Start, StopReason
from rollog.pipeline.config import Plan, changes
from rollog.pipeline.controller import Controller
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.inputs import StopAsked, WorkerGone
from rollog.pipeline.mailbox import Mailbox
from rollog.pipeline.permutation import row_index
from rollog.pipeline.policy import Policy
from rollog.pipeline.reconfigure import configure
from rollog.pipeline.scripted import Generator, Script, Trainer, World
from rollog.pipeline.waiting import Wait
from rollog.replay.invariants import Audit
from rollog.replay.projector import fold_all
from rollog.replay.state import SavedCheckpoint, State


class Death(BaseException):
    """The controller's process is gone, here and now."""


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A data set of which only the number of rows is known; the permutation is the real one."""

    num_rows: int
    seed: int

    def row_index(self, ordinal: int) -> int:
        """The row of an ordinal."""
        return row_index(ordinal, num_rows=self.num_rows, seed=self.seed)


class FaultyLog:
    """A log on which any call can be the last thing that a controller does, or can stay without an answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log: Log = world.server.log()
        self.head, self.read, self.pressure = self._log.head, self._log.read, self._log.pressure
        self.leases, self.close, self.end_leases = self._log.leases, self._log.close, self._log.end_leases
        self.plant, self.trim = self._log.plant, self._log.trim

    def open(self, nonce: str) -> Pen:
        """Take the pen."""
        self._may_die()
        pen = self._log.open(nonce)
        self._may_die()
        return pen

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append a window, or a part of it."""
        script, rng = self._world.script, self._world.rng
        dies = self._world.strikes(script.controller_death_rate)
        uncertain = self._world.strikes(script.uncertain_rate)
        landed = rng.randint(0, len(window)) if dies or uncertain else len(window)
        self._log.append(window[:landed])
        if dies:
            raise Death
        if uncertain:
            raise LogUncertain("played: no answer in time")

    def hand_over(self, outbox: Outbox) -> None:
        """Fill the new epoch's streams."""
        self._may_die()
        self._log.hand_over(outbox)
        self._may_die()

    def results(self, after: str | None, block_s: float) -> Sequence[Delivery]:
        """Let the world go on until there is a result."""
        self._may_die()
        found: Sequence[Delivery] = ()

        def some() -> bool:
            nonlocal found
            found = self._log.results(after, 0.0)
            return bool(found)

        self._world.run_for(block_s, some)
        return found

    def put_lease(self, key: str, number: int, worker: str) -> None:
        """Write a lease."""
        self._may_die()
        self._log.put_lease(key, number, worker)
        self._may_die()

    def _may_die(self) -> None:
        if self._world.strikes(self._world.script.controller_death_rate / 4):
            raise Death


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
        rank = self._log.leases().by_key.get("rank:0")
        if rank is None or rank.number != state.generation:
            self._log.put_lease("rank:0", state.generation, "rank-0")
            if world.trainer is not None:
                world.trainer.alive = False
            world.trainer = Trainer(world, state)
        return [gone for gone in dead if gone.role is Role.GENERATOR or not self._trainer_lives()]

    def _trainer_lives(self) -> bool:
        return self._world.trainer is not None and self._world.trainer.alive

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
class Outcome:
    """How a history ended, and what it was."""

    state: State
    world: World
    audit: Audit
    deaths: int = 0
    stops: int = 0
    failures: int = 0
    steps: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def weights(self) -> str:
        """The weights in the newest checkpoint."""
        newest = self.state.checkpoints[max(self.state.checkpoints)]
        return self.world.disk[newest.manifest].weights


@dataclass(slots=True)
class _Watcher:
    """Kills the controller between entries, asks it to stop, and compares its State with the fold."""

    world: World
    ask: Callable[[StopAsked], None]

    def entry(self, state: State, entry: Entry) -> None:
        """Nothing: the audit follows the log itself."""

    def waiting(self, state: State, wait: Wait) -> None:
        """Now and then somebody asks for a stop, or a clock jumps."""
        script, rng = self.world.script, self.world.rng
        if self.world.strikes(script.stop_rate):
            self.ask(StopAsked(reason=StopReason.REQUEST, within_s=rng.choice([0.0, 2.0, 60.0])))
        if script.clock_jump_s and self.world.strikes(0.02):
            self.world.skew = rng.uniform(-script.clock_jump_s, script.clock_jump_s)


def simulate(
    plan: Plan, num_rows: int, script: Script, *, others: Sequence[Plan] = (), max_restarts: int = 10_000
) -> Outcome:
    """Run to the end of the data or of the steps asked for, started again after every death and every stop.

    ``others``: plans that a restart may go on under, now and then.

    Raises ``BrokenInvariant`` or ``BrokenHistory`` when a law is broken, ``Hang`` when the run waits for itself, and
    lets every other error of the controller through.
    """
    world = World(script, plan)
    outcome = Outcome(State(), world, Audit())
    rows = NumberedRows(num_rows, plan.seed)
    for restart in range(max_restarts):
        changed: Mapping[str, Any] = {}
        if others and restart and world.strikes(0.5):
            plan = world.plan = world.rng.choice(others)
        if others and (recorded := fold_all(world.server.log().read()).settings):
            changed = changes(recorded, plan.settings())
        log = FaultyLog(world)
        mailbox = Mailbox(log, PlayedLauncher(world, log), PlayedDisk(world), plan.flow)
        controller = Controller(
            log=log,
            mailbox=mailbox,
            policy=Policy.of(plan, rows),
            start=Start(run=plan.run, config=plan.settings(), dataset="played", seed=plan.seed, num_rows=num_rows),
            clock=lambda: world.now + world.skew,
            nonce=lambda restart=restart: f"nonce-{restart}-{next(world.tick)}",  # type: ignore[misc]
            version="simulated",
            machine={},
            observer=_Watcher(world, mailbox.signal),
            changes=(lambda state, changed=changed: configure(state, changed),),  # type: ignore[misc]
        )
        try:
            finish = controller.run()
        except Death:
            outcome.deaths += 1
            finish = None
        except RunFailed:  # somebody mends what killed the trainer again and again, and resumes
            outcome.failures += 1
            finish = None
        for entry in world.server.log().read(outcome.audit.state.offset + 1):
            outcome.audit.follow(entry)
        if finish in (FinishReason.EXHAUSTED, FinishReason.MAX_STEPS, FinishReason.FAILED):
            break
        outcome.stops += finish is FinishReason.STOPPED
    outcome.audit.finish()
    outcome.state = fold_all(world.server.log().read())
    assert outcome.state == controller.state, "the running State is not the fold of the log"
    outcome.steps = outcome.audit.steps
    return outcome
