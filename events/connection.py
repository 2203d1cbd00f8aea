"""Where a server is, and one connection to it.

Rule 1: one command is sent once. redis-py sends a command again by itself when the reply is lost, which stores an entry
        twice; every connection here has ``Retry(NoBackoff(), 0)``, a socket timeout and no shared pool.
Rule 2: a unix socket's path may have 107 bytes. A longer one is reached through ``/proc/self/fd/<folder>/``.
Rule 3: a password stands in a file that only its owner reads, or in a URL from the environment; never in a message.
"""

import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rollog.events.errors import LogError, ServerRefused, ServerUnreachable
from rollog.events.server_url import CERTIFICATE_GOES, mistake, names_a_server, unreadable, why_no_tls

MAX_SOCKET_PATH_BYTES: Final = 107
SOCKET_TIMEOUT_S: Final = 5.0
"""How long one reply may take before the connection is given up; blocking reads wait for at most 2 s of it."""
PAUSE_S: Final = 0.05

SOCKET_NAME: Final = "server.sock"

Argument = str | bytes | int | float
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """A server and the user to be there: ``url`` (redis://, rediss://), or the path of a unix ``socket``.

    ``db``: the database on a socket's server. ``timeout_s``: how long one reply may take; longer than a blocking read
    waits.
    """

    url: str | None = field(default=None, repr=False)
    socket: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    timeout_s: float = SOCKET_TIMEOUT_S

    def __str__(self) -> str:
        """For people: without any password."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        parts = urlsplit(self.url or "")
        return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"

    @classmethod
    def embedded(cls, run_folder: Path, user: str) -> "Address":
        """The private server of a run folder, as ``controller`` or ``worker``."""
        folder = run_folder / "log"
        secret = folder / f"{user}.password"
        try:
            password = secret.read_text().strip()
        except OSError as error:
            raise ServerUnreachable(
                f"{secret} cannot be read ({error.strerror}): no server has served {run_folder} yet"
            ) from error
        return cls(socket=folder / SOCKET_NAME, user=user, password=password)

    @classmethod
    def parse(cls, text: str, user: str | None = None) -> "Address":
        """``unix:PATH`` (with ``user``, its password file lies beside the socket), or a URL (see ``server_url``).

        Raises ``ValueError``, which does not show the password.
        """
        if text.startswith("unix:") and not text.startswith("unix://"):
            path = Path(text.removeprefix("unix:"))
            return cls.embedded(path.parent.parent, user) if user is not None else cls(socket=path)
        if not names_a_server(text):
            raise ValueError("this is not a server's address: give unix:PATH, redis://HOST:PORT or rediss://HOST:PORT")
        if (wrong := mistake(text)) is not None:
            raise ValueError(wrong)
        if text.startswith("unix://"):
            return cls._at_socket(text)
        return cls(url=text)

    @classmethod
    def _at_socket(cls, url: str) -> "Address":
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return cls(
            socket=Path(unquote(parts.path)),
            user=unquote(parts.username or "") or options.get("username"),
            password=unquote(parts.password or "") or options.get("password"),
            db=int(options.get("db", "0")),
        )

    def connect(self) -> "Connection":
        """One connection of its own; it is made by the first command.

        Raises ``ServerRefused`` when a file that the URL names cannot be read.
        """
        if self.url is not None and (missing := unreadable(self.url)) is not None:
            raise ServerRefused(f"{self}: {missing}")
        options: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": self.timeout_s,
            "socket_connect_timeout": self.timeout_s,
            "protocol": 2,
            "driver_info": None,
        }
        pool: Any = redis.ConnectionPool  # the pool only makes the connection, it never holds it
        folder, remedy = None, "start the server, or correct the address"
        if self.socket is None:
            if (self.url or "").startswith("rediss://"):  # why a server closed at once, it does not always get to say
                remedy = f"{remedy}; if it asks its clients for a certificate, {CERTIFICATE_GOES}"
            pool = pool.from_url(self.url or "", **options)
        else:
            path, folder = reachable(self.socket)
            remedy = f"start the server; {self.socket.with_name('server.log')} may say why it ended"
            kind = redis.UnixDomainSocketConnection
            pool = pool(
                connection_class=kind, path=path, username=self.user, password=self.password, db=self.db, **options
            )
        return Connection(pool.make_connection(), folder, str(self), remedy)


class Connection:
    """One connection that sends each command once. It connects again at the next command after a failure."""

    def __init__(self, wire: Any, folder: int | None, where: str, remedy: str) -> None:
        """``wire``: redis-py's connection. ``folder``: an open folder that its path needs.

        ``where`` and ``remedy``: for the error when it does not answer.
        """
        self._wire = wire
        self._folder = folder
        self._where = where
        self._remedy = remedy

    def call(self, *command: Argument) -> Any:
        """The server's reply. Raises ``ServerUnreachable`` (whether it was applied is unknown), ``ServerSaid``."""
        (reply,) = self.pipeline([command])
        if isinstance(reply, ServerSaid):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send all, then read all replies; an error reply stands in its place as ``ServerSaid``.

        Raises ``ServerUnreachable`` when one reply is missing: what was applied is unknown then.
        """
        replies: list[Any] = []
        try:
            self._wire.send_packed_command(self._wire.pack_commands(commands))
            for _ in commands:
                try:
                    replies.append(self._wire.read_response())
                except redis.exceptions.ResponseError as error:
                    replies.append(_said(error))
        except redis.exceptions.AuthenticationError as error:
            raise ServerRefused(
                f"{self._where} does not accept this user and password ({error}). {_SECRET_GOES}"
            ) from error
        except (redis.exceptions.RedisError, OSError) as error:
            self._wire.disconnect()
            if (refusal := why_no_tls(error)) is not None:
                raise ServerRefused(f"{self._where} {refusal}") from error
            raise ServerUnreachable(f"{self._where} does not answer ({error}): {self._remedy}") from error
        return replies

    def run(self, script: "Script", keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run one script by its digest; it is loaded when the server does not know it."""
        command = script.command(keys, arguments)
        try:
            return self.call(*command)
        except ServerSaid as said:
            if said.code != "NOSCRIPT":
                raise
        self.call("SCRIPT", "LOAD", script.text)
        return self.call(*command)

    def run_all(self, script: "Script", keys: Sequence[str], calls: Sequence[Sequence[Argument]]) -> None:
        """Run one script for each list of arguments, in one round trip; their replies tell nothing."""
        commands = [script.command(keys, arguments) for arguments in calls]
        while commands:
            replies = self.pipeline(commands)
            commands = [command for command, said in zip(commands, replies, strict=True) if _unknown(said)]
            for said in replies:
                if isinstance(said, ServerSaid) and not _unknown(said):
                    raise said
            if commands:
                self.call("SCRIPT", "LOAD", script.text)

    def close(self) -> None:
        """Let go of the socket."""
        self._wire.disconnect()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


