"""Which checkpoints of a run can be resumed from.

Rule 1: a manifest names the entry that ordered it. One of this log whose entry is not on it means that the log lost its
        tail: a refusal, never skipped.
Rule 2: a checkpoint with a broken file is skipped with a warning, and the next older one is taken.
Rule 3: the newest whole one at or below the version counts; what a superseded trainer wrote above it does not.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rollog.events.log import Reader
from rollog.pipeline import checkpoints
from rollog.pipeline.checkpoints import Manifest, broken_files, list_manifests
from rollog.pipeline.errors import PipelineError
from rollog.replay.state import SavedCheckpoint, State

ADVICE: Final = (
    "restore the server's data (or the archive), then resume; or go on from the log as it is with --accept-loss"
)


class LogBehindCheckpoint(PipelineError):
    """A checkpoint is newer than the log: entries are missing. A person must decide."""

    exit_code = 5


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


class CheckpointStore:
    """The checkpoints under ``root`` of the log that ``log`` reads. ``log_id``: asked for when it is needed."""

    def __init__(self, root: Path, log: Reader, log_id: Callable[[], str], warn: Callable[[str], None] = _warn) -> None:
        self._root = root
        self._log = log
        self._log_id = log_id
        self._warn = warn

    def whole(self, state: State) -> Sequence[SavedCheckpoint]:
        """The newest that is whole and within what the State keeps; empty when there is none.

        Raises ``LogBehindCheckpoint``.
        """
        for manifest in reversed(self.on_this_log()):
            if not state.oldest_kept_checkpoint() <= manifest.version <= state.version:
                continue
            broken = broken_files(manifest)
            if not broken:
                name = manifest.folder.name
                return [SavedCheckpoint(version=manifest.version, manifest=name, digest=manifest.digest)]
            self._warn(f"checkpoint {manifest.folder.name} is skipped: {broken[0]} is not what its manifest says")
        return []

    def on_this_log(self) -> list[Manifest]:
        """The manifests of this log, oldest version first. Raises ``LogBehindCheckpoint``."""
        log_id, head = self._log_id(), self._log.head()
        own = [manifest for manifest in list_manifests(self._root) if manifest.ordered.log == log_id]
        newest = max((manifest.ordered.offset for manifest in own), default=0)
        if newest > head.offset:
            name = next(manifest.folder.name for manifest in own if manifest.ordered.offset == newest)
            raise LogBehindCheckpoint(
                f"{newest - head.offset} entries are missing: checkpoint {name} was ordered by entry {newest}, and the "
                f"log ends at {head.offset}: {ADVICE}"
            )
        for manifest in own:
            digest = self._digest(manifest)
            if digest != manifest.ordered.digest:
                raise LogBehindCheckpoint(
                    f"checkpoint {manifest.folder.name} was ordered by an entry {manifest.ordered.offset} with the "
                    f"digest {manifest.ordered.digest}; the log has {digest} there. It was written anew from an older "
                    f"state: {ADVICE}"
                )
        return own

    def lost(self) -> list[Manifest]:
        """The manifests of this log whose entries are not on it, oldest version first."""
        log_id, head = self._log_id(), self._log.head().offset
        return [
            manifest for manifest in list_manifests(self._root)
            if manifest.ordered.log == log_id
            and (manifest.ordered.offset > head or self._digest(manifest) != manifest.ordered.digest)
        ]  # fmt: skip

    def _digest(self, manifest: Manifest) -> str:
        """What stands in the log where this checkpoint was ordered."""
        (entry,) = self._log.read(manifest.ordered.offset, manifest.ordered.offset)
        return entry.digest

    def prune(self, state: State) -> None:
        """Delete checkpoints that are older than the oldest that the log keeps. Only for a State that is durable."""
        oldest = state.oldest_kept_checkpoint()
        kept = {manifest.version for manifest in list_manifests(self._root) if manifest.version >= oldest}
        checkpoints.prune(self._root, keep_versions=kept)
