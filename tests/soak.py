"""A run of real processes under random faults for a while, and what must be true of it afterwards.

    controller, trainer, four generators  -->  a proxy that loses and cuts  -->  a server

Faults, each against processes that work at that moment: SIGKILL of any of them, SIGSTOP of any of them for some
seconds, a server that ends and comes again, requests and answers that are lost, halved or come late, and a second
controller while the first one is stopped.

Afterwards the run must still move. Then it is asked to stop, and judged: see ``judge``.
"""

import os
import random
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import witness
from proxy import Proxy
from rollog.events.connection import Address, Patience
from rollog.events.errors import LogError
from rollog.events.file_log import GrowingLog
from rollog.events.reading import open_reader, segments_of
from rollog.events.redis_reader import RedisReader
from rollog.events.server import shipped_binary
from rollog.events.vocabulary import Drop, FinishReason, Late, Resume, Retry, Role
from rollog.replay.plain import state_digest
from rollog.replay.projector import fold_all
from rollog.replay.state import State
from rollog.replay.verification import verify
from scene import Scene

SETTINGS = (
    'port 0\nunixsocket server.sock\nappendonly yes\nappendfsync always\nsave ""\nmaxmemory-policy noeviction\n'
    "auto-aof-rewrite-percentage 0\n"
)
GENERATORS = 4
LOSSES = ("lost", "unanswered", "cut", "half", "late")
MOVES_WITHIN_S = 120.0


