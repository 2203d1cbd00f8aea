"""Folders and files that are whole or not there."""

from pathlib import Path

import pytest

from rollog.pipeline.durable import AlreadyThere, delete_folder, keep, new_folder, sweep, write_file


def test_a_folder_appears_under_its_name_only_when_kept(tmp_path: Path) -> None:
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").write_bytes(b"1")
        assert not (tmp_path / "made" / "final").exists()
        assert keep(folder, "final") == tmp_path / "made" / "final"

    assert (tmp_path / "made" / "final" / "file").read_bytes() == b"1"
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["final"]


def test_a_folder_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()

    with new_folder(tmp_path) as folder, pytest.raises(AlreadyThere, match="never overwritten"):
        keep(folder, "final")
    assert list((tmp_path / "final").iterdir()) == []


def test_deleting_what_is_gone_is_fine(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    delete_folder(tmp_path / "folder")
    delete_folder(tmp_path / "folder")

    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"old")
    write_file(tmp_path / "file", b"new")

    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


def test_sweeping_takes_what_a_death_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1" / "deep").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".tmp-2").write_bytes(b"")
    (tmp_path / "kept" / "file").write_bytes(b"")
    sweep(tmp_path)

    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["kept", "kept/file"]
