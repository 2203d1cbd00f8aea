"""Checkpoints on disk: folders of files with a manifest that says whole. What the files hold is the trainer's business.

    checkpoints/<version>-<offset>-<generation>/...files..., manifest.json

Rule 1: the manifest is written last and is the truth; a folder without a good one is no checkpoint and is never chosen.
Rule 2: the manifest binds the files to the log: its id, and offset and digest of the entry that ordered the checkpoint.
Rule 3: version, offset and trainer generation name the folder, so no two writers share one.
Rule 4: one value, one byte string: the manifest's digest names the checkpoint in the log.
Rule 5: a folder is deleted in one moment, after newer ones are whole.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rollog.pipeline.durable import (
    bytes_digest,
    canonical_json,
    delete_folder,
    file_digest,
    keep,
    new_folder,
    write_file,
)
from rollog.pipeline.errors import PipelineError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_NUMBER = r"(?:0|[1-9]\d{0,17})"
_FOLDER_NAME: Final = re.compile(rf"{_NUMBER}-{_NUMBER}-{_NUMBER}")
_HEX: Final = re.compile(r"[0-9a-f]+")


class CheckpointError(PipelineError):
    """A checkpoint cannot be written or used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Which checkpoint was asked for: of weights `version`, by entry (`offset`, `digest`) of log `log` under writer
    epoch `epoch`, written by trainer `generation`."""

    log: str
    offset: int
    digest: str
    epoch: int
    version: int
    generation: int

    @property
    def folder_name(self) -> str:
        return f"{self.version}-{self.offset}-{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a checkpoint: size and blake2b-256 (64 hex digits)."""

    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint. `formats` are the versions of the file formats in it, `files` are by path relative to `folder`."""

    folder: Path
    ordered: Ordered
    formats: Mapping[str, int]
    files: Mapping[str, FileEntry]

    @property
    def version(self) -> int:
        return self.ordered.version

    @property
    def data(self) -> bytes:
        """The bytes of manifest.json."""
        return canonical_json(
            {
                "format": FORMAT,
                "ordered": asdict(self.ordered),
                "formats": dict(self.formats),
                "files": {name: asdict(entry) for name, entry in self.files.items()},
            }
        )

    @property
    def digest(self) -> str:
        """The blake2b-256 of manifest.json: what the log's Checkpoint event holds."""
        return bytes_digest(self.data)


def write(
    root: Path, ordered: Ordered, fill: Callable[[Path], None], *, formats: Mapping[str, int] | None = None
) -> Manifest:
    """Write a checkpoint: `fill` puts the files into the folder it is given. Durable when this returns.

    A whole checkpoint that the same entry ordered is returned as it is; half of one, left by a death, is written anew.
    Raises CheckpointError if the name belongs to a whole checkpoint that another entry ordered.
    """
    target = root / ordered.folder_name
    if (present := read_manifest(target)) is not None and not broken_files(present):
        if present.ordered != ordered:
            raise CheckpointError(
                f"{target} belongs to entry {present.ordered.digest} of another history; move it away"
            )
        return present
    delete_folder(target)
    with new_folder(root) as temporary:
        fill(temporary)
        files = {
            path.relative_to(temporary).as_posix(): FileEntry(size_bytes=path.stat().st_size, digest=file_digest(path))
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        if not files or MANIFEST in files:
            raise CheckpointError(f"a checkpoint needs files, and none named {MANIFEST}; got {sorted(files)}")
        keep(temporary, ordered.folder_name)
    manifest = Manifest(folder=target, ordered=ordered, formats=dict(formats or {}), files=files)
    write_file(target / MANIFEST, manifest.data)
    return manifest


def list_manifests(root: Path) -> list[Manifest]:
    """All checkpoints under `root` whose files are there in the right size, oldest version first, then by offset.

    Contents are not hashed here: `newest_whole` does that for the one it chooses.
    """
    folders = [folder for folder in root.iterdir() if _FOLDER_NAME.fullmatch(folder.name)] if root.is_dir() else []
    found = [manifest for folder in folders if (manifest := read_manifest(folder)) is not None]
    present = [manifest for manifest in found if all(_right_size(manifest, name) for name in manifest.files)]
    return sorted(
        present, key=lambda manifest: (manifest.version, manifest.ordered.offset, manifest.ordered.generation)
    )


def newest_whole(root: Path, *, max_version: int | None = None) -> Manifest | None:
    """The newest checkpoint with version <= `max_version` whose files all have their recorded digests."""
    for manifest in reversed(list_manifests(root)):
        if (max_version is None or manifest.version <= max_version) and not broken_files(manifest):
            return manifest
    return None


def broken_files(manifest: Manifest) -> list[str]:
    """The files that are missing or differ from what the manifest says. Reads all of them."""
    return [
        name
        for name, entry in manifest.files.items()
        if not _right_size(manifest, name) or file_digest(manifest.folder / name) != entry.digest
    ]


def prune(root: Path, *, keep_versions: Collection[int]) -> list[Manifest]:
    """Delete whole checkpoints of other versions; returns them. Half-written ones are left to their writers."""
    gone = [manifest for manifest in list_manifests(root) if manifest.version not in keep_versions]
    for manifest in gone:
        delete_folder(manifest.folder)
    return gone


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, or None if it has none that is exactly what `write` would have written there."""
    try:
        data = (folder / MANIFEST).read_bytes()
        found = json.loads(data)
        manifest = Manifest(
            folder=folder,
            ordered=_ordered(found["ordered"]),
            formats={str(name): int(number) for name, number in found["formats"].items()},
            files={str(name): _file_entry(entry) for name, entry in found["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    safe = all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in manifest.files)
    whole = safe and bool(manifest.files) and manifest.data == data
    return manifest if whole and manifest.ordered.folder_name == folder.name else None


def _ordered(found: Mapping[str, Any]) -> Ordered:
    ordered = Ordered(**found)
    numbers = (ordered.offset, ordered.epoch, ordered.version, ordered.generation)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"not all of {numbers} are whole numbers")
    if not (isinstance(ordered.log, str) and _HEX.fullmatch(ordered.digest)):
        raise ValueError(f"log {ordered.log!r}, digest {ordered.digest!r}")
    return ordered


def _file_entry(found: Mapping[str, Any]) -> FileEntry:
    entry = FileEntry(**found)
    if type(entry.size_bytes) is not int or not _HEX.fullmatch(entry.digest):
        raise ValueError(f"{found} describes no file")
    return entry


def _right_size(manifest: Manifest, name: str) -> bool:
    path = manifest.folder / name
    return path.is_file() and path.stat().st_size == manifest.files[name].size_bytes
