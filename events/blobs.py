"""Blobs: what is too large for the log, named by its content.

Rule 1: the name is the blake2b-256 of the bytes. A blob is durable before the event that names it is written:
        temporary name, fsync, rename, fsync of the folder.
Rule 2: a reader checks the hash and a cap. The event that names a blob comes from a worker: a digest is 64 lower-case
        hexadecimal digits or it is refused, so that it can never be another path.
Rule 3: putting the same bytes twice is the same as once, and makes the blob young: a sweep spares what is young.
"""

import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

from rollog.events.durable import advice_of, sync_folder, write_synced
from rollog.events.errors import BlobError

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
MAX_BLOB_BYTES: Final = 1 << 30


class Blobs:
    """The blobs of one run, in one folder that all its machines share, 256 sub-folders wide."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where the blob of this digest lies, if it is there."""
        if not DIGEST.fullmatch(digest):
            raise BlobError(f"{digest!r} is not a blob's name: it has 64 lower-case hexadecimal digits")
        return self.folder / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Make ``data`` durable; returns its digest. Raises ``BlobError`` when the disk refuses."""
        if len(data) > MAX_BLOB_BYTES:
            raise BlobError(f"a blob of {len(data)} bytes is larger than {MAX_BLOB_BYTES}: write smaller groups")
        digest = blake2b(data, digest_size=32).hexdigest()
        path = self.path(digest)
        try:
            if not self._renewed(path):
                self._write(path, data)
        except OSError as error:
            raise BlobError(
                f"a blob of {len(data)} bytes could not be written under {self.folder}: {error.strerror}; "
                f"{advice_of(error)}"
            ) from error
        return digest

    def get(self, digest: str, max_bytes: int = MAX_BLOB_BYTES) -> bytes:
        """The bytes of this digest. Raises ``BlobError`` when they are missing, too many or not what the name says."""
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                data = file.read(max_bytes + 1)
        except FileNotFoundError as error:
            raise BlobError(f"the blob {path} is missing") from error
        except OSError as error:
            raise BlobError(f"the blob {path} cannot be read: {error.strerror}") from error
        if len(data) > max_bytes:
            raise BlobError(f"the blob {path} has more than {max_bytes} bytes")
        found = blake2b(data, digest_size=32).hexdigest()
        if found != digest:
            raise BlobError(f"the blob {path} holds other bytes, with the digest {found}: it was damaged")
        return data

    def exists(self, digest: str) -> bool:
        """Whether a file of this name is there; only ``get`` tells whether it is whole."""
        return self.path(digest).is_file()

    def _renewed(self, path: Path) -> bool:
        """Make a blob that is there already young, so that no sweep takes it; False if it is not there."""
        try:
            os.utime(path)
            # Another process may have renamed it a moment ago without having synced the folder yet.
            sync_folder(path.parent)
        except FileNotFoundError:
            return False
        return True

    def _write(self, path: Path, data: bytes) -> None:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self.folder)
        write_synced(path, data)
