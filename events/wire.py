"""Frozen dataclasses to plain wire maps and back, by the types that their fields declare.

Rule 1: strict both ways: a value of another type, out of bounds or too long is a ``Misfit``, never converted by guess.
Rule 2: what is written is what will be read: ``to_wire`` says when ``from_wire`` will give back another value (an int
        in a float field becomes a float, a tuple inside a setting a list), so that the writer can go on with that one.
Rule 3: an unknown field is ignored, a missing one takes its default or is a ``Misfit``.
Rule 4: the converters of a class are put together once, when its shape is made.

Wire forms: int, float, str, bool, nil; an enum is its string; a tuple is an array; a nested dataclass is a map; a
``Mapping`` is a map of plain values (null, bool, int, float, str, list, map), as JSON knows them.
"""

import math
import re
import reprlib
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

MAX_INT: Final = (1 << 53) - 1
"""Whole numbers beyond this are not exact in Lua and in JSON readers."""
MAX_STRING_CHARS: Final = 1 << 16
MAX_ITEMS: Final = 1 << 16
"""Of one list or map. A decoder makes room for as many as are claimed, at every level."""
MAX_DEPTH: Final = 32
"""How deep settings may nest."""

DIGEST_CHARS: Final = 64
"""blake2b-256 of a file or blob, in hexadecimal."""
ENTRY_DIGEST_CHARS: Final = 32
"""blake2b-128 of an entry, in hexadecimal."""

T = TypeVar("T")
Convert = Callable[[Any], Any]


class Misfit(ValueError):
    """A value that does not fit its field."""


class Field(NamedTuple):
    """One field of a shape. ``default`` is ``MISSING`` when the field must be there."""

    name: str
    to_wire: Convert
    from_wire: Convert
    default: Any


class Shape(Generic[T]):
    """How one dataclass looks on the wire."""

    def __init__(self, kind: type[T], digests: Mapping[str, tuple[int, ...]]) -> None:
        """``digests``: field name -> the lengths that its hexadecimal string may have (0: it may be empty)."""
        if not is_dataclass(kind):
            raise ValueError(f"{kind!r} is not a dataclass")
        hints = get_type_hints(kind)
        self.kind = kind
        self.fields = tuple(
            Field(
                f.name,
                *_converters(hints[f.name], digests.get(f.name)),
                f.default if f.default_factory is MISSING else f.default_factory(),
            )
            for f in fields(kind)
        )

    def to_wire(self, value: T) -> tuple[dict[str, Any], bool]:
        """The map to be packed, and whether reading it gives ``value`` itself; if not, ask ``from_wire``."""
        wire: dict[str, Any] = {}
        same = True
        for name, to_wire, _, _ in self.fields:
            given = getattr(value, name)
            try:
                wire[name] = written = to_wire(given)
            except Misfit as misfit:
                raise Misfit(f"{self.kind.__name__}.{name}: {misfit}") from None
            if written is not given:
                same = False
        return wire, same

    def from_wire(self, wire: Mapping[str, Any]) -> T:
        """The value, or ``Misfit`` with the field's name."""
        values: dict[str, Any] = {}
        for name, _, from_wire, default in self.fields:
            if name in wire:
                try:
                    values[name] = from_wire(wire[name])
                except Misfit as misfit:
                    raise Misfit(f"{self.kind.__name__}.{name}: {misfit}") from None
            elif default is MISSING:
                raise Misfit(f"{self.kind.__name__}.{name} is missing")
        return self.kind(**values)


def shown(value: object) -> str:
    """The value for an error message: short, however large or deep it is."""
    return _SHORT.repr(value)


_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def _misfit(value: object, wanted: str) -> Misfit:
    return Misfit(f"{shown(value)} is not {wanted}")


def _int(value: Any) -> int:
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return value
    raise _misfit(value, "a whole number below 2**53")


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    raise _misfit(value, "a float")


def _as_float(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, float) or type(value) is int:
        return float(value)
    raise _misfit(value, "a float")


