"""Crash everywhere: at every entry of a reference run, and at every point around it, something dies once or twice.

The reference run has retries, a drop, a periodic checkpoint, a stop and a resume, and the last checkpoint. What must be
the same afterwards, however it was interrupted:

    (a) no logged decision is undone: the audit checks every law at every offset
    (b) every ordinal settles once, and being killed spends no budget
    (c) every step trains the same prompts
    (d) no group whose result had reached the results stream is generated again
    (e) pinned: the same final weights, bit for bit
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count

import pytest

from crashes import BLOWS, Once, controller_dies, everything_dies, generator_dies, trainer_dies
from play import Play
from rollog.events.vocabulary import Drop, FailureKind, Finish, Open, Resume, Retry
from rollog.pipeline.config import Plan
from rollog.pipeline.simulate import Death
from stage import small_plan
from watched_log import Moment

NUM_ROWS = 12


def plan(pinned: bool) -> Plan:
    """N = 2, K = 1, a checkpoint every two steps; not pinned it streams, and its checkpoints come at another time."""
    return small_plan(
        grpo={"prompts_per_step": 2},
        checkpoint={"every_steps": 2 if pinned else 3},
        flow={"min_groups_for_streaming": None if pinned else 1},
        failure={"max_skipped_prompts": "unlimited", "max_data_attempts": 2, "min_step_fraction": 0.1},
        determinism="pinned" if pinned else "off",
    )


def play(pinned: bool, blow: Callable[[Play, Moment], None] = lambda play, moment: None) -> Play:
    """Prompt 3 fails once by the machinery, prompt 6 always by itself, and the run is stopped at version 3."""
    fails = {"fails_once": frozenset({3}), "fails_always": frozenset({6}), "stop_at": 3}
    return Play(plan(pinned), NUM_ROWS, blow, **fails).run()  # type: ignore[arg-type]


@cache
def reference(pinned: bool) -> Play:
    """The run that nobody interrupts."""
    return play(pinned)


def budgets(run: Play) -> Counter[tuple[int, FailureKind]]:
    """What each prompt has spent of its budgets."""
    spent = [event for event in run.stage.events(Retry) if event.kind is not FailureKind.LOST]
    return Counter((event.prompt, event.kind) for event in [*spent, *run.stage.events(Drop)])


def assert_same(run: Play, what: object) -> None:
    """The interrupted run is the reference run, in everything that was promised."""
    wanted = reference(run.plan.determinism == "pinned")
    assert run.stage.steps == wanted.stage.steps, f"{what}: other prompts were trained"
    assert run.stage.state.handed_out == wanted.stage.state.handed_out, f"{what}: other prompts were handed out"
    assert budgets(run) == budgets(wanted), f"{what}: budgets were spent"
    twice = {prompt for prompt, times in run.reported.items() if times > 1}
    assert not twice, f"{what}: {twice} were generated again although their results had arrived"
    if run.plan.determinism == "pinned":
        assert run.weights == wanted.weights, f"{what}: other weights"


CONTROLLER_LIVES = (trainer_dies, generator_dies)


def moments(pinned: bool, *wanted: str) -> list[Moment]:
    """Every moment of the reference run, or every one of these kinds, each once."""
    return [moment for moment in dict.fromkeys(reference(pinned).moments) if not wanted or moment.when in wanted]


# --- one death --------------------------------------------------------------------------------------------------------


def test_the_reference_run_has_everything_in_it_that_a_crash_could_break() -> None:
    for pinned in (True, False):
        run = reference(pinned)
        assert run.stage.steps == {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (7,), 4: (8, 9), 5: (10, 11)}
        assert budgets(run) == {
            (3, FailureKind.INFRA): 1,
            (6, FailureKind.DATA): 2,
        }
        assert [finish.left for finish in run.stage.events(Finish)][-1] == ()
        assert len(run.stage.events(Finish)) == len(run.stage.events(Open)) == 2
        assert run.deaths == 0
        assert {moment.when for moment in run.moments} == {
            f"{side} {call}" for side in ("before", "after") for call in ("open", "append", "hand-over")
        } | {"before results"}


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "streaming"])
@pytest.mark.parametrize("blow", BLOWS)
def test_one_death_at_any_moment_changes_nothing(blow: Callable[[Play], None], pinned: bool) -> None:
    wanted = [entry.digest for entry in reference(pinned).stage.entries()]
    points = moments(pinned, *(["after append"] if blow in CONTROLLER_LIVES else []))
    for moment in points:
        once = Once(moment, blow)
        run = play(pinned, once)
        assert_same(run, (moment, blow.__name__))
        assert once.struck
        written = moment.offset - (moment.when == "before append")
        kept = [entry.digest for entry in run.stage.entries()][:written]
        assert kept == wanted[:written], f"{moment}: a death has changed what was on the log"
        if blow is controller_dies:
            assert run.stage.events(Resume) == [], f"{moment}: the trainer lives, and goes on"

    assert len(points) >= len(wanted)


# --- deaths of the trainer at its own points --------------------------------------------------------------------------


@pytest.mark.parametrize("with_controller", [False, True], ids=["alone", "with the controller"])
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "streaming"])
@pytest.mark.parametrize("point", ["in a checkpoint", "before a checkpoint's report", "before a step's report"])
def test_a_trainer_that_dies_at_one_of_its_own_points_changes_nothing(
    point: str, pinned: bool, with_controller: bool
) -> None:
    """Between the files and the manifest, between the manifest and its event, between a step and its event."""
    struck = []
    for version in range(7):
        deaths = iter([True])

        def dies(at: str, when: int, version: int = version, deaths: Iterator[bool] = deaths) -> bool:
            return (at, when) == (point, version) and next(deaths, False)

        run = Play(plan(pinned), NUM_ROWS, fails_once=frozenset({3}), fails_always=frozenset({6}), stop_at=3)
        run.trainer_dies = dies
        if with_controller:
            run.blow = dies_with_its_trainer
        assert_same(run.run(), (point, version))
        if next(deaths, None) is None:
            struck.append(version)

    saved = {0, 2, 3, 4, 6} if pinned else {0, 3, 6}
    assert set(struck) == ({0, 1, 2, 3, 4, 5} if point == "before a step's report" else saved)


def dies_with_its_trainer(play: Play, moment: Moment) -> None:
    """The controller dies in the same moment as its trainer: nobody has seen it die."""
    trainer = play.stage.trainer
    if moment.when == "before results" and play.deaths == 0 and trainer is not None and not trainer.alive:
        raise Death


# --- a second death, during the recovery from the first ---------------------------------------------------------------

RECOVERY = ("before open", "after open", "before append", "after append", "before hand-over", "after hand-over",
            "before results")  # fmt: skip


class Twice:
    """Everything dies after an entry, and the controller again at its successor's first moment of a kind."""

    def __init__(self, offset: int, when: str, second: Callable[[Play], None]) -> None:
        self.first, self.when, self.second, self.struck = Moment("after append", offset), when, second, 0

    def __call__(self, play: Play, moment: Moment) -> None:
        if self.struck == 0 and moment == self.first:
            self.struck = 1
            everything_dies(play)
        if self.struck == 1 and moment.when == self.when:
            self.struck = 2
            self.second(play)


