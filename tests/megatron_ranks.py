"""One rank of a Megatron trainer, for tests: trains the groups of a file in several cuts and writes what came out.

    python megatron_ranks.py JOBS RANK

JOBS is a JSON list; each of its jobs has a rendezvous of its own, and the ranks that are not in it skip it.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import torch

from rollog.pipeline.rollout_codec import decode
from rollog.pipeline.training.batching import BatchShape
from rollog.pipeline.training.grpo_loss import LossSettings
from rollog.pipeline.training.grpo_trainer import StepResult, TrainerSettings
from rollog.pipeline.training.megatron_cpu import device_of
from rollog.pipeline.training.optimizer import OptimizerSettings
from rollog.pipeline.training.rank_group import RankGroup, Seat
from rollog.pipeline.training.weights import write_tensors


def settings(
    *, ranks: int = 1, kl: float = 0.0, max_grad_norm: float = math.inf, by_group: bool = False
) -> TrainerSettings:
    """Those of both trainers that are compared. A constant rate: a step moves a weight by what its gradient says.

    `by_group`: a block is one group and filled up to a multiple of four rows, whatever `ranks` is (one or two).
    """
    shape = BatchShape(micro_batch=2, logprob_batch=4, ranks=ranks)
    return TrainerSettings(
        max_steps=100,
        temperature=0.8,
        shape=replace(shape, logprob_batch=4 // ranks, block_per_group=True) if by_group else shape,
        loss=LossSettings(kl=kl, importance_cap=2.0),
        optimizer=OptimizerSettings(
            lr=1e-3, warmup_steps=0, decay="constant", weight_decay=0.01, max_grad_norm=max_grad_norm
        ),
    )


def facts_of(result: StepResult) -> list[float]:
    """A step in numbers."""
    facts = [result.loss, result.grad_norm, result.tokens, result.rows, result.padding]
    gap = result.logprob_gap
    return facts if gap is None else [*facts, gap.version, gap.tokens, gap.mean, gap.largest]


def train(job: dict, rank: int) -> None:
    """Load, train the groups of every step, write weights and facts; the checkpoint too, if it is asked for."""
    seat = Seat(rank=rank, ranks=job["ranks"], rendezvous=job["rendezvous"])
    group = RankGroup(seat, tensor_size=job["tensor"], device=device_of(rank))
    from rollog.pipeline.training import megatron_checkpoint
    from rollog.pipeline.training.megatron_trainer import MegatronTrainer

    told = settings(ranks=group.data_size, kl=job["kl"], max_grad_norm=job["max_grad_norm"], by_group=job["by_group"])
    trainer = MegatronTrainer(Path(job["model"]), told, group, weights=Path(job["weights"]))
    if job["begin"]:
        megatron_checkpoint.read(Path(job["begin"]), trainer)
    out = Path(job["out"])
    facts = []
    if job["tokens"]:
        with torch.no_grad():
            logits = trainer.model.logits(torch.tensor(job["tokens"], device=group.device)).cpu()
        if group.data_rank == 0:
            write_tensors({"logits": logits.contiguous()}, out / f"logits-{group.tensor_rank}.safetensors")
    for step in job["steps"]:
        groups = [decode(Path(path).read_bytes()) for path in step]
        trainer.accumulate(groups[: len(groups) // 2])
        trainer.accumulate(groups[len(groups) // 2 :])
        facts.append(facts_of(trainer.close_step()))
    weights = {name: tensor for named in trainer.model.whole(torch.nn.Parameter.detach) for name, tensor in named}
    (out / f"facts-{rank}.json").write_text(json.dumps(facts))
    if rank == 0:
        write_tensors(weights, out / "weights.safetensors")
    if job["checkpoint"]:
        folder = Path(job["checkpoint"])
        if rank == 0:
            folder.mkdir()
            megatron_checkpoint.prepare(folder, trainer, Path(job["model"]))
        group.all_ready(True)
        megatron_checkpoint.write_shards(folder, trainer, group)
        group.all_ready(True)
        if rank == 0:
            megatron_checkpoint.complete(folder, trainer, group)
    trainer.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in json.loads(Path(sys.argv[1]).read_text()):
        if int(sys.argv[2]) < each["ranks"]:
            train(each, int(sys.argv[2]))
