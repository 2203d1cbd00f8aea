"""Checkpoint folders: whole or not there, bound to the log by their manifest."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollog.pipeline.checkpoints import (
    MANIFEST,
    CheckpointError,
    Ordered,
    broken_files,
    list_manifests,
    newest_whole,
    prune,
    read_manifest,
    write,
)

DEATH = Path(__file__).with_name("checkpoint_death.py")


def ordered(version: int, **changes: Any) -> Ordered:
    fields: dict[str, Any] = {
        "log": "log",
        "offset": 10 * version,
        "digest": "ab" * 16,
        "epoch": 1,
        "version": version,
        "generation": 1,
    }
    return Ordered(**{**fields, **changes})


def fill(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"weights")
    (folder / "trainer.json").write_bytes(b"{}")


def test_a_checkpoint_names_its_files_and_the_entry_that_ordered_it(tmp_path: Path) -> None:
    manifest = write(tmp_path, ordered(3), fill, formats={"trainer": 1})

    assert manifest.folder == tmp_path / "3-30-1"
    assert list(manifest.files) == ["model/weights", "trainer.json"]
    assert list_manifests(tmp_path) == [manifest]
    assert read_manifest(manifest.folder) == manifest
    assert len(manifest.digest) == 64


def test_a_death_at_any_line_of_replacing_leaves_no_half_that_looks_whole_and_never_nothing(tmp_path: Path) -> None:
    """B24, TransferQueue checkpoint.md: the old one was deleted before the new one was renamed: a crash left none."""
    done = subprocess.run([sys.executable, DEATH, tmp_path], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.mark.parametrize("damage", ["no manifest", "cut manifest", "no file", "short file", "renamed folder"])
def test_a_damaged_checkpoint_is_not_listed(tmp_path: Path, damage: str) -> None:
    old, new = write(tmp_path, ordered(3), fill), write(tmp_path, ordered(4), fill)
    path = new.folder / MANIFEST
    if damage == "no manifest":
        path.unlink()
    elif damage == "cut manifest":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "no file":
        (new.folder / "trainer.json").unlink()
    elif damage == "short file":
        (new.folder / "trainer.json").write_bytes(b"")
    else:
        new.folder.rename(tmp_path / "5-40-1")

    assert list_manifests(tmp_path) == [old]
    assert newest_whole(tmp_path) == old


def test_a_file_with_changed_bytes_is_found_when_a_checkpoint_is_chosen(tmp_path: Path) -> None:
    old, new = write(tmp_path, ordered(3), fill), write(tmp_path, ordered(4), fill)
    (new.folder / "model" / "weights").write_bytes(b"WEIGHTS")

    assert list_manifests(tmp_path) == [old, new]
    assert broken_files(new) == ["model/weights"]
    assert newest_whole(tmp_path) == old


def test_a_manifest_that_points_out_of_its_folder_is_none(tmp_path: Path) -> None:
    manifest = write(tmp_path, ordered(3), fill)
    found = json.loads(manifest.data)
    found["files"]["../secret"] = found["files"].pop("trainer.json")
    data = json.dumps(found, sort_keys=True, separators=(",", ":"))
    (manifest.folder / MANIFEST).write_text(data)

    assert read_manifest(manifest.folder) is None


def test_the_newest_is_chosen_up_to_a_version(tmp_path: Path) -> None:
    manifests = [write(tmp_path, ordered(version), fill) for version in (2, 10, 9)]

    assert newest_whole(tmp_path) == manifests[1]
    assert newest_whole(tmp_path, max_version=9) == manifests[2]
    assert newest_whole(tmp_path, max_version=1) is None
    assert newest_whole(tmp_path / "nothing") is None


def test_a_checkpoint_of_the_same_entry_is_kept_and_of_another_refused(tmp_path: Path) -> None:
    first = write(tmp_path, ordered(3), fill)

    def must_not_run(folder: Path) -> None:
        raise AssertionError

    assert write(tmp_path, ordered(3), must_not_run) == first
    with pytest.raises(CheckpointError, match="another history"):
        write(tmp_path, ordered(3, digest="cd" * 16), fill)


def test_trainer_generations_do_not_share_a_folder(tmp_path: Path) -> None:
    write(tmp_path, ordered(3, generation=1), fill)
    write(tmp_path, ordered(3, generation=7), fill)

    assert [manifest.ordered.generation for manifest in list_manifests(tmp_path)] == [1, 7]


def test_pruning_keeps_the_named_versions_and_what_is_not_whole(tmp_path: Path) -> None:
    manifests = [write(tmp_path, ordered(version), fill) for version in (1, 2, 3)]
    (manifests[1].folder / MANIFEST).unlink()

    assert prune(tmp_path, keep_versions={3}) == manifests[:1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2-20-1", "3-30-1"]


def test_filling_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, ordered(3), fail)
    assert list(tmp_path.iterdir()) == []
