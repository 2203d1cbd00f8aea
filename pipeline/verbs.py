"""What the running verbs say and ask: the words of ``train``, ``resume``, ``stop`` and ``ps``.

Rule 1: ``stop`` and ``ps`` are guests: they see leases and entries and put one wish into the results stream.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from rollog.events import server
from rollog.events.connection import pause
from rollog.events.errors import ServerUnreachable
from rollog.events.log import Desk, Leases, Reader
from rollog.events.messages import StopRequest
from rollog.events.redis_reader import RedisReader
from rollog.events.vocabulary import Finish, FinishReason, StopReason
from rollog.pipeline import plan_file
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.heartbeat import CONTROLLER
from rollog.pipeline.run_folder import EMBEDDED, RUNS, RunFolder
from rollog.pipeline.runner import End, Found, Ready, machine_of
from rollog.pipeline.settings import Sampler
from rollog.replay.projector import fold_all
from rollog.replay.state import Place, State

SHUTDOWN_WITHIN_S: Final = 60.0
"""How long after its Finish a run may take to let its workers go and to end its server."""


class NotRunning(PipelineError):
    """No controller drives this run."""

    exit_code = 3


def parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """``a.b=c`` -> {"a.b": value}, the values read as YAML. Raises ``PlanError``."""
    return dict(plan_file.parse_override(override) for override in overrides)


def resolved(plan: Plan, num_rows: int) -> str:
    """Every setting of the plan and every bound derived from it, as YAML."""
    lines = [f"#   {line}" for line in plan.derived(num_rows).lines()]
    return yaml.safe_dump(plan.settings(), sort_keys=False, allow_unicode=True) + "# derived:\n" + "\n".join(lines)


def headline(ready: Ready) -> str:
    """What is about to run."""
    plan, loader = ready.plan, ready.loader
    where = f"{ready.folder.log}/server.sock (embedded" if plan.log.redis == EMBEDDED else f"{plan.log.redis} (server"
    generators = f"{plan.generation.workers} generator{'s' * (plan.generation.workers > 1)}"
    return (
        f"run {plan.run}   log {where}, {plan.log.durability})   model {plan.model.path}   {generators}, 1 trainer, "
        f"{_sampler(plan.sampler)}\n"
        f"data {loader.source.name} {loader.num_rows:,} prompts x {plan.data.epochs} epochs"
    )


def _sampler(settings: Sampler) -> str:
    match settings.name:
        case "in_order":
            return f"lookahead {settings.lookahead}"
        case "custom":
            return f"sampler {settings.target}"
        case name:
            return f"{name}, max_staleness {settings.max_staleness}"


def complete(state: State, ready: Ready) -> bool:
    """Whether there is nothing to resume: the run came to its end, and nothing about it is changed."""
    return state.finish in (FinishReason.MAX_STEPS, FinishReason.EXHAUSTED) and not ready.changes and not ready.drops


def what_resume_does(found: Found, ready: Ready) -> str:
    """What is kept, sent again and lost, before anything happens."""
    state = found.state
    if state.offset == 0:
        return f"run {ready.plan.run} has not begun yet: it begins now"
    count = state.count
    newest = state.newest_checkpoint()
    lines = [
        f"run {state.run} at entry {state.offset:,}: v{state.version}, "
        f"{'no checkpoint' if newest is None else f'newest checkpoint v{newest}'}"
        + (f", ended: {state.finish.value}" if state.finish else ""),
        f"kept        {state.settled():,} settled prompts, {count(Place.BUFFER)} finished groups, "
        f"{count(Place.SELECTED)} selected, {count(Place.WAITING)} waiting, {count(Place.BACKING_OFF)} backing off",
        f"sent again  {count(Place.IN_FLIGHT)} in flight, unless their workers are alive or their results have arrived",
        "lost        nothing",
    ]
    if state.stopping is not None and state.finish is None:
        lines.append(f"a stop was under way ({state.stopping.reason.value}): it goes on, then resume once more")
    lines += [f"given up    prompt {prompt}" for prompt in ready.drops]
    lines += [f"changed     {path} = {value!r}" for path, value in ready.changes.items()]
    here = machine_of(ready.plan)
    differ = [
        f"{key} {found.machine[key]} -> {here.get(key)}" for key in found.machine if found.machine[key] != here.get(key)
    ]
    if differ and ready.plan.determinism == "pinned":
        lines.append(f"same prompts, other bits: {', '.join(differ)}")
    if state.finish is not None and complete(state, ready):
        lines.append(f"nothing to do: the run is complete ({state.finish.value}). {_what_goes_on(state, ready)}")
    return "\n".join(lines)


def _what_goes_on(state: State, ready: Ready) -> str:
    """What a person can do to train more: a resume may raise the end as far as the data goes, a fork has other data."""
    policy, (step, prompt) = ready.policy, state.slate
    if step + (policy.num_prompts - prompt) // policy.prompts_per_step > policy.max_steps:
        return f"A higher end goes on:  rollog resume {state.run} grpo.max_steps=..."
    more = f"data.epochs={ready.plan.data.epochs + 1}"
    return f"The data has no more steps; a fork goes on with more of it:  rollog fork {state.run} NEW {more}"


def farewell(run: str, end: End) -> str:
    """How the run ended, and what to look at next."""
    state = end.state
    match end.reason:
        case FinishReason.STOPPED:
            again = state.count(Place.IN_FLIGHT)
            return (
                f"{state.count(Place.BUFFER)} finished groups kept, {again} will be sent again on resume.\n"
                f"resume with:  rollog resume {run}"
            )
        case FinishReason.FAILED:
            why = state.stopping.detail if state.stopping is not None else "see rollog log"
            return f"run {run} stopped by itself: {why}\nMend it, then:  rollog resume {run}"
        case _:
            return (
                f"run {run} is complete ({end.reason.value}): v{state.version}, {state.trained:,} groups trained\n"
                f"look at it:  rollog status {run}    rollog log {run} --oneline    rollog verify {run}"
            )


def stop(folder: RunFolder, within_s: float, clock: Callable[[], float]) -> None:
    """Ask for a stop and wait until the run has ended. Raises ``NotRunning``."""
    plan = folder.plan()
    if plan.log.redis == EMBEDDED and not server.is_running(folder.path):
        raise NotRunning(f"run {folder.name} does not run: nobody serves its log")
    with closing(folder.desk(plan)) as desk, _reader(folder, plan) as reader:
        _steered(desk, plan, folder.name)
        seen = reader.head().offset
        desk.report(StopRequest(reason=StopReason.REQUEST, within_s=within_s))
        try:
            while not _finished(reader, seen):
                _steered(desk, plan, folder.name)
                pause()
        except ServerUnreachable:
            if server.is_running(folder.path):
                raise
    deadline = clock() + SHUTDOWN_WITHIN_S
    while plan.log.redis == EMBEDDED and server.is_running(folder.path) and clock() < deadline:
        pause()


def running(runs: Path = RUNS) -> Iterator[str]:
    """One line for each run that a controller drives."""
    for config in sorted(runs.glob("*/config.yaml")):
        folder = RunFolder(config.parent)
        plan = folder.plan()
        if plan.log.redis == EMBEDDED and not server.is_running(folder.path):
            continue
        try:
            with closing(folder.desk(plan)) as desk, _reader(folder, plan) as reader:
                leases = desk.leases()
                if not _fresh(leases, CONTROLLER, plan):
                    continue
                state = fold_all(reader.read())
        except ServerUnreachable:
            continue
        workers = [key.removeprefix("worker:") for key in sorted(leases.by_key) if key.startswith("worker:")]
        fresh = " ".join(name for name in workers if _fresh(leases, f"worker:{name}", plan))
        yield f"{folder.name}  v{state.version}  @{state.offset:,}  in flight {state.count(Place.IN_FLIGHT)}  {fresh}"


@contextmanager
def _reader(folder: RunFolder, plan: Plan) -> Iterator[Reader]:
    with closing(RedisReader(folder.address(plan, "controller"), plan.run)) as reader:
        yield reader


def _steered(desk: Desk, plan: Plan, run: str) -> None:
    if not _fresh(desk.leases(), CONTROLLER, plan):
        raise NotRunning(f"run {run} does not run: no controller has renewed its lease for {plan.flow.lease_s:g} s")


def _fresh(leases: Leases, key: str, plan: Plan) -> bool:
    lease = leases.by_key.get(key)
    return lease is not None and leases.now - lease.refreshed <= plan.flow.lease_s


def _finished(reader: Reader, after: int) -> bool:
    """Whether a Finish stands behind entry ``after``."""
    head = reader.head().offset
    return head > after and any(
        isinstance(event, Finish) for entry in reader.read(after + 1, head) for event in entry.events
    )
