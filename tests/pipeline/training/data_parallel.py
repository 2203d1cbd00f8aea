"""One of several data-parallel ranks over gloo: its share of a step's gradient, added up over all of them.

python data_parallel.py RANK RANKS MICRO_BATCH MODEL_FOLDER BLOBS_FOLDER OUT_FILE
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from rollog.pipeline.rollout_codec import decode
from rollog.pipeline.training.batching import BatchShape, TrainRow
from rollog.pipeline.training.grpo_loss import LossSettings
from rollog.pipeline.training.grpo_trainer import GrpoTrainer, TrainerSettings
from rollog.pipeline.training.logprobs import Forward, token_logprobs
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.rank_group import RankGroup, Seat


class PlainRank(GrpoTrainer):
    """Adds gradients up, and keeps them instead of taking the step."""

    def __init__(self, folder: Path, settings: TrainerSettings, rank: int) -> None:
        super().__init__(settings, version=0, device=torch.device("cpu"), has_reference=False, data_rank=rank)
        self.model = load_model(folder).float().eval()

    def _logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        return token_logprobs(self.model, tokens, Forward())

    def _reference_logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no reference is asked for")

    def _logprobs_again(self, version: int, rows: Sequence[TrainRow]) -> None:
        return None

    def _finish_gradients(self, tokens: int) -> float:
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(tokens)
        return 1.0

    def _step(self, rate: float, grad_norm: float) -> None:
        self.gradient = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}

    def _forget_gradients(self) -> None:
        self.model.zero_grad()


def main() -> None:
    rank, ranks, micro_batch = map(int, sys.argv[1:4])
    model, blobs, out = map(Path, sys.argv[4:])
    torch.set_num_threads(1)
    seat = Seat(rank=rank, ranks=ranks, rendezvous=f"file://{out}.meet")
    together = RankGroup(seat, tensor_size=1, device=torch.device("cpu"))
    settings = TrainerSettings(
        max_steps=9,
        shape=BatchShape(micro_batch=micro_batch, logprob_batch=2, ranks=ranks, block_per_group=True),
        loss=LossSettings(importance_cap=math.inf),
    )
    trainer = PlainRank(model, settings, rank)
    groups = [decode(path.read_bytes()) for path in sorted(blobs.iterdir())]
    trainer.accumulate(groups[:1])
    trainer.accumulate(groups[1:])
    result = trainer.close_step()
    if rank == 0:
        save_file(trainer.gradient, out, metadata={"tokens": str(result.tokens), "rows": str(result.rows)})
    together.leave()


if __name__ == "__main__":
    main()
