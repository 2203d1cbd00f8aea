"""Workers on the nodes of a Ray cluster. Who is started, adopted and ended is ``local.py``'s to say, as on one machine.

    controller (driver)  -->  keeper (detached actor, one a start)  -->  the worker's process  -->  the log's server

Rule 1: Ray places and tells of ends; it restarts nothing (max_restarts=0) and carries no result. Workers speak to the
        log's server alone, and leases say who is alive: a node that is cut off is as good as dead after one.
Rule 2: a keeper's name is the worker's and the number of its start, and no name is used twice: a call to make one that
        got no answer cannot have made two, and nobody waits for a name that will never answer again.
Rule 3: whether a call ran whose answer was lost is unknown. The only call is to ask how a process ended: it is asked
        again.
Rule 4: keepers belong to the cluster, not to the controller: it may die, and the next one finds them by name.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rollog.pipeline.config import Plan
from rollog.pipeline.durable import write_file
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.launch.keeper import PROBE, Job, Keeper, kernel, release
from rollog.pipeline.launch.process import PidFile
from rollog.pipeline.machine import num_cores, version_of
from rollog.pipeline.run_folder import RunFolder, worker_environment

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
NAMESPACE: Final = "rollog"
FORWARDED: Final = ("ROLLOG_", "HF_", "OMP_NUM_THREADS", "VLLM_", "WANDB_", "MLFLOW_", "OTEL_")
"""Beginnings of the variables that workers get from the controller; everything else is their node's own."""
OBJECT_STORE_BYTES: Final = 80 * 2**20
"""Of a private cluster: nothing goes through Ray's own memory."""
RANK_PREFIX: Final = "rank-"
CPU: Final = "CPU"
GPU: Final = "GPU"
GENERATOR: Final = "rollog_generator"
RANK: Final = "rollog_rank"
"""Places for generators and for trainer ranks, asked for when a node offers any: ``ray start --resources``."""


class NoCluster(PipelineError):
    """Ray is not installed, no cluster answers, or it cannot hold the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What workers ask the cluster for: one CPU each, GPUs where there are any, a place where places are set aside."""

    generator: Mapping[str, int]
    rank: Mapping[str, int]
    ranks: int

    @classmethod
    def of(cls, plan: Plan, resources: Mapping[str, float]) -> "Needs":
        """The needs on a cluster with these ``resources``. Raises ``NoCluster`` when they can never be met."""
        ranks = plan.training.ranks
        there = {kind for kind, count in resources.items() if count} | {CPU}
        most = {CPU: 1, GPU: plan.generation.tensor_parallel, GENERATOR: 1}
        generator = {kind: count for kind, count in most.items() if kind in there}
        rank: dict[str, int] = {kind: 1 for kind in (CPU, GPU, RANK) if kind in there}
        for kind in sorted({*generator, *rank}):
            wanted, has = ranks * rank.get(kind, 0) + generator.get(kind, 0), resources.get(kind, 0)
            if has < wanted:
                raise NoCluster(
                    f"the cluster has {has:g} {kind}; a trainer of {ranks} and one generator need {wanted}. Add "
                    f"nodes, or use launch=local, where they share what the machine has."
                )
        return cls(generator=generator, rank=rank, ranks=ranks)


