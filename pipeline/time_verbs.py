"""The verbs about a run's past: ``fork``, ``archive``, ``import``, ``gc``. (``rollog.pipeline.cli`` has them all.)

Rule 1: the run they begin from is only read; ``gc`` alone deletes, and only what nothing needs.
Rule 2: what was done is said on stderr; nothing is done half.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from rollog.events.reading import log_id_of
from rollog.pipeline import exchange, sweeping, verbs
from rollog.pipeline import fork as forks
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.waiting_results import waiting_files
from rollog.replay import options, snapshots
from rollog.replay.errors import NoSuchRun
from rollog.replay.exit_codes import mendable
from rollog.replay.opening import Source, find_folder, opened

New = Annotated[str, typer.Argument(metavar="NEW", help="the new run's name")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings put over the recorded")]
Reason = Annotated[str, typer.Option(help="why; it stands in the log")]
Into = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="the file to write")]
WithBlobs = Annotated[bool, typer.Option("--blobs", help="also the finished groups that a resume needs")]
WithCheckpoints = Annotated[bool, typer.Option("--checkpoints", help="also the checkpoints and published weights")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="another name: a fork at its head")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="list what would be deleted, and delete nothing")]
Grace = Annotated[float, typer.Option(help="spare what is younger, in seconds")]


def register(app: typer.Typer) -> None:
    """Put them into ``app``."""
    app.command()(fork)
    app.command()(archive)
    app.command(name="import")(import_)
    app.command()(gc)


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


@mendable(PipelineError)
def archive(
    run: options.Run,
    output: Into,
    blobs: WithBlobs = False,
    checkpoints: WithCheckpoints = False,
    redis: options.Redis = None,
) -> None:
    """The run up to its head in one file: read it with --log FILE, or take it back with rollog import."""
    source = Source(run=run, redis=redis)
    folder = _folder_of(source)
    with opened(source) as timeline:
        found = exchange.archive_run(folder, timeline.log, output, with_blobs=blobs, with_checkpoints=checkpoints)
    size = sum(size for size, _ in found.files.values())
    print(
        f"{output}: {found.head.offset:,} entries of {found.run}, {len(found.files)} files, {size:,} bytes",
        file=sys.stderr,
    )


@mendable(PipelineError)
def import_(file: Path, name: Name = None) -> None:
    """A run out of a file that rollog archive has written."""
    made = exchange.import_run(file, name)
    then = (
        f"go on with:  rollog resume {made.state.run}"
        if made.resumable
        else "it can be read; a resume needs what archive --blobs --checkpoints takes along"
    )
    print(f"run {made.state.run} imported up to entry {made.state.offset:,}; {then}", file=sys.stderr)


@mendable(PipelineError)
def gc(run: options.Run, dry_run: DryRun = False, grace_s: Grace = sweeping.GRACE_S) -> None:
    """Delete blobs, weights, checkpoints and halves of files that nothing needs any more."""
    source = Source(run=run)
    folder = _folder_of(source)
    there = sweeping.listing(folder)
    reported = waiting_files(folder, folder.plan())
    with opened(source) as timeline:
        state = snapshots.at(folder.snapshots, timeline.log, timeline.log.head().offset)
        log_id = log_id_of(timeline.log)
    found = list(sweeping.leftovers(folder, there, state, reported, log_id, time.time(), grace_s))
    if not dry_run:
        found = sweeping.sweep(found, time.time, grace_s)
    for each in found:
        print(f"{each.kind.value:<10}  {each.num_bytes:>12,}  {each.path}")
    total = sum(each.num_bytes for each in found)
    print(f"{len(found)} {'would be ' if dry_run else ''}deleted, {total:,} bytes", file=sys.stderr)


def _folder_of(source: Source) -> RunFolder:
    name = source.target().run
    folder = find_folder(name)
    if folder is None:
        raise NoSuchRun(f"no folder of a run named {name} is here: its blobs and checkpoints are needed")
    return RunFolder(folder)
