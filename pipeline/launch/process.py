"""One worker's process, started here or found running: a pid file, a log file, and a handle that cannot be mistaken.

Rule 1: a process id can be given to another process; a pidfd cannot. A process that was found by its pid file is
        watched through a pidfd, opened before its command line is compared.
Rule 2: it lives in a session of its own: Ctrl-C in the terminal asks the run to stop, not its workers.
Rule 3: its pid file stays when it is gone, so that the next controller knows at once that it is.
"""

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollog.events.durable import write_synced

LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a pid file says: the process, which start of the worker it was, and its command line."""

    pid: int
    number: int
    command: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "PidFile | None":
        """None when no process was ever started; a broken file says nothing either."""
        try:
            found = json.loads(path.read_text())
            return cls(int(found["pid"]), int(found["number"]), tuple(map(str, found["command"])))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Running(Protocol):
    """A worker that was started. ``number``: the incarnation or trainer generation that it was started for."""

    @property
    def number(self) -> int:
        """Which start of the worker it is."""
        ...

    def alive(self) -> bool:
        """Whether it runs still."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it runs still after that long."""
        ...

    def kill(self) -> None:
        """End it. Everything that a worker writes is whole or not there, so it needs no warning."""
        ...

    def ending(self) -> str:
        """How it ended, for people. Call it when it is gone."""
        ...

    def close(self) -> None:
        """Let go of a worker that is gone."""
        ...


class Host(Protocol):
    """Where workers run: this machine, or the nodes of a cluster."""

    def start(self, name: str, number: int, command: Sequence[str]) -> Running:
        """Start a worker; its pid file and its log come to lie in the run's folder."""
        ...

    def adopt(self, name: str, file: PidFile | None) -> Running | None:
        """The worker that an earlier controller started, if it runs still. ``file``: what its pid file says."""
        ...

    def close(self) -> None:
        """All workers are gone: let go of what was set aside for them."""
        ...


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """Workers are processes here. ``environment``: the variables that all get; ``own``: those of one, by its name."""

    logs: Path
    environment: Mapping[str, str]
    own: Callable[[str], Mapping[str, str]] = lambda name: {}

    def start(self, name: str, number: int, command: Sequence[str]) -> "WorkerProcess":
        """Start a process."""
        return WorkerProcess.start(name, number, command, self.logs, {**self.environment, **self.own(name)})

    def adopt(self, name: str, file: PidFile | None) -> "WorkerProcess | None":
        """The process with this id, if it is still the same one."""
        return None if file is None else WorkerProcess.adopt(name, file)

    def close(self) -> None:
        """Nothing was set aside."""


class WorkerProcess:
    """A process that runs, or ran. ``number``: the incarnation or trainer generation that it was started for."""

    def __init__(self, name: str, number: int, pid: int, handle: int, child: "subprocess.Popen[bytes] | None") -> None:
        self.name = name
        self.number = number
        self.pid = pid
        self._handle = handle
        self._child = child

    @classmethod
    def start(
        cls, name: str, number: int, command: Sequence[str], logs: Path, environment: Mapping[str, str],
        through: Sequence[str] = (),
    ) -> "WorkerProcess":  # fmt: skip
        """Start it; what it prints is added to ``<logs>/<name>.log``. ``through``: a command that becomes it."""
        with (logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*through, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        description = {"pid": child.pid, "number": number, "command": list(command)}
        write_synced(logs / f"{name}.pid", json.dumps(description).encode() + b"\n")
        return cls(name, number, child.pid, os.pidfd_open(child.pid), child)

    @classmethod
    def adopt(cls, name: str, file: PidFile) -> "WorkerProcess | None":
        """The process that an earlier controller started; None when it is gone."""
        try:
            handle = os.pidfd_open(file.pid)
        except OSError:
            return None
        found = cls(name, file.number, file.pid, handle, None)
        with suppress(OSError):
            words = Path(f"/proc/{file.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if tuple(map(os.fsdecode, words)) == file.command and found.alive():
                return found
        found.close()
        return None

    def alive(self) -> bool:
        """Whether it runs still."""
        return self._handle >= 0 and not select.select([self._handle], [], [], 0)[0]

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it runs still after that long."""
        return self._handle < 0 or bool(select.select([self._handle], [], [], max(0.0, timeout_s))[0])

    def kill(self) -> None:
        """End it. Everything that a worker writes is whole or not there, so it needs no warning."""
        if self.alive():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def ending(self) -> str:
        """How it ended, for people. Call it when it is gone."""
        if self._child is None:
            return "its process is gone"
        code = self._child.wait()
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

    def close(self) -> None:
        """Let go of the handle of a process that is gone."""
        if self._child is not None and not self.alive():
            self._child.wait()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def last_lines(log: Path) -> str:
    """The end of a worker's log, for an error message."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "it printed nothing"
    return "\n  ".join(lines[-LAST_LINES:]) or "it printed nothing"
