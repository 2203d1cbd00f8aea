"""Time travel: the State at any moment of a log, steps forward and back, and why an entry is there.

Rule 1: a State at an offset is the fold of the entries up to it (a snapshot saves a part of the folding): there is no
        other way to get one, so what is shown of the past is what was decided from.
Rule 2: a Timeline only reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollog.events.log import Entry, Reader
from rollog.replay import snapshots
from rollog.replay.causes import Causes
from rollog.replay.difference import Change, difference
from rollog.replay.errors import NoSuchMoment
from rollog.replay.projector import fold, fold_all
from rollog.replay.references import Reference, resolve
from rollog.replay.state import State
from rollog.replay.tally import Tally, follow_all
from rollog.replay.wording import ordinals


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An entry, the earlier entries that it rests on (ascending), and the difference it made."""

    entry: Entry
    causes: tuple[int, ...]
    chain: tuple[Entry, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The moments of one log. ``snapshots``: a folder of saved States of it, if there is one."""

    log: Reader
    snapshots: Path | None = None

    def offset(self, reference: Reference) -> int:
        """The offset that a reference names. Raises ``NoSuchMoment``."""
        return resolve(reference, self.log)

    def entry(self, offset: int) -> Entry:
        """The entry at an offset. Raises ``NoSuchMoment``."""
        self._must_be_there(offset)
        return next(iter(self.log.read(offset, offset)))

    def state(self, offset: int) -> State:
        """The State after the entry at ``offset``; 0 is the State before the first. Raises ``NoSuchMoment``."""
        if offset == 0:
            return State()
        self._must_be_there(offset)
        if self.snapshots is None:
            return fold_all(self.log.read(1, offset))
        return snapshots.at(self.snapshots, self.log, offset)

    def tallied(self, offset: int) -> tuple[State, Tally]:
        """The State after the entry at ``offset`` and the sums beside it; 0 is before the first entry."""
        if self.snapshots is None:
            return follow_all(self.log.read(1, offset) if offset else ())
        return snapshots.tallied(self.snapshots, self.log, offset)

    def moments(self, first: int = 1) -> Iterator[tuple[Entry, State]]:
        """Each entry from ``first`` to the head with the State after it, which the next step changes in place."""
        state = State()
        for entry in self.log.read():
            fold(state, entry)
            if entry.offset >= first:
                yield entry, state

    def next(self, offset: int) -> int:
        """The offset after this one. Raises ``NoSuchMoment`` at the head."""
        self._must_be_there(offset + 1)
        return offset + 1

    def previous(self, offset: int) -> int:
        """The offset before this one. Raises ``NoSuchMoment`` at the first entry."""
        self._must_be_there(offset - 1)
        return offset - 1

    def next_step(self, offset: int) -> int:
        """The next entry after which the version is another. Raises ``NoSuchMoment`` when there is none."""
        moved = self._version_moves()
        found = next((at for at in moved if at > offset), None)
        if found is None:
            raise NoSuchMoment(f"no step is trained after entry {offset:,}; steps ended at {ordinals(moved)}")
        return found

    def previous_step(self, offset: int) -> int:
        """The last entry before this one after which the version was another. Raises ``NoSuchMoment``."""
        moved = self._version_moves()
        found = next((at for at in reversed(moved) if at < offset), None)
        if found is None:
            raise NoSuchMoment(f"no step is trained before entry {offset:,}; steps ended at {ordinals(moved)}")
        return found

    def explain(self, offset: int) -> Explained:
        """The entry with its cause chain and the difference it made. Raises ``NoSuchMoment``."""
        self._must_be_there(offset)
        causes, before, after = Causes(), State(), State()
        for entry in self.log.read(1, offset):
            causes.follow(entry)
            fold(after, entry)
            if entry.offset < offset:
                fold(before, entry)
        wanted = causes.chain(offset)
        span = self.log.read(wanted[0], wanted[-1]) if wanted else iter(())
        chain = tuple(earlier for earlier in span if earlier.offset in set(wanted))
        changes = tuple(difference(before, after))
        return Explained(entry=entry, causes=causes.of[offset], chain=chain, changes=changes)

    def _version_moves(self) -> list[int]:
        version, moved = 0, []
        for entry, state in self.moments():
            if state.version != version:
                moved.append(entry.offset)
            version = state.version
        return moved

    def _must_be_there(self, offset: int) -> None:
        head = self.log.head().offset
        if not 1 <= offset <= head:
            there = f"the log holds 1..{head:,}" if head else "the log is empty"
            raise NoSuchMoment(f"there is no entry {offset:,}: {there}")
