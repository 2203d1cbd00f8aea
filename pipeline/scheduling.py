"""What to do next: ``schedule(state, policy, now, pressure)`` answers with the next entry, or with what it waits for.

The order of the questions is latency; their conditions are safety:

    1. is it over?                    finish, drain, save
    2. can a step take groups?        only while v = filling = standing
    3. is there room in flight?       what is due, else what waits
    4. does nothing wait?             exhaust, or admit the next batch
    5. is the data at its end?        save, finish

Pure: the clock and the server's memory pressure are parameters; everything else is in the State.
"""

from dataclasses import dataclass
from enum import StrEnum

from rollog.events.vocabulary import (
    Admit,
    Dispatch,
    Event,
    Exhaust,
    Finish,
    FinishReason,
    Save,
    SaveReason,
    Select,
    Stamp,
    Stop,
    StopReason,
)
from rollog.pipeline.policy import Policy
from rollog.pipeline.samplers import select
from rollog.replay.state import Group, Place, State

Events = tuple[Event, ...]


class WaitFor(StrEnum):
    """What ends a wait."""

    NOTHING = "nothing"
    """The run is finished."""
    RESULTS = "results"
    """A generator's result: Commit, Retry or Drop."""
    TRAINER = "trainer"
    """The trainer's next step: Train."""
    CHECKPOINT = "checkpoint"
    """The trainer's checkpoint: Checkpoint."""
    BACKOFF = "backoff"
    """The time at which a failed prompt may be tried again."""
    GATE = "gate"
    """A version more: Train."""
    CAPACITY = "capacity"
    """A selection that frees room in the buffer: Select."""
    MEMORY = "memory"
    """The server's memory: results that are trimmed, an archive."""
    DRAIN = "drain"
    """What runs while the run stops: results, or the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing can be decided now. ``until``: wall time at which time alone changes that."""

    why: WaitFor
    until: float | None = None


def schedule(state: State, policy: Policy, now: float, pressure: bool = False) -> Events | Wait:
    """The next entry, or what there is to wait for, at wall time ``now``."""
    if state.finish is not None:
        return Wait(why=WaitFor.NOTHING)
    if state.stopping is not None:
        return _stop(state, state.stopping.deadline, now)
    settled = state.version == state.filling == state.standing
    if settled:
        if state.version >= policy.max_steps:
            return _end(state, FinishReason.EXHAUSTED if _all_done(state) else FinishReason.MAX_STEPS)
        if _checkpoint_due(state, policy):
            return (Save(version=state.version, reason=SaveReason.PERIODIC),)
        chosen = _fill(state, policy, now)
        if chosen is not None:
            return chosen
    order = _next_order(state, policy, now)
    if isinstance(order, tuple):
        return order
    if not state.places[Place.WAITING]:
        more = _next_batch(state, policy, pressure)
        if isinstance(more, tuple):
            return more
        if settled and _all_done(state):
            return _end(state, FinishReason.EXHAUSTED)
        if order is None:
            return more
    return order or Wait(why=WaitFor.RESULTS)


def _stop(state: State, deadline: float, now: float) -> Events | Wait:
    """Let what runs finish until the deadline, train what is selected, make it durable, finish."""
    if state.places[Place.IN_FLIGHT] and now < deadline:
        return Wait(why=WaitFor.DRAIN, until=deadline)
    if state.filling > state.version or state.standing < state.version:
        return Wait(why=WaitFor.TRAINER)
    assert state.stopping is not None
    failed = state.stopping.reason is StopReason.FAILED
    return _end(state, FinishReason.FAILED if failed else FinishReason.STOPPED)


def _end(state: State, reason: FinishReason) -> Events | Wait:
    """Finish, once everything trained is durable."""
    version = state.version
    if version > 0 and state.newest_checkpoint() != version:
        if version in state.saves:
            return Wait(why=WaitFor.CHECKPOINT)
        stopped = reason in (FinishReason.STOPPED, FinishReason.FAILED)
        return (Save(version=version, reason=SaveReason.STOP if stopped else SaveReason.END),)
    return (Finish(reason=reason, left=tuple(sorted(state.groups))),)


