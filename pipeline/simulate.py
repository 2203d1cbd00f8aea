"""The real controller in a played world: every history that a run can have, from a seed, in milliseconds.

    Script, seed --> World (clock, disk, scripted workers)
                       |
                       v
    real log  -->  FaultyLog  -->  real mailbox, controller, decisions, scheduling, fold  -->  Outcome

Everything that decides is real, and so is the log: the one in memory, which has its scripts' meaning, or a server's
(``simulation.real_server``). A controller that dies is started again, on a snapshot or from the first entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollog.events.errors import Fenced
from rollog.events.log import Log, Reader
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import FinishReason, Start
from rollog.pipeline.config import Plan, changes
from rollog.pipeline.controller import Controller
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.mailbox import Archive, Mailbox
from rollog.pipeline.policy import Policy
from rollog.pipeline.reconfigure import configure
from rollog.pipeline.simulation.around import NumberedRows, PlayedDisk, PlayedLauncher, Watcher
from rollog.pipeline.simulation.faulty_log import Death, FaultyLog
from rollog.pipeline.simulation.world import Hang, MakeServer, Script, World
from rollog.replay import snapshots
from rollog.replay.invariants import Audit
from rollog.replay.state import State

MakeArchive = Callable[[Log], Archive | None]

ENDS = (FinishReason.EXHAUSTED, FinishReason.MAX_STEPS, FinishReason.FAILED)
"""Ends after which nobody starts the run again."""
FOLD_RATE = 0.1
"""How often a restarted controller finds no snapshot."""
BYTES_RATE = 0.1
"""How often it reads one from its bytes."""


@dataclass(slots=True)
class Outcome:
    """How a history ended, and what it was. ``deaths``: of the controller; ``failures``: runs that could not go on."""

    state: State
    world: World
    audit: Audit
    deaths: int = 0
    stops: int = 0
    failures: int = 0
    fenced: int = 0
    """Controllers that found another one holding the pen."""
    stalls: int = 0
    steps: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def weights(self) -> str:
        """The weights in the newest checkpoint."""
        newest = self.state.checkpoints[max(self.state.checkpoints)]
        return self.world.disk[newest.manifest].weights


def simulate(
    plan: Plan,
    num_rows: int,
    script: Script,
    *,
    others: Sequence[Plan] = (),
    make_server: MakeServer = MemoryServer,
    world: World | None = None,
    archive: MakeArchive = lambda log: None,
    audited: bool = True,
    max_restarts: int = 10_000,
) -> Outcome:
    """Run to the end of the data or of the steps asked for, started again after every death and every stop.

    ``others``: plans that a restart may go on under, now and then. ``world``: one whose log has begun already, as that
    of a fork has. ``archive``: who moves old entries off a controller's log, if anybody. ``audited``: check every law
    at every offset, and the whole fold.

    Raises ``BrokenInvariant`` or ``BrokenHistory`` when a law is broken, ``Hang`` when the run waits for itself, and
    lets every other error of the controller through.
    """
    world = world or World(script, plan, make_server)
    outcome = Outcome(State(), world, Audit())
    reader = world.server.log()
    settings = {id(each): each.settings() for each in (plan, *others)}
    _catch_up(outcome.audit, reader)
    for restart in range(max_restarts):
        if others and restart and world.strikes(0.5):
            plan = world.plan = world.rng.choice(others)
        wanted = settings[id(plan)]
        recall = partial(_recalled, world, outcome.audit, reader if audited else None)
        controller, watcher = _controller(plan, wanted, num_rows, outcome, archive, recall, changing=bool(others))
        try:
            finish = controller.run()
        except Death:
            outcome.deaths += 1
            finish = None
        except Fenced:
            outcome.fenced += 1
            finish = None
        except RunFailed:  # the workers are ended; somebody mends what is wrong, and resumes
            world.kill_workers()
            outcome.failures += 1
            finish = None
        outcome.stalls += watcher.stalls
        if audited:
            _catch_up(outcome.audit, reader)
        if finish in ENDS:
            break
        outcome.stops += finish is FinishReason.STOPPED
    else:
        raise Hang(f"no end after {max_restarts} restarts")
    outcome.state = controller.state
    if audited:
        outcome.audit.finish()
        assert outcome.state == outcome.audit.state, "the running State is not the fold of the log"
    outcome.steps = outcome.audit.steps
    return outcome


def _catch_up(audit: Audit, reader: Reader) -> None:
    """Let the audit follow the log to its head."""
    for entry in reader.read(audit.state.offset + 1):
        audit.follow(entry)


def _controller(
    plan: Plan,
    settings: Mapping[str, Any],
    num_rows: int,
    outcome: Outcome,
    archive: MakeArchive,
    recall: Callable[[], State],
    *,
    changing: bool,
) -> tuple[Controller, Watcher]:
    """A controller's new process, and who watches it. ``changing``: whether the log's settings may differ."""
    world, known = outcome.world, outcome.audit.state
    rows = NumberedRows(num_rows, plan.seed)
    log = FaultyLog(world, world.server.log())
    mailbox = Mailbox(log, PlayedLauncher(world, log), PlayedDisk(world), plan.flow, archive(log))
    watcher = Watcher(world, mailbox.signal)
    wanted: Mapping[str, Any] = changes(known.settings, settings) if changing and known.settings else {}
    controller = Controller(
        log=log,
        mailbox=mailbox,
        policy=Policy.of(plan, rows, known.slate),
        start=Start(run=plan.run, config=settings, dataset="played", seed=plan.seed, num_rows=num_rows),
        clock=lambda: world.now + world.skew,
        nonce=lambda: f"nonce-{next(world.tick)}",
        version="simulated",
        machine={},
        observer=watcher,
        changes=(lambda state: configure(state, wanted),),
        recall=recall,
    )
    return controller, watcher


def _recalled(world: World, audit: Audit, reader: Reader | None) -> State:
    """What a controller begins on that opens the log: a snapshot of what the audit has followed, or nothing.

    Now and then the snapshot goes through its bytes, and is older than the log: the entries since the controller's
    process began are folded after it. A copy is the same, and takes a fraction of the time; the audit follows the log
    to its head for it, if there is a ``reader``.
    """
    chance = world.rng.random()
    if chance < FOLD_RATE:
        return State()
    if chance < FOLD_RATE + BYTES_RATE:
        found = snapshots.decode(snapshots.encode(audit.state))
        assert found is not None, f"the snapshot of entry {audit.state.offset} cannot be read"
        return found.state
    if reader is not None:
        _catch_up(audit, reader)
    return audit.state.copy()


__all__ = ("Death", "NumberedRows", "Outcome", "Script", "simulate")
