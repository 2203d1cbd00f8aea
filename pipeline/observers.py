"""Who watches a run from inside. Observers see entries that are durable, and change nothing that is decided from."""

from collections.abc import Sequence
from pathlib import Path

from rollog.events.log import Entry
from rollog.events.vocabulary import Checkpoint
from rollog.pipeline.checkpoint_store import CheckpointStore
from rollog.pipeline.controller import Observer
from rollog.pipeline.waiting import Wait
from rollog.replay import snapshots
from rollog.replay.state import State


class Observers:
    """Several as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def entry(self, state: State, entry: Entry) -> None:
        """Tell all of them."""
        for observer in self._observers:
            observer.entry(state, entry)

    def waiting(self, state: State, wait: Wait) -> None:
        """Tell all of them."""
        for observer in self._observers:
            observer.waiting(state, wait)


class SavesSnapshots:
    """Saves the State every so many entries, when all of it is durable."""

    def __init__(self, folder: Path, every: int = snapshots.EVERY) -> None:
        self._folder = folder
        self._every = every
        self._saved_at = 0

    def entry(self, state: State, entry: Entry) -> None:
        """Nothing yet: the State may be ahead of the log."""

    def waiting(self, state: State, wait: Wait) -> None:
        """Save it, if enough has happened since the last one."""
        if self._saved_at == 0:
            self._saved_at = state.offset
        if state.offset - self._saved_at >= self._every:
            snapshots.save(self._folder, state)
            self._saved_at = state.offset


class PrunesCheckpoints:
    """Deletes old checkpoints, but only when the entry that announces the newer one is durable.

    ``entry`` may see a State that is ahead of the log; when the controller waits, all of it is durable.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._due = False

    def entry(self, state: State, entry: Entry) -> None:
        """Remember that there is something to do."""
        self._due = self._due or any(isinstance(event, Checkpoint) for event in entry.events)

    def waiting(self, state: State, wait: Wait) -> None:
        """Do it."""
        if self._due:
            self._due = False
            self._store.prune(state)
