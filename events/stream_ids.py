"""The ids of a server's streams: ``<milliseconds>-<sequence>``, ordered as numbers, not as strings."""

import re
from functools import lru_cache
from typing import Final

_FORM: Final = re.compile(r"(\d{1,19})-(\d{1,19})")


@lru_cache(maxsize=1024)  # the same few ids are compared again and again: the newest of each stream
def stream_id_key(id: str | None) -> tuple[int, int]:
    """What to sort and compare by; None is before every id. Raises ``ValueError`` for what is not an id."""
    if id is None:
        return (-1, -1)
    form = _FORM.fullmatch(id)
    if form is None:
        raise ValueError(f"{id!r} is not a stream id like 1700000000000-0")
    return int(form[1]), int(form[2])


def id_after(id: str) -> str:
    """The lowest id above this one."""
    milliseconds, sequence = stream_id_key(id)
    return f"{milliseconds}-{sequence + 1}"
