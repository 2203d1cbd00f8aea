"""From what a person typed to a log that can be read, and a moment in it.

Rule 1: a run is ``runs/<name>`` under the working directory (or under ROLLOG_RUNS), or a path to its folder.
Rule 2: where its log lies: ``--log FILE`` first, then ``--redis URL``, then what the run's own settings say; with
        ROLLOG_REDIS_URL as the server's address for a run that is not embedded, or that has no folder here.
Rule 3: opening writes nothing and takes no pen. A run that ended is read from its segments; after a crash the embedded
        server is started for the time of the command.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from rollog.events.log import Reader
from rollog.events.reading import open_reader, snapshots_of
from rollog.events.redis_reader import RedisReader
from rollog.events.server_url import mistake, names_a_server
from rollog.events.vocabulary import Start
from rollog.replay.errors import BadReference, NoSuchRun
from rollog.replay.references import HEAD, Reference, Span, Target, parse_moment_or_span, parse_target
from rollog.replay.timeline import Timeline

RUNS_VARIABLE: Final = "ROLLOG_RUNS"
URL_VARIABLE: Final = "ROLLOG_REDIS_URL"
EMBEDDED: Final = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was typed. ``run``: RUN or RUN@REF ("" with ``log``); ``span``: A..B or REF, if given apart."""

    run: str = ""
    span: str | None = None
    log: Path | None = None
    redis: str | None = None

    def target(self) -> Target:
        """The run and the moment or range. Raises ``BadReference``."""
        target = parse_target(self.run, run_is_optional=self.log is not None)
        if self.span is None:
            return target
        if target.at is not None:
            raise BadReference(f"two moments are named, {self.run!r} and {self.span!r}: name one")
        return Target(run=target.run, at=parse_moment_or_span(self.span))

    def moment(self) -> Reference:
        """The one moment that was named; the head if none was. Raises ``BadReference`` for a range."""
        match self.target().at:
            case None:
                return HEAD
            case Reference() as moment:
                return moment
            case Span():
                raise BadReference(f"{self.run!r} names a range; this verb looks at one moment, like @412 or @step:9")

    def range(self) -> Span | None:
        """The range that was named; one moment is a range of one; None if nothing was."""
        at = self.target().at
        return Span(first=at, last=at) if isinstance(at, Reference) else at


@contextmanager
def opened(source: Source, environment: Mapping[str, str] = os.environ) -> Iterator[Timeline]:
    """The log that was named, for reading. Raises ``NoSuchRun``, and the errors of ``open_reader``."""
    if source.log is not None:
        if not source.log.exists():
            raise NoSuchRun(f"--log {source.log}: no such file or folder")
        with open_reader(source.log) as reader:
            if source.target().run:
                _must_be_of(source.target().run, reader, source.log)
            yield Timeline(reader)
        return
    name = source.target().run
    if not name:
        raise BadReference("name a run, or an archive with --log FILE")
    place, label = _place(name, source.redis, environment)
    folder = find_folder(name, environment)
    with open_reader(place, label, folder) as reader:
        if isinstance(reader, RedisReader) and reader.log_id() is None:
            raise NoSuchRun(f"the server holds no run named {label or name}")
        yield Timeline(reader, None if folder is None else snapshots_of(folder))


def _must_be_of(name: str, archive: Reader, file: Path) -> None:
    """An archive that holds another run than the one named is a mistake of whoever typed it."""
    run = next((event.run for event in next(iter(archive.read(1, 1))).events if isinstance(event, Start)), "")
    if Path(name).name != run:
        raise NoSuchRun(f"{file} holds the run {run}, not {name}")


def _place(name: str, redis: str | None, environment: Mapping[str, str]) -> tuple[Path | str, str | None]:
    """Where the run's log is (folder or URL), and the run's name if a URL needs it."""
    folder = find_folder(name, environment)
    label = Path(name).name if folder is None else folder.resolve().name
    if redis is not None:
        return _url(redis, "--redis"), label
    if folder is not None:
        own = _own_server(folder)
        return (folder, None) if own is None else (_url(environment.get(URL_VARIABLE, own), URL_VARIABLE), label)
    if URL_VARIABLE in environment:
        return _url(environment[URL_VARIABLE], URL_VARIABLE), label
    known = known_runs(environment)
    nothing = f"There are no runs under {_runs(environment).resolve()}."
    there_are = f"There are: {', '.join(known)}." if known else nothing
    raise NoSuchRun(f"no run named {name}. {there_are} Give another name, a path, --log FILE or --redis URL.")


def _url(text: str, source: str) -> str:
    """The address as a URL. Never shown: a password may stand in it."""
    if text.startswith(("redis://", "rediss://", "unix://")) and names_a_server(text):
        if (wrong := mistake(text)) is not None:
            raise BadReference(f"{source}: {wrong}")
        return text
    if text.startswith("unix:") and not text.startswith("unix://"):
        return f"unix://{text.removeprefix('unix:')}"
    raise BadReference(f"{source} is no server's address: give redis://HOST:PORT, rediss://HOST:PORT or unix:PATH")


def known_runs(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the runs that have a folder here."""
    runs = _runs(environment)
    return sorted(path.name for path in runs.glob("[!.]*") if path.is_dir()) if runs.is_dir() else []


def find_folder(name: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The run's folder; None if there is none here."""
    named, path = _runs(environment) / name, Path(name)
    if "/" not in name and name not in (".", "..") and named.is_dir():
        return named
    return path if path.is_dir() and ((path / "log").is_dir() or "/" in name) else None


def _runs(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(RUNS_VARIABLE, "runs"))


def _own_server(folder: Path) -> str | None:
    """The server's URL in the run's settings; None when the log is embedded or nothing is said."""
    try:
        settings: Any = yaml.safe_load((folder / "config.yaml").read_text())
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise NoSuchRun(f"{folder / 'config.yaml'} cannot be read: {error}. Name the log with --redis URL") from None
    log = settings.get("log") if isinstance(settings, dict) else None
    url = log.get("redis") if isinstance(log, dict) else None
    return url if isinstance(url, str) and url != EMBEDDED else None
