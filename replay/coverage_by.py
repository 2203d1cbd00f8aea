"""The coverage table by epoch, by source, or by both: ``rollog coverage RUN --by epoch,source``.

Rule 1: a row counts the prompts that share what the table is by; every prompt of every epoch is in one row.
Rule 2: a log knows no sources: who knows the data set says which source a prompt is of (``Sources``).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from rollog.replay.errors import BadReference
from rollog.replay.fates import Fate
from rollog.replay.state import State

EPOCH, SOURCE = "epoch", "source"
KEYS: Final = (EPOCH, SOURCE)
COLUMNS: Final = (Fate.TRAINED, Fate.DROPPED, Fate.FILTERED, Fate.EVICTED, Fate.OPEN, Fate.NEVER_SEEN, Fate.UNACCOUNTED)

Sources = Callable[[State], Callable[[int], str]]
"""From a run, as its State tells of it, to what says which source an ordinal is of."""


def parse_by(text: str) -> tuple[str, ...]:
    """What the table is by. Raises ``BadReference``."""
    keys = tuple(word.strip() for word in text.split(","))
    if not set(keys) <= set(KEYS) or len(set(keys)) != len(keys):
        raise BadReference(f"--by {text}: give epoch, source, or both as epoch,source")
    return keys


def rows_by(
    keys: Sequence[str], fates: Sequence[int], num_rows: int, source_of: Callable[[int], str]
) -> list[dict[str, Any]]:
    """A row for each epoch and source that has prompts. ``fates`` by ordinal; ``num_rows``: of the data set."""
    counts: dict[tuple[int | str, ...], Counter[int]] = {}
    for prompt, fate in enumerate(fates):
        place = tuple(prompt // num_rows if key == EPOCH else source_of(prompt) for key in keys)
        counts.setdefault(place, Counter())[fate] += 1
    return [
        {
            **dict(zip(keys, place, strict=True)),
            "prompts": count.total(),
            **{fate.name.lower(): count[fate] for fate in COLUMNS},
        }
        for place, count in sorted(counts.items())
    ]
