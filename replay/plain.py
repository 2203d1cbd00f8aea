"""The State as JSON knows it, and its digest.

Rule 1: the order is that of the fields; ordinals, steps and versions stand in the order in which they came.
Rule 2: everything that is decided from is in it, and nothing else: two States are the same if and only if their digests
        are. What can be derived (``derived_to_plain``) stays outside the digest.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from rollog.replay.state import Place, State

PLAIN: Final = frozenset({bool, int, float, str})
"""What JSON says as it is: nearly everything that a State is made of."""


def state_to_plain(state: State) -> dict[str, Any]:
    """All of the State: numbers, strings, lists and dicts with string keys. Enums by value, dataclasses as dicts."""
    places = {place.value: list(prompts) for place, prompts in state.places.items()}
    return {
        each.name: places if each.name == "places" else to_plain(getattr(state, each.name))
        for each in fields(state)
        if each.name != "ready"
    }


def derived_to_plain(state: State) -> dict[str, Any]:
    """What people ask of a State and the State does not keep. Counts are groups; ``targets`` by step."""
    steps = range(state.filling, state.cursor + 1)
    return {
        "filling": state.filling,
        "open": state.num_open(),
        "settled": state.settled(),
        "frontier": state.frontier(),
        "durable_frontier": state.durable_frontier(),
        "counts": {place.value: state.count(place) for place in Place},
        "targets": {} if state.rules is None else {str(step): state.target(step) for step in steps},
    }


def state_digest(state: State) -> str:
    """blake2b-256 of the State's canonical JSON, 64 hex digits."""
    text = json.dumps(state_to_plain(state), sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=32).hexdigest()


def to_plain(value: Any) -> Any:
    """Any value of a State as JSON knows it."""
    if value is None or type(value) in PLAIN:
        return value
    if isinstance(value, StrEnum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value
