"""What stands on a node of a cluster for one worker: an actor that keeps the worker's process.

Rule 1: the process is started when the keeper is made, and a keeper is made once: its name says which start it is.
        Nothing is asked of it but how the process ended, and that may be asked as often as anybody likes.
Rule 2: the process ends with its keeper, and so with the node.
Rule 3: a node that cannot work is told at once and by name: the run's folder, the folder that rollog was started in,
        the installed version, and the way to the log's server are tried before anything starts.
Rule 4: a keeper whose process is gone and that nobody asks goes too, and gives back what the cluster set aside for it.
"""

import os
import select
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollog.events.connection import Patience
from rollog.events.errors import LogError
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.launch.leash import leashed
from rollog.pipeline.launch.process import WorkerProcess
from rollog.pipeline.machine import version_of
from rollog.pipeline.run_folder import EMBEDDED, RunFolder

PROBE: Final = "probe"
"""File in the run's folder by which a node is recognised as one that shares it."""
SERVER_WITHIN_S: Final = 30.0
KEEPS_ENDING_S: Final = 60.0
"""A controller that lives asks long before."""


class Unfit(PipelineError):
    """This node cannot run a worker of the run: mend what the message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One start of a worker. ``command`` begins with the controller's own interpreter, ``python``, as a rule."""

    name: str
    number: int
    command: tuple[str, ...]
    python: str
    run: str
    """The run's folder."""
    cwd: str
    """The folder that rollog was started in: the paths of model and data are relative to it."""
    environment: Mapping[str, str]
    probe: str
    """What the controller wrote into the probe."""
    rollog: str
    """The controller's version."""
    kernel: str
    """Which machine the controller runs on, see ``kernel``."""
    placement: str
    """The placement group that was made for this start; empty: none was."""


def kernel() -> str:
    """A name for the running kernel: processes under one kernel can share unix sockets."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Keeper:
    """The actor. Its methods are called one after the other."""

    def __init__(self, job: Job) -> None:
        """Start the process. Raises ``Unfit``."""
        self._placement = job.placement
        os.environ.update(job.environment)
        check(job)
        os.chdir(job.cwd)
        command = [sys.executable if job.command[0] == job.python else job.command[0], *job.command[1:]]
        logs = RunFolder(Path(job.run)).logs
        with (logs / f"{job.name}.log").open("a") as log:
            print(f"{job.name}, start {job.number}, on {socket.gethostname()}", file=log)
        through = leashed(os.getpid())
        self._process = WorkerProcess.start(job.name, job.number, command, logs, os.environ, through)
        threading.Thread(target=self._go_in_the_end, daemon=True).start()

    def ending(self) -> str:
        """Wait for the end of the process; how it ended."""
        while not self._process.wait(KEEPS_ENDING_S):
            pass
        return self._process.ending()

    def _go_in_the_end(self) -> None:
        while not self._process.wait(KEEPS_ENDING_S):
            pass
        select.select([], [], [], KEEPS_ENDING_S)
        if self._placement:
            release(self._placement)
        os._exit(0)


def release(placement: str) -> None:
    """Give back a placement group, and whatever runs in it ends; it can be gone already."""
    from ray.util import get_placement_group, remove_placement_group

    with suppress(ValueError):
        remove_placement_group(get_placement_group(placement))


def check(job: Job) -> None:
    """Refuse a node that a worker could not work on. Raises ``Unfit``."""
    node, probe = socket.gethostname(), Path(job.run) / PROBE
    try:
        found = probe.read_text()
    except OSError as error:
        found = error.strerror or "unreadable"
    if found != job.probe:
        raise Unfit(
            f"node {node} does not share the run's folder {job.run} with the controller ({probe}: {found[:40]}). Put "
            f"runs/ on a filesystem that every node mounts at the same path, then resume."
        )
    if not Path(job.cwd).is_dir():
        raise Unfit(f"node {node} has no folder {job.cwd}, in which rollog was started. Start it in a shared folder.")
    if version_of("rollog") != job.rollog:
        raise Unfit(f"node {node} has rollog {version_of('rollog') or '(none)'}, the controller {job.rollog}.")
    folder = RunFolder(Path(job.run))
    plan = folder.plan()
    if plan.log.redis == EMBEDDED and kernel() != job.kernel:
        raise Unfit(
            f"node {node} is another machine than the controller's, and log.redis=embedded serves only that one. Start "
            f"the run with log.redis=redis://HOST:6379/0 and its password in ROLLOG_REDIS_URL."
        )
    try:
        with closing(folder.address(plan, "worker").connect()) as connection:
            Patience(SERVER_WITHIN_S).insist(lambda: connection.call("PING"))
    except LogError as error:
        raise Unfit(f"node {node} does not reach the log's server: {error}") from error
