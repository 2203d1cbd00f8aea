"""The quickstart's task, data and model."""

import json
from collections import Counter
from pathlib import Path

import pytest
import safetensors.torch

from rollog.pipeline.durable import file_digest
from rollog.pipeline.errors import ModelError
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.quickstart_model import successor, write_dataset, write_model


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("4", 1.0), ("4 7", 0.5), ("7", 0.5), ("7 4", 0.0), ("", 0.0), ("4 4", 0.5), ("<bos> 4", 0)],
)
def test_the_reward_is_the_share_of_right_positions(completion: str, reward: float) -> None:
    assert successor(prompt="3", completion=completion, answer="4") == reward


def test_every_digit_is_asked_equally_often(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "successor.jsonl", rows=60)
    rows = [json.loads(line) for line in (tmp_path / "data" / "successor.jsonl").read_text().splitlines()]

    assert Counter(row["prompt"] for row in rows) == dict.fromkeys("0123456789", 6)
    assert all(int(row["answer"]) == (int(row["prompt"]) + 1) % 10 for row in rows)


def test_the_model_follows_from_its_seed(model_folder: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "same", seed=0)
    write_model(tmp_path / "other", seed=1)

    digest = file_digest(model_folder / "model.safetensors")
    assert file_digest(tmp_path / "same" / "model.safetensors") == digest
    assert file_digest(tmp_path / "other" / "model.safetensors") != digest
    assert 300_000 < sum(parameter.numel() for parameter in load_model(model_folder).parameters()) < 400_000


def test_the_tokenizer_frames_a_prompt_and_hides_only_the_end(model_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    assert tokenizer("3")["input_ids"] == [10, 3, 11]
    assert tokenizer.eos_token_id == 12
    assert tokenizer.decode([4, 12], skip_special_tokens=True) == "4"
    assert tokenizer.decode([4, 10], skip_special_tokens=True) == "4 <bos>"


def test_a_folder_that_is_no_model_is_refused_with_what_is_missing(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match="safetensors"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(tmp_path)
    weights = safetensors.torch.load_file(model_folder / "model.safetensors")
    del weights["model.norm.weight"]
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for model\.norm\.weight"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="float31"):
        load_model(model_folder, dtype="float31")
