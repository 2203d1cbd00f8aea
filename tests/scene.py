"""A run of real processes with scripted engines, in a folder of its own."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollog.events import server
from rollog.events.errors import LogError
from rollog.events.log import Entry
from rollog.events.reading import open_reader
from rollog.events.vocabulary import Event, Select, Train
from rollog.pipeline.launch.process import PidFile, WorkerProcess
from rollog.replay.projector import fold_all
from rollog.replay.state import State

ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")
TESTS = Path(__file__).parent
SCRIPT = TESTS / "pipeline" / "processes" / "scripted.py"
WITHIN_S = 300.0


def default_settings() -> dict[str, Any]:
    return {
        "run": "demo",
        "model": {"path": "model", "max_tokens": 4, "chat_template": False},
        "data": {"path": "data.jsonl", "epochs": 1},
        "grpo": {"prompts_per_step": 4, "rollouts_per_prompt": 2, "max_steps": 12},
        "sampler": {"name": "in_order", "lookahead": 1},
        "flow": {"lease_s": 4.0, "max_inflight_prompts": 8, "worker_orphan_s": 30.0},
        "generation": {"workers": 2},
        "checkpoint": {"every_steps": 3},
    }


@dataclass
class Scene:
    """One run under ``folder``; ``controllers`` are those started so far, the last one is the present one."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=default_settings)
    overrides: list[str] = field(default_factory=list)
    """What a resume changes."""
    torch: bool = False
    """The real engine and trainer."""
    pace_s: float = 0.002
    """One step of the scripted engine; an answer takes one to four."""
    environment: dict[str, str] = field(default_factory=dict)
    """What all processes are told beside this one's own variables."""
    within_s: float = WITHIN_S
    """How long to wait for anything."""
    controllers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.folder / "model"
        if model.exists():
            return
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_text("")
        rows = (
            json.dumps({"prompt": str(row % 10), "answer": str((row + 1) % 10), "number": row}) for row in range(64)
        )
        (self.folder / "data.jsonl").write_text("\n".join(rows) + "\n")

    @property
    def run(self) -> Path:
        return self.folder / "runs" / str(self.settings["run"])

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def start(self) -> "subprocess.Popen[bytes]":
        """Begin the run, or go on with it."""
        (self.folder / "run.yaml").write_text(json.dumps(self.settings))
        with (self.folder / "output").open("ab") as output:
            paths = (str(TESTS), self.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
            shared = os.pathsep.join(filter(None, paths))
            environment = {**os.environ, **self.environment, "PACE_S": str(self.pace_s), "PYTHONPATH": shared}
            command = [sys.executable, str(SCRIPT), "controller", "run.yaml", *self.overrides]
            if self.torch:
                verb = ("resume", "demo") if self.run.exists() else ("train", "run.yaml")
                command = [*ROLLOG, *verb, *self.overrides]
            process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output, env=environment)
        self.controllers.append(process)
        return process

    def finish(self) -> int:
        """Wait for the present controller; its exit code."""
        return self.controllers[-1].wait(self.within_s)

    def entries(self) -> list[Entry]:
        with open_reader(self.run) as reader:
            return list(reader.read())

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for entry in self.entries() for event in entry.events if isinstance(event, kind)]

    def state(self) -> State:
        return fold_all(self.entries())

    def wait_for(self, happened: Callable[[State], bool]) -> State:
        """Wait until the running run's log says so."""
        deadline = time.monotonic() + self.within_s
        while time.monotonic() < deadline:
            # The server may be starting, or have been killed a moment ago.
            with suppress(LogError, OSError):
                if server.is_running(self.run) and happened(state := self.state()):
                    return state
            if self.controllers[-1].poll() is not None:
                assert (self.run / "log" / "server.json").exists(), self.output
                state = self.state()
                assert happened(state), self.output
                return state
            select.select([], [], [], 0.05)
        raise AssertionError(f"it did not happen in {self.within_s:g} s:\n{self.output}")

    def process(self, worker: str) -> WorkerProcess | None:
        """The worker's process, if it is alive."""
        file = PidFile.read(self.run / "logs" / f"{worker}.pid")
        return None if file is None else WorkerProcess.adopt(worker, file)

    def kill(self, worker: str) -> None:
        process = self.process(worker)
        assert process is not None, f"{worker} is not alive\n{self.output}"
        process.kill()
        process.close()

    def kill_controller(self) -> None:
        self.controllers[-1].kill()
        self.controllers[-1].wait(WITHIN_S)

    def kill_server(self) -> bool:
        """Kill the process that works in the log's folder; whether there was one."""
        folder = str((self.run / "log").resolve())
        for process in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if os.readlink(f"/proc/{process}/cwd") == folder:
                    os.kill(int(process), signal.SIGKILL)
                    return True
        return False

    def trained(self) -> dict[int, set[int]]:
        """The prompts of every step that was trained."""
        steps = {event.step for event in self.events(Train)}
        chosen: dict[int, set[int]] = {}
        for event in self.events(Select):
            if event.step in steps:
                chosen.setdefault(event.step, set()).update(event.prompts)
        return chosen

    def chain(self) -> str:
        """The final weights."""
        newest = max((self.run / "checkpoints").glob("[0-9]*"), key=lambda path: [int(n) for n in path.name.split("-")])
        return (newest / "chain").read_text()

    def clean(self) -> None:
        """End what the test has left."""
        for process in self.controllers:
            if process.poll() is None:
                process.kill()
                process.wait()
        for path in (self.run / "logs").glob("*.pid"):
            if (process := self.process(path.stem)) is not None:
                process.kill()
                process.close()
        if server.is_running(self.run):
            server.start(self.run).shutdown()
