"""The examples are a test: settings that load, scripts that a shell reads, names that fit together.

Rule 1: a file of settings resolves as a user would resolve it, with a small stand-in in the place of its model.
Rule 2: each example says at its top what of it was run, and what was not.
"""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rollog.pipeline.cli import app
from rollog.pipeline.config import load_plan

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SETTINGS = sorted(path for path in EXAMPLES.glob("*.yaml") if path.name != "kuberay.yaml")
ON_A_CLUSTER = ("eight_gpus.yaml", "two_nodes.yaml")
MODEL = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder in the layout of a model, of the family that the examples train."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def resolved(name: str, *overrides: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["train", str(EXAMPLES / name), *overrides, "--dry-run", "-o", "json"])
    assert done.exit_code == 0, done.output
    model: dict[str, object] = json.loads(done.stdout)
    return model


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_every_file_of_settings_loads(path: Path) -> None:
    assert load_plan(path).run


@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_a_plan_for_a_cluster_resolves_on_a_machine_without_one(name: str, model: Path) -> None:
    assert resolved(name, f"model.path={model}", "data.task.size=400")


@pytest.mark.long
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed; make test-long installs it")
def test_the_plan_for_one_gpu_resolves_without_one_in_float32(model: Path) -> None:
    assert resolved("one_gpu.yaml", f"model.path={model}", "model.dtype=float32")


def test_the_workers_of_each_plan_fit_the_gpus_that_it_is_for() -> None:
    eight, two = (load_plan(EXAMPLES / name) for name in ON_A_CLUSTER)

    assert eight.generation.workers * eight.generation.tensor_parallel + eight.training.ranks == 8
    assert two.generation.workers == two.training.ranks == 8
    assert {eight.launch, two.launch} == {"ray"}


def test_a_shell_reads_the_script_for_slurm() -> None:
    done = subprocess.run(["bash", "-n", str(EXAMPLES / "slurm.sh")], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "examples/two_nodes.yaml" in (EXAMPLES / "slurm.sh").read_text()


def test_the_names_in_the_file_for_kubernetes_fit_together() -> None:
    parts = list(yaml.safe_load_all((EXAMPLES / "kuberay.yaml").read_text()))
    claims = {part["metadata"]["name"] for part in parts if part["kind"] == "PersistentVolumeClaim"}
    (job,) = [part["spec"] for part in parts if part["kind"] == "RayJob"]
    groups = [job["rayClusterSpec"]["headGroupSpec"], *job["rayClusterSpec"]["workerGroupSpecs"]]

    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["work"]["persistentVolumeClaim"]["claimName"] in claims
        assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == list(volumes)
    places = [json.loads(json.loads(group["rayStartParams"]["resources"])) for group in groups[1:]]
    plan = load_plan(EXAMPLES / "two_nodes.yaml")
    assert places == [{"rollog_generator": plan.generation.workers}, {"rollog_rank": plan.training.ranks}]
    assert f"runs/{plan.run}" in job["entrypoint"]


@pytest.mark.parametrize(
    "path",
    [*(EXAMPLES / f"{name}" for name in ("one_gpu.yaml", *ON_A_CLUSTER, "slurm.sh", "kuberay.yaml")),
     ROOT / "docker-compose.yml", ROOT / "Dockerfile"],
    ids=lambda path: path.name,
)  # fmt: skip
def test_an_example_for_machines_that_few_have_says_what_was_run(path: Path) -> None:
    assert "# What was run: " in path.read_text()