def _checkpoint_due(state: State, policy: Policy) -> bool:
    """Before the first selection of a step whose number is a multiple of the period."""
    version = state.version
    begun = version in state.steps and state.steps[version].chunks
    due = version > 0 and version % policy.save_period == 0
    return due and not begun and version not in state.saves and version not in state.checkpoints


def _fill(state: State, policy: Policy, now: float) -> Events | None:
    """Judge the floor of the step being filled, close it if it has its target, else select what is ready for it."""
    number = state.filling
    step, target = state.step(number), state.target(number)
    floor = policy.floor
    if target < floor:
        lost = step.shortfall
        detail = (
            f"step {number} lost {lost} of its {lost + target} groups and {target} are left, below its "
            f"floor of {floor} (failure.min_step_fraction={policy.failure.min_step_fraction})"
        )
        return (Stop(reason=StopReason.FAILED, deadline=now, detail=detail),)
    wanted = target - step.taken
    if wanted == 0:
        return (Select(step=number, chunk=len(step.chunks), prompts=(), last=True),)
    chosen = select(policy.sampler.eligible(state), min(policy.chunk_minimum, wanted), wanted)
    if chosen is None:
        return None
    prompts = tuple(group.prompt for group in chosen)
    return (Select(step=number, chunk=len(step.chunks), prompts=prompts, last=len(prompts) == wanted),)


def _next_order(state: State, policy: Policy, now: float) -> Events | Wait | None:
    """The next Dispatch, a Wait that only time or a result ends, or None when nothing is there to send."""
    backing_off = state.at(Place.BACKING_OFF)
    may_start = policy.sampler.may_start
    waits = [group for group in backing_off if may_start(state, group)]
    if state.count(Place.IN_FLIGHT) < policy.max_inflight:
        ready = [group for group in waits if group.not_before <= now]
        if not ready:
            ready = [group for group in state.at(Place.WAITING) if may_start(state, group)]
        if ready:
            return (_dispatch(state, min(ready, key=_step_and_ordinal)),)
        due = min((group.not_before for group in waits), default=None)
        return None if due is None else Wait(why=WaitFor.BACKOFF, until=due)
    return Wait(why=WaitFor.RESULTS)


def _dispatch(state: State, group: Group) -> Dispatch:
    assert state.rules is not None
    weights = state.version
    if state.rules.pinned:
        assert group.step is not None
        weights = max(0, group.step - state.rules.lookahead)
    return Dispatch(prompt=group.prompt, attempt=group.attempt + 1, step=group.step, weights=weights)


def _step_and_ordinal(group: Group) -> tuple[int, int]:
    return (-1 if group.step is None else group.step, group.prompt)


def _next_batch(state: State, policy: Policy, pressure: bool) -> Events | Wait:
    """Say once that the data is at its end, or admit the next batch if gate and capacity allow."""
    size = policy.prompts_per_step
    left = policy.num_prompts - state.handed_out
    if left < size:
        return Wait(why=WaitFor.RESULTS) if state.exhausted else (Exhaust(left=left),)
    if pressure:
        return Wait(why=WaitFor.MEMORY)
    stamp = policy.sampler.stamp(state)
    if stamp is not None and stamp >= policy.max_steps:
        return Wait(why=WaitFor.RESULTS)
    if not policy.sampler.gate_open(state):
        return Wait(why=WaitFor.GATE)
    if state.num_open() + size > policy.capacity:
        return Wait(why=WaitFor.CAPACITY)
    prompts = tuple(range(state.handed_out, state.handed_out + size))
    admit = Admit(
        batch=state.cursor + 1, prompts=prompts, rows=tuple(policy.rows.row_index(prompt) for prompt in prompts)
    )
    return (admit,) if stamp is None else (admit, Stamp(prompts=prompts, step=stamp))


def _all_done(state: State) -> bool:
    """The data is at its end and nothing is open: what is left can be in no step."""
    return state.exhausted and state.num_open() == 0 and not state.places[Place.SELECTED]
