"""Blobs are what their names say, or an error."""

import errno
import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest

from rollog.events.blobs import Blobs
from rollog.events.errors import BlobError


def test_a_blob_is_named_by_its_content(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = blobs.put(b"rollouts")
    assert digest == blake2b(b"rollouts", digest_size=32).hexdigest()
    assert blobs.exists(digest)
    assert blobs.get(digest) == b"rollouts"
    assert blobs.put(b"rollouts") == digest
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [digest]


def test_a_missing_large_or_damaged_blob_is_an_error(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = blobs.put(b"12345678")
    with pytest.raises(BlobError, match="more than 7 bytes"):
        blobs.get(digest, max_bytes=7)
    assert blobs.get(digest, max_bytes=8) == b"12345678"
    blobs.path(digest).write_bytes(b"12345679")
    with pytest.raises(BlobError, match="damaged"):
        blobs.get(digest)
    with pytest.raises(BlobError, match="is missing"):
        blobs.get("ab" * 32)
    assert not blobs.exists("ab" * 32)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "AB" * 32, "ab" * 31, "ab" * 32 + "\n", "ab" * 33])
def test_a_name_that_is_no_digest_opens_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(BlobError, match="64 lower-case"):
        Blobs(tmp_path).get(name)
    with pytest.raises(BlobError, match="64 lower-case"):
        Blobs(tmp_path).exists(name)


def test_a_full_disk_says_what_to_do_and_leaves_no_half_blob() -> None:
    """A limit on file sizes refuses bytes as a full disk does."""
    script = """
import resource, signal, sys, tempfile, pathlib
from rollog.events.blobs import Blobs
from rollog.events.errors import BlobError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = pathlib.Path(tempfile.mkdtemp())
try:
    Blobs(folder).put(b"x" * 5000)
except BlobError as error:
    print(error)
print([path.name for path in folder.rglob("*") if path.is_file()])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    said, left = done.stdout.splitlines()
    assert "5000 bytes could not be written" in said
    assert os.strerror(errno.EFBIG) in said
    assert left == "[]"
