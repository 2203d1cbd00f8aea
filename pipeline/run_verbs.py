"""The verbs that run something, or visit what runs: ``train``, ``resume``, ``stop``, ``ps``.

Rule 1: what can be refused is refused before anything is written or started.
Rule 2: ``--dry-run`` says what would be done and ends there; a server that was started for it ends with it.
"""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from rollog.pipeline import guests, runner, verbs
from rollog.pipeline.background import detach as in_background
from rollog.pipeline.config import Plan, load_plan, without_password
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.foreground import DRAIN_S, foreground
from rollog.pipeline.log_server import LogServer, check_server, plan_at
from rollog.pipeline.manner import Manner
from rollog.pipeline.plan_warnings import warnings
from rollog.pipeline.policy import Policy
from rollog.pipeline.run_folder import URL_VARIABLE, RunFolder
from rollog.replay import options
from rollog.replay.exit_codes import mendable
from rollog.replay.opening import known_runs
from rollog.replay.output import Format


def _completed(typed: str) -> list[str]:
    return [name for name in known_runs() if name.startswith(typed)]


Name = Annotated[str, typer.Argument(metavar="RUN", help="a run under runs/", autocompletion=_completed)]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="a file of settings")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings put over the others")]
Drops = Annotated[list[int] | None, typer.Option(help="give this prompt up; can be repeated", metavar="ORDINAL")]
AcceptLoss = Annotated[bool, typer.Option("--accept-loss", help="the log lost entries: go on from it as it is")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")]
Detach = Annotated[bool, typer.Option("--detach", help="leave the terminal when the run is under way")]
Launch = Annotated[str | None, typer.Option(metavar="local|ray", help="where workers run: the setting launch")]
Within = Annotated[float, typer.Option(help="let what runs finish for so long")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="say every entry as it lands")]


def register(app: typer.Typer) -> None:
    """Put them into ``app``."""
    for verb in (train, resume, stop, ps):
        app.command()(verb)


@mendable(PipelineError)
def train(
    config: Config,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    launch: Launch = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """Train in the foreground: make runs/NAME and drive it to its end."""
    manner = Manner.of(output, json, quiet, verbose, no_color)
    plan = load_plan(config, [*(overrides or []), *_at(launch), *_server_at(redis)])
    loader, policy = runner.check(plan)
    _warn(plan, policy, manner)
    if dry_run:
        manner.answer(verbs.plan_model(plan, loader.num_rows), [verbs.resolved(plan, loader.num_rows)])
        return
    check_server(plan)
    folder = RunFolder.create(plan)
    if detach:
        raise typer.Exit(in_background(folder, plan, _words(manner), manner))
    ready = runner.Ready(folder=folder, plan=plan, loader=loader, policy=policy)
    raise typer.Exit(foreground(ready, LogServer(folder, plan), manner=manner))


@mendable(PipelineError)
def resume(
    run: Name,
    overrides: Overrides = None,
    drop: Drops = None,
    dry_run: DryRun = False,
    accept_loss: AcceptLoss = False,
    detach: Detach = False,
    launch: Launch = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """Go on with a run: says first what is kept, what is sent again, and that nothing is lost."""
    manner = Manner.of(output, json, quiet, verbose, no_color)
    overrides = [*(overrides or []), *_at(launch), *_server_at(redis)]
    wanted = verbs.parsed(overrides)
    folder = RunFolder.open(run)
    server = LogServer(folder, plan_at(folder.plan(), wanted), accept_loss=accept_loss)
    goes_on = False
    try:
        found = runner.look(server)
        ready = runner.prepare_resume(folder, server, found.state, wanted, drop or [])
        manner.say(verbs.what_resume_does(found, ready))
        _warn(ready.plan, ready.policy, manner)
        stays = dry_run or verbs.complete(found.state, ready)
        goes_on = not stays and not detach
    finally:
        if not goes_on:
            server.leave()
    if stays:
        manner.answer(verbs.resume_model(found, ready))
        return
    if detach:
        drops = [f"--drop={prompt}" for prompt in drop or []]
        loss = ["--accept-loss"] if accept_loss else []
        words = [*_words(manner), *drops, *loss, *overrides]
        raise typer.Exit(in_background(folder, folder.plan(), words, manner))
    raise typer.Exit(foreground(ready, server, manner=manner))


@mendable(PipelineError)
def stop(
    run: Name,
    within_s: Within = DRAIN_S,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Ask a run to drain, checkpoint and end; returns when it has ended. Exit 3 when it does not run."""
    manner = Manner.of(output, json, quiet, verbose)
    _server_at(redis)
    guests.stop(RunFolder.open(run), within_s, time.monotonic, manner.entry)
    manner.say(f"{run} has stopped. Go on with:  rollog resume {run}")
    manner.answer({"schema": "rollog.stop/1", "run": run, "stopped": True})


@mendable(PipelineError)
def ps(output: options.Output = Format.TABLE, json: options.Json = False, quiet: options.Quiet = False) -> None:
    """The runs under runs/ that have a controller now."""
    manner = Manner.of(output, json, quiet, False)
    model = guests.running(lambda text: manner.say(f"warning: {text}"))
    manner.answer(model, guests.drawn(model), rows="runs")


def _at(launch: str | None) -> list[str]:
    """``--launch``, as the setting that it stands for."""
    return [] if launch is None else [f"launch={launch}"]


def _server_at(url: str | None) -> list[str]:
    """``--redis``: the address goes to the workers as the environment's would; the setting that names it."""
    if url is None:
        return []
    os.environ[URL_VARIABLE] = url
    return [f"log.redis={without_password(url)}"]


def _words(manner: Manner) -> list[str]:
    """How the run in the background speaks into its file."""
    return [*(["-v"] if manner.verbose else []), *(["-q"] if manner.quiet else [])]


def _warn(plan: Plan, policy: Policy, manner: Manner) -> None:
    for warning in warnings(plan, policy.max_steps):
        manner.say(f"warning: {warning}")
