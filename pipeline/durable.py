"""Folders that are either whole or not there, whenever the machine stops.

Rule 1: a folder is filled under a temporary name, every file and folder in it is synced, then it is renamed and its
parent synced. A name that is not temporary therefore never holds half of something.
Rule 2: nothing is overwritten. A folder that exists under the final name stays as it is.
Rule 3: a folder is deleted by renaming it to a temporary name first, so no reader finds a part of it.
Rule 4: what lies under a temporary name belongs to nobody and is swept by the next owner of the parent.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from rollog.pipeline.errors import PipelineError

TEMPORARY = ".tmp-"


class AlreadyThere(PipelineError):
    """A folder of that name exists already and is kept."""


def file_digest(path: Path) -> str:
    """The blake2b-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        whole = hashlib.blake2b(digest_size=32)
        while part := file.read(1 << 20):
            whole.update(part)
        return whole.hexdigest()


def bytes_digest(data: bytes) -> str:
    """The blake2b-256 of `data`, as 64 hex digits."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def canonical_json(value: object) -> bytes:
    """One byte string for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Put `data` under `path`, whole or not at all: temporary name, sync, rename, sync of the folder."""
    temporary = path.parent / f"{TEMPORARY}{uuid4().hex}"
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


@contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder in `parent` (made if missing) to be filled and given to `keep`; gone afterwards if it was
    not."""
    parent.mkdir(parents=True, exist_ok=True)
    temporary = parent / f"{TEMPORARY}{uuid4().hex}"
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def keep(temporary: Path, name: str) -> Path:
    """Give a filled temporary folder its final name, durably. Raises AlreadyThere if the name is taken."""
    target = temporary.parent / name
    for path in sorted(temporary.rglob("*")):
        sync(path)
    sync(temporary)
    if target.exists():
        raise AlreadyThere(f"{target} exists already and is never overwritten; it is used as it is")
    temporary.rename(target)
    sync(temporary.parent)
    return target


def delete_folder(folder: Path) -> None:
    """Take a folder away in one moment (rule 3). A folder that is gone already is fine."""
    temporary = folder.parent / f"{TEMPORARY}{uuid4().hex}"
    try:
        folder.rename(temporary)
    except FileNotFoundError:
        return
    sync(folder.parent)
    shutil.rmtree(temporary, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Delete what earlier owners of `parent` left under temporary names, in it and in its folders."""
    for leftover in [*parent.glob(f"{TEMPORARY}*"), *parent.glob(f"*/{TEMPORARY}*")]:
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
