"""What a run with the Megatron engine needs, asked before anything is written. No Megatron is imported here."""

from importlib.util import find_spec
from pathlib import Path

from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError
from rollog.pipeline.training.megatron_shape import read_shape


def check_megatron(plan: Plan) -> None:
    """Refuse, with PlanError or ModelError, what could not start. Of a cluster's machines nothing is known here."""
    if plan.launch == "local" and find_spec("megatron") is None:
        raise PlanError(
            "training.engine=megatron needs megatron-core, which is not installed. Install it "
            "(pip install 'rollog[megatron]'; there is no wheel for every Python), or use training.engine=torch."
        )
    read_shape(Path(plan.model.path)).check_parts(plan.training.tensor_parallel)
    if plan.launch == "local":
        check_devices(plan.training.ranks, plan.model.dtype, _num_gpus())


def check_devices(ranks: int, dtype: str, gpus: int) -> None:
    """Refuse, with PlanError, what ``gpus`` GPUs (0: the CPU trains) cannot do."""
    if not gpus and dtype != "float32":
        raise PlanError(
            f"model.dtype={dtype} with training.engine=megatron needs GPUs, and this machine shows none: the layers of "
            f"Megatron-core mix number formats on CUDA only. Use float32."
        )
    if 0 < gpus < ranks:
        raise PlanError(
            f"training.ranks={ranks} is more than the {gpus} GPUs that this machine shows; every rank needs its own. "
            f"Set it to {gpus} or less, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU."
        )


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()
