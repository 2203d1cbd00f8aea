"""What Configure and Fork do to the State: settings change, and what was agreed under the old ones ends.

Rule 1: a Fork begins a run of its own: no worker, no stop, no answered result is taken over; what ran waits again. Its
        settings are changed by the Configure that follows in the same entry.
Rule 2: when a fork changes what a prompt or a group is, an ``Evict`` for it comes before the Configure: a clean slate.
        Debts and shortfalls end, and batches are counted from here: the next step takes the next ordinal.
"""

from collections.abc import Mapping
from typing import Any

from rollog.events.vocabulary import Configure, FailureKind, Fork, StopReason
from rollog.replay.places import move, stamp
from rollog.replay.state import Place, Rules, State


def fork(state: State, event: Fork) -> None:
    """Another run goes on from here."""
    if state.finish is not None:
        pardon(state)
    state.run = event.run
    change_settings(state, {"run": event.run})
    state.dataset = event.dataset if event.dataset is not None else state.dataset
    state.seed = event.seed if event.seed is not None else state.seed
    state.num_rows = event.num_rows if event.num_rows is not None else state.num_rows
    for group in state.at(Place.IN_FLIGHT):
        group.order = None
        move(state, group, Place.WAITING)
    state.stopping = state.finish = state.input = None
    state.exhausted, state.resumes_in_vain = False, 0
    state.workers.clear()
    state.archived = state.offset - 1
    state.standing = state.newest_checkpoint() or 0
    state.published.clear()  # the new trainer publishes whatever can be asked for


def clean_slate(state: State) -> None:
    """Nothing of the old groups is left: neither debts nor shortfalls, and no stamp."""
    _end_loans(state)
    state.lost, state.stamps_made = 0, False
    state.slate_step, state.slate_prompt = state.filling, state.handed_out


def configure(state: State, event: Configure) -> None:
    """Settings change. With another sampler, stamps and debts of the old one end; new stamps follow as events."""
    assert state.rules is not None
    before = state.rules.sampler
    change_settings(state, event.changes)
    state.cursor = event.cursor
    if state.rules.sampler == before:
        return
    _end_loans(state)
    state.lost, state.stamps_made = 0, False
    for group in state.groups.values():
        group.loan, group.nth = None, 0
        if group.place not in (Place.SELECTED, Place.RESERVE):
            stamp(state, group, None)


def pardon(state: State) -> None:
    """After a failed run is opened again, only the counter that ran out starts anew, only of the prompt named."""
    stopping = state.stopping
    if stopping is None or stopping.reason is not StopReason.FAILED or stopping.prompt is None:
        return
    group = state.groups.get(stopping.prompt)
    if group is not None and group.last_failure is FailureKind.INFRA:
        group.infra_failures = 0
    elif group is not None and group.last_failure is FailureKind.DATA:
        group.data_failures = 0


def change_settings(state: State, changes: Mapping[str, Any]) -> None:
    """Set dotted paths; the sections on the way are copied, so that no other holder of the settings sees it."""
    for path, value in changes.items():
        *sections, name = path.split(".")
        section: dict[str, Any] = state.settings
        for part in sections:
            section[part] = dict(section.get(part) or {})
            section = section[part]
        section[name] = value
    if changes:
        state.rules = Rules.of(state.settings)


def _end_loans(state: State) -> None:
    state.loans_forgiven += len(state.loans)
    state.loans.clear()
    for number, step in state.steps.items():
        if number >= state.filling:
            step.shortfall = 0
