"""Who watches a run from inside. Observers see entries that are durable, and change nothing that is decided from."""

from collections.abc import Sequence
from pathlib import Path

from rollog.events.log import Entry, Reader
from rollog.events.vocabulary import Checkpoint, Configure
from rollog.pipeline.checkpoint_store import CheckpointStore
from rollog.pipeline.config import Plan
from rollog.pipeline.controller import Observer
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.waiting import Wait
from rollog.replay import snapshots
from rollog.replay.state import State
from rollog.replay.tally import Tally, follow_all


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
    """Saves the State every so many entries, and the sums beside it, from a fold of its own over what is durable.

    The controller's State may be ahead of the log. Entries that it was not told of, because their answer was lost, are
    read from the log.
    """

    def __init__(self, folder: Path, log: Reader, every: int = snapshots.EVERY) -> None:
        self._folder = folder
        self._log = log
        self._every = every
        self._saved_at = 0
        self._state: State | None = None
        self._tally = Tally()

    def entry(self, state: State, entry: Entry) -> None:
        """Follow it, and save if enough has happened since the last one."""
        if self._state is None:
            self._state, self._tally = snapshots.tallied(self._folder, self._log, entry.offset - 1)
            self._saved_at = next(iter(snapshots.offsets(self._folder)), 0)
        if self._state.offset < entry.offset - 1:
            follow_all(self._log.read(self._state.offset + 1, entry.offset - 1), self._state, self._tally)
        follow_all((entry,), self._state, self._tally)
        if entry.offset - self._saved_at >= self._every:
            snapshots.save(self._folder, self._state, self._tally)
            self._saved_at = entry.offset

    def waiting(self, state: State, wait: Wait) -> None:
        """Nothing."""


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


class WritesSettings:
    """Writes the settings in force into the run's folder when they change while it runs: new workers read them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def entry(self, state: State, entry: Entry) -> None:
        """Write them after a Configure."""
        if any(isinstance(event, Configure) for event in entry.events):
            self._folder.write_plan(Plan.from_settings(state.settings, origin=f"settings at entry {entry.offset:,}"))

    def waiting(self, state: State, wait: Wait) -> None:
        """Nothing to do."""
