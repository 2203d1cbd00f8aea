"""What ``train`` and ``resume`` say: the plan, what is about to run, what a resume does, how a run ended."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from rollog.events.vocabulary import FinishReason
from rollog.pipeline import plan_file
from rollog.pipeline.config import Plan, without_password
from rollog.pipeline.run_folder import EMBEDDED
from rollog.pipeline.runner import End, Found, Ready, machine_of
from rollog.pipeline.settings import Sampler
from rollog.replay.state import Place, State


def parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """``a.b=c`` -> {"a.b": value}, the values read as YAML. Raises ``PlanError``."""
    return dict(plan_file.parse_override(override) for override in overrides)


def resolved(plan: Plan, num_rows: int) -> str:
    """Every setting of the plan and every bound derived from it, as YAML."""
    lines = [f"#   {line}" for line in plan.derived(num_rows).lines()]
    return yaml.safe_dump(plan.settings(), sort_keys=False, allow_unicode=True) + "# derived:\n" + "\n".join(lines)


def plan_model(plan: Plan, num_rows: int) -> dict[str, Any]:
    """``train --dry-run`` as data: ``{"schema", "settings", "derived"}``."""
    return {"schema": "rollog.plan/1", "settings": plan.settings(), "derived": asdict(plan.derived(num_rows))}


def headline(ready: Ready) -> str:
    """What is about to run."""
    plan, loader = ready.plan, ready.loader
    server = without_password(plan.log.redis)
    where = f"{ready.folder.log}/server.sock (embedded" if server == EMBEDDED else f"{server} (server"
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
    changed = ready.changes or ready.drops or ready.loss is not None
    return state.finish in (FinishReason.MAX_STEPS, FinishReason.EXHAUSTED) and not changed


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
        f"lost        {'nothing' if ready.loss is None else ready.loss}",
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


def resume_model(found: Found, ready: Ready) -> dict[str, Any]:
    """``resume --dry-run`` as data: what is kept, sent again and lost, in prompts; ``offset`` 0: it has not begun."""
    state, count = found.state, found.state.count
    return {
        "schema": "rollog.resume/1",
        "run": ready.plan.run,
        "offset": state.offset,
        "version": state.version,
        "newest_checkpoint": state.newest_checkpoint(),
        "finish": None if state.finish is None else state.finish.value,
        "kept": {
            "settled": state.settled(),
            **{place.value: count(place) for place in Place if place is not Place.IN_FLIGHT},
        },
        "sent_again": count(Place.IN_FLIGHT),
        "lost": None if ready.loss is None else str(ready.loss),
        "given_up": list(ready.drops),
        "changed": dict(ready.changes),
        "complete": complete(state, ready),
    }


def _what_goes_on(state: State, ready: Ready) -> str:
    """What a person can do to train more: a resume may raise the end as far as the data goes, a fork has other data."""
    policy, (step, prompt) = ready.policy, state.slate
    if step + (policy.num_prompts - prompt) // policy.prompts_per_step > policy.max_steps:
        return f"A higher end goes on:  rollog resume {state.run} grpo.max_steps=..."
    more = f"data.epochs={ready.plan.data.epochs + 1}"
    return f"The data has no more steps; a fork goes on with more of it:  rollog fork {state.run} NEW {more}"


def end_model(run: str, end: End) -> dict[str, Any]:
    """How the run ended, as data."""
    state = end.state
    return {
        "schema": "rollog.end/1",
        "run": run,
        "reason": end.reason.value,
        "exit_code": end.exit_code,
        "offset": state.offset,
        "version": state.version,
        "newest_checkpoint": state.newest_checkpoint(),
        "trained": state.trained,
        "dropped": state.dropped,
        "filtered": state.filtered,
        "evicted": state.evicted,
        "in_flight": state.count(Place.IN_FLIGHT),
    }


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