_SECRET_GOES: Final = "Put the right one into the environment: ROLLOG_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/0"


class ServerSaid(LogError):
    """An error reply. ``code``: its first word, such as NOSCRIPT, OOM or WRONGTYPE."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


def _unknown(reply: Any) -> bool:
    """Whether the server said that it does not know the script."""
    return isinstance(reply, ServerSaid) and reply.code == "NOSCRIPT"


def _said(error: redis.exceptions.ResponseError) -> ServerSaid:
    """redis-py cuts the first word off the errors that it knows; it is put back."""
    text = str(error)
    for kind, code in _CUT_CODES.items():
        if isinstance(error, kind) and not text.startswith(code):
            return ServerSaid(f"{code} {text}")
    return ServerSaid(text)


_CUT_CODES: Final[dict[type[redis.exceptions.ResponseError], str]] = {
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.ExecAbortError: "EXECABORT",
}


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its digest, the name that EVALSHA knows it by."""

    text: str
    digest: str

    @classmethod
    def packaged(cls, name: str) -> "Script":
        """The script ``name``.lua of this folder."""
        text = files("rollog.events").joinpath(f"{name}.lua").read_text()
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def command(self, keys: Sequence[str], arguments: Sequence[Argument]) -> Sequence[Argument]:
        """The EVALSHA command."""
        return ["EVALSHA", self.digest, len(keys), *keys, *arguments]


def reachable(socket: Path) -> tuple[str, int | None]:
    """A path to this socket that the kernel takes, and the open folder it needs, if it needs one."""
    path = str(socket)
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path, None
    try:
        folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ServerUnreachable(f"{socket.parent}: {error.strerror}") from error
    return f"/proc/self/fd/{folder}/{socket.name}", folder


def pause() -> None:
    """Let a moment pass before asking again a server that refuses connections or still loads: it sends no event."""
    select.select([], [], [], PAUSE_S)


class Patience:
    """Ask again, the same question, until there is an answer or the time is over."""

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline = clock() + within_s
        self._clock = clock

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock() > self._deadline

    def insist(self, ask: Callable[[], T], revive: Callable[[], object] | None = None) -> T:
        """The answer, asked for again while the server cannot be reached. Only for what may be done twice.

        ``revive``: called before asking again (it may start the server). Raises the last ``ServerUnreachable``.
        """
        while True:
            try:
                return ask()
            except ServerUnreachable:
                if self.over:
                    raise
            pause()
            if revive is not None:
                revive()
