"""The trainer's files: bit-exact continuation, and refusal of anything else."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch

from rollog.pipeline.checkpoints import CheckpointError, Ordered, write
from rollog.pipeline.rollout_codec import encode
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.torch_trainer import TorchTrainer
from rollog.pipeline.training.weights import WeightsError

GroupMaker = Callable[..., GroupRollouts]
SCRIPT = Path(__file__).with_name("resumed_trainer.py")


@pytest.fixture(scope="module")
def resumed() -> ModuleType:
    """The script that the resumed process runs, as a module: both sides train with the same code."""
    spec = importlib.util.spec_from_file_location("resumed_trainer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path: Path, random_group: GroupMaker) -> list[Path]:
    paths = [tmp_path / f"group-{number}" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(random_group(number)))
    return paths


@pytest.fixture
def checkpoint(model_folder: Path, tmp_path: Path, resumed: ModuleType, files: list[Path]) -> Path:
    """Written by a trainer that is three steps old."""
    trainer = TorchTrainer(load_model(model_folder), resumed.SETTINGS)
    resumed.train(trainer, files[:3])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    trainer.write_checkpoint(folder, model_folder)
    return folder


def a_trainer(model_folder: Path, resumed: ModuleType) -> TorchTrainer:
    return TorchTrainer(load_model(model_folder), resumed.SETTINGS)


def test_five_steps_are_three_steps_a_new_process_and_two_more_bit_for_bit(
    model_folder: Path, resumed: ModuleType, files: list[Path], checkpoint: Path
) -> None:
    whole = a_trainer(model_folder, resumed)
    resumed.train(whole, files)

    command = [sys.executable, SCRIPT, model_folder, checkpoint, *files[3:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", resumed.digest_of(whole)]


def test_a_fresh_trainer_can_be_saved_and_resumed(
    model_folder: Path, tmp_path: Path, resumed: ModuleType, files: list[Path]
) -> None:
    first, second = a_trainer(model_folder, resumed), a_trainer(model_folder, resumed)
    manifest = write(
        tmp_path / "checkpoints",
        Ordered(log="log", offset=1, digest="ab", epoch=1, version=0, generation=1),
        lambda folder: first.write_checkpoint(folder, model_folder),
    )
    second.read_checkpoint(manifest.folder)
    resumed.train(first, files[:2])
    resumed.train(second, files[:2])

    assert second.version == 2
    assert resumed.digest_of(first) == resumed.digest_of(second)


def test_a_checkpoint_holds_a_model_with_its_tokenizer(model_folder: Path, checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(checkpoint / "model")("3")["input_ids"] == [10, 3, 11]
    assert load_model(checkpoint / "model").config.hidden_size == 96
    names = safetensors.torch.load_file(checkpoint / "optimizer.safetensors").keys()
    assert "model.embed_tokens.weight/exp_avg" in names
    assert not any(name.startswith("lm_head") for name in names)


def damage_json(folder: Path, **changes: Any) -> None:
    path = folder / "trainer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "error", "what"),
    [
        (lambda folder: (folder / "trainer.json").unlink(), CheckpointError, "cannot be read"),
        (lambda folder: (folder / "trainer.json").write_text("{"), CheckpointError, "cannot be read"),
        (lambda folder: damage_json(folder, format=9), CheckpointError, "format 9"),
        (lambda folder: damage_json(folder, engine="megatron"), CheckpointError, r"by training\.engine=megatron"),
        (lambda folder: damage_json(folder, groups=[]), CheckpointError, "groups other parameters"),
        (lambda folder: (folder / "optimizer.safetensors").unlink(), WeightsError, "does not exist"),
        (lambda folder: (folder / "optimizer.safetensors").write_bytes(b"12345678"), WeightsError, "no safetensors"),
        (lambda folder: (folder / "model" / "model.safetensors").unlink(), WeightsError, "does not exist"),
    ],
)
def test_missing_or_broken_files_are_refused(
    model_folder: Path,
    resumed: ModuleType,
    checkpoint: Path,
    damage: Callable[[Path], object],
    error: type[Exception],
    what: str,
) -> None:
    damage(checkpoint)

    with pytest.raises(error, match=what):
        a_trainer(model_folder, resumed).read_checkpoint(checkpoint)


@pytest.mark.parametrize("change", ["left out", "added", "reshaped"])
def test_an_optimizer_state_that_does_not_fit_is_refused(
    model_folder: Path, resumed: ModuleType, checkpoint: Path, change: str
) -> None:
    path, name = checkpoint / "optimizer.safetensors", "model.norm.weight/exp_avg"
    state = safetensors.torch.load_file(path)
    if change == "left out":
        del state[name]
    elif change == "added":
        state["other/exp_avg"] = state[name].clone()
    else:
        state[name] = state[name][:3].clone()
    safetensors.torch.save_file(state, path)

    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        a_trainer(model_folder, resumed).read_checkpoint(checkpoint)
