"""Where the trainer of a fork begins: the newest checkpoint from which it can come to the parent's version again.

Rule 1: the checkpoint is whole, ordered at or before the fork's entry, and every step from its version on is recorded
        with all its blobs on disk. The model that the run began with serves as a checkpoint of version 0.
Rule 2: where none is, the nearest entry is named that has one: the order of a checkpoint needs no step above it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollog.events.log import Reader
from rollog.pipeline.checkpoints import Manifest, broken_files, list_manifests
from rollog.pipeline.forking import NoFork
from rollog.replay.state import SavedCheckpoint, State


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """The version that the trainer stands at. ``manifest``: None is the model that the run began with.

    ``others``: older whole checkpoints that the State still counts on, in case this one breaks.
    """

    version: int
    manifest: Manifest | None
    others: Sequence[Manifest] = ()

    @property
    def checkpoint(self) -> SavedCheckpoint | None:
        """It as the log names it."""
        if self.manifest is None:
            return None
        return SavedCheckpoint(version=self.version, manifest=self.manifest.folder.name, digest=self.manifest.digest)


def starting_point(
    state: State, newest: int, log: Reader, log_id: str, checkpoints: Path, blob_exists: Callable[[str], bool]
) -> StartingPoint:
    """The best one of version ``newest`` or below for a fork after the entry of ``state``. Raises ``NoFork``."""
    written = [manifest for manifest in list_manifests(checkpoints) if _on(log, log_id, manifest)]
    oldest = state.oldest_kept_checkpoint()
    usable = [
        manifest
        for manifest in written
        if manifest.ordered.offset <= state.offset
        and oldest <= manifest.version <= newest
        and not broken_files(manifest)
    ]
    lacking = ""
    for manifest in reversed(usable):
        lacking = next(_lacking(state, manifest.version, blob_exists), "")
        if not lacking:
            others = tuple(other for other in usable if other.version < manifest.version)
            return StartingPoint(version=manifest.version, manifest=manifest, others=others)
    first = next(_lacking(state, 0, blob_exists), "")
    if not first:
        return StartingPoint(version=0, manifest=None)
    raise NoFork(
        f"v{state.version} at entry {state.offset:,} cannot be trained again: "
        f"{lacking or f'no checkpoint of v{newest} or below is on disk'}, and from the beginning {first}. "
        f"{_nearest(state, state.version - newest, written)}"
    )


def _on(log: Reader, log_id: str, manifest: Manifest) -> bool:
    if manifest.ordered.log != log_id or manifest.ordered.offset > log.head().offset:
        return False
    (entry,) = log.read(manifest.ordered.offset, manifest.ordered.offset)
    return entry.digest == manifest.ordered.digest


def _lacking(state: State, version: int, blob_exists: Callable[[str], bool]) -> Iterator[str]:
    """What is missing to train from ``version`` to the State's own."""
    for number in range(version, state.version):
        if not state.step(number).closed:
            yield f"the selections of step {number} are forgotten"
    for number, step in sorted(state.steps.items()):
        for member in step.members() if number >= version else ():
            if not blob_exists(member.finished.blob):
                yield f"step {number} lacks the blob of prompt {member.prompt}"


def _nearest(state: State, behind: int, written: Sequence[Manifest]) -> str:
    """``behind``: versions between the fork's and that of the checkpoint, at least."""
    whole = [manifest for manifest in written if not broken_files(manifest)]
    if not whole:
        return "No checkpoint is left: fork at @1, from the model that the run began with."
    near = min(whole, key=lambda manifest: abs(manifest.ordered.offset - state.offset))
    if behind:
        return f"The nearest that works are the entries of v{near.version + behind}, from checkpoint {near.version}."
    return f"The nearest entry that works is @{near.ordered.offset} (v{near.version})."
