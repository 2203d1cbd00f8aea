"""Which GPUs of this machine a worker sees.

Rule 1: Megatron's ranks come first, one GPU each; then vLLM's generators, ``tensor_parallel`` each, by their numbers.
Rule 2: who finds none left shares from the first on: a machine with one GPU runs everything on it.
Rule 3: engines that compute on the CPU get none, and without GPUs nothing is said.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollog.pipeline.config import Plan

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
DRIVER: Final = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The names of ``gpus``, and how many of them ranks and each generator take."""

    gpus: Sequence[str] = ()
    ranks: int = 0
    per_generator: int = 0

    @classmethod
    def of(cls, plan: Plan) -> "Devices":
        """Those that the plan asks for, of those that this process may see."""
        named = os.environ.get(VARIABLE)
        gpus = named.split(",") if named else []
        if named is None and DRIVER.is_dir():
            gpus = [str(number) for number, _ in enumerate(DRIVER.iterdir())]
        return cls(
            gpus=gpus,
            ranks=plan.training.ranks if plan.training.engine == "megatron" else 0,
            per_generator=plan.generation.tensor_parallel if plan.generation.engine == "vllm" else 0,
        )

    def variables(self, worker: str) -> Mapping[str, str]:
        """What ``rank-<n>`` or ``gen-<n>`` is told."""
        role, _, number = worker.partition("-")
        each = 1 if role == "rank" and self.ranks else self.per_generator if role == "gen" else 0
        if not self.gpus or not each:
            return {}
        first = int(number) * each + (self.ranks if role == "gen" else 0)
        return {VARIABLE: ",".join(self.gpus[place % len(self.gpus)] for place in range(first, first + each))}
