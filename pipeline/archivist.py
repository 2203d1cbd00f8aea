"""Old entries move from the server into segments, while the run goes on.

    the stream has grown --> seal, read back --> Archive is logged --> cut off, the server's file is rewritten

Rule 1: each of these is durable before the next one begins; a death between them costs nothing: what is sealed and not
        announced is announced, what is announced and not cut off is cut off.
Rule 2: never beyond the older of the two newest snapshots, nor beyond the entry that ordered the newest durable
        checkpoint: what a resume reads stays on the server.
Rule 3: nothing is cut off that a checked segment does not hold.
Rule 4: one piece at a time: the controller answers its workers between two of them.
Rule 5: the rewriting is not waited for but looked at again, and nothing more is cut off before it has ended.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rollog.events.errors import MissingEntry
from rollog.events.file_log import GrowingLog, Segment, seal_tail
from rollog.events.log import Log, Shortening
from rollog.events.rewriting import wait_for
from rollog.pipeline.inputs import Sealed
from rollog.replay import snapshots
from rollog.replay.state import State

EVERY: Final = 200_000
"""Entries on the server after which the oldest are archived, unless the settings say else."""
PIECE: Final = 20_000
"""Entries in one segment, at most: sealing so many takes about a second."""


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


class Archivist:
    """Archives one run's log. ``every``: entries on the server that start it; 0: never."""

    def __init__(
        self,
        log: Log,
        segments: Path,
        saved: Path,
        log_id: Callable[[], str],
        *,
        every: int = EVERY,
        piece: int = PIECE,
        warn: Callable[[str], None] = _warn,
    ) -> None:
        """``segments``, ``saved``: the run's folders of segments and of snapshots. ``log_id``: asked when needed."""
        self._log = log
        self._segments = segments
        self._held = GrowingLog(segments)
        self._saved = saved
        self._log_id = log_id
        self._every = every
        self._piece = piece
        self._warn = warn
        self._until = 0
        """Being archived up to here."""
        self._cut = 0
        """Cut off up to here, as far as this process knows."""
        self._shortens = False
        """The server rewrites its file, as far as this process knows."""

    def next(self, state: State) -> Sealed | None:
        """The next segment to be announced, if one is due. ``state`` must be durable, all of it."""
        if not self._every:
            return None
        if self._shortens:
            self._see(self._log.shortening())
        if self._until <= state.archived and state.offset - state.archived > self._every:
            self._until = self.limit(state)
        if state.archived < self._until:
            sealed = self._seal(state)
            if sealed is not None:
                return sealed
            self._until = state.archived
        if self._cut < state.archived and not self._shortens:
            self._cut_off(state.archived)
        return None

    def close(self) -> None:
        """At the run's end: let a rewriting that is under way come to its end, unless it takes too long."""
        if self._shortens:
            self._see(wait_for(self._log.shortening))

    def limit(self, state: State) -> int:
        """The last entry that may be archived; 0 if none may."""
        newest = state.newest_checkpoint()
        ordered = None if newest is None else state.saves.get(newest)
        offsets = snapshots.offsets(self._saved)
        return 0 if ordered is None or len(offsets) < snapshots.KEPT else min(offsets[1], ordered.offset)

    def _seal(self, state: State) -> Sealed | None:
        """One more segment, or one that lies there already: sealed at a stop, or by a process that died then."""
        first = state.archived + 1
        holds = self._held.head().offset
        if holds < first:
            last = min(self._until, holds + self._piece)
            seal_tail(self._log, self._segments, self._log_id(), last, self._held.segments)
        segment = self._holding(first)
        if segment is None or segment.last > self._until:
            return None
        return Sealed(first=first, last=segment.last, file=segment.file.name, digest=segment.hash)

    def _holding(self, offset: int) -> Segment | None:
        self._held.head()
        return next((segment for segment in self._held.segments if segment.first <= offset <= segment.last), None)

    def _cut_off(self, last: int) -> None:
        self._cut = last  # whatever comes of it, it is not asked again before the next archive or the next start
        head = self._held.head()
        if head.offset < last:
            raise MissingEntry(
                f"{self._segments} ends with entry {head.offset}, and the log says that it holds entries up to {last}: "
                f"put the missing segments back before anything is cut off"
            )
        self._see(self._log.trim(last))

    def _see(self, seen: Shortening) -> None:
        self._shortens = seen.under_way
        if seen.failed is not None:
            self._warn(seen.failed)
