"""A run whose folder was made from another's: its server is told once where the sealed entries end.

Rule 1: the note lies in the folder until it is obeyed. Obeying twice is obeying once, so a death between does no harm.
Rule 2: once it is gone, an empty server is a server that was emptied, and the mark refuses it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rollog.events.durable import write_synced
from rollog.events.errors import CorruptEntry
from rollog.events.log import Head, Log

NAME: Final = "planting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planting:
    """Where the sealed entries end. ``epoch``: of the last of them, or a later one."""

    log_id: str
    offset: int
    digest: str
    epoch: int


def note_planting(run_folder: Path, planting: Planting) -> None:
    """Leave the note."""
    write_synced(run_folder / "log" / NAME, json.dumps(asdict(planting)).encode() + b"\n")


def obey_planting(run_folder: Path, log: Log) -> None:
    """Plant the log if the note asks for it."""
    planting = planting_of(run_folder)
    if planting is not None:
        log.plant(Head(offset=planting.offset, digest=planting.digest), planting.epoch, planting.log_id)
        (run_folder / "log" / NAME).unlink()


def planting_of(run_folder: Path) -> Planting | None:
    """The note that nobody has obeyed yet. Raises ``CorruptEntry`` for a note that is none."""
    note = run_folder / "log" / NAME
    if not note.exists():
        return None
    try:
        return Planting(**json.loads(note.read_text()))
    except (ValueError, TypeError) as error:
        raise CorruptEntry(f"{note} is damaged ({error}): fork or import the run again") from error
