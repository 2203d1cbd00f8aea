"""Files that are there whole after a crash, or not at all: temporary name, fsync, rename, fsync of the folder.

Rule: whoever cannot go on without the file says ``must_last``; what a disk refuses becomes an error with an advice.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollog.events.errors import DiskRefused

_AFTERWARDS: Final = "then rollog resume; nothing that was reported is lost"
ADVICE: Final = {
    errno.ENOSPC: f"the disk is full: make room, {_AFTERWARDS}",
    errno.EDQUOT: f"the quota is used up: make room, {_AFTERWARDS}",
    errno.EFBIG: f"a file may not grow further: raise the limit (ulimit -f), {_AFTERWARDS}",
    errno.EIO: f"the disk fails: look at the system's log, move the run's folder to another disk, {_AFTERWARDS}",
    errno.EROFS: f"the disk is read-only: mount it writable, {_AFTERWARDS}",
    errno.EACCES: "this user has no right to it: correct the folder's owner",
    errno.EPERM: "this user has no right to it: correct the folder's owner",
}
"""What a person can do about a disk that refuses."""


def advice_of(error: OSError) -> str:
    """The advice for this refusal."""
    return ADVICE.get(error.errno or 0, "see the system's log")


@contextmanager
def must_last(what: str) -> Iterator[None]:
    """Raise ``DiskRefused`` for what the disk refuses in this block; ``what`` is named in it."""
    try:
        yield
    except OSError as error:
        raise DiskRefused(f"{what} could not be written: {error.strerror}; {advice_of(error)}") from error


def write_synced(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads. Raises ``OSError``, and leaves no draft then."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    draft = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
