"""A log that lost its tail: nobody says that nothing is lost, and a person may go on from what is there."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from rollog.events.mark import Mark
from rollog.events.reading import mark_of
from rollog.events.vocabulary import FinishReason
from rollog.pipeline.cli import app
from rollog.pipeline.config import load_plan
from rollog.pipeline.run_folder import RunFolder

KEPT_BY_THE_LOSS = ("segments", "snapshots")


@pytest.fixture
def rollog(scene, monkeypatch):
    """The command line, in the scene's folder."""
    monkeypatch.chdir(scene.folder)
    return lambda *words: CliRunner().invoke(app, words)


@pytest.fixture
def rolled_back(scene):
    """A run of two steps whose server got the disk back that it had after one; gives the heads then and at last."""
    scene.settings["grpo"]["max_steps"] = 1
    scene.settings["generation"]["workers"] = 1
    scene.settings["checkpoint"]["every_steps"] = 1
    scene.start()
    assert scene.finish() == 0, scene.output
    then = scene.state().offset
    shutil.copytree(scene.run / "log", scene.folder / "old log")
    shutil.copytree(scene.run / "checkpoints", scene.folder / "old checkpoints")
    scene.overrides = ["grpo.max_steps=2"]
    scene.start()
    assert scene.finish() == 0, scene.output
    last = scene.state().offset
    for path in (scene.run / "log").iterdir():
        if path.name not in KEPT_BY_THE_LOSS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = shutil.ignore_patterns(*KEPT_BY_THE_LOSS)
    shutil.copytree(scene.folder / "old log", scene.run / "log", ignore=kept, dirs_exist_ok=True)
    shutil.copytree(scene.folder / "old checkpoints", scene.run / "checkpoints", dirs_exist_ok=True)
    return then, last


def test_a_log_that_lost_its_tail_is_refused_and_gone_on_from_when_the_loss_is_accepted(scene, rollog, rolled_back):
    then, last = rolled_back
    before = sorted(path.name for path in (scene.run / "checkpoints").iterdir())
    for words in ((), ("--dry-run",)):
        refused = rollog("resume", "demo", "grpo.max_steps=3", *words)
        assert refused.exit_code == 5
        assert f"{last - then} acknowledged entries are missing" in refused.stderr
        assert "lost        nothing" not in refused.stderr

    told = rollog("resume", "demo", "grpo.max_steps=3", "--accept-loss", "--dry-run")
    assert told.exit_code == 0, told.stderr
    assert f"lost        {last - then} entries, of a log that now ends with entry {then}; checkpoint" in told.stderr
    lost = [name for name in before if int(name.split("-")[1]) > then]
    assert lost
    assert all(name in told.stderr for name in lost)
    assert sorted(path.name for path in (scene.run / "checkpoints").iterdir()) == before

    scene.overrides = ["grpo.max_steps=3", "--accept-loss"]
    scene.start()
    assert scene.finish() == 0, scene.output
    assert scene.state().finish is FinishReason.MAX_STEPS
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(3)}
    aside = {path.name.split("-", 2)[2] for path in (scene.run / "checkpoints").glob("lost-*")}
    assert aside == set(lost)
    assert rollog("verify", "demo").exit_code == 0
    plain = rollog("resume", "demo")
    assert plain.exit_code == 0, plain.stderr
    assert "lost        nothing" in plain.stderr


def test_a_run_that_never_began_begins_and_an_emptied_server_is_no_such_run(scene, rollog):
    (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))
    folder = RunFolder.create(load_plan("run.yaml"))

    fresh = rollog("resume", "demo", "--dry-run")
    assert fresh.exit_code == 0, fresh.stderr
    assert "run demo has not begun yet" in fresh.stderr

    mark_of(folder.path).keep(Mark(log_id="a" * 32, offset=7, digest="b" * 32, epoch=1))
    for words in ((), ("--accept-loss",)):
        emptied = rollog("resume", "demo", "--dry-run", *words)
        assert emptied.exit_code == 5
        assert "the server holds no log; 7 entries were acknowledged" in emptied.stderr


def test_a_mark_ahead_of_the_log_alone_is_a_loss_too(scene, rollog):
    scene.settings["grpo"]["max_steps"] = 1
    scene.start()
    assert scene.finish() == 0, scene.output
    mark = mark_of(scene.run).path
    found = json.loads(mark.read_text())
    mark.write_text(json.dumps(found | {"offset": found["offset"] + 7}))

    refused = rollog("resume", "demo", "--dry-run")
    assert refused.exit_code == 5
    assert "7 acknowledged entries are missing" in refused.stderr
    told = rollog("resume", "demo", "--accept-loss", "--dry-run")
    assert told.exit_code == 0, told.stderr
    assert "lost        7 entries" in told.stderr
    assert "no checkpoint" in told.stderr
