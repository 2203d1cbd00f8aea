"""A run on the memory log in which nothing happens but what a test does.

Everything that decides is real: controller, mailbox, decisions, scheduling, fold. Workers are hand-moved, the clock
stands still until it is moved, and the audit follows every entry, so each test checks every law at every offset too.

    stage = Stage(small_plan(grpo={"prompts_per_step": 4}))    # a controller has opened the run and decided what it can
    stage.finish(0, 1, 2)                                      # three groups finish, the controller answers
    stage.kill_controller()                                    # between two calls; what it had appended stays
    stage.resume()

``hook`` is called at every ``Moment`` of the log's calls, and may raise ``Death`` there, or kill workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from hand_workers import HandGenerator, HandTrainer, OnDisk
from rollog.events.log import Entry
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Event, FailureKind, FinishReason, Role, Start, StopReason
from rollog.pipeline.config import Plan, changes_on_resume
from rollog.pipeline.controller import Controller
from rollog.pipeline.inputs import StopAsked, WorkerGone
from rollog.pipeline.mailbox import Mailbox
from rollog.pipeline.policy import Policy
from rollog.pipeline.reconfigure import configure
from rollog.pipeline.scheduling import schedule
from rollog.pipeline.simulation.around import NumberedRows
from rollog.pipeline.simulation.world import START_S
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.invariants import Audit
from rollog.replay.projector import fold_all
from rollog.replay.state import Place, SavedCheckpoint, State
from watched_log import Hook, WatchedLog

E = TypeVar("E", bound=Event)


def small_plan(**sections: Any) -> Plan:
    """N = 4, two rollouts, K = 1, no periodic checkpoint in sight; a section given is laid over these."""
    settings: dict[str, Any] = {
        "run": "staged",
        "model": {"path": "none"},
        "data": {"path": "none.jsonl"},
        "grpo": {"prompts_per_step": 4, "rollouts_per_prompt": 2},
        "checkpoint": {"every_steps": 100},
    }
    for name, section in sections.items():
        both = isinstance(section, dict) and isinstance(settings.get(name), dict)
        settings[name] = {**settings[name], **section} if both else section
    return Plan.from_settings(settings)


class Stage:
    """The server, the disk, the workers, and at most one controller."""

    def __init__(
        self,
        plan: Plan,
        *,
        num_rows: int = 64,
        server: type[MemoryServer] = MemoryServer,
        mailbox: type[Mailbox] = Mailbox,
        log: type[WatchedLog] = WatchedLog,
        hook: Hook = lambda moment: None,
        trainers_start: bool = True,
        opened: bool = True,
    ) -> None:
        """``trainers_start``: a new trainer generation reports that it is there at once."""
        self.plan, self.num_rows, self.hook, self.trainers_start = plan, num_rows, hook, trainers_start
        self.now = START_S
        self.server = server(clock=lambda: self.now)
        self.mailbox, self.log = mailbox, log
        self.disk: dict[str, OnDisk] = {}
        self.dead: list[WorkerGone] = []
        self.generator = self.new_generator()
        self.trainer: HandTrainer | None = None
        self.controller: Controller | None = None
        self.nonces = count()
        self.audit = Audit()
        self.trainer_dies: Callable[[str, int], bool] = lambda point, version: False
        if opened:
            self.resume()

    # --- what a test asks ---------------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """What the plan says."""
        return Policy.of(self.plan, NumberedRows(self.num_rows, self.plan.seed))

    @property
    def state(self) -> State:
        """The fold of the log."""
        return fold_all(self.server.log().read())

    def entries(self, first: int = 1) -> list[Entry]:
        """The log."""
        return list(self.server.log().read(first))

    def events(self, kind: type[E], first: int = 1) -> list[E]:
        """All events of a kind, in order."""
        return [event for entry in self.entries(first) for event in entry.events if isinstance(event, kind)]

    def at(self, place: Place) -> list[int]:
        """The prompts at a place."""
        return sorted(self.state.places[place])

    @property
    def steps(self) -> dict[int, tuple[int, ...]]:
        """The prompts of each selected step, in ordinal order."""
        return {step: tuple(sorted(prompts)) for step, prompts in self.audit.steps.items()}

    def schedule(self, *, pressure: bool = False) -> tuple[Event, ...] | Wait:
        """What the scheduler says now."""
        return schedule(self.state, self.policy, self.now, pressure)

    def waits_for(self, *, pressure: bool = False) -> WaitFor | None:
        """What the scheduler waits for; None when there is something to decide."""
        answer = self.schedule(pressure=pressure)
        return answer.why if isinstance(answer, Wait) else None

    # --- the controller -----------------------------------------------------------------------------------------------

    def resume(self, plan: Plan | None = None) -> None:
        """Start a controller, under other settings if they are given, and let it decide what it can."""
        self.new_controller(plan).open("start")
        self.settle()

    def new_controller(self, plan: Plan | None = None) -> Controller:
        """A new controller that holds no pen yet."""
        changed = changes_on_resume(self.plan.settings(), plan) if plan else {}
        self.plan = plan or self.plan
        log = self.log(self.server.log(), lambda moment: self.hook(moment))
        self.controller = Controller(
            log=log,
            mailbox=self.mailbox(log, HandLauncher(self, log), HandDisk(self), self.plan.flow),
            policy=self.policy,
            start=Start(
                run=self.plan.run, config=self.plan.settings(), dataset="staged", seed=0, num_rows=self.num_rows
            ),
            clock=lambda: self.now,
            nonce=lambda: f"nonce-{next(self.nonces)}",
            version="staged",
            machine={},
            observer=Unmoved(),
            changes=[lambda state: configure(state, changed)],
        )
        return self.controller

    def kill_controller(self) -> None:
        """It is gone, and with it what only it knew: which of its children have died."""
        self.controller = None
        self.dead.clear()

    def settle(self) -> FinishReason | None:
        """Let the controller decide until nothing follows any more."""
        assert self.controller is not None
        for _ in range(50):
            before = (self.server.head, self.server.num_ids)
            self.controller.turn()
            if (self.server.head, self.server.num_ids) == before or self.controller.state.finish is not None:
                break
        else:
            raise AssertionError("the controller finds no rest")
        self.follow()
        return self.controller.state.finish

    def follow(self) -> Audit:
        """Let the audit read what is new."""
        for entry in self.entries(self.audit.state.offset + 1):
            self.audit.follow(entry)
        return self.audit

    def ask_to_stop(self, within_s: float, reason: StopReason = StopReason.INTERRUPT) -> None:
        """A signal reaches the controller."""
        assert self.controller is not None
        self.controller.mailbox.signal(StopAsked(reason=reason, within_s=within_s))
        self.settle()

    # --- the workers --------------------------------------------------------------------------------------------------

    def finish(self, *prompts: int) -> None:
        """The generator takes what there is, and finishes these; the controller answers."""
        self.generator.load()
        self.generator.take()
        for prompt in prompts:
            self.generator.finish(prompt)
            self.settle()

    def fail(self, prompt: int, kind: FailureKind = FailureKind.INFRA, error: str = "played") -> None:
        """The generator takes what there is and fails at this prompt; the controller answers."""
        self.generator.load()
        self.generator.take()
        self.generator.fail(prompt, kind, error)
        self.settle()

    def train(self, steps: int = 1) -> None:
        """The trainer trains its next steps, and saves what it is asked to; the controller answers."""
        for _ in range(steps):
            self.rank.step()
            self.settle()

    def save(self) -> None:
        """The trainer obeys what it was told, up to a checkpoint; the controller answers."""
        before = len(self.rank.saved)
        while len(self.rank.saved) == before and self.rank.pull():
            self.rank.work(messages=1)
        self.settle()

    def train_steps(self, steps: int) -> None:
        """Train so many steps more; of what is in flight only the groups of these steps are finished."""
        goal = self.state.version + steps
        while (version := self.state.version) < goal:
            while running := [group.prompt for group in self.state.at(Place.IN_FLIGHT) if group.step == version]:
                self.finish(*running)
            self.train()

    def after(self, seconds: float) -> None:
        """Time passes; whoever lives renews its leases meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 3.0)
            self.refresh()
            self.settle()

    def refresh(self) -> None:
        """Whoever lives renews its leases."""
        self.generator.refresh()
        if self.trainer is not None and self.trainer.alive:
            lost = self.trainer.desk.refresh("rank-0", [("rank:0", self.trainer.generation)])
            self.trainer.alive = not lost

    @property
    def rank(self) -> HandTrainer:
        """The trainer's process that is there."""
        assert self.trainer is not None
        assert self.trainer.alive, "the trainer is dead"
        return self.trainer

    def new_generator(self, name: str = "gen-0") -> HandGenerator:
        """A generator that holds nothing."""
        pinned = self.plan.determinism == "pinned"
        return HandGenerator(self.server.desk(), self.plan.grpo.rollouts_per_prompt, name=name, pinned=pinned)

    def kill_trainer(self) -> None:
        """The trainer's process is gone; a controller that lives sees its child die."""
        if self.trainer is not None and self.trainer.alive:
            self.trainer.alive = False
            self.dead.append(WorkerGone(worker="rank-0", role=Role.TRAINER, reason="killed"))

    def kill_generator(self) -> None:
        """The generator's process is gone, and a new one stands in its place under another name."""
        gone = self.generator
        self.dead.append(WorkerGone(worker=gone.name, role=Role.GENERATOR, reason="killed"))
        number = int(gone.name.removeprefix("gen-")) + 1
        self.generator = self.new_generator(f"gen-{number}")


