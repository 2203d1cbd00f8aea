"""What a run with the Megatron engine needs, asked before anything is written. No Megatron is imported here."""

from importlib.util import find_spec
from pathlib import Path

from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError
from rollog.pipeline.training.megatron_shape import read_shape


def check_megatron(plan: Plan) -> None:
    """Refuse, with PlanError or ModelError, what could not start."""
    if find_spec("megatron") is None:
        raise PlanError(
            "training.engine=megatron needs megatron-core, which is not installed. Install it "
            "(pip install 'rollog[megatron]'), or use training.engine=torch."
        )
    read_shape(Path(plan.model.path)).check_parts(plan.training.tensor_parallel)