class ClusterWorker:
    """A worker with its keeper. Fills ``Running``."""

    def __init__(self, keeper: Any, number: int, placement: str) -> None:
        """``placement``: the group that was made for it, given back with it."""
        self.number = number
        self._keeper = keeper
        self._placement = placement
        self._answer = keeper.ending.remote()
        self._ended: str | None = None

    def alive(self) -> bool:
        """Whether its process, its keeper and its node are there, as far as the cluster knows; or it is not placed."""
        return not self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it runs still after that long."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        deadline = time.monotonic() + timeout_s
        while self._ended is None:
            done, _ = ray.wait([self._answer], timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                return False
            try:
                self._ended = str(ray.get(self._answer))
            except ActorUnavailableError:
                self._answer = self._keeper.ending.remote()
            except RayError as error:
                self._ended = f"it is gone from the cluster: {_last_line(error)}"
        return True

    def kill(self) -> None:
        """End its keeper, and so its process."""
        import ray

        ray.kill(self._keeper, no_restart=True)

    def ending(self) -> str:
        """How it ended. Call it when it is gone."""
        return self._ended or "it is gone from the cluster"

    def close(self) -> None:
        """Give back what was set aside for it."""
        self.kill()
        if self._placement:
            release(self._placement)


class RayCluster:
    """Fills ``Host``. One controller's view of the cluster, from ``connect`` on."""

    def __init__(self, folder: RunFolder, plan: Plan, log_id: Callable[[], str]) -> None:
        """Join the cluster at RAY_ADDRESS, or begin one on this machine. Raises ``NoCluster``."""
        _connect(num_workers=plan.training.ranks + plan.generation.workers)
        import ray

        self._folder = folder.path.resolve()
        self._logs = folder.logs
        self._log_id = log_id
        self._needs = Needs.of(plan, ray.cluster_resources())
        own = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        private = {} if os.environ.get(ADDRESS_VARIABLE) else {"GLOO_SOCKET_IFNAME": "lo"}
        self._environment = {**private, **own, **worker_environment(plan)}
        self._probe = secrets.token_hex(16)
        write_file(self._folder / PROBE, self._probe.encode())

    def start(self, name: str, number: int, command: Sequence[str]) -> ClusterWorker:
        """Ask the cluster for a keeper. It is made as soon as there is room; until then the worker counts as alive."""
        import ray

        placement = self._placement(number) if _is_rank(name) else ""
        job = Job(
            name=name,
            number=number,
            command=tuple(command),
            python=sys.executable,
            run=str(self._folder),
            cwd=os.getcwd(),
            environment=self._environment,
            probe=self._probe,
            rollog=version_of("rollog"),
            kernel=kernel(),
            placement=placement,
        )
        needs = dict(self._needs.rank if _is_rank(name) else self._needs.generator)
        with (self._logs / f"{name}.log").open("a") as log:
            print(f"{name}, start {number}: asks the cluster for {needs}", file=log)
        where = self._bundle(name, placement) if placement else "SPREAD"
        actor = ray.remote(Keeper).options(
            num_cpus=needs.pop(CPU),
            num_gpus=needs.pop(GPU, 0),
            resources=needs,
            name=self._actor_name(name, number),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=where,
        )
        return ClusterWorker(actor.remote(job), number, placement)

    def adopt(self, name: str, file: PidFile | None) -> ClusterWorker | None:
        """The keeper of the latest start of this worker, also one that is not placed yet. Those of older ones go."""
        import ray
        from ray.util import list_named_actors

        begin = self._actor_name(name, "")
        starts = {int(actor.removeprefix(begin)) for actor in list_named_actors() if actor.startswith(begin)}
        found: ClusterWorker | None = None
        for number in sorted(starts):
            if found is not None:
                found.close()
            with suppress(ValueError):  # it went a moment ago
                keeper = ray.get_actor(self._actor_name(name, number), namespace=NAMESPACE)
                found = ClusterWorker(keeper, number, self._placement_name(number) if _is_rank(name) else "")
        return found

    def close(self) -> None:
        """Leave the cluster; a private one ends."""
        import ray

        ray.shutdown()

    def _actor_name(self, name: str, number: int | str) -> str:
        return f"{self._log_id()}/{name}/{number}"

    def _placement_name(self, generation: int) -> str:
        return f"{self._log_id()}/trainer/{generation}"

    def _placement(self, generation: int) -> str:
        """All ranks of a trainer generation get their places at once or not at all."""
        from ray.util import get_placement_group, placement_group

        name = self._placement_name(generation)
        try:
            get_placement_group(name)
        except ValueError:
            bundles = [dict(self._needs.rank) for _ in range(self._needs.ranks)]
            placement_group(bundles, strategy="PACK", name=name, lifetime="detached")
        return name

    def _bundle(self, name: str, placement: str) -> Any:
        from ray.util import get_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        rank = int(name.removeprefix(RANK_PREFIX))
        return PlacementGroupSchedulingStrategy(get_placement_group(placement), placement_group_bundle_index=rank)


def _is_rank(name: str) -> bool:
    return name.startswith(RANK_PREFIX)


def _connect(num_workers: int) -> None:
    """Become a driver of the cluster. Ray puts a handler of its own on SIGTERM: the run's is put back.

    A private cluster has room for ``num_workers`` at least: on one machine its owner says how many are too many.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise NoCluster("launch=ray needs Ray: pip install 'rollog[ray]' on every node, or use launch=local") from error
    address = os.environ.get(ADDRESS_VARIABLE)
    if address is not None and address.startswith("ray://"):
        raise NoCluster(
            f"{ADDRESS_VARIABLE}={address} is the address of a Ray client. Start rollog on a node of the cluster, with "
            f"{ADDRESS_VARIABLE}=auto."
        )
    handler = signal.getsignal(signal.SIGTERM)
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False}
    try:
        if address:
            ray.init(address=address, **common)
        else:
            cpus, store = max(num_workers, num_cores()), OBJECT_STORE_BYTES
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=store, **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"{ADDRESS_VARIABLE}={address}" if address else "this machine"
        raise NoCluster(
            f"{where}: no Ray cluster ({_last_line(error)}). Start one with `ray start --head`; one that is there may "
            f"want its token (RAY_AUTH_MODE=token RAY_AUTH_TOKEN=...)."
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
