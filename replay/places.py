"""Moving groups between places: the one way in which the fold changes where a prompt is.

Rule 1: a group is listed at its place and, in the buffer or in flight, in the ready index; both change only here.
Rule 2: what an event may move is named by the places that it may come from; anything else is a broken history.
"""

from rollog.replay.errors import BrokenHistory
from rollog.replay.state import Group, Place, State


def hand_out(state: State, prompt: int, row: int, place: Place) -> Group:
    """Let the next ordinal in, or a spare out of the reserve."""
    group = state.groups.get(prompt)
    if group is not None:  # a spare that is admitted (drain)
        require(group.place is Place.RESERVE and place is Place.WAITING, f"prompt {prompt} is handed out twice")
        move(state, group, place)
        return group
    if prompt != state.handed_out:
        raise BrokenHistory(f"prompt {prompt} is not the next ({state.handed_out})")
    state.handed_out += 1
    group = state.groups[prompt] = Group(prompt=prompt, row=row, place=place)
    state.places[place][prompt] = None
    return group


def find(state: State, prompt: int, *places: Place, attempt: int | None = None) -> Group:
    """The group, which must be at one of these places and, if given, at this attempt."""
    group = state.groups.get(prompt)
    if group is None:
        raise BrokenHistory(f"prompt {prompt} is settled or was never handed out")
    if group.place not in places:
        raise BrokenHistory(f"prompt {prompt} is {group.place.value}")
    if attempt is not None and attempt != group.attempt:
        raise BrokenHistory(f"prompt {prompt} is at attempt {group.attempt}, not {attempt}")
    return group


def find_idle(state: State, prompt: int) -> Group:
    """A group that is not selected and has no attempt running: a Cancel stands before what takes it away."""
    return find(state, prompt, Place.WAITING, Place.RESERVE, Place.BACKING_OFF, Place.BUFFER)


def stamp(state: State, group: Group, step: int | None) -> None:
    """Mean the group for another step, wherever it is."""
    _leave(state, group)
    group.step = step
    _enter(state, group)


def move(state: State, group: Group, place: Place) -> None:
    """Put the group into another place."""
    _leave(state, group)
    group.place = place
    _enter(state, group)


def remove(state: State, group: Group) -> None:
    """The group is settled: the State forgets it."""
    _leave(state, group)
    del state.groups[group.prompt]


def _enter(state: State, group: Group) -> None:
    state.places[group.place][group.prompt] = None
    if group.place is Place.BUFFER:
        assert group.finished is not None
        state.ready.add(group.prompt, group.slot, group.step, group.finished.born)
    elif group.place is Place.IN_FLIGHT:
        state.ready.start(group.weights)


def _leave(state: State, group: Group) -> None:
    del state.places[group.place][group.prompt]
    if group.place is Place.BUFFER:
        assert group.finished is not None
        state.ready.discard(group.prompt, group.slot, group.step, group.finished.born)
    elif group.place is Place.IN_FLIGHT:
        state.ready.end(group.weights)


def require(holds: bool, otherwise: str) -> None:
    """Raise ``BrokenHistory`` unless it holds."""
    if not holds:
        raise BrokenHistory(otherwise)
