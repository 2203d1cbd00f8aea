"""Which events this rollog knows, in which version, and how those of older versions are lifted.

    {"t": tag, "v": 1, ...}  --upcast-->  version 2  --upcast-->  newest version  --shape-->  the event

Rule 1: a type's wire tag and newest version stand in ``vocabulary.TAGS``, the way there from each older version in
        ``UPCASTS``. Both tables only grow: a log is read by every later rollog.
Rule 2: an upcaster is a pure function: the fields of version v in, those of v + 1 out. It knows neither the log nor the
        clock. What it does not touch, it passes on.
Rule 3: bytes are lifted when they are read and stay as they were written: digests, copies and archives do not change.
Rule 4: an unknown field is ignored and stays in the bytes. An unknown type or a newer version stops the reader, unless
        the writer marked the event optional (``o: true``), which it does only for events that change no state.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rollog.events.errors import UnknownEvent
from rollog.events.vocabulary import OPTIONAL, TAGS, Event, Fork
from rollog.events.wire import DIGEST_CHARS, ENTRY_DIGEST_CHARS, Misfit, Shape, shown

Fields = Mapping[str, Any]
Upcast = Callable[[Fields], Fields]
"""The fields of one version, and of the next."""

UPCASTS: Final[Mapping[tuple[str, int], Upcast]] = {}
"""(tag, version) -> what makes the next version of it. Append-only."""


class Registry:
    """Events by their wire tags, in their newest versions, with the ways from the older ones."""

    def __init__(
        self,
        tags: Mapping[str, tuple[type[Any], int]],
        optional: tuple[type[Any], ...],
        upcasts: Mapping[tuple[str, int], Upcast],
    ) -> None:
        """``tags``: tag -> (type, newest version). Raises ``ValueError`` when a way is missing or leads nowhere."""
        wanted = {(tag, version) for tag, (_, newest) in tags.items() for version in range(1, newest)}
        if wanted != upcasts.keys():
            missing, needless = sorted(wanted - upcasts.keys()), sorted(upcasts.keys() - wanted)
            raise ValueError(f"upcasts are missing from {missing}, and lead nowhere from {needless}")
        self._newest = {tag: newest for tag, (_, newest) in tags.items()}
        self._upcasts = dict(upcasts)
        self.shapes: Final = {tag: Shape(kind, digests_of(kind)) for tag, (kind, _) in tags.items()}
        self._heads: dict[type[Any], tuple[str, dict[str, Any]]] = {
            kind: (tag, {"t": tag, "v": newest} | ({"o": True} if kind in optional else {}))
            for tag, (kind, newest) in tags.items()
        }

    def tag_of(self, event: Event) -> str:
        """The event's wire tag."""
        return self._heads[type(event)][0]

    def to_wire(self, event: Event) -> tuple[dict[str, Any], Event]:
        """The map to be packed, and the event as it will be read. Raises ``Misfit``."""
        tag, head = self._heads[type(event)]
        shape = self.shapes[tag]
        fields, same = shape.to_wire(event)
        return head | fields, event if same else shape.from_wire(fields)

    def from_wire(self, wire: Any) -> Event | None:
        """The event; None for an optional one that this rollog does not know. Raises ``Misfit``, ``UnknownEvent``."""
        if type(wire) is not dict:
            raise Misfit(f"{shown(wire)} is not an event")
        tag, version = wire.get("t"), wire.get("v")
        if type(tag) is not str or type(version) is not int or version < 1:
            raise Misfit(f"an event needs a tag and a version, not {shown(tag)} and {shown(version)}")
        newest = self._newest.get(tag, 0)
        if version > newest:
            if wire.get("o") is True:
                return None
            reads = f"reads it up to version {newest}" if newest else "does not know this event"
            raise UnknownEvent(
                f"event {shown(tag)} of version {version}; this rollog {reads}. "
                "Read the log with the version that its last Open names, or a newer one"
            )
        event: Event = self.shapes[tag].from_wire(wire if version == newest else self._lifted(tag, version, wire))
        return event

    def _lifted(self, tag: str, version: int, fields: Fields) -> Fields:
        for older in range(version, self._newest[tag]):
            try:
                fields = self._upcasts[tag, older](fields)
            except (KeyError, TypeError, ValueError) as error:
                raise Misfit(f"{shown(fields)} is not version {older} of {tag!r}: {error!r}") from error
        return fields


def digests_of(kind: type[Any]) -> Mapping[str, tuple[int, ...]]:
    """Which fields of an event hold digests, and of which lengths."""
    length = ENTRY_DIGEST_CHARS if kind is Fork else DIGEST_CHARS
    return {"blob": (DIGEST_CHARS,), "blobs": (DIGEST_CHARS,), "digest": (length,)}


EVENTS: Final = Registry(TAGS, OPTIONAL, UPCASTS)
"""What this rollog writes and reads."""
