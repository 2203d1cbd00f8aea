"""The processes of one trainer, and what they say to each other.

    rank = data_rank x tensor_size + tensor_rank

Rule 1: all ranks make the same calls in the same order; whoever is missing is waited for.
Rule 2: a rank that ended breaks its connections, and every call of the others raises at once: they fail as one. One
that hangs is found by its lease, and all are ended by whoever started them.
Rule 3: what is said are numbers and short texts. Nothing that is received is run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

WAIT: Final = timedelta(hours=2)
"""Longest time that a rank waits for another, which may load or write a large model. A lease runs out long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Which of a trainer's processes this is. ``rendezvous``: file:// or tcp:// address where they meet, if several."""

    rank: int = 0
    ranks: int = 1
    rendezvous: str = ""

    @property
    def leads(self) -> bool:
        """Whether it reports for all."""
        return self.rank == 0


class RankGroup:
    """This process among the ranks of a trainer. ``tensor_size`` of them share one copy of the model."""

    def __init__(self, seat: Seat, *, tensor_size: int, device: torch.device) -> None:
        """Joins the others; returns when all are there."""
        if seat.ranks % tensor_size:
            raise ValueError(f"{seat.ranks} ranks cannot share copies of the model among {tensor_size} each")
        self.seat = seat
        self.device = device
        self.tensor_size = tensor_size
        self.tensor_rank = seat.rank % tensor_size
        self.data_size = seat.ranks // tensor_size
        self.data_rank = seat.rank // tensor_size
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        if seat.ranks == 1:
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=WAIT)
        else:
            dist.init_process_group(
                backend, init_method=seat.rendezvous, rank=seat.rank, world_size=seat.ranks, timeout=WAIT
            )

    @property
    def leads(self) -> bool:
        """Whether it reports for all."""
        return self.seat.leads

    def all_ready(self, ready: bool) -> bool:
        """Whether every rank is."""
        return self.largest([0.0 if ready else 1.0]) == [0.0]

    def total(self, numbers: Sequence[float], group: dist.ProcessGroup | None = None) -> list[float]:
        """Sums over the ranks of ``group`` (all of them), in float64."""
        return self._reduce(numbers, dist.ReduceOp.SUM, group)

    def largest(self, numbers: Sequence[float], group: dist.ProcessGroup | None = None) -> list[float]:
        """The largest of each over the ranks of ``group``."""
        return self._reduce(numbers, dist.ReduceOp.MAX, group)

    def tell(self, text: str) -> str:
        """What rank 0 says; the text of the others does not count."""
        data = text.encode()
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0)
        said = torch.zeros(int(size), dtype=torch.uint8)
        if self.leads and data:
            said.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(said, 0)
        return bytes(said.tolist()).decode()

    def leave(self) -> None:
        """Part from the others."""
        dist.destroy_process_group()

    def _reduce(
        self, numbers: Sequence[float], kind: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
    ) -> list[float]:
        found = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(found, kind, group=group)
        return [float(number) for number in found]
