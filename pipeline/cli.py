"""The command ``rollog``: verbs that run something here, verbs that read in ``rollog.replay.cli``.

Rule 1: data on stdout, progress and messages on stderr.
Rule 2: an error that a person can mend is one message and an exit code, never a traceback.
"""

import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from rollog.pipeline import guests, runner, verbs
from rollog.pipeline.config import Plan, load_plan
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.foreground import DRAIN_S, foreground
from rollog.pipeline.log_server import LogServer, check_server
from rollog.pipeline.plan_warnings import warnings
from rollog.pipeline.policy import Policy
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.scaling import register as register_scale
from rollog.pipeline.simulation.verb import register as register_simulate
from rollog.pipeline.time_verbs import register as register_time_verbs
from rollog.replay import cli as reading
from rollog.replay import options
from rollog.replay.exit_codes import mendable
from rollog.replay.output import Format, written

ABOUT: Final = """Asynchronous GRPO on a log: every prompt of every epoch is in exactly one place, at every offset.

train, resume, stop, scale and ps run something; status, log, show, state and verify read."""

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=ABOUT)
reading.register(app)
register_time_verbs(app)
register_simulate(app)
register_scale(app)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings put over the others")]
Drops = Annotated[list[int] | None, typer.Option(help="give this prompt up; can be repeated", metavar="ORDINAL")]
AcceptLoss = Annotated[bool, typer.Option("--accept-loss", help="the log lost entries: go on from it as it is")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")]


@app.command()
@mendable(PipelineError)
def train(config: Path, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Train in the foreground: make runs/NAME and drive it to its end."""
    plan = load_plan(config, overrides or [])
    loader, policy = runner.check(plan)
    _warn(plan, policy)
    if dry_run:
        print(verbs.resolved(plan, loader.num_rows))
        return
    check_server(plan)
    folder = RunFolder.create(plan)
    ready = runner.Ready(folder=folder, plan=plan, loader=loader, policy=policy)
    raise typer.Exit(foreground(ready, LogServer(folder, plan)))


@app.command()
@mendable(PipelineError)
def resume(
    run: str,
    overrides: Overrides = None,
    drop: Drops = None,
    dry_run: DryRun = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Go on with a run: says first what is kept, what is sent again, and that nothing is lost."""
    folder = RunFolder.open(run)
    server = LogServer(folder, folder.plan(), accept_loss=accept_loss)
    goes_on = False
    try:
        found = runner.look(server)
        ready = runner.prepare_resume(folder, server, found.state, verbs.parsed(overrides or []), drop or [])
        print(verbs.what_resume_does(found, ready), file=sys.stderr)
        _warn(ready.plan, ready.policy)
        goes_on = not dry_run and not verbs.complete(found.state, ready)
    finally:
        if not goes_on:
            server.leave()
    if goes_on:
        raise typer.Exit(foreground(ready, server))


@app.command()
@mendable(PipelineError)
def stop(run: str, within_s: Annotated[float, typer.Option(help="let what runs finish for so long")] = DRAIN_S) -> None:
    """Ask a run to drain, checkpoint and end; returns when it has ended. Exit 3 when it does not run."""
    guests.stop(RunFolder.open(run), within_s, time.monotonic)
    print(f"{run} has stopped. Go on with:  rollog resume {run}", file=sys.stderr)


@app.command()
@mendable(PipelineError)
def ps(output: options.Output = Format.TABLE, json: options.Json = False) -> None:
    """The runs under runs/ that have a controller now."""
    format = Format.JSON if json else output
    model = guests.running(lambda text: print(f"warning: {text}", file=sys.stderr))
    options.write(guests.drawn(model) if format is Format.TABLE else written(model, format, rows="runs"))


def _warn(plan: Plan, policy: Policy) -> None:
    for warning in warnings(plan, policy.max_steps):
        print(f"warning: {warning}", file=sys.stderr)


def main() -> None:
    """The entry point of the command."""
    app()
