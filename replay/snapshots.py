"""A saved State every so many offsets, and the sums beside it, so that a resume and a status fold only the tail.

Rule 1: a snapshot is disposable. It is used only when it names an entry of this very log, was made by this very fold,
        and is whole; anything else means an older one, or folding from the beginning. Nothing is ever lost with it.
Rule 2: what can be derived is not saved: the ready index and the rules are made again from the rest.
Rule 3: the two newest are kept, since the newest can turn out broken.

File ``<offset>.snapshot``: MessagePack of {format, fold, offset, digest, state_digest, state, tally, tally_digest}.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgpack
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.preconf.msgpack import MsgpackConverter, make_converter

from rollog.events.durable import write_synced
from rollog.events.errors import LogError
from rollog.events.log import Reader
from rollog.replay.plain import state_digest
from rollog.replay.projector import fold_all
from rollog.replay.state import Place, Rules, State
from rollog.replay.tally import RECENT_STEPS, Tally, follow_all

FORMAT: Final = 1
KEPT: Final = 2
EVERY: Final = 5_000
"""Entries between two snapshots: folding so many takes a fraction of a second."""
MAX_BYTES: Final = 16 << 20
FOLD_FILES: Final = ("state.py", "places.py", "ready.py", "new_terms.py", "projector.py", "tally.py")
ORDERED: Final = "places"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A State, and the sums over the same entries; None if nobody kept them."""

    state: State
    tally: Tally | None = None


def save(folder: Path, state: State, tally: Tally | None = None) -> Path:
    """Save them as they are; the folder is made if missing, older snapshots beyond the two newest go."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{state.offset:016d}.snapshot"
    write_synced(path, encode(state, tally))
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def at(folder: Path, log: Reader, offset: int) -> State:
    """The State after the entry at ``offset``: the newest snapshot before it, and the entries from there folded."""
    state = newest(folder, log, offset)
    return fold_all(log.read(state.offset + 1, offset), state)


def tallied(folder: Path, log: Reader, offset: int) -> tuple[State, Tally]:
    """The State after the entry at ``offset`` and the sums beside it, from the newest snapshot that has both."""
    for found in fitting(folder, log, offset):
        if found.tally is not None:
            return follow_all(log.read(found.state.offset + 1, offset), found.state, found.tally)
    return follow_all(log.read(1, offset) if offset else ())


def newest(folder: Path, log: Reader, up_to: int | None = None) -> State:
    """The State of the newest snapshot that fits this log; an empty one when there is none.

    ``up_to``: only snapshots of this entry and those before it.
    """
    last = log.head().offset if up_to is None else up_to
    return next((found.state for found in fitting(folder, log, last)), State())


def fitting(folder: Path, log: Reader, last: int) -> Iterator[Snapshot]:
    """The snapshots of this log's entries up to ``last``, the newest first."""
    for path in _newest_first(folder):
        found = _read(path) if int(path.stem) <= last else None
        if found is None or not 0 < found.state.offset <= last:
            continue
        try:
            (entry,) = log.read(found.state.offset, found.state.offset)
        except LogError:
            continue
        if entry.digest == found.state.digest:
            yield found


def offsets(folder: Path) -> list[int]:
    """The entries of the snapshots that are there, the newest first. Whether they are whole is not looked at."""
    return [int(path.stem) for path in _newest_first(folder)]


def encode(state: State, tally: Tally | None = None) -> bytes:
    """The bytes of a snapshot."""
    sums = msgpack.packb(_converter().unstructure(tally)) if tally is not None else b""
    plain = _converter().unstructure(state)
    plain[ORDERED] = {place.value: list(prompts) for place, prompts in state.places.items()}
    return bytes(
        msgpack.packb(
            {
                "format": FORMAT,
                "fold": fold_version(),
                "offset": state.offset,
                "digest": state.digest,
                "state_digest": state_digest(state),
                "state": plain,
                "tally": sums,
                "tally_digest": blake2b(sums, digest_size=16).digest(),
            }
        )
    )


def decode(data: bytes) -> Snapshot | None:
    """What a snapshot's bytes hold; None unless they are whole and made by this fold."""
    try:
        found = msgpack.unpackb(data, strict_map_key=False)
        if found["format"] != FORMAT or found["fold"] != fold_version():
            return None
        plain = found["state"]
        places = plain.pop(ORDERED)
        state = _converter().structure(plain, State)
        state.places = {place: dict.fromkeys(places[place.value]) for place in Place}
        _derive(state)
        sums = found["tally"]
        if blake2b(sums, digest_size=16).digest() != found["tally_digest"]:
            return None
        tally = _converter().structure(msgpack.unpackb(sums, strict_map_key=False), Tally) if sums else None
        if tally is not None:
            tally.recent = deque(tally.recent, maxlen=RECENT_STEPS)
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException, ExceptionGroup):
        return None
    return Snapshot(state, tally) if state_digest(state) == found["state_digest"] else None


@cache
def fold_version() -> str:
    """Changes with every change of the fold's own files: a State of another fold is not trusted."""
    here = Path(__file__).parent
    return blake2b(b"".join((here / name).read_bytes() for name in FOLD_FILES), digest_size=16).hexdigest()


def _derive(state: State) -> None:
    state.rules = Rules.of(state.settings) if state.settings else None
    for group in state.groups.values():
        if group.place is Place.BUFFER and group.finished is not None:
            state.ready.add(group.prompt, group.slot, group.step, group.finished.born)
        elif group.place is Place.IN_FLIGHT:
            state.ready.start(group.weights)


def _read(path: Path) -> Snapshot | None:
    try:
        return decode(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None


def _newest_first(folder: Path) -> list[Path]:
    found = folder.glob("*.snapshot") if folder.is_dir() else ()
    return sorted((path for path in found if path.stem.isdecimal()), reverse=True)


@cache
def _converter() -> MsgpackConverter:
    converter = make_converter()
    left_out: dict[str, Any] = {name: override(omit=True) for name in ("ready", "rules", ORDERED)}
    converter.register_unstructure_hook(State, make_dict_unstructure_fn(State, converter, **left_out))
    converter.register_structure_hook(State, make_dict_structure_fn(State, converter, **left_out))
    return converter
