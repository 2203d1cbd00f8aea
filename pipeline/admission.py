"""How prompts leave the loader: whole batches through the gate, or past it into the reserve.

Rule 1: a batch is diverted before it would be admitted, never after: an admitted batch of which nothing is dispatched
        would leave a step that no group is ever made for.
Rule 2: diverting needs neither gate nor capacity; admitting needs both. Under memory pressure there is neither.
Rule 3: one batch may be smaller: the one that completes a step which a change of sampler left partial. It passes no
        gate, because its step is admitted already.
Rule 4: at the end of the data spares serve too, in whole batches (or for rule 3).
"""

from rollog.events.vocabulary import Admit, Divert, Event, Exhaust, Stamp
from rollog.pipeline.policy import Policy
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.state import Place, State

Events = tuple[Event, ...]

COMING = (Place.WAITING, Place.IN_FLIGHT, Place.BACKING_OFF)
"""Where a prompt is that is meant for a step and not finished."""


def next_batch(state: State, policy: Policy, pressure: bool) -> Events | Wait:
    """Complete a partial step, say once that the data is at its end, or divert or admit the next batch."""
    size = policy.prompts_per_step
    left = policy.num_prompts - state.handed_out
    missing = _missing(state, policy)
    if missing and not pressure:
        fresh = min(missing, left)
        spares = list(state.places[Place.RESERVE])[: missing - fresh] if left < size else []
        prompts = (*range(state.handed_out, state.handed_out + fresh), *spares)
        if prompts:
            return _admit(policy, state.cursor, prompts, state.cursor)
    if left < size:
        return Wait(why=WaitFor.RESULTS) if state.exhausted else (Exhaust(left=left),)
    if pressure:
        return Wait(why=WaitFor.MEMORY)
    prompts = tuple(range(state.handed_out, state.handed_out + size))
    if policy.replaces and state.stamps_made and state.count(Place.RESERVE) < policy.failure.reserve_prompts:
        return (Divert(prompts=prompts, rows=_rows(policy, prompts)),)
    return _closed(state, policy) or _admit(policy, state.cursor + 1, prompts, _stamp(state, policy))


def drain(state: State, policy: Policy, pressure: bool) -> Events | Wait | None:
    """At the end of the data N spares are admitted as a batch; None when there are fewer or the gate is closed."""
    size = policy.prompts_per_step
    spares = tuple(state.places[Place.RESERVE])[:size]
    if len(spares) < size or _closed(state, policy) is not None:
        return None
    if pressure:
        return Wait(why=WaitFor.MEMORY)
    return _admit(policy, state.cursor + 1, spares, _stamp(state, policy))


def _closed(state: State, policy: Policy) -> Wait | None:
    """What a whole batch waits for, if anything."""
    stamp = _stamp(state, policy)
    if stamp is not None and stamp >= policy.max_steps:
        return Wait(why=WaitFor.RESULTS)
    if not policy.sampler.gate_open(state):
        return Wait(why=WaitFor.GATE)
    if state.num_open() + policy.prompts_per_step > policy.capacity:
        return Wait(why=WaitFor.CAPACITY)
    return None


def _admit(policy: Policy, batch: int, prompts: tuple[int, ...], stamp: int | None) -> Events:
    admit = Admit(batch=batch, prompts=prompts, rows=_rows(policy, prompts))
    return (admit,) if stamp is None else (admit, Stamp(prompts=prompts, step=stamp))


def _stamp(state: State, policy: Policy) -> int | None:
    """The step that the next batch is meant for: a stamp is a batch's number."""
    return state.cursor + 1 if policy.sampler.stamps else None


def _rows(policy: Policy, prompts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(policy.rows.row_index(prompt) for prompt in prompts)


def _missing(state: State, policy: Policy) -> int:
    """Prompts that the last stamped step lacks, because a change of sampler left it partial; 0 as a rule."""
    last = state.cursor
    if not policy.sampler.stamps or not state.filling <= last < policy.max_steps:
        return 0
    finished = sum(1 for _ in state.ready.of_step(last))  # no question looks at each group of the buffer
    missing = state.target(last) - state.step(last).taken - finished
    if missing > 0:
        groups = state.groups
        missing -= sum([groups[prompt].step == last for place in COMING for prompt in state.places[place]])
    return max(0, missing)
