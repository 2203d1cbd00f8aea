"""What ``rollog status`` says, as one plain model: the screen and the JSON are two views of it.

Every total stands beside its parts, so that a reader can add up in every direction:

    handed out = places + settled        attempts sent = finished + failed + lost + given up + cancelled + in flight
    tokens generated = trained + held + wasted
"""

from typing import Any, Final

from rollog.events.vocabulary import FinishReason, Role
from rollog.replay.difference import SETTLEMENTS
from rollog.replay.plain import to_plain
from rollog.replay.state import OPEN_PLACES, Place, State
from rollog.replay.tally import Tally, held_tokens

SCHEMA: Final = "rollog.status/1"


def status(state: State, tally: Tally) -> dict[str, Any]:
    """One screen of state, plain values only. Counts are groups or prompts unless the name says else."""
    rules = state.rules
    return {
        "schema": SCHEMA,
        "run": state.run,
        "offset": state.offset,
        "epoch": state.epoch,
        "time": tally.time,
        "seconds": round(tally.time - tally.began, 3),
        "condition": condition(state, tally),
        "stalled": tally.stalled,
        "rules": None if rules is None else to_plain(rules),
        "settings": state.settings,
        "version": state.version,
        "standing": state.standing,
        "generation": state.generation,
        "handed_out": state.handed_out,
        "num_rows": state.num_rows,
        "exhausted": state.exhausted,
        "places": {place.value: state.count(place) for place in Place},
        "settled": {name: getattr(state, name) for name in SETTLEMENTS},
        "steps": _open_steps(state),
        "recent": [to_plain(each) for each in tally.recent],
        "cursor": state.cursor,
        "frontier": state.frontier(),
        "settled_beyond_frontier": _settled_beyond(state),
        "durable_frontier": state.durable_frontier(),
        "workers": {name: to_plain(worker) for name, worker in state.workers.items()},
        "published": sorted(state.published),
        "budgets": {
            "skipped": state.skipped,
            "consecutive_drops": state.consecutive_drops,
            "infra_failures": sum(group.infra_failures for group in state.groups.values()),
            "data_failures": sum(group.data_failures for group in state.groups.values()),
            "lost_attempts": sum(group.lost_attempts for group in state.groups.values()),
        },
        "loans": {
            "made": state.loans_made,
            "repaid": state.loans_repaid,
            "forgiven": state.loans_forgiven,
            "open": len(state.loans),
        },
        "checkpoints": {str(version): saved.manifest for version, saved in sorted(state.checkpoints.items())},
        "checkpoints_ordered": sorted(version for version in state.saves if version not in state.checkpoints),
        "attempts": {
            "sent": tally.sent,
            "finished": tally.finished,
            "failed": tally.failed,
            "lost": tally.lost,
            "given_up": tally.given_up,
            "cancelled": tally.cancelled,
            "in_flight": state.count(Place.IN_FLIGHT),
        },
        "tokens": {
            "generated": tally.tokens_generated,
            "trained": tally.tokens_trained,
            "held": held_tokens(state),
            "wasted": tally.tokens_wasted,
            "stale": tally.stale_tokens,
            "equal_rewards": tally.filtered_tokens,
        },
        "late_results": tally.late,
        "steps_trained_again": tally.retrained,
    }


def condition(state: State, tally: Tally) -> str:
    """One word or two for where the run is in its life."""
    if state.offset == 0:
        return "empty"
    if state.finish is not None:
        stopped = state.finish in (FinishReason.STOPPED, FinishReason.FAILED)
        return f"{state.finish.value}, resumable" if stopped else f"finished ({state.finish.value})"
    if state.stopping is not None:
        return f"stopping ({state.stopping.reason.value})"
    return "stalled" if tally.stalled else "unfinished"


def _open_steps(state: State) -> list[dict[str, Any]]:
    """The steps from the version to the last that something is meant for, with what each still waits for."""
    meant: dict[int, dict[Place, int]] = {}
    for group in state.groups.values():
        if group.step is not None and group.place is not Place.RESERVE:
            places = meant.setdefault(group.step, dict.fromkeys(Place, 0))
            places[group.place] += 1
    last = max((number for number in (*meant, *state.steps) if number >= state.version), default=state.version - 1)
    if state.rules is None:
        return []
    return [
        {
            "step": number,
            "target": state.target(number),
            "short": state.step(number).shortfall,
            "closed": state.step(number).closed,
            "selected": state.step(number).taken,
            **{place.value: meant.get(number, {}).get(place, 0) for place in OPEN_PLACES},
        }
        for number in range(state.version, last + 1)
    ]


def _settled_beyond(state: State) -> int:
    """Ordinals above the frontier that are settled already."""
    frontier = state.frontier()
    return state.handed_out - frontier - sum(prompt >= frontier for prompt in state.groups)


def stalled(model: dict[str, Any]) -> bool:
    """Whether the run is stalled: the exit code of ``rollog status``."""
    return bool(model["condition"] == "stalled")


def workers_of(model: dict[str, Any], role: Role) -> list[tuple[str, int | None]]:
    """(name, version it runs) of the workers with this role."""
    return [(name, each["version"]) for name, each in model["workers"].items() if each["role"] == role.value]
