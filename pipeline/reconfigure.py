"""What a resume appends when it goes on under other settings, or gives prompts up: pure functions of the State.

Rule 1: a change of settings and everything that follows from it are one entry.
Rule 2: to ``in_order``: what is open and unstamped is stamped for the step being filled and those after it, oldest
        first, N each (what a begun step has taken counts). The cursor is the last step stamped; if that step is
        partial, the scheduler completes it.
Rule 3: away from ``in_order``: stamps, debts and shortfalls of the old order end (the fold sees to it).
Rule 4: to a gated sampler without stamps: the cursor counts what is open and taken as whole batches, and nothing is
        lost so far.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rollog.events.vocabulary import Configure, Drop, Event, FailureKind, Stamp
from rollog.pipeline.dropping import leave_step, leaves_hole
from rollog.pipeline.errors import PlanError
from rollog.pipeline.policy import Policy
from rollog.pipeline.samplers import Sampler
from rollog.replay.state import Place, State

Events = tuple[Event, ...]


def configure(state: State, changes: Mapping[str, Any]) -> Events:
    """The entry that puts ``changes`` (dotted path -> new value) in force; empty when nothing changes."""
    if not changes:
        return ()
    assert state.rules is not None
    before = state.rules.sampler
    after = changes.get("sampler.name", before)
    if after == before:
        return (Configure(changes=changes, cursor=state.cursor),)
    filling, size = state.filling, state.rules.prompts_per_step
    taken = state.step(filling).taken
    waiting = sorted(p for p, group in state.groups.items() if group.place not in (Place.RESERVE, Place.SELECTED))
    if after != "in_order":
        return (Configure(changes=changes, cursor=filling - 1 + (len(waiting) + taken) // size),)
    stamps = tuple(_stamps(waiting, filling, taken, size))
    last = stamps[-1].step if stamps else filling if taken else filling - 1
    return (Configure(changes=changes, cursor=last), *stamps)


def _stamps(prompts: list[int], step: int, taken: int, size: int) -> Iterator[Stamp]:
    """Fill up the begun step, then steps of ``size``."""
    end = size - taken
    start = 0
    while start < len(prompts):
        if end > start:
            yield Stamp(prompts=tuple(prompts[start:end]), step=step)
        start, end, step = end, end + size, step + 1


def refuse_change(state: State, changes: Mapping[str, Any], sampler: Sampler) -> None:
    """Refuse, with PlanError, a change to or between classes of the user's that stamp.

    What is open would have to be stamped anew, and only ``in_order`` says how (rule 2).
    """
    assert state.rules is not None
    before = state.rules.sampler
    if not {"sampler.name", "sampler.target"} & changes.keys() or changes.get("sampler.name", before) != "custom":
        return
    if sampler.stamps:
        raise PlanError(
            "sampler.name=custom: its class stamps, and what is open is stamped for steps by in_order or not at all. "
            "Such a class can only be chosen when a run starts."
        )
    if before == "custom" and state.stamps_made:
        raise PlanError(
            "sampler.target: the class before stamps, and the new one does not. Resume with another sampler.name "
            "first, which clears the stamps."
        )


def drop(state: State, policy: Policy, prompt: int) -> Events:
    """The entry that gives up ``prompt`` because a person says so.

    Raises ``PlanError`` when it is not open, or its step cannot do without it.
    """
    group = state.groups.get(prompt)
    if group is None or group.place is Place.SELECTED:
        if prompt >= state.handed_out or prompt < 0:
            place = f"it was never handed out (0 to {state.handed_out - 1} were)"
        else:
            place = "it is selected for training" if group else "it is settled"
        raise PlanError(
            f"prompt {prompt} cannot be dropped: {place}. `rollog why {state.run} prompt:{prompt}` says more."
        )
    if leaves_hole(state, policy, group):
        short = policy.in_rollouts(policy.prompts_per_step - 1)
        raise PlanError(
            f"prompt {prompt} cannot be dropped: step {group.step} would have {short}, under context compaction it "
            f"needs all, and no spare is left. Raise failure.reserve_prompts or failure.max_replacement_attempts."
        )
    return (Drop(prompt=prompt, kind=FailureKind.USER, error="dropped by a person"), *leave_step(state, policy, group))
