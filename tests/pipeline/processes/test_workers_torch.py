"""The real thing, small: the torch engine and trainer on the quickstart's model, from the command line."""

import json
import shutil
import subprocess
import sys

import pytest

from rollog.events.vocabulary import FinishReason, Load, Note, Publish, Retry, Train
from rollog.pipeline.training.quickstart_model import successor

ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")


@pytest.fixture
def torch_scene(scene, model_folder):
    pytest.importorskip("torch", reason="needs torch: pip install 'rollog[train]'")
    shutil.rmtree(scene.folder / "model")
    shutil.copytree(model_folder, scene.folder / "model")
    scene.settings["model"]["max_tokens"] = 2
    scene.settings["reward"] = f"{successor.__module__}:{successor.__name__}"
    scene.settings["grpo"] |= {"rollouts_per_prompt": 4, "max_steps": 4}
    scene.settings["generation"]["workers"] = 1
    scene.settings["flow"]["lease_s"] = 10.0
    scene.settings["checkpoint"]["every_steps"] = 2
    return scene


def test_a_small_model_trains_from_the_command_line_and_its_log_adds_up(torch_scene):
    scene = torch_scene
    (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))

    run = subprocess.run(
        [*ROLLOG, "train", "run.yaml"], cwd=scene.folder, capture_output=True, text=True, timeout=110, check=False
    )

    assert run.returncode == 0, run.stderr
    state = scene.state()
    assert (state.finish, state.version, state.trained) == (FinishReason.MAX_STEPS, 4, 16)
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(4)}
    assert sorted({event.version for event in scene.events(Publish)}) == [0, 1, 2, 3, 4]
    assert scene.events(Load)
    assert not scene.events(Retry)
    assert not [note for note in scene.events(Note) if note.what == "logprob_gap"]
    gaps = [event.logprob_gap for event in scene.events(Train) if event.logprob_gap is not None]
    assert gaps
    assert max(gaps) < 1e-4
    verify = subprocess.run(
        [*ROLLOG, "verify", "demo"], cwd=scene.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr
