"""How the verbs that run something speak, and runs that go on without their terminal."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rollog.events import server
from rollog.events.vocabulary import Finish, FinishReason, StopReason
from rollog.pipeline.background import detach
from rollog.pipeline.cli import app
from rollog.pipeline.manner import Manner
from rollog.pipeline.run_folder import RunFolder
from rollog.replay.output import Format


@pytest.fixture
def rollog(scene, monkeypatch):
    """The command line, in this process and in the scene's folder."""

    def run(*words):
        (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))
        return CliRunner().invoke(app, words)

    monkeypatch.chdir(scene.folder)
    return run


@pytest.fixture(scope="module")
def ended(tmp_path_factory, make_scene):
    """A run that has ended: two steps of two."""
    made = make_scene(tmp_path_factory.mktemp("ended"))
    made.settings["grpo"]["max_steps"] = 2
    made.start()
    assert made.finish() == 0, made.output
    yield made
    made.clean()


@pytest.fixture
def again(scene, ended):
    """The scene with a copy of that run."""
    shutil.copytree(ended.folder / "runs", scene.folder / "runs")
    scene.settings = ended.settings
    return scene


def test_a_dry_run_is_data_for_programs(scene, rollog):
    answer = rollog("train", "run.yaml", "--dry-run", "-o", "json")

    plan = json.loads(answer.stdout)
    assert plan["schema"] == "rollog.plan/1"
    assert plan["settings"]["grpo"]["prompts_per_step"] == 4
    assert plan["derived"]["max_buffered_groups"] == 8
    assert not scene.run.exists()


def test_quiet_leaves_the_errors_and_the_data(scene, rollog):
    warned = ("train", "run.yaml", "failure.max_skipped_prompts=3", "--dry-run")
    assert "warning" in rollog(*warned).stderr
    assert rollog(*warned, "-q").stderr == ""
    assert rollog(*warned, "-q").stdout == rollog(*warned).stdout
    assert "unknown setting" in rollog("train", "run.yaml", "grpo.steps=3", "-q").stderr


def test_what_a_resume_would_do_is_data_for_programs(again, rollog):
    answer = rollog("resume", "demo", "grpo.max_steps=3", "--dry-run", "--json")

    told = json.loads(answer.stdout)
    assert (told["schema"], told["run"], told["version"], told["complete"]) == ("rollog.resume/1", "demo", 2, False)
    assert told["changed"] == {"grpo.max_steps": 3}
    assert told["lost"] is None
    kept = told["kept"]
    state = again.state()
    assert kept["settled"] == state.settled() == 8
    assert sum(kept.values()) + told["sent_again"] == state.handed_out
    assert json.loads(rollog("resume", "demo", "-q", "--json").stdout)["complete"] is True
    assert not server.is_running(again.run)


def test_a_run_without_a_server_at_the_address_of_the_command_line_is_refused(again, rollog, monkeypatch):
    monkeypatch.setenv("ROLLOG_REDIS_URL", "")  # put back after the test
    monkeypatch.delenv("ROLLOG_REDIS_URL")
    nobody = "redis://:secret@127.0.0.1:1/0"

    answer = rollog("train", "run.yaml", "run=elsewhere", "--redis", nobody)

    assert answer.exit_code == 4
    assert "127.0.0.1:1" in answer.stderr
    assert "secret" not in answer.stderr
    assert not (again.folder / "runs" / "elsewhere").exists()


def test_a_run_that_cannot_go_on_in_the_background_says_why(again, capfd, monkeypatch):
    monkeypatch.chdir(again.folder)
    folder = RunFolder.open("demo")

    code = detach(folder, folder.plan(), ["seed=5"], Manner(format=Format.JSON))

    said = capfd.readouterr()
    assert code == 2
    assert "has ended with exit code 2" in said.err
    assert "`rollog fork`" in said.err
    assert json.loads(said.out)["exit_code"] == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_detached_run_outlives_its_command_and_is_stopped_and_detached_again(scene, model_folder):
    shutil.rmtree(scene.folder / "model")
    shutil.copytree(model_folder, scene.folder / "model")
    scene.settings["reward"] = "rollog.pipeline.training.quickstart_model:successor"
    scene.settings["model"]["max_tokens"] = 2
    scene.settings["grpo"]["max_steps"] = 40
    (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))

    def command(*words):
        program = (sys.executable, "-m", "rollog.pipeline.cli", *words)
        return subprocess.run(program, cwd=scene.folder, capture_output=True, text=True, check=False)

    begun = command("train", "run.yaml", "--detach", "-v", "-o", "json")
    assert begun.returncode == 0, begun.stderr
    assert "rollog stop demo" in begun.stderr
    told = json.loads(begun.stdout)
    process, log = told["process"], scene.folder / told["log"]
    assert os.getsid(process) == process != os.getsid(0)
    listed = command("ps")
    assert "demo" in listed.stdout

    stopped = command("stop", "demo", "--within-s", "0", "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout) == {"schema": "rollog.stop/1", "run": "demo", "stopped": True}
    assert [finish.reason for finish in scene.events(Finish)] == [FinishReason.STOPPED]
    assert scene.state().stopping.reason is StopReason.REQUEST
    said = log.read_text()
    assert "resume with:  rollog resume demo" in said
    assert "took the pen" in said, "-v says every entry"

    more = command("resume", "demo", "grpo.max_steps=1", "--detach", "-q")
    assert (more.returncode, more.stderr) == (0, "")
    while command("ps", "-q").stdout:  # asking takes a second or two
        continue
    assert scene.events(Finish)[-1].reason is FinishReason.MAX_STEPS
    assert log.read_text() == said, "-q is quiet in the background, too"
