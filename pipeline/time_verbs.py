"""The verbs about a run's past: ``fork``. (``rollog.pipeline.cli`` puts them into the command.)

Rule 1: the run they begin from is only read.
Rule 2: what was done is said on stderr; nothing is done half.
"""

import sys
from typing import Annotated

import typer

from rollog.pipeline import fork as forks
from rollog.pipeline import verbs
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.run_folder import RunFolder
from rollog.replay import options
from rollog.replay.errors import NoSuchRun
from rollog.replay.exit_codes import mendable
from rollog.replay.opening import Source, find_folder, opened

New = Annotated[str, typer.Argument(metavar="NEW", help="the new run's name")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings put over the recorded")]
Reason = Annotated[str, typer.Option(help="why; it stands in the log")]


def register(app: typer.Typer) -> None:
    """Put them into ``app``."""
    app.command()(fork)


@mendable(PipelineError)
def fork(
    run: options.Run, new: New, overrides: Overrides = None, reason: Reason = "", redis: options.Redis = None
) -> None:
    """A new run that begins with RUN's entries up to REF, under other settings. Exit 1 where none can begin."""
    source = Source(run=run, redis=redis)
    parent = _folder_of(source)
    with opened(source) as timeline:
        offset = timeline.offset(source.moment())
        forked = forks.fork(parent, timeline.log, offset, new, verbs.parsed(overrides or []), reason)
    print("\n".join(forks.lines(forked)), file=sys.stderr)


def _folder_of(source: Source) -> RunFolder:
    name = source.target().run
    folder = find_folder(name)
    if folder is None:
        raise NoSuchRun(f"no folder of a run named {name} is here: its blobs and checkpoints are needed")
    return RunFolder(folder)
