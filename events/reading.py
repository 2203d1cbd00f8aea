"""Where a reading verb finds a run's log: running, sealed, or left behind by a crash.

Rule 1: reading disturbs nobody: no pen, no key is written.
Rule 2: a run that no controller has opened since it was forked or imported lies whole in its segments.
Rule 3: a server that was started for one command ends with it; it holds the folder's lock meanwhile, so that nobody
        starts a second one.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rollog.events import server
from rollog.events.connection import Address
from rollog.events.errors import MissingEntry
from rollog.events.file_log import SUFFIX, FileLog, GrowingLog
from rollog.events.log import Reader
from rollog.events.mark import MarkFile, check_mark
from rollog.events.planting import planting_of
from rollog.events.redis_reader import RedisReader
from rollog.events.vocabulary import Finish

MARK_NAME: Final = "mark.json"
SEGMENTS_NAME: Final = "segments"
ANSWER_WITHIN_S: Final = 3.0
"""A person waits: a server that does not answer for so long is told as unreachable."""


def segments_of(run_folder: Path) -> Path:
    """The folder of a run's sealed segments."""
    return run_folder / "log" / SEGMENTS_NAME


def snapshots_of(run_folder: Path) -> Path:
    """The folder of a run's saved States."""
    return run_folder / "log" / "snapshots"


def mark_of(run_folder: Path) -> MarkFile:
    """The run's mark outside its server."""
    return MarkFile(run_folder / MARK_NAME)


@contextmanager
def open_reader(source: Path | str, run: str | None = None, folder: Path | None = None) -> Iterator[Reader]:
    """The log of ``source``: a run's folder, an archive, a segment or a folder of segments, or a server's URL.

    ``run``: the run's name; a folder's own name unless given, and needed with a URL. ``folder``: where a URL's run has
    its sealed segments, if here. Raises ``MissingEntry`` where no log is, ``LostTail`` when the server holds less than
    was acknowledged.
    """
    if isinstance(source, str) and "://" in source:
        if run is None:
            raise ValueError(f"{source} may hold many runs: name one")
        if folder is not None and planting_of(folder) and (sealed := archive_of(folder)) is not None:
            yield sealed
            return
        older = None if folder is None else GrowingLog(segments_of(folder))
        address = Address.parse(source)
        with closing(RedisReader(address, run, archive=older, answer_within_s=ANSWER_WITHIN_S)) as reader:
            yield reader
        return
    path = Path(source)
    if path.is_file() or any(path.glob(f"*{SUFFIX}")):
        yield FileLog(path)
        return
    archive = archive_of(path)
    running = server.is_running(path)
    if archive is not None and (planting_of(path) or (not running and sealed_to_the_end(path, archive))):
        yield archive
        return
    if not running and not (path / "log" / "server.json").exists():
        raise MissingEntry(f"{path} holds no log, neither segments nor a server's data: give its server, --redis URL")
    with (
        server.start_for_reading(path) as found,
        closing(
            RedisReader(found.address(), run or path.resolve().name, archive=GrowingLog(segments_of(path)))
        ) as reader,
    ):
        mark = mark_of(path).read()
        if mark is not None:
            check_mark(mark, reader.log_id(), reader.head(), reader.digest_at(mark.offset))
        yield reader


def log_id_of(reader: Reader) -> str:
    """The id of the log that is read. Raises ``MissingEntry`` when there is none yet."""
    match reader:
        case FileLog():
            return reader.log_id
        case RedisReader():
            if (found := reader.log_id()) is not None:
                return found
    raise MissingEntry("the log has no id yet: it gets one when a controller opens it")


def archive_of(run_folder: Path) -> FileLog | None:
    """The run's sealed segments; None if there are none."""
    folder = segments_of(run_folder)
    return FileLog(folder) if any(folder.glob(f"*{SUFFIX}")) else None


def sealed_to_the_end(run_folder: Path, archive: FileLog) -> bool:
    """Whether the segments hold the whole log: they end with Finish, and no controller took the pen after it."""
    mark = mark_of(run_folder).read()
    head = archive.head()
    (last,) = archive.read(head.offset, head.offset)
    finished = any(isinstance(event, Finish) for event in last.events)
    return finished and (mark is None or (mark.epoch == last.epoch and mark.offset <= head.offset))
