"""The command line: exit codes, refusals that say what to do, and nothing left behind by a refusal."""

import json
import signal
import subprocess
import sys

import pytest

from rollog.events import server
from rollog.events.vocabulary import Configure, FinishReason, Stop, StopReason

ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")


def rollog(scene, *words: str) -> "subprocess.CompletedProcess[str]":
    (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))
    return subprocess.run([*ROLLOG, *words], cwd=scene.folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "nowhere.yaml"), "no such settings file"),
        (("train", "run.yaml", "grpo.steps=3"), "grpo.steps: unknown setting"),
        (("train", "run.yaml", "seed=x"), "seed"),
        (("train", "run.yaml", "model.path=elsewhere"), "no such folder"),
        (("train", "run.yaml", "data.path=none.jsonl"), "none.jsonl"),
        (("train", "run.yaml", "reward=nowhere:f"), "no module named nowhere"),
        (("resume", "demo"), "no run named demo"),
        (("stop", "demo"), "no run named demo"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(scene, words, says):
    answer = rollog(scene, *words)

    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not scene.run.exists()


def test_a_dry_run_prints_the_plan_with_what_is_derived_and_writes_nothing(scene):
    answer = rollog(scene, "train", "run.yaml", "--dry-run")

    assert answer.returncode == 0, answer.stderr
    assert "max_buffered_groups: 8" in answer.stdout
    assert "lookahead: 1" in answer.stdout
    assert not scene.run.exists()


def test_a_run_is_looked_at_stopped_refused_and_resumed_from_the_command_line(scene):
    scene.pace_s = 0.5
    scene.start()
    scene.wait_for(lambda state: state.version >= 1)

    assert rollog(scene, "ps").stdout.split()[:1] == ["demo"]
    again = rollog(scene, "train", "run.yaml")
    assert again.returncode == 2
    assert "rollog resume demo" in again.stderr
    stopped = rollog(scene, "stop", "demo")
    assert stopped.returncode == 0, stopped.stderr
    assert scene.controllers[-1].poll() == 75, scene.output
    assert scene.state().finish is FinishReason.STOPPED
    assert [stop.reason for stop in scene.events(Stop)] == [StopReason.REQUEST]

    assert rollog(scene, "ps").stdout == ""
    not_running = rollog(scene, "stop", "demo")
    assert not_running.returncode == 3
    assert "does not run" in not_running.stderr

    other_seed = rollog(scene, "resume", "demo", "seed=5")
    assert other_seed.returncode == 2
    assert "rollog fork" in other_seed.stderr
    dry = rollog(scene, "resume", "demo", "grpo.max_steps=9", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "grpo.max_steps = 9" in dry.stderr
    assert "lost        nothing" in dry.stderr
    assert not server.is_running(scene.run)
    assert scene.events(Configure) == []


def test_other_rows_under_the_same_path_are_refused(scene):
    scene.settings["grpo"]["max_steps"] = 1
    scene.start()
    assert scene.finish() == 0, scene.output
    (scene.folder / "data.jsonl").write_text('{"prompt": "1", "answer": "2"}\n' * 64)

    answer = rollog(scene, "resume", "demo", "grpo.max_steps=2")

    assert answer.returncode == 2
    assert "not those that run demo began with" in answer.stderr
    assert not server.is_running(scene.run)


def test_a_run_that_is_complete_is_not_driven_again(scene):
    scene.settings["grpo"]["max_steps"] = 1
    scene.start()
    assert scene.finish() == 0, scene.output
    before = len(scene.entries())

    answer = rollog(scene, "resume", "demo")

    assert answer.returncode == 0, answer.stderr
    assert "nothing to do" in answer.stderr
    assert len(scene.entries()) == before


def test_a_higher_end_goes_on_where_the_run_had_ended(scene):
    scene.settings["grpo"]["max_steps"] = 2
    scene.start()
    assert scene.finish() == 0, scene.output
    scene.overrides = ["grpo.max_steps=4"]
    scene.start()

    assert scene.finish() == 0, scene.output
    assert [event.changes for event in scene.events(Configure)] == [{"grpo.max_steps": 4}]
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(4)}


def test_a_checkpoint_newer_than_the_log_is_refused_with_the_number_of_missing_entries(scene):
    scene.settings["grpo"]["max_steps"] = 3
    scene.start()
    assert scene.finish() == 0, scene.output
    newest = max((scene.run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[0]))
    manifest = json.loads((newest / "manifest.json").read_text())
    offset = len(scene.entries()) + 5
    manifest["ordered"] |= {"offset": offset, "version": 9}
    forged = newest.with_name(f"9-{offset}-{manifest['ordered']['generation']}")
    newest.rename(forged)
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    (forged / "manifest.json").write_text(text)

    answer = rollog(scene, "resume", "demo", "grpo.max_steps=5")

    assert answer.returncode == 5
    assert "5 entries are missing" in answer.stderr


def test_a_signal_that_wants_the_machine_back_shortens_a_drain(scene):
    scene.pace_s = 2.0
    scene.settings["flow"]["lease_s"] = 10.0
    scene.start()
    scene.wait_for(lambda state: len(state.workers) == 3 and any(state.places["in_flight"]))
    scene.controllers[-1].send_signal(signal.SIGINT)
    scene.wait_for(lambda state: state.stopping is not None)
    scene.controllers[-1].send_signal(signal.SIGTERM)

    assert scene.finish() == 75, scene.output
    assert [stop.reason for stop in scene.events(Stop)] == [StopReason.INTERRUPT, StopReason.TERMINATE]
