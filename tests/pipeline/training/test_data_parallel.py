"""The gradient does not depend on how many ranks share the rows: real processes, over gloo."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rollog.pipeline.rollout_codec import encode
from rollog.pipeline.rollouts import GroupRollouts

SCRIPT = Path(__file__).with_name("data_parallel.py")
WITHIN_S = 300.0


@pytest.mark.long
@pytest.mark.timeout(0)
def test_one_two_and_four_ranks_have_the_same_gradient(
    model_folder: Path, random_group: Callable[..., GroupRollouts], tmp_path: Path
) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    groups = [random_group(prompt, rows=rows) for prompt, rows in enumerate([(1, 3), (2, 5), (1, 1)])]
    for group in groups:
        (blobs / str(group.prompt)).write_bytes(encode(group))

    found: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
    for ranks, micro_batch in ((1, 1), (2, 3), (4, 1)):
        out = tmp_path / f"{ranks}-{micro_batch}.safetensors"
        rest = [str(micro_batch), str(model_folder), str(blobs), str(out)]
        running = [
            subprocess.Popen([sys.executable, str(SCRIPT), str(rank), str(ranks), *rest]) for rank in range(ranks)
        ]
        assert [process.wait(WITHIN_S) for process in running] == [0] * ranks
        found[ranks, micro_batch] = load_file(out)
        with safe_open(out, framework="pt") as file:
            said = file.metadata()
        assert (int(said["tokens"]), int(said["rows"])) == (sum(group.num_tokens for group in groups), 13)

    plain = found.pop((1, 1))
    largest = max(float(tensor.abs().max()) for tensor in plain.values())
    assert largest > 0
    for shape, other in found.items():
        difference = max(float((plain[name] - other[name]).abs().max()) for name in plain)
        print(f"(ranks, micro batch) {shape}: largest gradient {largest:.3g}, largest difference {difference:.3g}")
        assert difference < 1e-5 * largest, shape
