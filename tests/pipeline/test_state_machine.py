"""A state machine over the controller's inputs. The model of a run is plain lists, and knows nothing of logs or folds.

Any sequence of finished groups, failures, late deliveries, trained steps, deaths and stops must leave the run where the
lists say. Hypothesis looks for a sequence that does not, and shrinks it.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollog.events.messages import GroupDone
from rollog.events.vocabulary import FailureKind, FinishReason
from rollog.pipeline.fatal import MAX_RESUMES_IN_VAIN
from rollog.replay.state import Place, State
from stage import Stage, small_plan

SIZE, WINDOW, ROWS = 3, 1, 30
ATTEMPTS = 2


class Run(RuleBasedStateMachine):
    """in_order, N = 3, K = 1, two attempts of each kind, shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.cursor = -1
        self.meant: list[list[int]] = []
        self.finished: list[int] = []
        self.dropped: list[int] = []
        self.trained: list[list[int]] = []
        self.failures: dict[tuple[int, FailureKind], int] = {}
        self.reports: list[GroupDone] = []
        self.trainer_deaths = 0

    @initialize()
    def begin(self) -> None:
        """The run starts."""
        self.stage = Stage(
            small_plan(
                grpo={"prompts_per_step": SIZE},
                sampler={"lookahead": WINDOW},
                checkpoint={"every_steps": 2},
                failure={
                    "max_infra_attempts": ATTEMPTS,
                    "max_data_attempts": ATTEMPTS,
                    "max_lost_attempts": 10_000,
                    "backoff_base_s": 0,
                    "max_skipped_prompts": "unlimited",
                    "max_consecutive_dropped_prompts": 1000,
                    "min_step_fraction": 0.01,
                },
            ),
            num_rows=ROWS,
        )
        self.admit()

    # --- the model ----------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Batches pass the gate while it is open and the data lasts."""
        while self.cursor < self.version + WINDOW and (self.cursor + 2) * SIZE <= ROWS:
            self.cursor += 1
            self.meant.append(list(range(self.cursor * SIZE, (self.cursor + 1) * SIZE)))

    def running(self) -> list[int]:
        """Prompts that must be in flight."""
        settled = {*self.finished, *self.dropped, *(prompt for step in self.trained for prompt in step)}
        return [prompt for step in self.meant for prompt in step if prompt not in settled]

    def ready(self) -> bool:
        """Whether the step at hand has all that it can have."""
        here = self.meant[self.version] if self.version < len(self.meant) else []
        return bool(here) and all(prompt in self.finished or prompt in self.dropped for prompt in here)

    # --- what happens -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def a_group_finishes(self, data: Any) -> None:
        """The generator finishes one of the orders in flight."""
        prompt = data.draw(st.sampled_from(self.running()))
        self.take()
        self.reports.append(self.stage.generator.finish(prompt))
        self.stage.settle()
        self.finished.append(prompt)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), kind=st.sampled_from([FailureKind.INFRA, FailureKind.DATA, FailureKind.LOST]))
    def an_attempt_fails(self, data: Any, kind: FailureKind) -> None:
        """It is tried again, or its budget is gone and the step shrinks; the last of a step is spared."""
        prompt = data.draw(st.sampled_from(self.running()))
        step = self.meant[prompt // SIZE]
        times = self.failures.get((prompt, kind), 0) + 1
        gone = kind is not FailureKind.LOST and times >= ATTEMPTS
        if gone and sum(other not in self.dropped for other in step) == 1:
            return
        self.take()
        self.stage.generator.fail(prompt, kind)
        self.stage.settle()
        self.failures[prompt, kind] = times
        if gone:
            self.dropped.append(prompt)

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def a_result_comes_again(self, data: Any) -> None:
        """A result that was answered long ago is delivered once more."""
        self.stage.generator.desk.report(data.draw(st.sampled_from(self.reports)))
        self.stage.settle()

    @precondition(lambda self: self.ready())
    @rule()
    def a_step_is_trained(self) -> None:
        """The trainer trains what was selected, and what it must train again before it."""
        for _ in range(10):
            if self.state.version > self.version:
                break
            self.stage.train()
        here = self.meant[self.version]
        self.trained.append([prompt for prompt in here if prompt not in self.dropped])
        self.finished = [prompt for prompt in self.finished if prompt not in here]
        self.version += 1
        self.trainer_deaths = 0
        self.admit()

    @rule(workers=st.booleans())
    def the_controller_dies(self, workers: bool) -> None:
        """Alone, or everything at once; a new one goes on."""
        self.trainer_deaths = int(workers)
        self.stage.kill_controller()
        if workers:
            self.stage.kill_generator()
            self.stage.trainer = None
            self.stage.now += 100.0
            self.stage.dead.clear()
        self.stage.resume()
        self.stage.settle()

    @precondition(lambda self: self.trainer_deaths < MAX_RESUMES_IN_VAIN)
    @rule()
    def the_trainer_dies(self) -> None:
        """A new generation trains the recorded steps again; not so often in a row that the run gives up."""
        self.trainer_deaths += 1
        self.stage.kill_trainer()
        self.stage.settle()

    @rule()
    def the_generator_dies(self) -> None:
        """Its orders are given again, without a budget."""
        self.take()
        self.stage.kill_generator()
        self.stage.settle()

    @rule()
    def somebody_stops_the_run_and_resumes_it(self) -> None:
        """What runs is not waited for; what is trained becomes durable first."""
        self.stage.ask_to_stop(within_s=0.0)
        for _ in range(20):
            if self.state.finish is not None:
                break
            self.stage.rank.work(messages=1)
            self.stage.settle()
        if self.ready():  # a step whose last chunk was selected is trained before the end
            assert self.state.version == self.version + 1
            self.trained.append([prompt for prompt in self.meant[self.version] if prompt not in self.dropped])
            self.finished = [prompt for prompt in self.finished if prompt not in self.meant[self.version]]
            self.version += 1
        assert self.state.finish in (FinishReason.STOPPED, FinishReason.EXHAUSTED)
        self.trainer_deaths = 1
        self.stage.resume()
        self.admit()

    @property
    def state(self) -> State:
        """What the log means, as the audit has followed it."""
        return self.stage.audit.state

    def take(self) -> None:
        """The generator runs the newest weights and holds every order."""
        self.stage.settle()
        self.stage.generator.load()
        self.stage.generator.take()

    # --- what must be so ----------------------------------------------------------------------------------------------

    @invariant()
    def the_state_is_what_the_lists_say(self) -> None:
        """Every prompt is where the model has it, and the audit is content with every entry."""
        state = self.stage.follow().state
        assert state.version == self.version
        assert state.handed_out == sum(len(step) for step in self.meant)
        assert sorted(state.places[Place.IN_FLIGHT]) == sorted(self.running())
        assert sorted([*state.places[Place.BUFFER], *state.places[Place.SELECTED]]) == sorted(self.finished)
        assert (state.trained, state.dropped) == (sum(map(len, self.trained)), len(self.dropped))
        steps = {step: tuple(prompts) for step, prompts in enumerate(self.trained)}
        assert {step: prompts for step, prompts in self.stage.steps.items() if step < self.version} == steps


Run.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRun = Run.TestCase
