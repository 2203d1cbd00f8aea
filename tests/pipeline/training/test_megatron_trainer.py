"""The Megatron trainer against the torch trainer and the Hugging Face model, with real ranks over gloo.

Two processes run all jobs one after the other, since importing Megatron-core takes longer than they do. Where there are
GPUs the ranks use them, one each; with a single one only what needs no second rank is tested.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import megatron_ranks
from megatron_ranks import facts_of, settings
from rollog.pipeline.rollout_codec import decode, encode
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.training.batching import BatchShape
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.tensor_folder import TensorFolder
from rollog.pipeline.training.torch_trainer import TorchTrainer
from rollog.pipeline.training.weights import publish

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]

WITHIN_S = 1800.0
STEPS = 5
# Name -> ranks, and how many of them share one copy of the model.
CUTS = {"alone": (1, 1), "dp2": (2, 1), "tp2": (2, 2)}
SHARED = ("dp2", "tp2")
ONE_GPU = torch.cuda.device_count() == 1
FAMILIES = ("qwen3", "qwen2", "llama")
# Rows of the rollouts of each group of a step: 13 rows of 6 rollouts, and 3 of padding when blocks are of 4.
SEVERAL = ((1, 3), (2, 5), (1, 1))
TOKENS = [[10, 3, 11, 4, 12, 0, 7, 9], [10, 9, 11, 0, 12, 5, 1, 2]]


@dataclass
class Job:
    """What the ranks of one trainer are told; see megatron_ranks.py."""

    out: str
    model: str
    weights: str
    ranks: int = 2
    tensor: int = 1
    kl: float = 0.0
    max_grad_norm: float = math.inf
    by_group: bool = False
    begin: str = ""
    tokens: list[list[int]] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)
    checkpoint: str = ""
    rendezvous: str = ""


def make_model(folder: Path, family: str) -> None:
    """A small model of random weights; the vocabulary of 13 is odd, so that two parts need a filling."""
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": 13,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,  # far from zero, so that a slip shows
    }
    torch.manual_seed(7)
    if family == "qwen2":
        config = transformers.Qwen2Config(**shape, tie_word_embeddings=True)
        model = transformers.Qwen2ForCausalLM(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0, 0.2)
    else:
        stretched = {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        }  # fmt: skip
        shape["max_position_embeddings"] = 16384
        config = transformers.LlamaConfig(**shape, tie_word_embeddings=False, rope_parameters=stretched)
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Outcome:
    """What came out of every job, beside what the torch trainer made of the same groups."""

    root: Path
    models: dict[str, Path]
    jobs: dict[str, Job]

    def facts(self, job: str, rank: int = 0) -> list[list[float]]:
        found: list[list[float]] = json.loads((self.root / job / f"facts-{rank}.json").read_text())
        return found

    def weights(self, job: str) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(self.root / job / "weights.safetensors")

    def by_torch(self, job: str, shape: BatchShape | None = None) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
        """Facts of every step and final weights of the torch trainer under this job's settings, or cut as `shape`."""
        told = self.jobs[job]
        model = load_model(Path(told.model))
        own = settings(kl=told.kl, max_grad_norm=told.max_grad_norm, by_group=told.by_group)
        trainer = TorchTrainer(
            model,
            own if shape is None else replace(own, shape=shape),
            reference=load_model(Path(told.model)) if told.kl else None,
            weights=Path(told.weights),
        )
        facts = []
        for paths in told.steps:
            trainer.accumulate([decode(Path(path).read_bytes()) for path in paths])
            facts.append(facts_of(trainer.close_step()))
        return facts, {name: tensor.detach() for name, tensor in model.named_parameters()}


def write(root: Path, group: GroupRollouts) -> str:
    path = root / f"group-{group.prompt}"
    path.write_bytes(encode(group))
    return str(path)


