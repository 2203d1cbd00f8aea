"""``--path``: one part of a plain State by a dotted path.

A place (``buffer``, ``in_flight``, ...) gives its groups; a number walks into a list or names an ordinal, a step or a
version.
"""

from collections.abc import Mapping
from typing import Any

from rollog.replay.errors import NoSuchMoment


def at_path(plain: Mapping[str, Any], path: str) -> Any:
    """The value at the path. Raises ``NoSuchMoment`` with the names that are there."""
    found: Any = dict(plain)
    walked: list[str] = []
    places, groups = plain.get("places", {}), plain.get("groups", {})
    first, _, rest = path.partition(".")
    if first in places and first not in plain:
        found, walked = [groups[str(prompt)] for prompt in places[first]], [first]
        path = rest
    for name in path.split(".") if path else ():
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            where = ".".join(walked) or "the state"
            raise NoSuchMoment(f"{where} has no {name!r}; it has {_names(found)}")
        walked.append(name)
    return found


def _names(found: Any) -> str:
    if isinstance(found, Mapping):
        return ", ".join(map(str, found)) or "nothing"
    return f"items 0..{len(found) - 1}" if isinstance(found, list) and found else "no parts"
