"""A Ray cluster of several nodes on this machine, in a process of its own: what Ray starts and prints stays out of the
tests. The head has a place for one trainer rank, each other node for one generator.

    python ray_nodes.py NODES    prints {"address", "raylets"} as one line of JSON, and again after each command:
                                 "kill PID" ends the node of this raylet, "add" adds one
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SIZE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
HEAD = {**SIZE, "resources": {"rollog_rank": 1}, "include_dashboard": False}
TRIES = 5
NODE = {**SIZE, "resources": {"rollog_generator": 1}}


class RayNodes:
    """The test's side of it. ``address``: for RAY_ADDRESS. ``raylets``: each node's process, the head's first."""

    def __init__(self, nodes: int, environment: Mapping[str, str]) -> None:
        """``environment``: what the workers on the nodes find beside this process's own variables."""
        command = [sys.executable, str(Path(__file__).resolve()), str(nodes)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env={**os.environ, **environment}, text=True, **pipes)
        self._look()

    def kill(self, raylet: int) -> None:
        """A node dies: nothing on it is warned."""
        self._do(f"kill {raylet}")

    def add(self) -> None:
        """A node joins."""
        self._do("add")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _do(self, command: str) -> None:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        self._look()

    def _look(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Ray says things of its own
                told = json.loads(line)
                self.address: str = told["address"]
                self.raylets: list[int] = told["raylets"]
                return
        raise AssertionError(f"the cluster ended with {self._process.wait()}")


def parent_of(pid: int) -> int:
    """The process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def serve(nodes: int) -> None:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    patiently(lambda: cluster.add_node(**HEAD))
    for _ in range(nodes - 1):
        patiently(lambda: cluster.add_node(**NODE))
    tell(cluster)
    for line in sys.stdin:
        match line.split():
            case ["kill", raylet]:
                (node,) = [node for node in cluster.worker_nodes if raylet_of(node) == int(raylet)]
                cluster.remove_node(node, allow_graceful=False)
            case ["add"]:
                patiently(lambda: cluster.add_node(**NODE))
        tell(cluster)
    cluster.shutdown()


def patiently(start: Callable[[], object]) -> None:
    """Ray gives a node 30 s to start, which is little on a machine with other work."""
    for _ in range(TRIES - 1):
        with suppress(Exception):
            start()
            return
    start()


def tell(cluster: Any) -> None:
    raylets = [raylet_of(node) for node in (cluster.head_node, *cluster.worker_nodes)]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    serve(int(sys.argv[1]))
