"""``rollog simulate``: the real controller and a real log, scripted workers, a virtual clock, no GPU.

Rule 1: with a plan it plays one run of it and prints where every prompt of every epoch is; the same seed prints the
        same.
Rule 2: with ``--histories`` it plays random runs, each with settings of its own, and names the first that breaks a
        promise, made smaller as far as it still does.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import FinishReason
from rollog.pipeline.config import Plan, apply_changes, load_plan
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.loader import Loader
from rollog.pipeline.plan_file import parse_override
from rollog.pipeline.simulate import Outcome, Script, simulate
from rollog.pipeline.simulation.blocks import Block, garbage_kept, how_it_fails, play_blocks
from rollog.pipeline.simulation.histories import draw, small_plan
from rollog.pipeline.simulation.real_server import real_server
from rollog.pipeline.simulation.shrinking import described, shrink
from rollog.pipeline.simulation.world import START_S, MakeServer
from rollog.replay import options
from rollog.replay.conservation import Conservation, table
from rollog.replay.exit_codes import NO, mendable
from rollog.replay.output import Format, written

SCHEMA: Final = "rollog.simulate/1"
HISTORIES_SCHEMA: Final = "rollog.histories/1"
SMALL_ROWS: Final = 200
JOBS: Final = os.cpu_count() or 1


def share(text: str | float) -> float:
    """``5%`` or ``0.05`` as a probability."""
    written_as = str(text)
    try:
        number = float(written_as.removesuffix("%")) / (100 if written_as.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise typer.BadParameter(f"{written_as!r} is no share: write 5% or 0.05")
    return number


def _rate(flag: str, help: str) -> Any:
    return typer.Option(flag, parser=share, metavar="SHARE", help=help)


Config = Annotated[str | None, typer.Argument(help="settings; without: a small plan")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings put over the others")]
Failures = Annotated[float, _rate("--failures", "attempts that fail with the machinery")]
DataFailures = Annotated[float, _rate("--data-failures", "prompts whose reward fails at first")]
Equal = Annotated[float, _rate("--equal-rewards", "prompts whose rewards are all equal")]
Slow = Annotated[float, _rate("--slow", "attempts in the slow tail")]
SlowS = Annotated[float, typer.Option(help="seconds that an attempt in the tail takes")]
Hangs = Annotated[float, _rate("--hangs", "attempts that never answer")]
DeadWorkers = Annotated[float, _rate("--dead-workers", "chance of each worker to die, per second")]
Deaths = Annotated[float, _rate("--deaths", "chance of the controller to die, per call of the log")]
Generators = Annotated[int, typer.Option(min=1, help="scripted generators")]
Steps = Annotated[int | None, typer.Option(min=1, help="optimizer steps; grpo.max_steps")]
Rows = Annotated[int | None, typer.Option(min=1, help="rows of a data set that need not exist")]
Seed = Annotated[int, typer.Option(min=0, help="of the world; of the first history")]
Redis = Annotated[str, typer.Option(metavar="memory|embedded|URL", help="which log")]
Histories = Annotated[int | None, typer.Option(min=1, help="play so many random histories instead")]
Audited = Annotated[bool, typer.Option("--audit/--no-audit", help="check every law at every offset")]
Jobs = Annotated[int, typer.Option(min=1, help="processes that play histories")]


@mendable(PipelineError)
def simulate_verb(
    config: Config = None,
    overrides: Overrides = None,
    failures: Failures = 0.0,
    data_failures: DataFailures = 0.0,
    equal_rewards: Equal = 0.0,
    slow: Slow = 0.0,
    slow_s: SlowS = 60.0,
    hangs: Hangs = 0.0,
    dead_workers: DeadWorkers = 0.0,
    deaths: Deaths = 0.0,
    generators: Generators = 2,
    steps: Steps = None,
    rows: Rows = None,
    seed: Seed = 0,
    redis: Redis = "memory",
    audit: Audited = True,
    histories: Histories = None,
    jobs: Jobs = JOBS,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
) -> None:
    """The real controller with scripted workers and a virtual clock: where would every prompt end?"""
    format = Format.JSON if json else output
    if config is not None and "=" in config:
        overrides = [config, *(overrides or [])]
        config = None
    if histories is not None:
        if config is not None or overrides or redis != "memory":
            raise typer.BadParameter("histories draw their own settings, on the log in memory: leave the others out")
        _play_histories(seed, histories, jobs, format)
        return
    plan, num_rows = _plan(config, [*(overrides or []), *([] if steps is None else [f"grpo.max_steps={steps}"])], rows)
    script = Script(
        seed=seed,
        generators=generators,
        slow_rate=slow,
        slow_s=slow_s,
        hang_rate=hangs,
        infra_rate=failures,
        data_rate=data_failures,
        equal_rate=equal_rewards,
        controller_death_rate=deaths,
        generator_deaths_per_s=dead_workers,
        trainer_deaths_per_s=dead_workers,
    )
    with _server(redis, plan.run) as make_server, garbage_kept():
        began = time.process_time()
        outcome = simulate(plan, num_rows, script, make_server=make_server, audited=audit)
        took_s = time.process_time() - began
        book = Conservation()
        for entry in outcome.world.server.log().read():
            book.follow(entry)
    model = _model(plan, outcome, book.rows(outcome.state, plan.data.epochs), audit)
    options.write(_screen(model) if format is Format.TABLE else written(model, format, "epochs"))
    print(f"{outcome.state.version / max(took_s, 1e-9):,.0f} steps/s", file=sys.stderr)
    if outcome.state.finish is FinishReason.FAILED or any(row["unaccounted"] for row in model["epochs"]):
        raise typer.Exit(NO)


def _plan(config: str | None, overrides: list[str], rows: int | None) -> tuple[Plan, int]:
    """The plan, and the rows of its data set, which is opened only if nobody says how many there are."""
    if config is None:
        changes = dict(map(parse_override, overrides))
        return Plan.from_settings(apply_changes(small_plan().settings(), changes)), rows or SMALL_ROWS
    plan = load_plan(config, overrides)
    return plan, rows or Loader.open(plan.data, seed=plan.seed, prompts_per_step=plan.grpo.prompts_per_step).num_rows


@contextmanager
def _server(redis: str, run: str) -> Iterator[MakeServer]:
    if redis == "memory":
        yield MemoryServer
        return
    with real_server(redis, run) as make:
        yield make("play")


def _model(plan: Plan, outcome: Outcome, epochs: list[dict[str, int]], audited: bool) -> dict[str, Any]:
    state, world = outcome.state, outcome.world
    assert state.finish is not None
    return {
        "schema": SCHEMA,
        "run": plan.run,
        "seed": world.script.seed,
        "finish": state.finish.value,
        "why": state.stopping.detail if state.stopping is not None else "",
        "steps": state.version,
        "entries": state.offset,
        "digest": state.digest,
        "virtual_s": round(world.now - START_S, 1),
        "max_staleness": outcome.audit.max_staleness if audited else None,
        "controller_deaths": outcome.deaths,
        "stalls": outcome.stalls,
        "loans": {"made": state.loans_made, "repaid": state.loans_repaid, "forgiven": state.loans_forgiven},
        "epochs": epochs,
    }


def _screen(model: dict[str, Any]) -> Iterator[str]:
    yield from table(model["epochs"])
    loans = model["loans"]
    yield ""
    yield (
        f"{model['finish']} after {model['steps']:,} steps, {model['entries']:,} entries and {model['virtual_s']:,.0f} "
        f"virtual seconds"
    )
    if model["max_staleness"] is not None:
        yield f"every law held at every offset; the oldest group trained was {model['max_staleness']} versions old"
    yield (
        f"loans {loans['made']} made = {loans['repaid']} repaid"
        f" + {loans['forgiven']} forgiven + {loans['made'] - loans['repaid'] - loans['forgiven']} open; "
        f"controller died {model['controller_deaths']} times; {model['stalls']} stalls"
    )
    if model["why"]:
        yield f"stopped by itself: {model['why']}"


def _play_histories(first: int, count: int, jobs: int, format: Format) -> None:
    """Play them, say how far it is, and name the first that fails."""
    began, total = time.monotonic(), Block()
    for block in play_blocks(first, count, jobs):
        total += block
        print(f"\r{total.histories:,} of {count:,} histories", end="", file=sys.stderr, flush=True)
    took_s = time.monotonic() - began
    print(f"\r{total.histories:,} histories in {took_s:,.1f} s, {total.histories / took_s:,.1f}/s", file=sys.stderr)
    model = {
        "schema": HISTORIES_SCHEMA,
        "first": first,
        "histories": total.histories,
        "controller_deaths": total.deaths,
        "stalls": total.stalls,
        "steps": total.steps,
        "entries": total.entries,
        "failed": total.failed,
        "how": total.how,
    }
    if format is not Format.TABLE:
        options.write(written(model, format))
    else:
        print(
            f"{total.histories:,} histories, {total.steps:,} steps, {total.entries:,} entries, {total.deaths:,} deaths "
            f"of the controller, {total.stalls:,} stalls: {'no promise broken' if total.failed is None else 'FAILED'}"
        )
    if total.failed is None:
        return
    print(f"seed {total.failed}: {total.how}", file=sys.stderr)
    smallest, how = shrink(draw(total.failed), how_it_fails)
    print(f"smallest found: {how}", *described(smallest), sep="\n  ", file=sys.stderr)
    raise typer.Exit(NO)


def register(app: typer.Typer) -> None:
    """Put the verb into ``app``."""
    app.command(name="simulate")(simulate_verb)
