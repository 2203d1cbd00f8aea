"""The trainer that the plan names, started in this process. Engines are imported here, when they are needed."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from rollog.pipeline.config import Plan
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training.rank import Rank


@dataclass(frozen=True, slots=True)
class Engine:
    """A rank, where it computes, and how it asks whether all ranks are ready."""

    rank: Rank
    device: str
    all_ready: Callable[[bool], bool]


def start(plan: Plan, folder: RunFolder, told: argparse.Namespace) -> Engine:
    """``told``: what the launcher said, see ``rollog.pipeline.training.worker``."""
    match plan.training.engine:
        case "torch":
            return _torch(plan, folder, told)
        case "megatron":
            return _megatron(plan, folder, told)
        case _:
            assert_never(plan.training.engine)


def _torch(plan: Plan, folder: RunFolder, told: argparse.Namespace) -> Engine:
    import torch

    from rollog.pipeline.training.models import deterministic
    from rollog.pipeline.training.torch_rank import TorchRank

    if plan.determinism == "pinned":
        deterministic(threads=torch.get_num_threads())
    rank = TorchRank.start(plan, folder, version=told.version, checkpoint=told.checkpoint, max_steps=told.max_steps)
    return Engine(rank, "cpu", lambda ready: ready)


def _megatron(plan: Plan, folder: RunFolder, told: argparse.Namespace) -> Engine:
    from rollog.pipeline.training.megatron_cpu import device_of
    from rollog.pipeline.training.rank_group import RankGroup, Seat

    device = device_of(told.rank)  # before Megatron-core is imported
    from rollog.pipeline.training.megatron_rank import MegatronRank

    seat = Seat(rank=told.rank, ranks=told.ranks, rendezvous=told.rendezvous)
    group = RankGroup(seat, tensor_size=plan.training.tensor_parallel, device=device)
    rank = MegatronRank.start(
        plan, folder, group, version=told.version, checkpoint=told.checkpoint, max_steps=told.max_steps
    )
    return Engine(rank, str(device), group.all_ready)
