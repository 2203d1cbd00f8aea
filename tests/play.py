"""A staged run that goes by itself, always in the same way, until it is interrupted.

Workers move whenever the controller waits for results: the generator finishes what it holds and takes three orders, the
trainer obeys one message, two seconds pass. Whatever dies is started again, and a run that was stopped is resumed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollog.events.messages import Order, StopRequest
from rollog.events.vocabulary import FailureKind, FinishReason, Role, StopReason
from rollog.pipeline.config import Plan
from rollog.pipeline.inputs import WorkerGone
from rollog.pipeline.simulate import Death
from stage import Stage
from watched_log import Moment

ROUND_S = 2.0
ORDERS = 3
MAX_ROUNDS = 600
"""A run that is not over by then waits for itself."""


@dataclass(slots=True)
class Play:
    """One run. ``blow`` is called at every moment of the controller's log, and may raise, or kill workers.

    ``fails_once``: prompts whose first attempt is an infra failure. ``fails_always``: prompts whose reward raises.
    ``stop_at``: the version at which somebody asks for a stop, once.
    """

    plan: Plan
    num_rows: int
    blow: Callable[["Play", Moment], None] = lambda play, moment: None
    fails_once: frozenset[int] = frozenset()
    fails_always: frozenset[int] = frozenset()
    stop_at: int | None = None
    trainer_dies: Callable[[str, int], bool] = lambda point, version: False
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Other classes for the stage's server, mailbox and log."""
    stage: Stage = field(init=False)
    rounds: int = 0
    deaths: int = 0
    reported: dict[int, int] = field(default_factory=dict)
    """Prompt -> finished groups of it that reached the results stream."""
    failed: set[int] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)

    def run(self) -> "Play":
        """To the end of the data, through every death and stop. The audit has checked every offset then."""
        self.stage = Stage(self.plan, num_rows=self.num_rows, opened=False, **self.parts)
        self.stage.hook, self.stage.trainer_dies = self._moment, self.trainer_dies
        finish = None
        while finish not in (FinishReason.EXHAUSTED, FinishReason.MAX_STEPS):
            assert finish is not FinishReason.FAILED, "nothing here fails a run"
            try:
                finish = self.stage.new_controller().run()
            except Death:
                self.deaths += 1
                finish = None
            self.stage.kill_controller()
        self.stage.follow().finish()
        return self

    @property
    def weights(self) -> str:
        """The weights of the last checkpoint."""
        checkpoints = self.stage.state.checkpoints
        return self.stage.disk[checkpoints[max(checkpoints)].manifest].weights

    def kill_trainer(self) -> None:
        """The trainer is dead."""
        self.stage.kill_trainer()

    def kill_generator(self) -> None:
        """The generator is dead, with all that it holds; another stands in its place."""
        self.stage.kill_generator()

    def _moment(self, moment: Moment) -> None:
        self.moments.append(moment)
        if moment.when == "before results":
            self._round()
        self.blow(self, moment)

    def _round(self) -> None:
        self.rounds += 1
        assert self.rounds < MAX_ROUNDS, f"no end after {MAX_ROUNDS} rounds, at entry {self.stage.server.head.offset}"
        stage = self.stage
        stage.now += ROUND_S
        stage.refresh()
        self._generate()
        trainer = stage.trainer
        if trainer is not None and trainer.alive:
            trainer.work(messages=1)
            if not trainer.alive:
                stage.dead.append(WorkerGone(worker="rank-0", role=Role.TRAINER, reason="died by itself"))
            if trainer.version == self.stop_at:
                self.stop_at = None
                trainer.desk.report(StopRequest(reason=StopReason.REQUEST, within_s=ROUND_S))

    def _generate(self) -> None:
        generator = self.stage.generator
        for prompt, (order, _) in list(generator.orders.items()):
            kind = self._failure(order)
            if kind is None:
                self.reported[prompt] = self.reported.get(prompt, 0) + 1
                generator.finish(prompt)
            else:
                generator.fail(prompt, kind)
        generator.load()
        generator.take(ORDERS)

    def _failure(self, order: Order) -> FailureKind | None:
        if order.prompt in self.fails_once - self.failed:
            self.failed.add(order.prompt)
            return FailureKind.INFRA
        return FailureKind.DATA if order.prompt in self.fails_always else None
