"""A run that is killed 20 times while it saves checkpoints ends like the one that was not, bit for bit."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from rollog.events.vocabulary import Drop, Resume, Retry
from rollog.pipeline.checkpoints import broken_files, list_manifests

pytestmark = [pytest.mark.long, pytest.mark.kill, pytest.mark.timeout(0)]

NUM_DEATHS = 20
DIES = Path(__file__).with_name("dies_while_saving")


@pytest.fixture
def undisturbed(make_scene, tmp_path_factory):
    made = make_scene(tmp_path_factory.mktemp("undisturbed"))
    yield made
    made.clean()


def begin(scene, model_folder: Path) -> None:
    """A checkpoint at every step of a real trainer."""
    shutil.rmtree(scene.folder / "model")
    shutil.copytree(model_folder, scene.folder / "model")
    scene.settings |= {
        "model": {"path": "model", "max_tokens": 2, "chat_template": False},
        "data": {"path": "data.jsonl", "epochs": 2},
        "grpo": {"prompts_per_step": 4, "rollouts_per_prompt": 4, "max_steps": NUM_DEATHS + 4},
        "reward": "rollog.pipeline.training.quickstart_model:successor",
        "optimizer": {"lr": 5.0e-4},
        "determinism": "pinned",
        "failure": {"min_step_fraction": 1.0},
        "checkpoint": {"every_steps": 1, "keep_last": 2},
    }
    scene.torch = True
    scene.start()


def test_a_run_killed_20_times_during_its_checkpoint_saves_ends_with_the_same_bits(scene, undisturbed, model_folder):
    begin(undisturbed, model_folder)
    assert undisturbed.controllers[-1].wait() == 0, undisturbed.output

    deaths = scene.folder / "deaths"
    deaths.touch()
    scene.environment |= {"DEATHS": str(deaths), "NUM_DEATHS": str(NUM_DEATHS), "PYTHONPATH": str(DIES)}
    begin(scene, model_folder)
    while (code := scene.controllers[-1].wait()) == -signal.SIGKILL:
        scene.start()
    assert code == 0, scene.output

    died = [tuple(map(int, line.split())) for line in deaths.read_text().splitlines()]
    assert len(died) == len(set(died)) == NUM_DEATHS
    assert len(scene.controllers) == 1 + NUM_DEATHS // 3
    assert len(scene.events(Resume)) >= NUM_DEATHS
    assert scene.trained() == undisturbed.trained()
    assert scene.events(Drop) == []
    assert {retry.kind.value for retry in scene.events(Retry)} <= {"lost"}
    assert weights(scene.run) == weights(undisturbed.run)
    assert [path for path in scene.run.rglob("*") if path.name.startswith(".tmp-") or path.suffix == ".tmp"] == []


def weights(run: Path) -> list[tuple[int, str, str]]:
    """Version and digests of the weights and the optimizer of each checkpoint that is kept, all of them whole."""
    manifests = list_manifests(run / "checkpoints")
    assert len(os.listdir(run / "checkpoints")) == len(manifests) == 2
    assert [broken_files(manifest) for manifest in manifests] == [[], []]
    return [
        (each.version, each.files["model/model.safetensors"].digest, each.files["optimizer.safetensors"].digest)
        for each in manifests
    ]
