"""What to do next: ``schedule(state, policy, now, pressure)`` answers with the next entry, or with what it waits for.

The order of the questions is latency; their conditions are safety:

    1. is it over?                    finish, drain what runs, save
    2. can a step take groups?        only while v = filling = standing: evict, judge the floor, select
    3. is there room in flight?       what is due, else what waits
    4. does nothing wait?             complete a partial step, exhaust, divert or admit (admission.py)
    5. is the data at its end?        drain the reserve, take what is left, save, finish

Pure: the clock and the server's memory pressure are parameters; everything else is in the State.
"""

from itertools import islice

from rollog.events.vocabulary import (
    Dispatch,
    Event,
    Evict,
    EvictReason,
    Finish,
    FinishReason,
    Requeue,
    Save,
    SaveReason,
    Select,
    Stop,
    StopReason,
)
from rollog.pipeline import admission
from rollog.pipeline.policy import Policy
from rollog.pipeline.samplers import select
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.state import Group, Place, State

Events = tuple[Event, ...]


def schedule(state: State, policy: Policy, now: float, pressure: bool = False) -> Events | Wait:
    """The next entry, or what there is to wait for, at wall time ``now``."""
    if state.finish is not None:
        return Wait(why=WaitFor.NOTHING)
    if state.stopping is not None:
        return _stop(state, state.stopping.deadline, now)
    settled = state.version == state.filling == state.standing
    if settled:
        if state.version >= policy.max_steps:
            used_up = state.exhausted and not state.groups
            return _end(state, FinishReason.EXHAUSTED if used_up else FinishReason.MAX_STEPS)
        if _checkpoint_due(state, policy):
            return (Save(version=state.version, reason=SaveReason.PERIODIC),)
        chosen = _evict(state, policy) or _fill(state, policy, now)
        if chosen is not None:
            return chosen
    order = _next_order(state, policy, now)
    if isinstance(order, tuple):
        return order
    if state.places[Place.WAITING]:
        return order or Wait(why=WaitFor.RESULTS)
    more = admission.next_batch(state, policy, pressure)
    if isinstance(more, tuple):
        return more
    if state.exhausted and not state.places[Place.IN_FLIGHT] and not state.places[Place.BACKING_OFF]:
        return admission.drain(state, policy, pressure) or _last_steps(state, policy, now, settled)
    return order or more


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
    due = version > 0 and version % policy.save_period == 0
    return due and not state.step(version).chunks and version not in state.saves and version not in state.checkpoints


def _evict(state: State, policy: Policy) -> Events | None:
    """Finished groups that no step to come can take are handed out again, if they may be, or gone."""
    too_old = policy.sampler.too_old(state)
    if not too_old:
        return None
    again = [p for p in too_old if policy.requeues and state.groups[p].requeues < policy.failure.max_requeues]
    gone = [prompt for prompt in too_old if prompt not in again]
    evicted = (Evict(prompts=tuple(gone), reason=EvictReason.STALE),) if gone else ()
    return (*evicted, Requeue(prompts=tuple(again))) if again else evicted


def _fill(state: State, policy: Policy, now: float) -> Events | None:
    """Judge the floor of the step being filled, close it if it has its target, else select what is ready for it."""
    number = state.filling
    step, target = state.step(number), state.target(number)
    if target < policy.floor:
        lost = step.shortfall
        detail = (
            f"step {number} lost {lost} of its {lost + target} groups and {target} are left, below its "
            f"floor of {policy.floor} (failure.min_step_fraction={policy.failure.min_step_fraction})"
        )
        if policy.whole_steps:
            detail = f"step {number} can only have {policy.in_rollouts(target)}, under context compaction it needs all"
        return (Stop(reason=StopReason.FAILED, deadline=now, detail=detail),)
    wanted = target - step.taken
    if wanted == 0:
        return (Select(step=number, chunk=len(step.chunks), prompts=(), last=True),)
    minimum = min(policy.sampler.minimum(state, policy.chunk_minimum), wanted)
    chosen = select(policy.sampler.eligible(state), minimum, wanted)
    if chosen is None:
        return None
    return (Select(step=number, chunk=len(step.chunks), prompts=tuple(chosen), last=len(chosen) == wanted),)


def _next_order(state: State, policy: Policy, now: float) -> Events | Wait | None:
    """The next Dispatch, a Wait that only time or a result ends, or None when nothing is there to send."""
    if state.count(Place.IN_FLIGHT) >= policy.max_inflight:
        return Wait(why=WaitFor.RESULTS)
    may_start = policy.sampler.may_start
    backing_off = [group for group in state.at(Place.BACKING_OFF) if may_start(state, group)]
    ready = [group for group in backing_off if group.not_before <= now]
    ready = ready or [group for group in state.at(Place.WAITING) if may_start(state, group)]
    if ready:
        group = min(ready, key=_step_and_ordinal)
        return (dispatch(state, group.prompt, group.attempt + 1, group.step),)
    due = min((group.not_before for group in backing_off), default=None)
    return None if due is None else Wait(why=WaitFor.BACKOFF, until=due)


def dispatch(state: State, prompt: int, attempt: int, step: int | None) -> Dispatch:
    """The order for an attempt: with the newest weights, or under ``pinned`` with exactly those of step - K."""
    assert state.rules is not None
    weights = state.version
    if state.rules.pinned:
        assert step is not None
        weights = max(0, step - state.rules.lookahead)
    return Dispatch(prompt=prompt, attempt=attempt, step=step, weights=weights)


def _step_and_ordinal(group: Group) -> tuple[int, int]:
    return (-1 if group.step is None else group.step, group.prompt)


def _last_steps(state: State, policy: Policy, now: float, settled: bool) -> Events | Wait:
    """At the end of the data a step takes what is left, if it is begun or reaches its floor; then the end."""
    if not settled:
        return Wait(why=WaitFor.TRAINER)
    number = state.filling
    step, target = state.step(number), state.target(number)
    left = tuple(islice(policy.sampler.rest(state), target - step.taken))
    if policy.whole_steps and step.taken and len(left) < target - step.taken:
        detail = f"step {number} has {policy.in_rollouts(step.taken + len(left))} at the end of the data"
        return (Stop(reason=StopReason.FAILED, deadline=now, detail=detail),)
    if step.taken or len(left) >= policy.floor:
        return (Select(step=number, chunk=len(step.chunks), prompts=left, last=True),)
    return _end(state, FinishReason.EXHAUSTED)
