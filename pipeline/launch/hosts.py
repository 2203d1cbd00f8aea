"""Where a run's workers live: ``launch`` says it."""

from collections.abc import Callable
from typing import assert_never

from rollog.pipeline.config import Plan
from rollog.pipeline.launch.local import this_machine
from rollog.pipeline.launch.process import Host
from rollog.pipeline.launch.ray import RayCluster
from rollog.pipeline.run_folder import RunFolder


def host_of(plan: Plan, folder: RunFolder, log_id: Callable[[], str]) -> Host:
    """The host that the plan names. Raises ``NoCluster``. ``log_id``: known once a controller has opened the log."""
    match plan.launch:
        case "local":
            return this_machine(folder, plan)
        case "ray":
            return RayCluster(folder, plan, log_id)
        case _:
            assert_never(plan.launch)
