"""Files that are there whole after a crash, or not at all: temporary name, fsync, rename, fsync of the folder."""

import os
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Write a file that is there whole after a crash, or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
