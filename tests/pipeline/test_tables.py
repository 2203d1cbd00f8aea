"""Rows out of Parquet files, and of data sets of the hub that lie in the local cache: real files, no network."""

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from rollog.pipeline.errors import DataError
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data

datasets.disable_progress_bars()

ROWS = [{"prompt": f"{n} plus one", "answer": str(n + 1), "levels": [n, n % 3], "kind": {"n": n}} for n in range(10)]


def parquet(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """A file of several row groups."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    return path


def jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def load(path: Path, **data: Any) -> Loader:
    return Loader.open(Data(path=str(path), **data), seed=0, prompts_per_step=4)


def test_a_parquet_file_has_the_rows_and_the_fingerprint_of_the_same_jsonl(tmp_path: Path) -> None:
    table, lines = load(parquet(tmp_path / "toy.parquet")), load(jsonl(tmp_path / "toy.jsonl"))
    assert [table.row(index) for index in range(10)] == [lines.row(index) for index in range(10)]
    assert table.row(7)["source"] == "toy"
    assert table.fingerprint == lines.fingerprint
    assert load(parquet(tmp_path / "toy.parquet", ROWS[1:])).fingerprint != lines.fingerprint


def test_the_files_of_a_folder_are_one_table_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    parquet(tmp_path / "toy" / "train-00001.parquet", ROWS[4:])
    parquet(tmp_path / "toy" / "train-00000.parquet", ROWS[:4])
    folder = load(tmp_path / "toy")
    assert [folder.row(index)["answer"] for index in range(10)] == [row["answer"] for row in ROWS]
    assert folder.source.place(5) == f"{tmp_path / 'toy' / 'train-00001.parquet'} row 1"
    assert folder.fingerprint == load(parquet(tmp_path / "toy.parquet")).fingerprint


def test_what_is_wrong_with_a_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match=r"a\.parquet: not readable as Parquet: .*Write it again"):
        load(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"b\.parquet row 4 column 'prompt': '' is no prompt"):
        load(parquet(tmp_path / "b.parquet", [*ROWS[:4], {**ROWS[4], "prompt": ""}]))
    with pytest.raises(DataError, match=r"c\.parquet row 0 column 'at': .*Store it as a text"):
        load(parquet(tmp_path / "c.parquet", [{"prompt": "x", "answer": "y", "at": date(2026, 1, 1)}]))
    pyarrow.parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], "string")}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet: holds no rows"):
        load(tmp_path / "d.parquet")


def test_files_in_a_folder_that_are_not_one_data_set_are_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet", [{"prompt": "x"}])
    parquet(tmp_path / "2.parquet", [{"question": "x"}])
    with pytest.raises(DataError, match=r"2\.parquet: its columns are question, those of 1\.parquet are prompt"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["split", "subset"])
def test_a_file_has_no_splits_and_no_subsets_to_choose_from(tmp_path: Path, name: str) -> None:
    for path in (parquet(tmp_path / "toy.parquet"), jsonl(tmp_path / "toy.jsonl")):
        with pytest.raises(DataError, match=rf"has no {name}s, and data\.{name}=x\. Remove data\.{name}"):
            load(path, **{name: "x"})


OFFLINE = """
import json, sys
from pathlib import Path
import datasets
from rollog.pipeline.errors import DataError
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data

# What load_dataset leaves in the cache for org/toy, made from a file: the layout is one for all builders.
cache = Path(datasets.config.HF_DATASETS_CACHE)
datasets.load_dataset("parquet", data_files={"train": sys.argv[1], "test": sys.argv[1]})
(made,) = (path.parent for path in cache.rglob("dataset_info.json"))
cached = cache / "org___toy" / "default" / "0.0.0"
cached.mkdir(parents=True)
made.rename(cached / "0123")
for path in (cached / "0123").glob("parquet-*"):
    path.rename(path.with_name(path.name.replace("parquet-", "toy-")))

def found(**data):
    try:
        loader = Loader.open(Data(**data), seed=0, prompts_per_step=4)
    except DataError as error:
        return str(error)
    return [loader.num_rows, loader.row(3)["source"], loader.fingerprint]

print(json.dumps([
    found(path="org/toy", split="train"), found(path="org/toy"), found(path="org/absent"),
    found(path="org/toy", subset="hard", split="train"),
]))
"""


def test_without_a_network_a_data_set_of_the_hub_comes_out_of_the_cache_or_is_refused(tmp_path: Path) -> None:
    file = parquet(tmp_path / "toy.parquet")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(file)],
        env={**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr

    cached, no_split, absent, no_subset = json.loads(done.stdout)

    assert cached == [10, "toy", load(file).fingerprint]
    assert "org/toy: it has no data.split=None. Use one of: test, train." in no_split
    for says in ("data.path=org/absent: no file or folder of this name", "fetch it once", ".parquet or .jsonl file"):
        assert says in absent
    assert "data.path=org/toy (data.subset=hard)" in no_subset