@dataclass
class Soak:
    """One run under ``folder``. ``counts``: the faults so far, by kind."""

    folder: Path
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    state: State = field(default_factory=State)
    """The fold of what an onlooker has read so far."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.acknowledged = self.folder / "acknowledged"
        self.acknowledged.mkdir(parents=True)
        self._serve()
        self.proxy = Proxy(self.folder / "server.sock", self.folder / "proxy.sock")
        self.scene = Scene(self.folder, environment={"WITNESS": str(self.acknowledged)}, within_s=180.0)
        self.scene.settings |= {
            "data": {"path": "data.jsonl", "epochs": 100_000},
            "grpo": {"prompts_per_step": 4, "rollouts_per_prompt": 2},
            "sampler": {"name": "in_order", "lookahead": 2},
            "flow": {"lease_s": 4.0, "max_inflight_prompts": 12, "worker_orphan_s": 120.0},
            "generation": {"workers": GENERATORS},
            "log": {"redis": f"unix://{self.proxy.path}", "archive_every": 2_000},
        }
        self.reader = RedisReader(Address(socket=self.folder / "server.sock"), "demo", archive=GrowingLog(
            segments_of(self.scene.run)
        ))  # fmt: skip

    def run(self, seconds: float) -> None:
        """Do harm for so long, let the run recover, and stop it."""
        faults: tuple[Callable[[], None], ...] = (
            self.kill_generator, self.kill_generator, self.kill_trainer, self.kill_controller, self.kill_server,
            self.restart_server, self.stop_somebody, self.stop_somebody, self.lose, self.lose, self.lose, self.usurp,
        )  # fmt: skip
        self.scene.start()
        ending = time.monotonic() + seconds
        while time.monotonic() < ending:
            self.pause(0.1, 1.5)
            self.controller_works()
            self.look()
            self.chance.choice(faults)()
        self.proxy.faults.clear()
        self.proxy.release()
        moved = self.look().version + 3
        deadline = time.monotonic() + MOVES_WITHIN_S
        while self.look().version < moved:
            self.controller_works()
            assert time.monotonic() < deadline, f"it stands still at version {self.state.version}\n{self.scene.output}"
            self.pause(0.2, 0.2)
        self.scene.controllers[-1].terminate()
        assert self.scene.finish() == 75, self.scene.output

    def look(self) -> State:
        """Read on."""
        with suppress(LogError):  # the server can be away
            fold_all(self.reader.read(self.state.offset + 1), self.state)
        return self.state

    def pause(self, shortest_s: float, longest_s: float) -> None:
        select.select([], [], [], self.chance.uniform(shortest_s, longest_s))

    def controller_works(self) -> None:
        """A controller ends only because it was killed, or another one took the pen from it."""
        code = self.scene.controllers[-1].poll()
        assert code in (None, -signal.SIGKILL), f"exit code {code}\n{self.scene.output}"
        if code is not None:
            self.scene.start()

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill_controller(self) -> None:
        self.counts["controllers killed"] += 1
        self.scene.kill_controller()

    def kill_generator(self) -> None:
        self._kill(self._joined(Role.GENERATOR), "generators killed")

    def kill_trainer(self) -> None:
        self._kill(self._joined(Role.TRAINER), "trainers killed")

    def kill_server(self) -> None:
        self.counts["servers killed"] += 1
        self.server.kill()
        self.server.wait()
        self.pause(0.0, 1.0)
        self._serve()

    def restart_server(self) -> None:
        self.counts["servers restarted"] += 1
        self.server.terminate()
        self.server.wait()
        self.pause(0.0, 1.0)
        self._serve()

    def stop_somebody(self) -> None:
        """For less or for more than a lease."""
        workers = [*self._joined(Role.GENERATOR), *self._joined(Role.TRAINER)]
        victim = self.chance.choice(["controller", "server", *workers])
        if victim in ("controller", "server"):
            pid = self.scene.controllers[-1].pid if victim == "controller" else self.server.pid
        elif (process := self.scene.process(victim)) is not None:
            pid = process.pid
            process.close()
        else:
            return
        self.counts["processes stopped"] += 1
        self._stopped(pid, lambda: self.pause(0.5, 6.0))

    def lose(self) -> None:
        """Some of the next requests and answers; those that were kept back come now."""
        self.proxy.release()
        losses = self.chance.choices(LOSSES, k=self.chance.randint(1, 8))
        self.counts["requests or answers lost"] += len(losses)
        self.proxy.faults.extend(losses)

    def usurp(self) -> None:
        """A second controller comes while the first one is stopped; of the two, who took the pen first has to go."""
        self.counts["controllers usurped"] += 1
        pair = [self.scene.controllers[-1]]

        def another() -> None:
            pair.append(self.scene.start())
            self.pause(1.0, 5.0)

        self._stopped(pair[0].pid, another)
        deadline = time.monotonic() + MOVES_WITHIN_S
        while all(process.poll() is None for process in pair):
            assert time.monotonic() < deadline, f"two controllers, under epoch {self.look().epoch}\n{self.scene.output}"
            self.pause(0.1, 0.1)
        gone, stays = sorted(pair, key=lambda process: process.poll() is None)
        assert gone.returncode == 1, f"exit code {gone.returncode}\n{self.scene.output}"
        self.scene.controllers.remove(stays)
        self.scene.controllers.append(stays)

    def _serve(self) -> None:
        command = [str(shipped_binary()), "-"]
        output = subprocess.DEVNULL
        self.server = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.PIPE, stdout=output, text=True)
        assert self.server.stdin is not None
        self.server.stdin.write(SETTINGS)
        self.server.stdin.close()
        with closing(Address(socket=self.folder / "server.sock").connect()) as connection:
            Patience(60).insist(lambda: connection.call("PING"))

    def _joined(self, role: Role) -> list[str]:
        """Workers that are there: one that dies again and again before it has joined fails the run, as it should."""
        return [name for name, worker in self.state.workers.items() if worker.role is role]

    def _kill(self, names: list[str], kind: str) -> None:
        process = self.scene.process(self.chance.choice(names)) if names else None
        if process is not None:
            self.counts[kind] += 1
            process.kill()
            process.close()

    def _stopped(self, pid: int, meanwhile: Callable[[], None]) -> None:
        with suppress(ProcessLookupError):  # it can end before; and a controller ends a worker that hangs
            os.kill(pid, signal.SIGSTOP)
            try:
                meanwhile()
            finally:
                os.kill(pid, signal.SIGCONT)

    # --- the judgement ------------------------------------------------------------------------------------------------

    def judge(self) -> dict[str, int]:
        """Figures of the run. Fails unless

        * every law holds at every offset (``rollog verify``);
        * each acknowledged entry stands in the log as it was acknowledged, and each acknowledged result was answered;
        * an onlooker who read on all the time stands where a fold from the beginning ends;
        * each trained step trained its own prompts, and nobody gave a prompt up.
        """
        waiting = list(self.reader.results_after(None))
        state = self.look()
        with open_reader(self.scene.run) as log:
            entries = list(log.read())
            verdict = verify(log)
        assert verdict.holds, verdict
        assert verdict.entries == len(entries) == state.offset
        heard = witness.compare(self.acknowledged, entries, waiting)
        assert state_digest(fold_all(entries)) == state_digest(state)
        assert state.finish is FinishReason.STOPPED
        events = [event for entry in entries for event in entry.events]
        kinds = Counter(type(event) for event in events)
        trained = self.scene.trained()
        assert trained == {step: set(range(4 * step, 4 * step + 4)) for step in range(state.version)}
        assert kinds[Drop] == 0
        assert heard["ENTRY"] > 0
        assert heard["RESULT"] > 0
        return {
            "entries": len(entries), "acknowledged entries": heard["ENTRY"], "acknowledged results": heard["RESULT"],
            "still waiting results": len(waiting), "steps trained": state.version, "writer epochs": state.epoch,
            "controllers started": len(self.scene.controllers), "trainer generations": kinds[Resume] + 1,
            "attempts lost": kinds[Retry], "results too late": kinds[Late],
            "segments": len(list(segments_of(self.scene.run).iterdir())), **self.counts,
        }  # fmt: skip

    def close(self) -> None:
        """End what is left."""
        for process in self.scene.controllers:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.scene.clean()
        self.reader.close()
        self.proxy.close()
        self.server.kill()
        self.server.wait()
