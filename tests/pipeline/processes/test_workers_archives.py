"""Archives of real runs: entries leave the server while it works, and a run leaves its folder in one file."""

import os
import shutil
import subprocess
import sys

import pytest

from rollog.events.file_log import FileLog
from rollog.events.reading import open_reader, segments_of
from rollog.events.redis_reader import RedisReader
from rollog.events.server import start_for_reading
from rollog.events.vocabulary import Archive, FinishReason
from rollog.replay.verification import verify

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def rollog(scene):
    """``rollog(*words)``: the command, in the scene's folder; its exit code, and what it said."""

    def run(*words):
        command = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()", *words)
        done = subprocess.run(command, cwd=scene.folder, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def another(scene, make_scene):
    made = make_scene(scene.folder, settings={**scene.settings, "run": "again"})
    yield made
    if made.run.exists():
        made.clean()


def test_a_run_archives_while_it_works_and_is_killed(scene):
    scene.settings["log"] = {"archive_every": 60}
    scene.settings["checkpoint"] = {"every_steps": 2}
    for version in (4, 8):
        scene.start()
        scene.wait_for(lambda state, version=version: state.version >= version)
        scene.kill_controller()
    scene.start()
    assert scene.finish() == 0, scene.output

    assert scene.state().finish is FinishReason.MAX_STEPS
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    told = scene.events(Archive)
    assert told
    with start_for_reading(scene.run) as server:
        reader = RedisReader(server.address(), "demo")
        assert reader.digest_at(told[-1].last) is None
        assert reader.digest_at(told[-1].last + 1) is not None
        reader.close()
    with open_reader(scene.run) as whole:
        assert verify(whole).holds


def test_a_run_travels_in_one_file_and_goes_on_elsewhere_under_another_name(scene, another, rollog):
    scene.pace_s = 0.02
    scene.start()
    scene.wait_for(lambda state: state.version >= 4 and (state.newest_checkpoint() or 0) >= 3)
    scene.controllers[-1].terminate()
    assert scene.finish() == 75, scene.output
    before = scene.state()

    code, said = rollog("archive", "demo", "-o", "demo.rollog", "--blobs", "--checkpoints")
    assert code == 0, said
    shutil.move(scene.run, scene.folder / "gone")
    code, said = rollog("verify", "--log", "demo.rollog")
    assert code == 0, said
    code, said = rollog("status", "--log", "demo.rollog")
    assert code == 0, said

    code, said = rollog("import", "demo.rollog", "again")
    assert (code, "rollog resume again" in said) == (0, True), said
    another.start()
    assert another.finish() == 0, another.output
    assert another.state().finish is FinishReason.MAX_STEPS
    assert another.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}

    assert rollog("import", "demo.rollog")[0] == 0
    assert rollog("import", "demo.rollog")[0] == 2
    with open_reader(scene.run) as reader:
        assert isinstance(reader, FileLog)
        assert reader.head().digest == before.digest
    scene.start()
    assert scene.finish() == 0, scene.output
    for each in (scene, another):
        with open_reader(each.run) as reader:
            assert verify(reader).holds


def test_a_log_alone_can_be_read_and_a_sweep_leaves_a_run_that_can_be_forked(scene, another, rollog):
    scene.start()
    assert scene.finish() == 0, scene.output
    assert rollog("archive", "demo", "-o", "log.rollog")[0] == 0
    code, said = rollog("log", "--log", "log.rollog", "--oneline")
    assert code == 0, said
    for path in (scene.run / "blobs").glob("*/*"):
        os.utime(path, (1.0, 1.0))
    blobs = len(list((scene.run / "blobs").glob("*/*")))

    code, listed = rollog("gc", "demo", "--dry-run")
    assert (code, len(list((scene.run / "blobs").glob("*/*")))) == (0, blobs), listed
    code, said = rollog("gc", "demo")

    assert code == 0, said
    assert 0 < len(list((scene.run / "blobs").glob("*/*"))) < blobs
    code, said = rollog("fork", "demo", "again", "grpo.max_steps=14", "--reason", "further")
    assert code == 0, said
    another.settings["grpo"] = {**scene.settings["grpo"], "max_steps": 14}
    another.start()
    assert another.finish() == 0, another.output
    assert another.state().version == 14
    assert not segments_of(another.run).is_symlink()
