"""The command ``rollog``: verbs that run something here, verbs that read in ``rollog.replay.cli``.

Rule 1: data on stdout, progress and messages on stderr.
Rule 2: a signal handler only puts a wish into the mailbox. The second Ctrl-C ends the process.
Rule 3: an error that a person can mend is one message and an exit code, never a traceback.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from rollog.events.errors import (
    CorruptEntry,
    Fenced,
    LogError,
    LostTail,
    MissingEntry,
    ServerRefused,
    ServerUnreachable,
    UnknownEvent,
)
from rollog.events.vocabulary import FinishReason, StopReason
from rollog.pipeline import runner, verbs
from rollog.pipeline.config import load_plan
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.inputs import StopAsked
from rollog.pipeline.log_server import LogServer
from rollog.pipeline.progress import stderr_progress
from rollog.pipeline.run_folder import RunFolder
from rollog.replay import cli as reading

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=__doc__)
reading.register(app)

DRAIN_S = 60.0
"""The first Ctrl-C and ``rollog stop`` let what runs finish for so long."""

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings put over the others")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")]


@app.command()
def train(config: Path, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Train in the foreground: make runs/NAME and drive it to its end."""
    plan = load_plan(config, overrides or [])
    loader, policy = runner.check(plan)
    if dry_run:
        print(verbs.resolved(plan, loader.num_rows))
        return
    folder = RunFolder.create(plan)
    _drive(runner.Ready(folder=folder, plan=plan, loader=loader, policy=policy), LogServer(folder, plan))


@app.command()
def resume(run: str, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Go on with a run: says first what is kept, what is sent again, and that nothing is lost."""
    folder = RunFolder.open(run)
    server = LogServer(folder, folder.plan())
    state = runner.read_state(server)
    ready = runner.prepare_resume(folder, server, state, verbs.parsed(overrides or []))
    print(verbs.what_resume_does(state, ready), file=sys.stderr)
    done = state.finish in (FinishReason.MAX_STEPS, FinishReason.EXHAUSTED) and not ready.changes
    if dry_run or done:
        server.close(shutdown=state.finish is not None)
        return
    _drive(ready, server)


@app.command()
def stop(run: str, within_s: Annotated[float, typer.Option(help="let what runs finish for so long")] = DRAIN_S) -> None:
    """Ask a run to drain, checkpoint and end; returns when it has ended. Exit 3 when it does not run."""
    verbs.stop(RunFolder.open(run), within_s, time.monotonic)
    print(f"{run} has stopped. Go on with:  rollog resume {run}", file=sys.stderr)


@app.command()
def ps() -> None:
    """The runs under runs/ that have a controller now."""
    for line in verbs.running():
        print(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the command."""
    try:
        app(arguments, standalone_mode=False)
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (PipelineError, LogError) as error:
        print(f"rollog: {error}", file=sys.stderr)
        sys.exit(exit_code_of(error))


def exit_code_of(error: PipelineError | LogError) -> int:
    """What the process ends with after this error."""
    match error:
        case PipelineError():
            return error.exit_code
        case ServerUnreachable() | ServerRefused():
            return 4
        case CorruptEntry() | MissingEntry() | LostTail() | UnknownEvent():
            return 5
        case _:
            return 1


def _drive(ready: runner.Ready, server: LogServer) -> None:
    """Drive the run in the foreground, then end with its exit code."""
    progress = stderr_progress(ready.policy.max_steps)
    print(verbs.headline(ready), file=sys.stderr)
    shutdown = True
    try:
        with _signals() as listen:
            end = runner.drive(ready, server, progress, time.time, listen)
            server.seal()
    except Fenced:
        shutdown = False  # it is another controller's now
        raise
    finally:
        progress.close()
        server.close(shutdown=shutdown)
    print(verbs.farewell(ready.plan.run, end), file=sys.stderr)
    raise typer.Exit(end.exit_code)


Ask = Callable[[StopAsked], None]


@contextmanager
def _signals() -> Iterator[Callable[[Ask], None]]:
    """Signals become wishes while the run is driven; gives what tells us where to put them."""
    wishes: list[Ask] = []
    interrupts = 0

    def listen(ask: Ask) -> None:
        wishes.append(ask)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1 or not wishes:
            raise KeyboardInterrupt
        wishes[-1](StopAsked(reason=StopReason.INTERRUPT, within_s=DRAIN_S))

    def terminate(number: int, frame: FrameType | None) -> None:
        if not wishes:
            raise KeyboardInterrupt
        wishes[-1](StopAsked(reason=StopReason.TERMINATE, within_s=0.0))

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate, signal.SIGUSR1: terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