def run(jobs: list[Job], root: Path) -> None:
    """Both ranks of all jobs; raises with what they printed when one fails."""
    for number, job in enumerate(jobs):
        job.rendezvous = f"file://{root}/meet-{number}"
        Path(job.out).mkdir(exist_ok=True)
    told = root / f"jobs-{jobs[0].out.rpartition('/')[2]}.json"
    told.write_text(json.dumps([asdict(job) for job in jobs]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    for rank in (0, 1):
        with (root / f"rank-{rank}").open("ab") as output:
            command = [sys.executable, megatron_ranks.__file__, str(told), str(rank)]
            ranks.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
    try:
        codes = [rank.wait(WITHIN_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], "\n".join((root / f"rank-{rank}").read_text()[-3000:] for rank in (0, 1))


@pytest.fixture(scope="module")
def outcome(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, random_group: Callable[..., GroupRollouts]
) -> Outcome:
    pytest.importorskip("megatron.core", reason="needs megatron-core: make test-long installs it")
    root = tmp_path_factory.mktemp("megatron")
    models = {"qwen3": model_folder}
    for family in ("qwen2", "llama"):
        models[family] = root / family
        make_model(models[family], family)
    for family, folder in models.items():
        publish(load_model(folder), 0, root / f"weights-{family}")
    steps = [[random_group(4 * step + at, rows=(1, 1, 2)) for at in range(4)] for step in range(STEPS)]
    several = [
        [random_group(100 + 3 * step + at, rows=rows) for at, rows in enumerate(SEVERAL)] for step in range(STEPS)
    ]
    files, files_of_several = (
        [[write(root, group) for group in groups] for groups in each] for each in (steps, several)
    )
    jobs = {}
    for family in FAMILIES:
        for cut, (ranks, tensor) in CUTS.items():
            name = f"{family}-{cut}"
            jobs[name] = Job(
                out=str(root / name),
                model=str(models[family]),
                weights=str(root / f"weights-{family}"),
                ranks=ranks,
                tensor=tensor,
                tokens=TOKENS,
                steps=files,
                kl=0.1 if family == "llama" else 0.0,
                max_grad_norm=0.5 if family == "qwen2" else math.inf,
            )
    same = {"model": str(model_folder), "weights": str(root / "weights-qwen3")}
    for cut, (ranks, tensor) in CUTS.items():
        name = f"several-{cut}"
        jobs[name] = Job(
            out=str(root / name), ranks=ranks, tensor=tensor, kl=0.1, by_group=True, steps=files_of_several, **same
        )
    for cut in SHARED:
        saved = str(root / f"checkpoint-{cut}")
        jobs[f"half-{cut}"] = Job(
            out=str(root / f"half-{cut}"), tensor=CUTS[cut][1], steps=files[:3], checkpoint=saved, **same
        )
        jobs[f"rest-{cut}"] = Job(out=str(root / f"rest-{cut}"), ranks=1, begin=saved, steps=files[3:], **same)
    by_torch = TorchTrainer(load_model(model_folder), settings())
    for groups in steps[:3]:
        by_torch.accumulate(groups)
        by_torch.close_step()
    (root / "by-torch").mkdir()
    by_torch.write_checkpoint(root / "by-torch", model_folder)
    jobs["from-torch"] = Job(
        out=str(root / "from-torch"), tensor=2, begin=str(root / "by-torch"), steps=files[3:], **same
    )
    if ONE_GPU:
        jobs = {name: job for name, job in jobs.items() if job.ranks == 1 and not job.begin}
    run(list(jobs.values()), root)
    return Outcome(root=root, models=models, jobs=jobs)


def cuts(names: Iterable[str]) -> list[Any]:
    """These cuts, if the machine can do them."""
    lacking = pytest.mark.skipif(ONE_GPU, reason="needs a second GPU for the second rank")
    return [pytest.param(name, marks=lacking if CUTS[name][0] == 2 else ()) for name in names]


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", cuts(CUTS))
def test_logits_are_those_of_the_hugging_face_model(outcome: Outcome, family: str, cut: str) -> None:
    parts = [
        safetensors.torch.load_file(outcome.root / f"{family}-{cut}" / f"logits-{part}.safetensors")["logits"]
        for part in range(CUTS[cut][1])
    ]
    with torch.no_grad():
        expected = load_model(outcome.models[family])(input_ids=torch.tensor(TOKENS)).logits

    found = torch.cat(parts, -1)
    assert torch.all(found[..., expected.shape[-1] :] == -torch.inf)
    difference = float((found[..., : expected.shape[-1]] - expected).abs().max())
    print(f"{family} {cut}: logits of size {float(expected.abs().max()):.2f} differ by {difference:.1e}")
    assert difference <= 1e-4


def check_alike(outcome: Outcome, job: str, facts: list[list[float]], weights: dict[str, torch.Tensor]) -> None:
    """The job's steps and weights are these, which the torch trainer made of the same groups."""
    found = outcome.facts(job)
    assert found == outcome.facts(job, rank=outcome.jobs[job].ranks - 1)  # all ranks know the same
    for (loss, norm, tokens, rows, _, *gap), (their_loss, their_norm, their_tokens, their_rows, _, *their_gap) in zip(
        found, facts, strict=True
    ):
        assert loss == pytest.approx(their_loss, abs=1e-4)
        assert norm == pytest.approx(their_norm, rel=1e-3)
        assert (tokens, rows) == (their_tokens, their_rows)
        assert gap == pytest.approx(their_gap, rel=1e-3)
    found_weights = outcome.weights(job)
    difference = largest_difference(found_weights, weights)
    start = {name: tensor.detach() for name, tensor in load_model(Path(outcome.jobs[job].model)).named_parameters()}
    moved = largest_difference(weights, start)
    losses, norms = (max(abs(one[at] - other[at]) for one, other in zip(found, facts, strict=True)) for at in (0, 1))
    print(
        f"{job}: losses differ by {losses:.1e}, gradient norms of up to {max(each[1] for each in facts):.2f} by "
        f"{norms:.1e}, weights, which moved by {moved:.1e}, by {difference:.1e}"
    )
    # AdamW makes a full step of a gradient that is nearly zero, so rounding alone moves a few weights visibly.
    assert difference <= moved / 20
    apart = sum(float((found_weights[name] - tensor).abs().sum()) for name, tensor in weights.items())
    assert apart / sum(tensor.numel() for tensor in weights.values()) <= 1e-6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", cuts(CUTS))
def test_five_steps_are_those_of_the_torch_trainer(outcome: Outcome, family: str, cut: str) -> None:
    check_alike(outcome, f"{family}-{cut}", *outcome.by_torch(f"{family}-{cut}"))


@pytest.mark.parametrize("cut", cuts(CUTS))
def test_rollouts_of_several_rows_are_trained_as_by_the_torch_trainer_with_and_without_padding(
    outcome: Outcome, cut: str
) -> None:
    """Rows 1+3, 2+5 and 1+1 in blocks of 4: 4, 8 and 4 rows, 13 real and 3 padding, on one rank as on two."""
    job = f"several-{cut}"
    padded = outcome.by_torch(job)
    unpadded = outcome.by_torch(job, BatchShape(micro_batch=1, logprob_batch=1, block_per_group=True))

    assert [facts[3:5] for facts in padded[0]] == [[13, 3]] * STEPS
    assert [facts[3:5] for facts in unpadded[0]] == [[13, 0]] * STEPS
    assert [facts[3:5] for facts in outcome.facts(job)] == [[13, 3]] * STEPS
    check_alike(outcome, job, *padded)
    check_alike(outcome, job, *unpadded)


@pytest.mark.parametrize("cut", cuts(SHARED))
def test_a_checkpoint_of_two_ranks_goes_on_under_one(outcome: Outcome, cut: str) -> None:
    for found, whole in zip(outcome.facts(f"rest-{cut}"), outcome.facts(f"qwen3-{cut}")[3:], strict=True):
        assert found[:4] == pytest.approx(whole[:4], rel=1e-4, abs=1e-5)
    assert largest_difference(outcome.weights(f"rest-{cut}"), outcome.weights(f"qwen3-{cut}")) <= 5e-5


@pytest.mark.skipif(ONE_GPU, reason="needs a second GPU for the second rank")
def test_a_checkpoint_of_the_torch_engine_goes_on_under_two_ranks(outcome: Outcome) -> None:
    facts, weights = outcome.by_torch("qwen3-alone")

    for found, whole in zip(outcome.facts("from-torch"), facts[3:], strict=True):
        assert found[:4] == pytest.approx(whole[:4], rel=1e-3, abs=1e-5)
    assert largest_difference(outcome.weights("from-torch"), weights) <= 2.5e-4


@pytest.mark.parametrize("cut", cuts(SHARED))
def test_a_checkpoint_is_a_model_that_transformers_loads(outcome: Outcome, cut: str) -> None:
    folder = outcome.root / f"checkpoint-{cut}"
    loaded = {name: tensor.detach() for name, tensor in load_model(folder / "model").named_parameters()}

    assert largest_difference(loaded, outcome.weights(f"half-{cut}")) == 0
    assert len(list(folder.glob("model/*.safetensors"))) == 2
    state = TensorFolder(folder, "optimizer")
    assert set(state) == {f"{name}/{mean}" for name in loaded for mean in ("exp_avg", "exp_avg_sq")}
    assert all(state[f"{name}/exp_avg"].shape == tensor.shape for name, tensor in loaded.items())