def _str(value: Any) -> str:
    if type(value) is str and len(value) <= MAX_STRING_CHARS:
        return value
    raise _misfit(value, f"a string of at most {MAX_STRING_CHARS} characters")


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _misfit(value, "true or false")


def _plain(value: Any, depth: int = 0) -> Any:
    """A setting's value: what JSON can say. Returns ``value`` itself when nothing had to be changed."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _int(value)
    if kind is float:
        if math.isfinite(value):
            return value
        raise _misfit(value, "a finite number")
    if isinstance(value, str):
        return _str(value if kind is str else str(value))
    if depth >= MAX_DEPTH:
        raise Misfit(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, (list, tuple, Mapping)) and len(value) > MAX_ITEMS:
        raise _misfit(value, f"a list or map of at most {MAX_ITEMS} items")
    if kind is list or kind is tuple:
        items = [_plain(item, depth + 1) for item in value]
        return value if kind is list and all(a is b for a, b in zip(items, value, strict=True)) else items
    if isinstance(value, Mapping):
        entries = {_str(key): _plain(item, depth + 1) for key, item in value.items()}
        return value if kind is dict and all(entries[key] is value[key] for key in value) else entries
    raise _misfit(value, "a plain value (null, bool, int, finite float, str, list, map)")


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _plain(value)
    raise _misfit(value, "a map")


def _digest(lengths: tuple[int, ...]) -> Convert:
    pattern = re.compile("|".join(f"[0-9a-f]{{{length}}}" for length in lengths))
    wanted = f"a lower-case hexadecimal digest of {' or '.join(map(str, lengths))} digits"

    def convert(value: Any) -> str:
        if type(value) is str and pattern.fullmatch(value):
            return value
        raise _misfit(value, wanted)

    return convert


def _enum(kind: type[StrEnum]) -> Convert:
    members: dict[str, StrEnum] = {member.value: member for member in kind}
    wanted = f"one of {', '.join(members)}"

    def convert(value: Any) -> Any:
        # A member hashes as its string, so one look-up serves members and strings.
        member = members.get(value) if isinstance(value, str) else None
        if member is None:
            raise _misfit(value, wanted)
        return member

    return convert


def _array(item: Convert) -> Convert:
    def convert(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (tuple, list)) and len(value) > MAX_ITEMS:
            raise _misfit(value, f"a list of at most {MAX_ITEMS} items")
        if type(value) is tuple:
            for each in value:
                item(each)
            return value
        if type(value) is list:
            return tuple([item(each) for each in value])
        raise _misfit(value, "a list")

    return convert


def _optional(inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        return None if value is None else inner(value)

    return convert


def _converters(hint: Any, digest: tuple[int, ...] | None) -> tuple[Convert, Convert]:
    """``(to_wire, from_wire)`` for one annotation. An annotation nobody foresaw is our own mistake."""
    if hint is str:
        text = _str if digest is None else _digest(digest)
        return text, text
    if hint is float:
        return _as_float, _float
    if hint is int:
        return _int, _int
    if hint is bool:
        return _bool, _bool
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum(hint), _enum(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _nested(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        to_wire, from_wire = _converters(args[0], digest)
        return _array(to_wire), _array(from_wire)
    if origin in (Union, types.UnionType) and len(args) == 2 and type(None) in args:
        to_wire, from_wire = _converters(args[0] if args[1] is type(None) else args[1], digest)
        return _optional(to_wire), _optional(from_wire)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping, _mapping
    raise ValueError(f"no wire form for {hint!r}")


def _nested(kind: type) -> tuple[Convert, Convert]:
    """A dataclass inside a dataclass (``Cause``) travels as a map."""
    shape: Shape[Any] = Shape(kind, {"digest": (ENTRY_DIGEST_CHARS,)})

    def to_wire(value: Any) -> Any:
        if type(value) is not kind:
            raise _misfit(value, f"a {kind.__name__}")
        return shape.to_wire(value)[0]

    def from_wire(value: Any) -> Any:
        if type(value) is not dict:
            raise _misfit(value, f"a {kind.__name__}")
        return shape.from_wire(value)

    return to_wire, from_wire