def second_deaths(pinned: bool, second: Callable[[Play], None], every: int) -> None:
    """Both deaths, at every n-th entry of the reference run and at each moment of the recovery."""
    struck = []
    for offset in range(1, reference(pinned).stage.state.offset + 1, every):
        for when in RECOVERY:
            twice = Twice(offset, when, second)
            assert_same(play(pinned, twice), (offset, when, second.__name__))
            struck.append(twice.struck)

    assert struck.count(2) > len(struck) - 7 * 2, "after the last entry there is no recovery"


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "streaming"])
def test_a_second_death_during_the_recovery_changes_nothing(pinned: bool) -> None:
    second_deaths(pinned, controller_dies, every=3)


@pytest.mark.long
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "streaming"])
@pytest.mark.parametrize("second", BLOWS)
def test_any_second_death_during_the_recovery_changes_nothing(second: Callable[[Play], None], pinned: bool) -> None:
    second_deaths(pinned, second, every=1)


# --- deaths without end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "streaming"])
@pytest.mark.parametrize("every", [3, 8, 21])
def test_a_controller_that_dies_again_and_again_comes_to_the_same_end(every: int, pinned: bool) -> None:
    since = count()

    def blow(run: Play, moment: Moment) -> None:
        nonlocal since
        if moment.when == "after hand-over":
            since = count()
        elif next(since) == every:
            raise Death

    run = play(pinned, blow)
    assert run.deaths >= 5
    assert_same(run, every)
