"""Which groups a step may train, and when a batch may be admitted: pure functions of the State.

``in_order``: batch b is stamped for step b, and a step trains exactly the groups stamped for it. Admission is gated: at
most K + 1 batches are outstanding, so no group is older than K versions when it is trained.
"""

from collections.abc import Sequence
from typing import Protocol

from rollog.replay.state import Group, Place, State


class Sampler(Protocol):
    """What a sampler answers. It keeps nothing: every question is answered from the State."""

    def gate_open(self, state: State) -> bool:
        """Whether the next batch may be admitted."""
        ...

    def stamp(self, state: State) -> int | None:
        """The step that the next batch is meant for; None for samplers that do not stamp."""
        ...

    def may_start(self, state: State, group: Group) -> bool:
        """Whether an attempt of this group may start now."""
        ...

    def eligible(self, state: State) -> Sequence[Group]:
        """The finished groups that the step being filled may take, best first."""
        ...


class InOrder:
    """``sampler.name: in_order`` with ``lookahead`` K."""

    def __init__(self, lookahead: int) -> None:
        self.lookahead = lookahead

    def gate_open(self, state: State) -> bool:
        """Closed while cursor >= v + K: one version more frees exactly one batch."""
        return state.cursor < state.version + self.lookahead

    def stamp(self, state: State) -> int | None:
        """A stamp is a batch's number."""
        return state.cursor + 1

    def may_start(self, state: State, group: Group) -> bool:
        """Not before its step is within the window: the order's weights would be too old when it is trained."""
        return group.step is None or group.step <= state.version + self.lookahead

    def eligible(self, state: State) -> Sequence[Group]:
        """The groups stamped for the step, in slot order."""
        step = state.filling
        ready = [group for group in state.at(Place.BUFFER) if group.step == step]
        ready.sort(key=lambda group: group.slot)
        return ready


def select(eligible: Sequence[Group], minimum: int, maximum: int) -> Sequence[Group] | None:
    """The first ``maximum`` eligible groups, without waiting to fill it; None if there are fewer than ``minimum``.

    Raises ``ValueError`` unless 1 <= minimum <= maximum.
    """
    if minimum < 1 or maximum < minimum:
        raise ValueError(f"cannot select between {minimum} and {maximum} groups; ask for 1 <= minimum <= maximum")
    return None if len(eligible) < minimum else eligible[:maximum]
