"""When controllers took the pen: found without reading the whole log.

Rule 1: writer epochs never go back from entry to entry, so the first entry of an epoch is found by halving.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rollog.events.log import Entry, Reader
from rollog.events.vocabulary import Open

BEFORE_OPEN: Final = 1
"""Entries of an epoch before its Open, at most: a fresh log begins with Start."""


def last_machine(log: Reader, offset: int) -> Mapping[str, Any]:
    """What the last Open up to ``offset`` says of its machine; empty when there is none."""
    while offset:
        first = _first_of_epoch(log, offset)
        for entry in log.read(first, min(offset, first + BEFORE_OPEN)):
            if machine := next(_machines(entry), None):
                return machine
        offset = first - 1  # a fork's first entry has an epoch of its own, and nobody has opened it yet
    return {}


def _first_of_epoch(log: Reader, offset: int) -> int:
    """The first entry of the epoch that the entry at ``offset`` has."""
    epoch, low, high = _epoch(log, offset), 1, offset
    while low < high:
        middle = (low + high) // 2
        if _epoch(log, middle) < epoch:
            low = middle + 1
        else:
            high = middle
    return low


def _epoch(log: Reader, offset: int) -> int:
    (entry,) = log.read(offset, offset)
    return entry.epoch


def _machines(entry: Entry) -> Iterator[Mapping[str, Any]]:
    return (event.machine for event in entry.events if isinstance(event, Open))
