"""The fleet: how many generators there are, which is a setting, so a fold of the log.

    rollog scale --> ScaleRequest --> Configure(generation.workers) --> FleetSize on control, and processes that follow

Rule 1: whoever is in the fleet takes orders by asking for them, so a slow generator gets less and a dead one nothing.
Rule 2: a generator beyond the size takes no new orders, finishes those that it holds, and leaves.
Rule 3: a generator's number is in its name, and the fleet of size n are the numbers below n.
"""

from typing import Final

from rollog.events.messages import FleetSize, ScaleRequest
from rollog.events.vocabulary import Configure, Event
from rollog.replay.state import State

MAX_GENERATORS: Final = 4096
"""A request for more is a slip."""
SETTING: Final = "generation.workers"
_PREFIX: Final = "gen-"


def name_of(number: int) -> str:
    """The name of the generator with this number (from 0)."""
    return f"{_PREFIX}{number}"


def belongs(name: str, size: int) -> bool:
    """Whether the generator of this name is in a fleet of this size. Other names are nobody's numbers and belong."""
    number = name.removeprefix(_PREFIX)
    return not number.isdecimal() or int(number) < size


def size_of(state: State) -> int:
    """Generators that there should be."""
    section = state.settings.get("generation") or {}
    return int(section.get("workers", 1))


def notice_of(state: State) -> FleetSize:
    """What generators are told of it."""
    return FleetSize(generators=size_of(state))


def scaled(state: State, request: ScaleRequest) -> tuple[Event, ...]:
    """The entry that changes the size; empty when nothing changes or nothing runs any more."""
    ended = state.finish is not None or state.stopping is not None
    if ended or not 1 <= request.generators <= MAX_GENERATORS or request.generators == size_of(state):
        return ()
    return (Configure(changes={SETTING: request.generators}, cursor=state.cursor),)
