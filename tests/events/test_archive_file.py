"""A run in one file: read where it lies, unpacked as it was, and refused when a byte of it is another."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rollog.events.archive_file import Contents, read_contents, unpack, write_archive
from rollog.events.errors import CorruptEntry, MissingEntry
from rollog.events.file_log import FileLog, seal_tail
from rollog.events.memory_log import MemoryServer
from rollog.events.reading import open_reader


@pytest.fixture
def packed(tmp_path: Path, writer: Any) -> tuple[Path, Any]:
    """An archive of a log in two segments with one blob, and the log."""
    log = MemoryServer(clock=lambda: 0.0).log()
    pen = writer(log)
    for _ in range(5):
        pen.say()
    for last in (2, 5):
        seal_tail(log, tmp_path / "segments", "id", last)
    (tmp_path / "blob").write_bytes(b"some rollouts")
    about = Contents(run="demo", log_id="id", head=log.head(), epoch=1, settings={"seed": 3}, files={})
    members = [(f"log/{path.name}", path) for path in (tmp_path / "segments").iterdir()]
    write_archive(tmp_path / "run.rollog", about, [*members, ("blobs/ab/cd", tmp_path / "blob")])
    return tmp_path / "run.rollog", log


def folders(root: Path) -> dict[str, Path]:
    return {name: root / name for name in ("log", "blobs", "checkpoints", "weights")}


def test_the_log_is_read_in_the_file(packed: tuple[Path, Any]) -> None:
    file, log = packed
    with open_reader(file) as reader:
        assert list(reader.read()) == list(log.read())
        assert list(reader.read(4)) == list(log.read(4))
        assert reader.head() == log.head()
    assert FileLog(file).log_id == "id"


def test_it_comes_out_as_it_went_in(packed: tuple[Path, Any], tmp_path: Path) -> None:
    file, log = packed
    contents = unpack(file, folders(tmp_path / "out"))

    assert contents == read_contents(file)
    assert (contents.run, contents.head, contents.settings) == ("demo", log.head(), {"seed": 3})
    assert list(FileLog(tmp_path / "out" / "log").read()) == list(log.read())
    assert (tmp_path / "out" / "blobs" / "ab" / "cd").read_bytes() == b"some rollouts"
    for segment in (tmp_path / "segments").iterdir():
        assert (tmp_path / "out" / "log" / segment.name).read_bytes() == segment.read_bytes()


def test_a_changed_byte_of_a_member_is_found(packed: tuple[Path, Any], tmp_path: Path) -> None:
    file, _ = packed
    data = bytearray(file.read_bytes())
    with tarfile.open(file, "r:") as tar:
        places = {member.name: member.offset_data for member in tar if member.name != "rollog.json"}
    for number, (name, at) in enumerate(places.items()):
        damaged = tmp_path / f"{number}.rollog"
        data[at + 5] ^= 1
        damaged.write_bytes(data)
        data[at + 5] ^= 1
        with pytest.raises(CorruptEntry):
            unpack(damaged, folders(tmp_path / f"out-{number}"))
        if name.startswith("log/"):
            with pytest.raises(CorruptEntry):
                FileLog(damaged)


@pytest.mark.parametrize("cut", [0, 100, 1024, 3000, 3600])
def test_half_a_file_is_refused(packed: tuple[Path, Any], tmp_path: Path, cut: int) -> None:
    half = tmp_path / "half.rollog"
    half.write_bytes(packed[0].read_bytes()[:cut])
    with pytest.raises(CorruptEntry):
        unpack(half, folders(tmp_path / "out"))
    with pytest.raises(MissingEntry):
        read_contents(tmp_path / "none.rollog")


@pytest.mark.parametrize("name", ["../outside", "blobs/../../outside", "/etc/outside", "log", "settings/x", "log//x"])
def test_no_member_can_lie_outside(packed: tuple[Path, Any], tmp_path: Path, name: str) -> None:
    about = read_contents(packed[0])
    evil = tmp_path / "evil.rollog"
    write_archive(evil, about, [(name, tmp_path / "blob")])

    with pytest.raises(CorruptEntry, match="outside"):
        unpack(evil, folders(tmp_path / "out"))


def test_links_and_members_that_the_contents_do_not_name_are_refused(packed: tuple[Path, Any], tmp_path: Path) -> None:
    file, _ = packed
    link = tarfile.TarInfo("blobs/ab/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    extra = tarfile.TarInfo("blobs/ab/extra")
    for number, member in enumerate((link, extra)):
        changed = tmp_path / f"{number}.rollog"
        changed.write_bytes(file.read_bytes())
        with tarfile.open(changed, "a") as tar:
            tar.addfile(member, io.BytesIO())
        with pytest.raises(CorruptEntry, match="does not stand in"):
            unpack(changed, folders(tmp_path / f"out-{number}"))
