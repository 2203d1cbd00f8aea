"""Workers as processes on this machine, or wherever the ``Host`` has them.

Rule 1: processes follow the State: whoever should be there and is not is started. A generator beyond the fleet's size
        hears so and leaves when it has finished its orders; it is not started again.
        ``reconcile`` looks at processes each time and at leases only when something is missing.
Rule 2: the first lease of a process is written before it starts, so that a trainer generation is never started twice:
        if its lease is there, it was. It is renewed until the process joins: a long load is not taken for death.
Rule 3: a dead process is reported once, at once. A process of an earlier controller is adopted by its pid file.
Rule 4: a worker that dies again and again before it has joined fails the run, with the end of its log.
Rule 5: the ranks of a trainer are one: their first leases are written, rank 0's last, then they are started together;
        when one is dead the others are ended, and they start again together for the next generation.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollog.events.log import Log
from rollog.events.vocabulary import Resume, Role
from rollog.pipeline import fleet
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.inputs import WorkerGone
from rollog.pipeline.launch.devices import Devices
from rollog.pipeline.launch.process import Host, PidFile, Running, ThisMachine, last_lines
from rollog.pipeline.machine import num_cores
from rollog.pipeline.run_folder import RunFolder, worker_environment
from rollog.replay.state import Place, State

GENERATOR: Final = (sys.executable, "-m", "rollog.pipeline.generation.worker")
TRAINER: Final = (sys.executable, "-m", "rollog.pipeline.training.worker")
RANK_LEASE: Final = "rank:0"
"""Says that a trainer generation was started."""

MAX_DEATHS: Final = 3
"""Times in a row that a worker may die before it has joined."""
LOAD_WITHIN_S: Final = 1800.0
"""A process that has not joined for so long is no longer vouched for."""
LEAVE_WITHIN_S: Final = 20.0
"""How long workers may take to leave once the run has ended: a step of a large model must not be waited for longer."""


@dataclass(slots=True)
class _Slot:
    """Who stands in one worker's place."""

    name: str
    role: Role
    rank: int = 0
    """Of a trainer's processes, which one."""
    process: Running | None = None
    looked: bool = False
    """Whether a process of an earlier controller has been looked for."""
    deaths: int = 0
    """In a row, before joining."""
    began: float = 0.0
    vouched: float = float("-inf")
    """When its leases were last renewed for it."""

    @property
    def leases(self) -> tuple[str, ...]:
        """The process's own leases; that of the rank comes last, rank 0's says that a generation was started."""
        own = f"worker:{self.name}"
        return (own, f"rank:{self.rank}") if self.role is Role.TRAINER else (own,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works. ``generator`` and ``trainer`` are the beginnings of their command lines; ``ranks`` train together."""

    lease_s: float
    max_steps: int
    ranks: int = 1
    generator: Sequence[str] = GENERATOR
    trainer: Sequence[str] = TRAINER


def threads_of(num_generators: int, ranks: int = 1) -> int:
    """Threads of one worker: a fair share of the cores, unless the environment says otherwise."""
    return int(os.environ.get("OMP_NUM_THREADS") or max(1, num_cores() // (num_generators + ranks)))


def this_machine(folder: RunFolder, plan: Plan) -> ThisMachine:
    """Workers get this process's own variables, the server's address, a fair share of the cores, and GPUs of their own.

    Ranks talk with each other on this machine only.
    """
    threads = {"OMP_NUM_THREADS": str(threads_of(plan.generation.workers, plan.training.ranks))}
    environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, **worker_environment(plan), **threads}
    return ThisMachine(folder.logs, environment, Devices.of(plan).variables)


class LocalLauncher:
    """Fills the Launcher protocol. ``log`` is the controller's own connection: they share a thread."""

    def __init__(
        self, log: Log, log_id: Callable[[], str], folder: RunFolder, crew: Crew,
        clock: Callable[[], float] = time.monotonic, host: Host | None = None,
    ) -> None:  # fmt: skip
        """``host``: where the workers run; this machine, unless another one is given."""
        self._log = log
        self._log_id = log_id
        self._folder = folder
        self._crew = crew
        self._clock = clock
        self._host = host or ThisMachine(folder.logs, os.environ)
        self._ranks = [_Slot(f"rank-{rank}", Role.TRAINER, rank) for rank in range(crew.ranks)]
        self._generators: dict[str, _Slot] = {}

    def reconcile(self, state: State) -> Sequence[WorkerGone]:
        """Start what the State asks for and is not there; returns the workers found dead since the last call.

        Raises ``RunFailed`` when a worker dies again and again before it has joined.
        """
        gone: list[WorkerGone] = []
        wanted = [fleet.name_of(number) for number in range(fleet.size_of(state))]
        for name in (*wanted, *(name for name, worker in state.workers.items() if worker.role is Role.GENERATOR)):
            self._generators.setdefault(name, _Slot(name, Role.GENERATOR))
        for slot in self._ranks:
            gone += self._find_out(slot, state)
        if gone:
            gone += self._end_ranks(gone[0].worker)
        if all(slot.process is None for slot in self._ranks):
            self._start_trainer(state)
        for slot in self._generators.values():
            gone += self._find_out(slot, state)
        if state.stopping is None or state.count(Place.IN_FLIGHT):  # a drain waits for orders that nobody took yet
            for name in wanted:
                if self._generators[name].process is None:
                    self._start_generator(self._generators[name])
        for slot in (*self._ranks, *self._generators.values()):  # last: a start on a cluster can take its time
            if slot.process is not None and slot.name not in state.workers:
                self._vouch(slot, slot.process)
        return gone

    def end(self, worker: str) -> None:
        """End a worker that hangs: a stopped process does not hear anything gentler."""
        slot = self._generators.get(worker)
        if slot is not None and slot.process is not None:
            slot.process.kill()

    def close(self, *, kill: bool) -> None:
        """Wait for the workers to leave (they were told), or end them."""
        slots = [*self._ranks, *self._generators.values()]
        running = [slot.process for slot in slots if slot.process is not None]
        deadline = self._clock() + (0.0 if kill else LEAVE_WITHIN_S)
        for process in running:
            if not process.wait(deadline - self._clock()):
                process.kill()
        for process in running:
            process.wait(LEAVE_WITHIN_S)
            process.close()
        for slot in slots:
            slot.process = None
        self._host.close()

    def _find_out(self, slot: _Slot, state: State) -> Iterator[WorkerGone]:
        """Adopt or recognise an earlier controller's process; report the dead; end a trainer of an older generation."""
        if not slot.looked:
            slot.looked, slot.began = True, self._clock()
            file = PidFile.read(self._pid_file(slot.name))
            slot.process = self._host.adopt(slot.name, file)
            started = file is not None and (slot.role is Role.GENERATOR or file.number == state.generation)
            if slot.process is None and started:
                yield WorkerGone(worker=slot.name, role=slot.role, reason="its process is gone")
        process = slot.process
        if process is None:
            return
        outdated = slot.role is Role.TRAINER and process.number != state.generation
        if outdated:
            process.kill()
            process.wait(LEAVE_WITHIN_S)
        if process.alive():
            if slot.name in state.workers:
                slot.deaths = 0
            return
        reason = process.ending()
        if "exit code" in reason:  # it ended by itself, and its log's last line says of what
            reason = f"{reason} ({last_lines(self._folder.logs / f'{slot.name}.log').splitlines()[-1].strip()})"
        process.close()
        slot.process = None
        if outdated:
            return
        slot.deaths = 0 if slot.name in state.workers else slot.deaths + 1
        if slot.deaths >= MAX_DEATHS:
            log = self._folder.logs / f"{slot.name}.log"
            raise RunFailed(
                f"{slot.name} ended {slot.deaths} times before it had joined, at last: {reason}. {log} ends with\n"
                f"  {last_lines(log)}"
            )
        yield WorkerGone(worker=slot.name, role=slot.role, reason=reason)

    def _end_ranks(self, dead: str) -> Iterator[WorkerGone]:
        """End the ranks that are left of a trainer whose rank ``dead`` is gone."""
        for slot in self._ranks:
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait(LEAVE_WITHIN_S)
                slot.process.close()
                slot.process = None
                yield WorkerGone(worker=slot.name, role=slot.role, reason=f"ended with {dead}")

    def _vouch(self, slot: _Slot, process: Running) -> None:
        """Renew the leases of a process that is alive and still loads."""
        now = self._clock()
        if now - slot.began <= LOAD_WITHIN_S and now - slot.vouched >= self._crew.lease_s / 3:
            slot.vouched = now
            self._put_leases(slot, process.number)

    def _put_leases(self, slot: _Slot, number: int) -> None:
        for key in slot.leases:
            self._log.put_lease(key, number, slot.name)

    def _start_generator(self, slot: _Slot) -> None:
        leases = self._log.leases()
        lease = leases.by_key.get(slot.leases[0])
        file = PidFile.read(self._pid_file(slot.name))
        number = 1 + max(0 if lease is None else lease.number, 0 if file is None else file.number)
        unknown = lease is not None and (file is None or file.number != lease.number)
        if unknown and leases.now - lease.refreshed <= self._crew.lease_s:  # type: ignore[union-attr]
            return  # started by a controller that died before it wrote the pid file
        self._put_leases(slot, number)
        self._start(slot, number, (*self._crew.generator, "--name", slot.name, "--incarnation", str(number)))

    def _start_trainer(self, state: State) -> None:
        lease = self._log.leases().by_key.get(RANK_LEASE)
        if lease is not None and lease.number >= state.generation:
            return  # it was started; whether it lives is judged by its process or its lease
        (entry,) = self._log.read(state.generation, state.generation)
        checkpoint = next((event.checkpoint for event in entry.events if isinstance(event, Resume)), "")
        meeting = self._folder.logs.resolve() / f"rendezvous-{state.generation}"
        for earlier in self._folder.logs.glob("rendezvous-*"):
            earlier.unlink(missing_ok=True)
        command = (
            *self._crew.trainer,
            "--generation", str(state.generation),
            "--version", str(state.standing),
            "--checkpoint", checkpoint,
            "--publish-from", str(state.publish_from),
            "--max-steps", str(self._crew.max_steps),
            "--log-id", self._log_id(),
            "--ordered-epoch", str(entry.epoch),
            "--ordered-digest", entry.digest,
            "--ranks", str(self._crew.ranks),
            "--rendezvous", f"file://{meeting}",
        )  # fmt: skip
        for slot in reversed(self._ranks):
            self._put_leases(slot, state.generation)
        for slot in self._ranks:
            self._start(slot, state.generation, (*command, "--rank", str(slot.rank)))

    def _start(self, slot: _Slot, number: int, command: Sequence[str]) -> None:
        command = (*command, "--run", str(self._folder.path.resolve()))
        slot.began = self._clock()
        slot.process = self._host.start(slot.name, number, command)

    def end_earlier(self) -> None:
        """End the workers of an earlier controller, because they have other settings."""
        for path in self._folder.logs.glob("*.pid"):
            if (process := self._host.adopt(path.stem, PidFile.read(path))) is not None:
                process.kill()
                process.wait(LEAVE_WITHIN_S)
                process.close()

    def _pid_file(self, name: str) -> Path:
        return self._folder.logs / f"{name}.pid"
