"""The coverage of a run: its prompts by epoch, and the rows that training them took."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollog.events.file_log import write_segment
from rollog.events.log import GENESIS, Entry
from rollog.events.vocabulary import Commit, Train
from rollog.pipeline.simulate import Outcome, Script, simulate
from rollog.pipeline.simulation.histories import draw, play, small_plan
from rollog.replay.cli import app
from rollog.replay.coverage import coverage


def entries_of(outcome: Outcome) -> list[Entry]:
    return list(outcome.world.server.log().read())


@pytest.fixture(scope="module")
def half_trained() -> list[Entry]:
    """A run of one epoch that gives up prompts and stops before the data ends."""
    plan = small_plan(
        grpo={"max_steps": 6},
        failure={"max_skipped_prompts": "unlimited", "max_data_attempts": 1, "min_step_fraction": 0.25},
    )
    outcome = simulate(plan, 40, Script(seed=3, data_rate=0.2))
    assert outcome.state.dropped > 0
    return entries_of(outcome)


@pytest.fixture
def archive(half_trained: list[Entry], tmp_path: Path) -> str:
    return str(write_segment(tmp_path, "log-1", iter(half_trained), GENESIS).file)


def test_coverage_is_of_the_prompts_whose_turn_has_come(half_trained: list[Entry]) -> None:
    model = coverage(half_trained)

    (epoch,) = model["epochs"]
    due = epoch["trained"] + epoch["dropped"]
    assert 0 < due == epoch["prompts"] - epoch["open"] - epoch["never_seen"] < 40
    assert epoch["unaccounted"] == 0
    assert model["coverage"] == epoch["coverage"] == round(100 * epoch["trained"] / due, 3) < 100


def test_no_turn_has_come_before_anything_is_settled(half_trained: list[Entry]) -> None:
    assert coverage(half_trained[:1])["coverage"] is None
    assert coverage([])["epochs"] == []


def test_rows_are_those_of_the_steps_as_they_were_trained_first() -> None:
    again = 0
    for seed in range(6):
        entries = entries_of(play(draw(seed)))
        steps: dict[int, Train] = {}
        made: dict[tuple[int, int], Commit] = {}
        for event in (event for entry in entries for event in entry.events):
            match event:
                case Train(step=step):
                    again += step in steps
                    steps.setdefault(step, event)
                case Commit(prompt=prompt, attempt=attempt):
                    made[prompt, attempt] = event
        trained = coverage(entries)["trained"]
        assert trained["steps"] == len(steps)
        assert (trained["rows"], trained["padding"], trained["tokens"]) == (
            sum(step.rows for step in steps.values()),
            sum(step.padding for step in steps.values()),
            sum(step.tokens for step in steps.values()),
        )
        assert (
            sum(trained["rows_per_rollout"].values()) <= trained["rollouts"] <= sum(c.rollouts for c in made.values())
        )
    assert again > 0, "a step must really have been trained again"


def test_the_verb_ends_with_1_when_too_little_was_trained(archive: str, half_trained: list[Entry]) -> None:
    found = coverage(half_trained)["coverage"]

    def exit_code(percent: float) -> int:
        return CliRunner().invoke(app, ["coverage", "--log", archive, "--fail-under", str(percent)]).exit_code

    assert (exit_code(found), exit_code(found + 0.01)) == (0, 1)


def test_the_verb_looks_at_any_moment_and_in_every_format(archive: str) -> None:
    answer = CliRunner().invoke(app, ["coverage", "@step:2", "--log", archive, "--json"])
    assert answer.exit_code == 0, answer.output
    model = json.loads(answer.stdout)
    assert (model["schema"], model["trained"]["steps"]) == ("rollog.coverage/1", 3)

    rows = CliRunner().invoke(app, ["coverage", "--log", archive, "-o", "jsonl"]).stdout.splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [0]

    screen = CliRunner().invoke(app, ["coverage", "--log", archive]).stdout
    assert "unaccounted" in screen
    assert "of the prompts whose turn has come" in screen
