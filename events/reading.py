"""Where a reading verb finds a run's log: running, sealed, or left behind by a crash.

Rule 1: reading disturbs nobody: no pen, no key is written.
Rule 2: a server that was started for one command ends with it; it holds the folder's lock meanwhile, so that nobody
        starts a second one.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rollog.events import server
from rollog.events.connection import Address
from rollog.events.errors import MissingEntry
from rollog.events.file_log import SUFFIX, FileLog
from rollog.events.log import Reader
from rollog.events.mark import MarkFile, check_mark
from rollog.events.redis_reader import RedisReader
from rollog.events.vocabulary import Finish

MARK_NAME: Final = "mark.json"
SEGMENTS_NAME: Final = "segments"
ANSWER_WITHIN_S: Final = 3.0
"""A person waits: a server that does not answer for so long is told as unreachable."""


def segments_of(run_folder: Path) -> Path:
    """The folder of a run's sealed segments."""
    return run_folder / "log" / SEGMENTS_NAME


def mark_of(run_folder: Path) -> MarkFile:
    """The run's mark outside its server."""
    return MarkFile(run_folder / MARK_NAME)


@contextmanager
def open_reader(source: Path | str, run: str | None = None) -> Iterator[Reader]:
    """The log of ``source``: a run's folder, a segment or a folder of segments, or a server's URL.

    ``run``: the run's name; a folder's own name unless given, and needed with a URL. Raises ``MissingEntry`` where no
    log is, ``LostTail`` when the server holds less than was acknowledged.
    """
    if isinstance(source, str) and "://" in source:
        if run is None:
            raise ValueError(f"{source} may hold many runs: name one")
        with closing(RedisReader(Address.parse(source), run, answer_within_s=ANSWER_WITHIN_S)) as reader:
            yield reader
        return
    path = Path(source)
    if path.is_file() or any(path.glob(f"*{SUFFIX}")):
        yield FileLog(path)
        return
    archive = archive_of(path)
    running = server.is_running(path)
    if not running and archive is not None and sealed_to_the_end(path, archive):
        yield archive
        return
    if not running and not (path / "log" / "server.json").exists():
        raise MissingEntry(f"{path} holds no log, neither segments nor a server's data: give its server, --redis URL")
    with (
        server.start_for_reading(path) as found,
        closing(RedisReader(found.address(), run or path.resolve().name, archive=archive)) as reader,
    ):
        mark = mark_of(path).read()
        if mark is not None:
            check_mark(mark, reader.log_id(), reader.head(), reader.digest_at(mark.offset))
        yield reader


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
