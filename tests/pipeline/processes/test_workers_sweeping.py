"""A sweep beside a run that works: whatever the run, its fork or a result that waits can need stays."""

import os
import signal
import subprocess
import sys

import pytest

from rollog.events.reading import open_reader, segments_of
from rollog.events.vocabulary import Retry
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.waiting_results import waiting_files
from rollog.replay.verification import verify

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def another(scene, make_scene):
    made = make_scene(scene.folder, settings={**scene.settings, "run": "again"})
    yield made
    if made.run.exists():
        made.clean()


def rollog(scene, *words):
    command = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()", *words)
    done = subprocess.run(command, cwd=scene.folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(scene):
    """Everything but the logs, by its path under the run's folder."""
    roots = (scene.run / "blobs", scene.run / "weights", scene.run / "checkpoints")
    return {path.relative_to(scene.run) for root in roots for path in root.rglob("*") if path.is_file()}


def make_old(scene):
    """As if the grace time had passed for everything that is there."""
    for path in files(scene):
        os.utime(scene.run / path, (1.0, 1.0))
    for folder in (*(scene.run / "weights").iterdir(), *(scene.run / "checkpoints").iterdir()):
        os.utime(folder, (1.0, 1.0))


def test_a_sweep_of_a_run_that_works_takes_nothing_that_it_its_fork_or_a_waiting_result_needs(scene, another):
    scene.settings["grpo"]["max_steps"] = another.settings["grpo"]["max_steps"] = 16
    scene.settings["log"] = another.settings["log"] = {"archive_every": 60}
    scene.pace_s = 0.02
    controller = scene.start()
    scene.wait_for(lambda state: state.version >= 8 and state.archived > 0)
    os.kill(controller.pid, signal.SIGSTOP)  # from here on results wait
    rollog(scene, "fork", "demo@step:6", "again", "--reason", "beside")
    forked = files(another)
    folder = RunFolder(scene.run)
    plan = folder.plan()
    while not (waiting := waiting_files(folder, plan)):
        assert controller.poll() is None, scene.output
    make_old(scene)
    before = files(scene)

    told = rollog(scene, "gc", "demo", "--dry-run")
    assert files(scene) >= before, "a dry run deletes nothing"
    deleted = rollog(scene, "gc", "demo")

    gone = before - files(scene)
    assert gone, told
    assert set(deleted.splitlines()) == set(told.splitlines())
    assert not [path for path in gone if waiting & set(path.parts)]
    assert files(another) == forked
    os.kill(controller.pid, signal.SIGCONT)
    scene.kill("rank-0")  # it trains again what was trained since the last checkpoint
    another.start()
    for each in (scene, another):
        assert each.finish() == 0, each.output
        assert each.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(16)}
        assert [event for event in each.events(Retry) if "blob" in event.error] == []
        assert list(segments_of(each.run).iterdir())
        with open_reader(each.run) as log:
            assert verify(log).holds
