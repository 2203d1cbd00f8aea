"""References to a moment: ``RUN@REF``, and ranges ``A..B``.

Rule 1: parsing knows no log; resolving reads one. What is malformed is a ``BadReference``, what is well formed and not
        there a ``NoSuchMoment`` that says what there is.
Rule 2: a moment is an offset. Any form can end in ``~N``: N entries earlier.

    412          the entry at this offset
    head         the last entry
    step:9       the entry that closed step 9: its first Train, with which the version became 10
    ckpt:8       the entry that made checkpoint 8 durable; the newest, if it was written again
    15:04:05     the last entry at or before this wall time, on the log's last such day (local time zone); also 15:04
    2026-08-01T15:04:05   the same, on that day
    A..B         from A to B, both included; without A from the first entry, without B to the head
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import Final

from rollog.events.log import Entry, Reader
from rollog.events.vocabulary import Checkpoint, Event, Train
from rollog.replay.errors import BadReference, NoSuchMoment


class Anchor(StrEnum):
    """What a reference counts from."""

    OFFSET = "offset"
    HEAD = "head"
    STEP = "step"
    CHECKPOINT = "ckpt"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One moment. ``number``: the offset, step or version; ``clock``: the wall time; ``back``: entries earlier."""

    anchor: Anchor
    text: str
    number: int = 0
    clock: datetime | time | None = None
    back: int = 0


