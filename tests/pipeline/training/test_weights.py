"""Published weights."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.weights import WEIGHTS_FILE, WeightsError, load_into, prune, publish, published


def test_published_weights_come_back_bit_for_bit(model_folder: Path, tmp_path: Path) -> None:
    model = load_model(model_folder)
    found = publish(model, 7, tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load_into(model, tmp_path / found.file, found.digest)

    original = load_model(model_folder).state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in model.state_dict().items())
    assert found.file == f"7-{found.digest}"
    assert published(tmp_path) == [found]


def test_a_published_folder_is_a_model_of_its_own_and_leaves_the_tied_head_out(
    model_folder: Path, tmp_path: Path
) -> None:
    found = publish(load_model(model_folder), 7, tmp_path)
    again = load_model(tmp_path / found.file)

    original = load_model(model_folder).state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in again.state_dict().items())
    written = safetensors.torch.load_file(tmp_path / found.file / WEIGHTS_FILE)
    assert set(original) - set(written) == {"lm_head.weight"}


def test_the_same_weights_published_again_change_nothing(model_folder: Path, tmp_path: Path) -> None:
    first = publish(load_model(model_folder), 7, tmp_path)
    before = (tmp_path / first.file / WEIGHTS_FILE).stat().st_ino

    assert publish(load_model(model_folder), 7, tmp_path) == first
    assert (tmp_path / first.file / WEIGHTS_FILE).stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == [first.file]


def test_broken_weights_under_the_name_of_good_ones_are_not_taken_for_them(model_folder: Path, tmp_path: Path) -> None:
    found = publish(load_model(model_folder), 7, tmp_path)
    path = tmp_path / found.file / WEIGHTS_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    model = load_model(model_folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    with pytest.raises(WeightsError, match="digest"):
        load_into(model, tmp_path / found.file, found.digest)
    with pytest.raises(WeightsError, match="digest"):
        publish(model, 7, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_weights_of_another_model_do_not_fit(model_folder: Path, tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config.from_pretrained(model_folder)
    config.intermediate_size = 64
    smaller = publish(Qwen3ForCausalLM(config), 1, tmp_path)
    config.num_hidden_layers = 1
    shorter = publish(Qwen3ForCausalLM(config), 1, tmp_path)

    with pytest.raises(WeightsError, match="shape"):
        load_into(load_model(model_folder), tmp_path / smaller.file, smaller.digest)
    with pytest.raises(WeightsError, match="in one of them only"):
        load_into(load_model(model_folder), tmp_path / shorter.file, shorter.digest)


def test_weights_can_be_published_in_another_number_format(model_folder: Path, tmp_path: Path) -> None:
    model = load_model(model_folder)
    found = publish(model, 1, tmp_path, dtype=torch.bfloat16)

    written = safetensors.torch.load_file(tmp_path / found.file / WEIGHTS_FILE)
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    assert model.dtype is torch.float32
    load_into(model, tmp_path / found.file, found.digest)
    assert all(torch.equal(model.state_dict()[name], tensor.float()) for name, tensor in written.items())


def test_the_newest_two_versions_are_kept_or_those_that_are_named(model_folder: Path, tmp_path: Path) -> None:
    model = load_model(model_folder)

    def versions() -> list[int]:
        return [weights.version for weights in published(tmp_path)]

    for version in (8, 9, 10, 11):
        publish(model, version, tmp_path)
    (tmp_path / "notes").mkdir()

    assert [weights.version for weights in prune(tmp_path, keep_versions={8, 10, 11})] == [9]
    assert versions() == [8, 10, 11]
    prune(tmp_path)
    assert versions() == [10, 11]
    assert (tmp_path / "notes").is_dir()
    assert prune(tmp_path / "nothing") == []