class HandLauncher:
    """Starts a trainer for each trainer generation, and reports the dead."""

    def __init__(self, stage: Stage, log: WatchedLog) -> None:
        self._stage, self._log = stage, log

    def reconcile(self, state: State) -> Sequence[WorkerGone]:
        """Start what is missing; report the dead."""
        stage = self._stage
        dead, stage.dead = stage.dead, []
        if state.finish is not None:
            return dead
        rank = self._log.leases().by_key.get("rank:0")
        if rank is None or rank.number != state.generation:
            self._log.put_lease("rank:0", state.generation, "rank-0")
            stage.trainer = HandTrainer.of(state, stage.server.desk(), stage.disk)
            stage.trainer.dies = stage.trainer_dies
            if stage.trainers_start:
                stage.trainer.start(first=not state.checkpoints)
        lives = stage.trainer is not None and stage.trainer.alive
        return [gone for gone in dead if gone.role is Role.GENERATOR or not lives]

    def end(self, worker: str) -> None:
        """End the generator that hangs."""
        if worker == self._stage.generator.name:
            self._stage.kill_generator()

    def close(self, *, kill: bool) -> None:
        """Nothing runs by itself here."""


@dataclass(frozen=True, slots=True)
class HandDisk:
    """The checkpoints on the stage's disk."""

    stage: Stage

    def whole(self, state: State) -> Sequence[SavedCheckpoint]:
        """Those that are whole."""
        return [manifest.saved for manifest in self.stage.disk.values() if manifest.whole]


class Unmoved:
    """An observer that only looks."""

    def entry(self, state: State, entry: Entry) -> None:
        """Nothing."""

    def waiting(self, state: State, wait: Wait) -> None:
        """Nothing."""