HEAD: Final = Reference(anchor=Anchor.HEAD, text="head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of moments, both ends included. None: the log's own end."""

    first: Reference | None = None
    last: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a person names on the command line: a run ("" when only a moment is named), and a moment or a range."""

    run: str
    at: Reference | Span | None = None


_FORM: Final = re.compile(
    r"(?:(?P<offset>[0-9]{1,15})|(?P<head>head)|step:(?P<step>[0-9]{1,15})|ckpt:(?P<ckpt>[0-9]{1,15})"
    r"|(?P<clock>(?:[0-9]{4}-[0-9]{2}-[0-9]{2}T)?[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?))(?:~(?P<back>[0-9]{1,15}))?"
)
_FORMS: Final = "412, head, head~20, step:9, step:9~1, ckpt:8 or 15:04:05"


def parse_target(text: str, *, run_is_optional: bool = False) -> Target:
    """``RUN``, ``RUN@REF`` or ``RUN@A..B``. ``run_is_optional``: a bare ``REF`` or ``A..B`` is a moment, not a run.

    Raises ``BadReference``.
    """
    run, at, reference = text.rpartition("@")
    if at:
        return Target(run=run, at=parse_moment_or_span(reference))
    if run_is_optional and (".." in text or _FORM.fullmatch(text)):
        return Target(run="", at=parse_moment_or_span(text))
    return Target(run=text)


def parse_moment_or_span(text: str) -> Reference | Span:
    """``A..B`` or one reference."""
    return parse_span(text) if ".." in text else parse_reference(text)


def parse_span(text: str) -> Span:
    """``A..B``, ``A..``, ``..B``; one reference alone is that entry only. Raises ``BadReference``."""
    first, dots, last = text.partition("..")
    if not dots:
        only = parse_reference(first)
        return Span(first=only, last=only)
    return Span(
        first=parse_reference(first) if first else None,
        last=parse_reference(last) if last else None,
    )


def parse_reference(text: str) -> Reference:
    """One moment. Raises ``BadReference``."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise BadReference(f"{text!r} names no moment; write {_FORMS}")
    back = int(form["back"] or 0)
    if form["offset"] is not None:
        return Reference(anchor=Anchor.OFFSET, text=text, number=int(form["offset"]), back=back)
    if form["head"] is not None:
        return Reference(anchor=Anchor.HEAD, text=text, back=back)
    if form["step"] is not None:
        return Reference(anchor=Anchor.STEP, text=text, number=int(form["step"]), back=back)
    if form["ckpt"] is not None:
        return Reference(anchor=Anchor.CHECKPOINT, text=text, number=int(form["ckpt"]), back=back)
    try:
        clock = datetime.fromisoformat(form["clock"]) if "T" in form["clock"] else time.fromisoformat(form["clock"])
    except ValueError as error:
        raise BadReference(f"{text!r} is not a wall time like 15:04:05 or 2026-08-01T15:04:05: {error}") from None
    return Reference(anchor=Anchor.CLOCK, text=text, clock=clock, back=back)


def resolve(reference: Reference, log: Reader, zone: tzinfo | None = None) -> int:
    """The offset that the reference names in this log. ``zone``: of wall times; None is the machine's own.

    Offsets and ``head`` are answered without reading; the other forms read the log once. Raises ``NoSuchMoment``.
    """
    head = log.head().offset
    if head == 0:
        raise NoSuchMoment(f"{reference.text} names no entry: the log is empty")
    found = _anchor(reference, log, head, zone)
    offset = found - reference.back
    if offset < 1:
        raise NoSuchMoment(f"{reference.text} is before the first entry: the log holds 1..{head:,}")
    if offset > head:
        raise NoSuchMoment(f"{reference.text} is not written yet: the log holds 1..{head:,}")
    return offset


def resolve_span(span: Span, log: Reader, zone: tzinfo | None = None) -> tuple[int, int]:
    """First and last offset of the range; ``NoSuchMoment`` when an end is nowhere or they are the wrong way round."""
    first = 1 if span.first is None else resolve(span.first, log, zone)
    last = log.head().offset if span.last is None else resolve(span.last, log, zone)
    if last < first and (span.first or span.last):
        raise NoSuchMoment(f"the range is empty: it begins at {first:,} and ends at {last:,}")
    return first, last


def _anchor(reference: Reference, log: Reader, head: int, zone: tzinfo | None) -> int:
    match reference.anchor:
        case Anchor.OFFSET:
            return reference.number
        case Anchor.HEAD:
            return head
        case Anchor.STEP:
            return _step(reference.number, log)
        case Anchor.CHECKPOINT:
            return _checkpoint(reference.number, log)
        case Anchor.CLOCK:
            return _clock(reference, log, zone)


def _with(log: Reader, wanted: Callable[[Event], bool]) -> Iterator[tuple[Entry, Event]]:
    for entry in log.read():
        for event in entry.events:
            if wanted(event):
                yield entry, event


def _step(step: int, log: Reader) -> int:
    trained = -1
    for entry, event in _with(log, lambda event: isinstance(event, Train)):
        assert isinstance(event, Train)
        if event.step == step:
            return entry.offset
        trained = max(trained, event.step)
    there_is = f"steps 0..{trained} are" if trained >= 0 else "no step is"
    raise NoSuchMoment(f"step {step} is not trained in this log: {there_is}")


def _checkpoint(version: int, log: Reader) -> int:
    at: dict[int, int] = {}
    for entry, event in _with(log, lambda event: isinstance(event, Checkpoint)):
        assert isinstance(event, Checkpoint)
        at[event.version] = entry.offset
    if version not in at:
        there_are = ", ".join(str(each) for each in sorted(at)) or "none"
        raise NoSuchMoment(f"there is no checkpoint {version} in this log; checkpoints: {there_are}")
    return at[version]


def _clock(reference: Reference, log: Reader, zone: tzinfo | None) -> int:
    times = [entry.time for entry in log.read()]
    begin, end = _local(times[0], zone), _local(times[-1], zone)
    clock = reference.clock
    if isinstance(clock, time):
        moment = datetime.combine(end.date(), clock, tzinfo=end.tzinfo)
        if moment > end:  # not today: the last time that the log saw this time of day
            moment -= timedelta(days=1)
    else:
        assert clock is not None
        moment = clock.replace(tzinfo=end.tzinfo)
    whole = 1 if reference.text.count(":") == 2 else 60  # all of the second, or of the minute, counts
    until = moment.timestamp() + whole
    found = [offset for offset, at in enumerate(times, start=1) if at < until]
    if not found:
        raise NoSuchMoment(
            f"{reference.text} is before the first entry: the log goes from {begin:%Y-%m-%d %H:%M:%S} "
            f"to {end:%Y-%m-%d %H:%M:%S}"
        )
    return found[-1]


def _local(seconds: float, zone: tzinfo | None) -> datetime:
    at = datetime.fromtimestamp(seconds, tz=UTC)
    return at.astimezone(zone)
