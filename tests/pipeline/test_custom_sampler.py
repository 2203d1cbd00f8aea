"""A sampler of the user's own: checked when the run starts, asked anew each time, and never able to break the log."""

from pathlib import Path
from typing import Any

import pytest

from rollog.events.messages import NewWeights
from rollog.events.vocabulary import Evict, FinishReason, Select, Stamp
from rollog.pipeline.errors import PlanError
from rollog.pipeline.policy import Policy
from rollog.pipeline.reconfigure import refuse_change
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.around import NumberedRows
from rollog.pipeline.simulation.world import Script
from stage import Stage, small_plan

EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'newest_first.py'}:NewestFirst"

OLDEST_FIRST = """
class Mine:
    def __init__(self, state, depth=1):
        self.state, self.depth = state, depth
    def gate_open(self):
        return self.state.cursor < self.state.version + self.depth
    def eligible(self):
        return list(self.state.ready.by_slot.values())
"""


def custom(folder: Path, code: str = OLDEST_FIRST, **options: Any) -> dict[str, Any]:
    """The section ``sampler`` for the class ``Mine`` in a file that holds ``code``."""
    path = folder / "mine.py"
    path.write_text(code)
    return {"name": "custom", "target": f"{path}:Mine", **options}


def edited(line: str, instead: str) -> str:
    """The class with one answer changed."""
    assert line in OLDEST_FIRST
    return OLDEST_FIRST.replace(line, instead)


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_example_trains_every_prompt_through_deaths_drops_and_filters(seed: int) -> None:
    plan = small_plan(
        sampler={"name": "custom", "target": EXAMPLE, "depth": 2, "max_age": 3},
        failure={"max_skipped_prompts": 100, "filter": "equal_rewards", "min_step_fraction": 0.01},
        flow={"min_groups_for_streaming": 1 + seed % 4},
    )
    script = Script(
        seed=seed,
        data_rate=0.05,
        equal_rate=0.1,
        infra_rate=0.05,
        controller_death_rate=0.05,
        trainer_deaths_per_s=0.02,
    )

    outcome = simulate(plan, 60, script)

    state = outcome.state
    assert state.finish is FinishReason.EXHAUSTED
    assert outcome.deaths > 0
    assert outcome.audit.max_staleness <= 3
    assert state.handed_out == 60
    assert len(state.groups) < 4


def test_the_newest_group_is_trained_first() -> None:
    stage = Stage(small_plan(sampler={"name": "custom", "target": EXAMPLE, "depth": 2, "max_age": 3}))
    stage.finish(0, 1, 2, 3)  # step 0
    stage.finish(4)
    stage.train()
    stage.finish(12, 13, 14)  # dispatched at version 1

    assert stage.events(Select)[1].prompts == (12, 13, 14, 4)


def test_what_the_class_does_not_answer_is_answered_by_the_shared_defaults(tmp_path: Path) -> None:
    stage = Stage(small_plan(sampler=custom(tmp_path)))
    sampler = stage.policy.sampler
    assert (sampler.stamps, sampler.capacity(4), sampler.minimum(stage.state, 3)) == (False, 7, 3)
    assert sampler.oldest_useful(stage.state) == 0

    stage.finish(0, 1, 2, 3)
    stage.finish(4)
    stage.train()

    assert stage.events(Evict)[0].prompts == (4,)  # born of weights 0 and not on policy at version 1
    assert list(sampler.rest(stage.state)) == list(sampler.eligible(stage.state))


def test_generators_are_told_what_the_class_finds_useless(tmp_path: Path) -> None:
    code = edited("class Mine:", "class Mine:\n    def oldest_useful(self):\n        return self.state.version")
    stage = Stage(small_plan(sampler=custom(tmp_path, code)))
    stage.finish(0, 1, 2, 3)
    stage.train()

    desk = stage.server.desk()
    notices = [notice for _, notice in desk.control(desk.epoch(), None, 0.0)]
    assert [(n.version, n.oldest_useful) for n in notices if isinstance(n, NewWeights)] == [(0, 1), (1, 1)]


def test_a_class_that_stamps_trains_each_batch_in_its_own_step(tmp_path: Path) -> None:
    code = edited("class Mine:", "class Mine:\n    stamps = True").replace(
        "self.state.ready.by_slot.values()", "self.state.ready.of_step(self.state.filling)"
    )
    plan = small_plan(sampler=custom(tmp_path, code, depth=2), flow={"max_buffered_groups": 12})

    outcome = simulate(plan, 24, Script(seed=1, controller_death_rate=0.05))

    assert {step: set(prompts) for step, prompts in outcome.steps.items()} == {
        step: set(range(4 * step, 4 * step + 4)) for step in range(6)
    }
    assert any(isinstance(e, Stamp) for entry in outcome.world.server.log().read() for e in entry.events)


