"""The Megatron engine in a real run: two ranks over gloo, one of them killed, from the command line."""

import shutil
import subprocess
import sys

import pytest

from rollog.events.vocabulary import (
    Commit,
    Drop,
    FailureKind,
    FinishReason,
    Join,
    Late,
    Leave,
    Publish,
    Resume,
    Retry,
    Role,
    Train,
)

ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")
STEPS = 8
# The first groups are scored at once, the others when the test says so: what it does to the run, it does in its middle.
REWARD = """
import select
from pathlib import Path
from rollog.pipeline.training.quickstart_model import successor

scored = 0

def reward(prompt, completion, answer, **row):
    global scored
    scored += 1
    while scored > 80 and not Path(GO).exists():
        select.select([], [], [], 0.05)
    select.select([], [], [], 0.01)
    return successor(prompt, completion, answer)
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


@pytest.fixture
def megatron_scene(make_scene, tmp_path, model_folder):
    pytest.importorskip("megatron.core", reason="needs megatron-core: make test-long installs it")
    scene = make_scene(tmp_path, torch=True)
    shutil.rmtree(scene.folder / "model")
    shutil.copytree(model_folder, scene.folder / "model")
    scene.settings["model"]["max_tokens"] = 2
    (scene.folder / "reward.py").write_text(REWARD.replace("GO", repr(str(scene.folder / "go"))))
    scene.settings["reward"] = f"{scene.folder / 'reward.py'}:reward"
    scene.settings["grpo"] |= {"rollouts_per_prompt": 4, "max_steps": STEPS}
    scene.settings["generation"]["workers"] = 1
    scene.settings["flow"] |= {"lease_s": 30.0, "worker_orphan_s": 600.0, "reward_timeout_s": 500.0}
    scene.settings["checkpoint"]["every_steps"] = 2
    scene.settings["training"] = {"engine": "megatron", "ranks": 2, "micro_batch": 4, "logprob_batch": 4}
    scene.within_s = 900.0
    yield scene
    scene.clean()


def test_a_killed_rank_ends_all_and_they_come_back_as_one(megatron_scene):
    scene = megatron_scene
    scene.start()
    before = scene.wait_for(lambda state: state.version >= 3 and {"rank-0", "rank-1"} <= set(state.workers))

    scene.kill("rank-1")
    (scene.folder / "go").touch()
    assert scene.finish() == 0, scene.output

    state = scene.state()
    assert (state.finish, state.version, state.trained) == (FinishReason.MAX_STEPS, STEPS, 4 * STEPS)
    # Skipped 0, repeated 0: every step has its own four prompts, and each of them was generated once.
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(STEPS)}
    finished = [event.prompt for event in scene.events(Commit)]
    assert len(finished) == len(set(finished))
    assert scene.events(Drop) == scene.events(Retry) == []
    (resume,) = scene.events(Resume)
    assert resume.version <= before.version
    assert "signal 9" in resume.reason
    ranks = [event.worker for event in scene.events(Join) if event.role is Role.TRAINER]
    assert sorted(ranks) == ["rank-0", "rank-0", "rank-1", "rank-1"]
    assert sorted(event.worker for event in scene.events(Leave) if event.role is Role.TRAINER) == ["rank-0", "rank-1"]
    assert [event.what for event in scene.events(Late)] == []
    # Both generations trained, and the recorded steps were trained again with the same prompts.
    generations = {event.generation for event in scene.events(Train)}
    assert len(generations) == 2
    assert sorted({event.version for event in scene.events(Publish)}) == list(range(STEPS + 1))
    gaps = [event.logprob_gap for event in scene.events(Train) if event.logprob_gap is not None]
    assert gaps
    assert max(gaps) < 1e-4
    verify = subprocess.run(
        [*ROLLOG, "verify", "demo"], cwd=scene.folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr
    shards = sorted(path.name for path in (scene.run / "checkpoints").glob(f"{STEPS}-*/model/*.safetensors"))
    assert shards == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.kill
def test_whoever_is_killed_each_step_trains_its_own_prompts(megatron_scene):
    scene, steps = megatron_scene, 30
    scene.settings["training"]["tensor_parallel"] = 2
    scene.settings["data"]["epochs"] = 2
    scene.settings["grpo"]["max_steps"] = steps
    (scene.folder / "go").touch()
    workers = {"gen-0", "rank-0", "rank-1"}
    scene.start()

    for victim in ("rank-0", "controller", "gen-0", "rank-1"):
        reached = scene.wait_for(lambda state: workers <= set(state.workers)).version
        scene.wait_for(lambda state, reached=reached: state.version > reached and workers <= set(state.workers))
        if victim == "controller":
            scene.kill_controller()
            scene.start()
        else:
            scene.kill(victim)
    assert scene.finish() == 0, scene.output

    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(steps)}
    finished = [event.prompt for event in scene.events(Commit)]
    assert len(finished) == len(set(finished)) == 4 * steps
    assert scene.events(Drop) == []
    assert {event.kind for event in scene.events(Retry)} <= {FailureKind.LOST}
    # A controller that found the ranks running cannot know by which signal they ended.
    assert ["its process" in resume.reason for resume in scene.events(Resume)] == [True, True]
    assert {event.version for event in scene.events(Publish)} == set(range(steps + 1))


def test_a_run_goes_on_with_another_number_of_ranks(megatron_scene):
    scene = megatron_scene
    scene.start()
    scene.wait_for(lambda state: state.version >= 3)
    stop = subprocess.run(
        [*ROLLOG, "stop", "demo", "--within-s", "0"],
        cwd=scene.folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert stop.returncode == 0, stop.stderr
    (scene.folder / "go").touch()
    assert scene.finish() == 75, scene.output

    scene.overrides = ["training.ranks=1"]
    scene.start()
    assert scene.finish() == 0, scene.output

    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(STEPS)}
    assert scene.state().settings["training"]["ranks"] == 1
