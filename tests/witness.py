"""What was acknowledged to real processes, written down beside the log and compared with it afterwards.

    log.append(window)  --returns-->  one line for each entry         ENTRY  <offset> <digest>
    desk.report(result) --returns-->  one line                        RESULT <what it answers>

Rule 1: a line is written after the acknowledgement, by one write: a process that is killed between the two leaves
        nothing behind that was not acknowledged.
Rule 2: each process has a file of its own. The last line can be torn; it then says nothing.
Rule 3: the log must hold every entry that was acknowledged, and an answer to every result: the event that follows from
        it, or Late. What lies in the results stream still is answered by the next controller.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rollog.events.codec import unpack_message
from rollog.events.log import Entry, Outbox
from rollog.events.messages import CheckpointDone, GroupCancelled, GroupDone, GroupFailed, Result, StepDone
from rollog.events.vocabulary import Cancel, Checkpoint, Commit, Late, Retry, Train

FOLDER = os.environ.get("WITNESS")
"""Where the lines go; unset: nobody watches."""


class _Lines:
    def __init__(self, name: str) -> None:
        assert FOLDER is not None
        path = Path(FOLDER) / f"{name}-{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, lines: Iterable[str]) -> None:
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


class WitnessedLog:
    """A log that writes down what it has acknowledged."""

    def __init__(self, log: Any) -> None:
        self._log, self._lines = log, _Lines("controller")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        self._log.append(window)
        self._lines.write(f"ENTRY {entry.offset} {entry.digest}" for entry, _ in window)


class WitnessedDesk:
    """A worker's desk that writes down which results were taken."""

    def __init__(self, desk: Any, name: str) -> None:
        self._desk, self._lines = desk, _Lines(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    def report(self, result: Result, lease: str | None = None) -> None:
        self._desk.report(result, lease)
        self._lines.write(_lines_of(result))

    def report_all(self, results: Sequence[tuple[Result, str | None]]) -> None:
        self._desk.report_all(results)
        self._lines.write(line for result, _ in results for line in _lines_of(result))


def _lines_of(result: Result) -> Iterator[str]:
    match result:
        case GroupDone():
            yield f"RESULT group {result.prompt} {result.attempt}"
        case GroupCancelled():
            yield f"RESULT cancelled {result.prompt} {result.attempt}"
        case GroupFailed():
            yield f"RESULT failure {result.prompt} {result.attempt}"
        case StepDone():
            yield f"RESULT step {result.step} {result.generation}"
        case CheckpointDone():
            yield f"RESULT checkpoint {result.manifest}"


def _answers(entries: Iterable[Entry]) -> Iterator[str]:
    """What the log has answered, as the lines say it."""
    for entry in entries:
        for event in entry.events if entry.input is not None else ():
            match event:
                case Commit():
                    yield f"RESULT group {event.prompt} {event.attempt}"
                case Cancel():
                    yield f"RESULT cancelled {event.prompt} {event.attempt}"
                case Retry():
                    yield f"RESULT failure {event.prompt} {event.attempt}"
                case Train():
                    yield f"RESULT step {event.step} {event.generation}"
                case Checkpoint():
                    yield f"RESULT checkpoint {event.manifest}"
                case Late(what="group" | "cancelled" | "failure"):
                    yield f"RESULT {event.what} {event.prompt} {event.attempt}"
                case Late(what="step"):
                    yield f"RESULT step {event.step} {event.generation}"


def compare(folder: Path, entries: Sequence[Entry], waiting: Iterable[bytes]) -> Counter[str]:
    """How much was acknowledged, by kind. Fails with what the log lacks.

    ``waiting``: the results that no entry has answered yet, as they lie in their stream.
    """
    heard = Counter(line for path in folder.iterdir() for line in path.read_text().split("\n")[:-1])
    held = {f"ENTRY {entry.offset} {entry.digest}" for entry in entries}
    known = held | set(_answers(entries)) | {line for body in waiting for line in _lines_of(unpack_message(body))}
    lost = sorted(line for line in heard if line not in known)
    assert not lost, f"{len(lost)} acknowledged and not in the log: {lost[:10]}"
    return Counter(line.split(" ")[0] for line in heard)
