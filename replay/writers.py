"""Who wrote a log: the rollog that its last Open names. It can read what this one cannot.

Rule 1: an event that is unknown here stops the fold; the error says which rollog wrote it, as far as this was read.
"""

from collections.abc import Iterable, Iterator

from rollog.events.errors import UnknownEvent
from rollog.events.log import Entry
from rollog.events.vocabulary import Open


def naming_the_writer(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries; an ``UnknownEvent`` among them names the rollog that can read it."""
    last: tuple[int, str] | None = None
    try:
        for entry in entries:
            for event in entry.events:
                if type(event) is Open:
                    last = entry.offset, event.rollog
            yield entry
    except UnknownEvent as error:
        if last is None:
            raise
        raise UnknownEvent(f"{error}; entry {last[0]} was written by rollog {last[1]}, which reads it") from None
