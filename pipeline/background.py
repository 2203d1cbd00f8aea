"""``--detach``: a run that goes on without the terminal.

    checks, folder (here)  -->  rollog resume NAME, in a session of its own  -->  its controller holds a lease

Rule 1: what can be refused is refused here, before anything is started.
Rule 2: this returns when the run is driven, or has ended already; then with its exit code and its last words.
Rule 3: to begin is to resume an empty log, so there is one command for both.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from rollog.events import server
from rollog.events.connection import pause
from rollog.events.errors import LogError
from rollog.pipeline.config import Plan
from rollog.pipeline.heartbeat import CONTROLLER
from rollog.pipeline.launch.process import last_lines
from rollog.pipeline.manner import Manner
from rollog.pipeline.run_folder import EMBEDDED, RunFolder

COMMAND: Final = (sys.executable, "-m", "rollog.pipeline.cli")
LOG_NAME: Final = "controller.log"
SCHEMA: Final = "rollog.detached/1"


def detach(
    folder: RunFolder, plan: Plan, words: Sequence[str], manner: Manner, clock: Callable[[], float] = time.monotonic
) -> int:
    """Start ``rollog resume`` with these words; returns the exit code: 0 once it drives the run."""
    log, name = folder.logs / LOG_NAME, folder.name
    process, began = _start([*COMMAND, "resume", name, *words], log), clock()
    code: int | None = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            manner.say(f"run {name} has ended with exit code {code}; {log} ends with\n  {last_lines(log)}")
            break
        if _driven(folder, plan, clock() - began):
            manner.say(
                f"run {name} goes on in process {process}, which writes to {log}\n"
                f"look at it:  rollog status {name}    rollog log {name} -f\n"
                f"stop it:     rollog stop {name}"
            )
            break
        pause()
    manner.answer({"schema": SCHEMA, "run": name, "process": process, "log": str(log), "exit_code": code})
    return 0 if code is None else code


def _start(command: Sequence[str], log: Path) -> int:
    """A process in a session of its own: no terminal's hang-up reaches it. What it prints is added to ``log``.

    It is no ``Popen``: it outlives the object and this process.
    """
    added = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), added, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], list(command), os.environ, file_actions=files, setsid=True)


def _driven(folder: RunFolder, plan: Plan, since_s: float) -> bool:
    """Whether a controller has come in the last ``since_s`` seconds: an older one's lease began before."""
    if plan.log.redis == EMBEDDED and not server.is_running(folder.path):
        return False
    try:
        with closing(folder.desk(plan)) as desk:
            leases = desk.leases()
    except LogError:  # the server is starting, or ending
        return False
    lease = leases.by_key.get(CONTROLLER)
    return lease is not None and leases.now - lease.began < since_s
