"""What a step does when one of its prompts leaves it without having been trained: shrink, replace, or borrow.

    [ the prompt leaves ]  --no spare------------------> Shrink: the step closes one group short
            |                                              under context compaction: the run stops instead
            |
            +--a spare, nothing finished later---------> Replace: the spare runs for the same step, which waits
            |
            +--a spare, a later step has finished ones-> Borrow: the furthest later step lends a finished group, the
                                                         step can close at once, and the spare runs for the lender

Rule 1: never a loan without a spare in hand: it would be the same hole, one step later.
Rule 2: one entry says it all: who left, who lends, who owes, and the spare's order.
Rule 3: a prompt that owed a loan passes the debt on: to a further lender's group, else to the next spare; when there is
        no spare either the debt cannot be paid, and the lender shrinks.
"""

from rollog.events.vocabulary import Borrow, Dispatch, Event, Repay, Replace, Shrink, Stamp
from rollog.pipeline.policy import Policy
from rollog.pipeline.scheduling import dispatch
from rollog.replay.state import Group, Place, State

Events = tuple[Event, ...]


def leaves_hole(state: State, policy: Policy, group: Group) -> bool:
    """Whether the step of ``group`` must not lose it: it would close short, and no step may."""
    return policy.whole_steps and group.step is not None and _spare(state, policy, group) is None


def leave_step(state: State, policy: Policy, group: Group) -> Events:
    """What follows, in the same entry, when ``group`` is dropped or filtered; nothing for a group that has no step."""
    step = group.step
    if step is None:
        return ()
    spare = _spare(state, policy, group)
    if spare is None:
        return (Shrink(step=step, prompt=group.prompt, loan=group.loan),)
    nth = group.nth + 1
    lent = state.ready.furthest_after(step) if step >= state.version else None
    if lent is None:
        replaced = Replace(step=step, dropped=group.prompt, spare=spare, nth=nth)
        return (replaced, Stamp(prompts=(spare,), step=step), *_order(state, policy, group, spare, step))
    lender = state.groups[lent].step
    assert lender is not None
    borrowed = Borrow(
        loan=state.loans_made,
        prompt=lent,
        lender=lender,
        borrower=step,
        dropped=group.prompt,
        spare=spare,
        nth=nth,
    )
    repaid = () if group.loan is None else (Repay(loan=group.loan, prompt=lent),)
    return (borrowed, *repaid, Stamp(prompts=(spare,), step=lender), *_order(state, policy, group, spare, lender))


def _spare(state: State, policy: Policy, group: Group) -> int | None:
    """The spare that stands in: the first of the reserve, if spares do and this slot may have another."""
    if not policy.replaces or group.nth >= policy.failure.max_replacement_attempts:
        return None
    return next((prompt for prompt in state.places[Place.RESERVE] if prompt != group.prompt), None)


def _order(state: State, policy: Policy, group: Group, spare: int, step: int) -> tuple[Dispatch, ...]:
    """The spare's order goes out at once in the room of the attempt that ended; if none did, only if there is room."""
    meant = state.groups[spare]
    room = group.place is Place.IN_FLIGHT or state.count(Place.IN_FLIGHT) < policy.max_inflight
    starts = room and state.stopping is None and step <= state.version + policy.sampler.window
    return (dispatch(state, spare, meant.attempt + 1, step),) if starts else ()
