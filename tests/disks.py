"""Small disks, for tests that fill them. Mounting one needs a user who may: root, as in continuous integration."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk in memory of that size (``12m``), mounted on ``folder``; skips the test where this user may not."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk on this machine: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Take all room but ``leave`` bytes with the file ``filler``."""
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):  # others write there too
        while (free := room(disk) - leave) > 0:
            file.write(bytes(min(free, 1 << 20)))


def room(disk: Path) -> int:
    """How many bytes it still takes."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def make_room(disk: Path) -> None:
    """Undo ``fill``."""
    (disk / "filler").unlink()