# --- refused at the start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "options", "says"),
    [
        ("class Other: ...", {}, r"mine\.py has no Mine"),
        ("import no_such_thing", {}, "its module needs no_such_thing"),
        ("1 / 0", {}, "its module raises ZeroDivisionError"),
        ("def Mine(state): ...", {}, "it is a function and no class"),
        ("class Mine:\n    def eligible(self): ...", {}, r"it has no gate_open\(\)\. A sampler must answer"),
        ("class Mine: ...", {}, r"it has no gate_open\(\) and no eligible\(\)"),
        (edited("class Mine:", "class Mine:\n    rest = 3"), {}, "rest must be methods"),
        (edited("class Mine:", "class Mine:\n    stamps = 1"), {}, "stamps must be a class attribute .* it is 1"),
        (OLDEST_FIRST, {"width": 3}, r"cannot be made from a state and the settings \['width'\]: .*'width'"),
        (edited("class Mine:", "class Mine:\n    def capacity(self, n):\n        return n * 9"), {},
         r"max_buffered_groups=8 is below the 36 that sampler\.target=.*mine\.py:Mine needs"),
        (edited("class Mine:", "class Mine:\n    def capacity(self, n):\n        return 4.0"), {},
         r"capacity\(\) answers 4\.0, which is no int"),
    ],
)  # fmt: skip
def test_what_can_be_no_sampler_is_refused_at_the_start(
    tmp_path: Path, code: str, options: dict[str, Any], says: str
) -> None:
    plan = small_plan(sampler=custom(tmp_path, code, **options), flow={"max_buffered_groups": 8})
    with pytest.raises(PlanError, match=says) as raised:
        Policy.of(plan, NumberedRows(64, 0))
    assert str(raised.value).startswith(("sampler.target=", "flow.max_buffered_groups="))


def test_a_plan_of_a_missing_class_can_still_be_looked_at() -> None:
    plan = small_plan(sampler={"name": "custom", "target": "no_such_module:Mine"})
    assert plan.settings()["sampler"]["target"] == "no_such_module:Mine"
    with pytest.raises(PlanError, match="no module named no_such_module"):
        Policy.of(plan, NumberedRows(64, 0))


# --- refused while it runs, before it becomes an entry ----------------------------------------------------------------


GATE = "return self.state.cursor < self.state.version + self.depth"
ALL = "return list(self.state.ready.by_slot.values())"
TOO_OLD = "class Mine:\n    def too_old(self):\n        return [0]"


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        (GATE, "return 1", r"gate_open\(\) answers 1, which is no bool"),
        (GATE, "return 1 / 0", r"gate_open\(\) raises ZeroDivisionError"),
        (ALL, "return 7", r"eligible\(\) raises TypeError"),
        (ALL, "return [9999]", "9999, which is no finished group in the buffer"),
        (ALL, "yield from 4 * list(self.state.ready.by_slot.values())[:1]", r"names prompt \d+ twice"),
        ("class Mine:", TOO_OLD, r"too_old\(\) names prompt 0, which is no finished group"),
    ],
)
def test_an_answer_that_cannot_be_stops_the_controller_and_leaves_the_log_whole(
    tmp_path: Path, line: str, instead: str, says: str
) -> None:
    stage = Stage(small_plan(sampler=custom(tmp_path, edited(line, instead))), opened=False)
    with pytest.raises(PlanError, match=rf"mine\.py:Mine: .*{says}.* Mend the class, then resume\."):
        run_to_the_first_selection(stage)
    stage.follow().finish()

    stage.kill_controller()
    stage.resume(small_plan(sampler=custom(tmp_path)))
    assert stage.state.handed_out > 0


def run_to_the_first_selection(stage: Stage) -> None:
    stage.resume()
    stage.finish(0, 1, 2, 3)


# --- changed on resume ------------------------------------------------------------------------------------------------


def test_a_class_that_stamps_is_chosen_at_the_start_or_not_at_all(tmp_path: Path) -> None:
    stamping = small_plan(sampler=custom(tmp_path, edited("class Mine:", "class Mine:\n    stamps = True")))
    stage = Stage(small_plan(sampler={"name": "windowed"}))
    sampler = Policy.of(stamping, NumberedRows(64, 0)).sampler

    refuse_change(stage.state, {"sampler.depth": 2}, sampler)
    with pytest.raises(PlanError, match=r"sampler\.name=custom: its class stamps"):
        refuse_change(stage.state, {"sampler.name": "custom", "sampler.target": "x:Y"}, sampler)
