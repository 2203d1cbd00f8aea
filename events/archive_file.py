"""A run in one file: its segments as they are, its settings, and on request its blobs and checkpoints.

    a tar without compression:  rollog.json   log/<first>-<last>.segment ...   blobs/...  checkpoints/...  weights/...

Rule 1: ``rollog.json`` comes first and names every other member with its size and its blake2b-256. A member that it
        does not name, or whose bytes are others, makes the file damaged.
Rule 2: the log is read inside the file (``FileLog``), without unpacking and without a server.
Rule 3: names are plain: a folder of the list below, no "..", no link, no device. Nothing in the file is code.
Rule 4: the file appears whole, by a rename, or not at all.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from rollog.events.durable import sync_folder
from rollog.events.errors import CorruptEntry, MissingEntry
from rollog.events.log import Head

SCHEMA: Final = "rollog.archive/1"
CONTENTS: Final = "rollog.json"
FOLDERS: Final = ("log", "blobs", "checkpoints", "weights")
MAX_CONTENTS_BYTES: Final = 256 << 20
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What ``rollog.json`` says. ``epoch``: of the last entry; ``files``: name -> (bytes, blake2b-256)."""

    run: str
    log_id: str
    head: Head
    epoch: int
    settings: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]


def write_archive(file: Path, about: Contents, members: Iterable[tuple[str, Path]]) -> Contents:
    """Write the file; ``members`` are (name in the archive, file on disk). ``about.files`` is filled in."""
    found = sorted(members)
    files = {name: (path.stat().st_size, _hash(path)) for name, path in found}
    contents = Contents(
        run=about.run, log_id=about.log_id, head=about.head, epoch=about.epoch, settings=about.settings, files=files
    )
    draft = file.with_name(f".tmp-{file.name}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as out:
            with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
                first = _packed(contents)
                tar.addfile(_member(CONTENTS, len(first)), io.BytesIO(first))
                for name, path in found:
                    with path.open("rb") as data:
                        tar.addfile(_member(name, files[name][0]), data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)
    return contents


def read_contents(file: Path) -> Contents:
    """What is in the file. Raises ``MissingEntry``, ``CorruptEntry``."""
    with _opened(file) as tar:
        return _contents(tar, file)


def unpack(file: Path, folders: Mapping[str, Path]) -> Contents:
    """Write the members into the folders (a name of ``FOLDERS`` -> where), each checked against ``rollog.json``.

    Raises ``CorruptEntry`` for a member that is missing, unknown, damaged, or tries to be somewhere else.
    """
    with _opened(file) as tar:
        contents = _contents(tar, file)
        missing = dict(contents.files)
        for member in tar:
            if member.name == CONTENTS:
                continue
            wanted = missing.pop(member.name, None)
            if wanted is None or not member.isreg():
                raise CorruptEntry(f"{file}: {member.name!r} does not stand in its {CONTENTS}, or is no plain file")
            folder, _, rest = member.name.partition("/")
            target = folders[folder] / rest
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = tar.extractfile(member)
            assert data is not None
            with target.open("xb") as out:
                found = _copy(data, out)
            if found != wanted:
                raise CorruptEntry(f"{file}: {member.name} is damaged: it has {found}, {CONTENTS} says {wanted}")
    if missing:
        raise CorruptEntry(f"{file} is not whole: {next(iter(missing))} is missing")
    return contents


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, "r:") as tar:
            yield tar
    except FileNotFoundError as error:
        raise MissingEntry(f"{file} does not exist") from error
    except (tarfile.TarError, EOFError) as error:
        raise CorruptEntry(f"{file} is no whole archive of a run: {error}") from error


def _contents(tar: tarfile.TarFile, file: Path) -> Contents:
    try:
        member = next(iter(tar))
        data = tar.extractfile(member)
        if member.name != CONTENTS or data is None or member.size > MAX_CONTENTS_BYTES:
            raise CorruptEntry(f"{file} does not begin with {CONTENTS}")
        found = json.loads(data.read())
        if found["schema"] != SCHEMA:
            raise CorruptEntry(f"{file} is a {found['schema']}; this rollog reads {SCHEMA}: use a newer one")
        files = {str(name): (int(each["bytes"]), str(each["hash"])) for name, each in found["files"].items()}
        contents = Contents(
            run=str(found["run"]),
            log_id=str(found["log_id"]),
            head=Head(offset=int(found["offset"]), digest=str(found["digest"])),
            epoch=int(found["epoch"]),
            settings=dict(found["settings"]),
            files=files,
        )
    except (StopIteration, tarfile.TarError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptEntry(f"{file} is no archive of a run: {error!r}") from error
    for name in files:
        path = PurePosixPath(name)
        plain = len(path.parts) > 1 and path.parts[0] in FOLDERS and ".." not in path.parts and str(path) == name
        if not plain:
            raise CorruptEntry(f"{file}: the member {name!r} would lie outside of the run")
    return contents


def _packed(contents: Contents) -> bytes:
    files = {name: {"bytes": size, "hash": hash} for name, (size, hash) in contents.files.items()}
    plain = {
        "schema": SCHEMA, "run": contents.run, "log_id": contents.log_id, "offset": contents.head.offset,
        "digest": contents.head.digest, "epoch": contents.epoch, "settings": contents.settings, "files": files,
    }  # fmt: skip
    return json.dumps(plain, indent=1).encode() + b"\n"


def _member(name: str, size: int) -> tarfile.TarInfo:
    """A header that says nothing about this machine or its user."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _hash(path: Path) -> str:
    with path.open("rb") as data:
        return _copy(data, io.BytesIO(), keep=False)[1]


def _copy(data: IO[bytes], out: IO[bytes], *, keep: bool = True) -> tuple[int, str]:
    whole, size = blake2b(digest_size=32), 0
    for part in _parts(data):
        whole.update(part)
        size += len(part)
        if keep:
            out.write(part)
    return size, whole.hexdigest()


def _parts(data: IO[bytes]) -> Iterator[bytes]:
    while part := data.read(_CHUNK_BYTES):
        yield part
