"""How models are cut for Megatron's ranks and put together again, and which are refused. No Megatron is needed."""

import json
from pathlib import Path

import pytest
import torch

from rollog.pipeline.errors import ModelError, PlanError
from rollog.pipeline.training.megatron_checks import check_devices
from rollog.pipeline.training.megatron_layout import layouts
from rollog.pipeline.training.megatron_shape import read_shape
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.tensor_folder import TensorFolder, shard_name, write_index
from rollog.pipeline.training.weights import WeightsError, write_tensors


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_cut_into_parts_is_put_together_again_bit_for_bit(model_folder: Path, parts: int) -> None:
    tensors = TensorFolder(model_folder, "model")
    seen = set()

    for layout in layouts(read_shape(model_folder)):
        sources = [tensors[name] for name in layout.sources]
        again = layout.whole([layout.part(sources, rank, parts) for rank in range(parts)])
        assert all(torch.equal(one, other) for one, other in zip(sources, again, strict=True))
        seen |= set(layout.sources)

    assert seen == set(tensors)


def test_parts_are_of_one_size_and_the_last_is_filled_with_zeros(model_folder: Path) -> None:
    embedding = layouts(read_shape(model_folder))[0]
    whole = [torch.ones(13, 3)]

    parts = [embedding.part(whole, rank, 4) for rank in range(4)]

    assert [list(part.shape) for part in parts] == [[4, 3]] * 4
    assert [int(part.sum()) for part in parts] == [12, 12, 12, 3]
    assert torch.equal(embedding.whole(parts)[0], whole[0])


def test_a_part_holds_whole_heads_with_their_queries(model_folder: Path) -> None:
    qkv = next(layout for layout in layouts(read_shape(model_folder)) if "linear_qkv" in layout.name)
    # 4 heads of queries, 2 of keys and values, 32 numbers each: every row says which head it is.
    q, k, v = (torch.arange(count).repeat_interleave(32) + tens for count, tens in ((4, 0), (2, 10), (2, 20)))

    halves = [qkv.part([q, k, v], rank, 2)[::32].tolist() for rank in (0, 1)]

    assert halves == [[0, 1, 10, 20], [2, 3, 11, 21]]


def test_the_shape_of_a_model_says_what_can_be_cut(model_folder: Path) -> None:
    shape = read_shape(model_folder)

    assert (shape.heads, shape.kv_heads, shape.tied, shape.qk_norm, shape.qkv_bias) == (4, 2, True, True, False)
    assert [shape.padded_vocabulary(parts) for parts in (1, 2, 4)] == [13, 14, 16]
    shape.check_parts(2)
    with pytest.raises(PlanError, match=r"training\.tensor_parallel=4 does not divide the model's 2 heads of keys"):
        shape.check_parts(4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "family gpt2; training.engine=megatron trains llama, qwen2, qwen3"),
        ({"attention_bias": True}, "does not compute attention_bias=true"),
        ({"hidden_act": "gelu"}, "does not compute hidden_act=gelu"),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "use_sliding_window=true"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "positions of the type linear",
        ),
    ],
)
def test_a_model_that_is_computed_otherwise_is_refused_by_name(
    model_folder: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))

    with pytest.raises(ModelError, match=message):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "dtype", "gpus", "message"),
    [
        (2, "bfloat16", 0, r"model\.dtype=bfloat16 with training\.engine=megatron needs GPUs"),
        (4, "float32", 2, r"training\.ranks=4 is more than the 2 GPUs"),
    ],
)
def test_what_the_devices_cannot_do_is_refused(ranks: int, dtype: str, gpus: int, message: str) -> None:
    check_devices(2, "float32", 0)
    check_devices(2, "bfloat16", 2)
    with pytest.raises(PlanError, match=message):
        check_devices(ranks, dtype, gpus)


def test_tensors_are_found_in_whichever_shard_holds_them_and_transformers_finds_them_too(
    model_folder: Path, tmp_path: Path
) -> None:
    tensors = TensorFolder(model_folder, "model")
    for shard in range(2):
        write_tensors(
            {name: tensors[name] for name in sorted(tensors)[shard::2]}, tmp_path / shard_name("model", shard, 2)
        )
    write_index(tmp_path, "model")
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())

    again = TensorFolder(tmp_path, "model")

    assert sorted(path.name for path in tmp_path.glob("*-of-*")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert set(again) == set(tensors)
    for name, parameter in load_model(tmp_path).named_parameters():
        assert torch.equal(parameter, again[name])
    (tmp_path / shard_name("model", 0, 2)).unlink()
    with pytest.raises(WeightsError, match="its files are incomplete or another model's"):
        [TensorFolder(tmp_path, "model")[name] for name in tensors]


def test_a_name_in_two_shards_is_an_error(model_folder: Path, tmp_path: Path) -> None:
    for shard in range(2):
        write_tensors({"one": torch.zeros(1)}, tmp_path / shard_name("model", shard, 2))

    with pytest.raises(WeightsError, match="both hold one"):
        TensorFolder(tmp_path, "model")
