"""Leases as they lie in the hash ``{run}:leases``: one string a key, so that scripts read them without a library.

    <number>|<began>|<refreshed>|<done>|<token>|<worker>

``began`` and ``refreshed``: the server's time in seconds with six decimals. ``done``: 0 or 1. ``token`` names the call
that took the order, so that the same call asked again gets the same order.
"""

from typing import Any

from rollog.events.errors import CorruptEntry
from rollog.events.log import Lease, Leases
from rollog.events.messages import GroupCancelled, GroupDone, GroupFailed, Result


def claim_of(result: Result) -> tuple[int, str] | None:
    """The (attempt, worker) whose lease this result ends; None for a result that ends no lease."""
    match result:
        case GroupDone() | GroupFailed() | GroupCancelled():
            return result.attempt, result.worker
        case _:
            return None


def parse_lease(key: str, text: str) -> Lease:
    """The lease that stands under ``key``."""
    try:
        number, began, refreshed, done, _, worker = text.split("|", 5)
        return Lease(
            key=key,
            number=int(number),
            worker=worker,
            began=float(began),
            refreshed=float(refreshed),
            done={"0": False, "1": True}[done],
        )
    except (ValueError, KeyError) as error:
        raise CorruptEntry(f"the lease {key} reads {text!r}: something else wrote into the run's keys") from error


def parse_leases(time: Any, flat: Any) -> Leases:
    """The replies of TIME and HGETALL."""
    if isinstance(time, Exception):
        raise time
    if isinstance(flat, Exception):
        raise flat
    texts = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in zip(flat[::2], flat[1::2], strict=True)
    }
    seconds, microseconds = map(int, time)
    return Leases(now=seconds + microseconds / 1e6, by_key={key: parse_lease(key, text) for key, text in texts.items()})
