"""Files of one run in another run's folder: hard links where the disk allows it, else copies.

Every file of a run that can be linked is written once and never changed; deleting it in one folder leaves the other's.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from rollog.events.blobs import Blobs


def link_file(source: Path, target: Path) -> None:
    """The same bytes under another name. Raises ``FileNotFoundError`` when they are gone."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, a disk without links, or too many of them
        shutil.copyfile(source, target)


def link_folder(source: Path, target: Path) -> None:
    """Every file of a folder. Raises ``FileNotFoundError`` when it is gone."""
    if not source.is_dir():
        raise FileNotFoundError(source)
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        link_file(file, target / file.relative_to(source))


def link_blobs(digests: Iterable[str], source: Blobs, target: Blobs) -> int:
    """Those blobs that are there; returns how many."""
    linked = 0
    for digest in sorted(set(digests)):
        if source.exists(digest):
            link_file(source.path(digest), target.path(digest))
            linked += 1
    return linked
