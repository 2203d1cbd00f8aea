"""Which entries ``rollog log`` shows: ``--type``, ``--prompt``, ``--step``, ``--where``.

Rule 1: an entry is shown when *one* of its events fits everything that was asked for.
Rule 2: a condition is ``field OP value`` with = != < <= > >=; nothing is evaluated. Fields are those of the event,
        and ``type``, ``offset``, ``epoch``, ``time``, ``input`` of the entry. A list fits when it holds the value.
"""

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from rollog.events.codec import event_to_plain
from rollog.events.log import Entry
from rollog.events.vocabulary import TAGS
from rollog.replay.errors import BadReference

_FORM: Final = re.compile(r"\s*([a-z_][a-z_0-9.]*)\s*(=|!=|<=|>=|<|>)\s*(.*?)\s*")
_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
PROMPT_FIELDS: Final = ("prompt", "prompts", "spare", "dropped", "left")
STEP_FIELDS: Final = ("step", "lender", "borrower")
ENTRY_FIELDS: Final = ("offset", "epoch", "time", "input")
KNOWN_FIELDS: Final = {"type", *ENTRY_FIELDS} | {field.name for kind, _ in TAGS.values() for field in fields(kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``field OP value``."""

    field: str
    compare: str
    value: str

    def holds(self, event: Mapping[str, Any]) -> bool:
        """Whether the event, as plain values, fits. A field that it does not have fits nothing, not even ``!=``."""
        found: Any = event
        for name in self.field.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return False
            found = found[name]
        if self.compare in _ORDER:
            number = _number(self.value)
            countable = isinstance(found, (int, float)) and not isinstance(found, bool) and number is not None
            return countable and _ORDER[self.compare](found, number)
        equal = any(self._equals(item) for item in found) if isinstance(found, list) else self._equals(found)
        return equal == (self.compare == "=")

    def _equals(self, found: Any) -> bool:
        if found is None or isinstance(found, bool):
            return self.value.lower() == {None: "null", True: "true", False: "false"}[found]
        if isinstance(found, (int, float)):
            return found == _number(self.value)
        return bool(found == self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was asked for; nothing asked for selects everything."""

    types: frozenset[str] = frozenset()
    prompt: int | None = None
    step: int | None = None
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of(
        cls, types: Sequence[str] = (), prompt: int | None = None, step: int | None = None, where: Sequence[str] = ()
    ) -> "Selection":
        """Read the options. Raises ``BadReference`` for an unknown type or a condition of another form."""
        named = frozenset(tag for names in types for tag in names.lower().split(","))
        unknown = sorted(named - TAGS.keys())
        if unknown:
            raise BadReference(f"no event is called {unknown[0]!r}; there are: {', '.join(TAGS)}")
        return cls(types=named, prompt=prompt, step=step, conditions=tuple(parse_condition(text) for text in where))

    def takes(self, entry: Entry) -> bool:
        """Whether the entry is shown."""
        if not (self.types or self.conditions or self.prompt is not None or self.step is not None):
            return True
        about = {name: getattr(entry, name) for name in ENTRY_FIELDS}
        return any(self._fits(about | event_to_plain(event)) for event in entry.events)

    def _fits(self, event: Mapping[str, Any]) -> bool:
        return (
            (not self.types or event["type"] in self.types)
            and (self.prompt is None or _names(event, PROMPT_FIELDS, self.prompt))
            and (self.step is None or _names(event, STEP_FIELDS, self.step))
            and all(condition.holds(event) for condition in self.conditions)
        )


def parse_condition(text: str) -> Condition:
    """``field=value``, ``field>3``, ... Raises ``BadReference``, also for a field that no event has."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise BadReference(f"{text!r} is not a condition; write field=value, with =, !=, <, <=, > or >=")
    name = form[1].partition(".")[0]
    if name not in KNOWN_FIELDS:
        near = difflib.get_close_matches(name, sorted(KNOWN_FIELDS), n=1)
        advice = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(KNOWN_FIELDS))}"
        raise BadReference(f"no event or entry has a field {name!r}; {advice}")
    return Condition(field=form[1], compare=form[2], value=form[3])


def _names(event: Mapping[str, Any], fields: Sequence[str], number: int) -> bool:
    for name in fields:
        found = event.get(name)
        if found == number or (isinstance(found, list) and number in found):
            return True
    return False


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
