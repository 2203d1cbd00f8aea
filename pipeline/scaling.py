"""The verb ``scale``: another number of generators while the run goes on.

Rule 1: a guest's wish is a message; the controller's entry answers it, and that entry is what is waited for.
Rule 2: nobody is ended for it: see ``fleet``.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Final

import typer

from rollog.events.connection import pause
from rollog.events.log import Reader
from rollog.events.messages import ScaleRequest
from rollog.events.vocabulary import Configure, Late
from rollog.pipeline import fleet, guests, verbs
from rollog.pipeline.errors import PipelineError, PlanError
from rollog.pipeline.run_folder import RunFolder
from rollog.replay import snapshots
from rollog.replay.exit_codes import mendable

ROLE: Final = "generators"
Size = Annotated[list[str], typer.Argument(metavar="generators=N", help="how many there are to be")]


def register(app: typer.Typer) -> None:
    """Put the verb into ``app``."""
    app.command()(scale)


@mendable(PipelineError)
def scale(run: str, size: Size) -> None:
    """Change the number of generators of a running run. Exit 3 when it does not run."""
    wanted = parsed(size)
    before = ask(RunFolder.open(run), wanted)
    if before == wanted:
        said = f"{run} has {wanted} generators already"
    elif before < wanted:
        said = f"{run} gets {', '.join(map(fleet.name_of, range(before, wanted)))}, {wanted} generators in all"
    else:
        leaving = ", ".join(map(fleet.name_of, range(wanted, before)))
        said = f"{run} keeps {wanted} of {before} generators: {leaving} finish what they hold, and leave"
    print(said, file=sys.stderr)


def parsed(words: Sequence[str]) -> int:
    """``generators=4`` -> 4. Raises ``PlanError``."""
    match verbs.parsed(words):
        case {"generators": int(number), **rest} if not rest and 1 <= number <= fleet.MAX_GENERATORS:
            return number
        case given:
            shown = " ".join(f"{name}={value!r}" for name, value in given.items())
            raise PlanError(
                f"{shown or 'nothing'}: write {ROLE}=N, with N from 1 to {fleet.MAX_GENERATORS:,}. Other settings are "
                f"changed by a resume."
            )


def ask(folder: RunFolder, wanted: int) -> int:
    """Ask the controller for so many generators and wait for its entry; returns how many there were before.

    Raises ``NotRunning``, ``PlanError`` when the run is stopping.
    """
    plan = folder.plan()
    guests.served(folder, plan)
    with closing(folder.desk(plan)) as desk, guests.reader_of(folder, plan) as reader:
        guests.steered(desk, plan, folder.name)
        state = snapshots.at(folder.snapshots, reader, reader.head().offset)
        before = fleet.size_of(state)
        if before == wanted:
            return before
        desk.report(ScaleRequest(generators=wanted))
        while (answer := answered(reader, state.offset, wanted)) is None:
            guests.steered(desk, plan, folder.name)
            pause()
    if not answer:
        raise PlanError(f"run {folder.name} is stopping or has just been scaled by somebody else: ask again")
    return before


def answered(reader: Reader, after: int, wanted: int) -> bool | None:
    """Whether the size was changed behind entry ``after``; None while nobody has answered."""
    head = reader.head().offset
    for entry in reader.read(after + 1, head) if head > after else ():
        match entry.events:
            case (Configure(changes=changes),) if changes.get(fleet.SETTING) == wanted:
                return True
            case (Late(what="scale"),):
                return False
            case _:
                pass
    return None
