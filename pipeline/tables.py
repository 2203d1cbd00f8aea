"""Rows out of tables: Parquet files, folders that ``datasets`` has saved, data sets of the Hugging Face hub.

Rule 1: nothing that is read runs code: Parquet and Arrow hold values only, and ``datasets`` 4 and later loads no
        scripts. Parquet is held in memory, unpacked; what ``datasets`` gives stays on disk.
Rule 2: several Parquet files are one table, in the order of their names.
Rule 3: the hub is asked by ``datasets``, which keeps what it has fetched. Under HF_HUB_OFFLINE=1 only that is used.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from rollog.pipeline.errors import DataError

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of anything that is indexed by int: a ``datasets.Dataset``, or a list of made problems."""

    name: str
    origin: str
    table: Any

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        return dict(self.table[index])

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self.table)

    def place(self, index: int) -> str:
        return f"{self.origin} row {index}"


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Rows of Parquet files that have the same columns."""

    name: str
    paths: tuple[Path, ...]
    ends: tuple[int, ...]
    """Rows of all files up to and including each."""
    tables: tuple[Any, ...]

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Row:
        file, position = self._find(index)
        (row,) = self.tables[file].slice(position, 1).to_pylist()
        return dict(row)

    def __iter__(self) -> Iterator[Row]:
        for table in self.tables:
            for batch in table.to_batches():
                yield from batch.to_pylist()

    def place(self, index: int) -> str:
        file, position = self._find(index)
        return f"{self.paths[file]} row {position}"

    def _find(self, index: int) -> tuple[int, int]:
        file = bisect_right(self.ends, index)
        return file, index - (self.ends[file - 1] if file else 0)


def open_parquet(path: Path) -> ParquetRows:
    """One file, or all ``*.parquet`` of a folder."""
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise DataError(f"data.path={path}: reading it needs `pip install 'rollog[train]'` (pyarrow).") from error
    tables = []
    for file in paths:
        try:
            tables.append(pyarrow.parquet.read_table(file))
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{file}: not readable as Parquet: {error}. Write it again.") from error
        if set(tables[-1].column_names) != set(tables[0].column_names):
            raise DataError(
                f"{file}: its columns are {', '.join(sorted(tables[-1].column_names))}, those of {paths[0].name} are "
                f"{', '.join(sorted(tables[0].column_names))}. Files in one folder are one data set: separate them."
            )
    ends = tuple(accumulate(len(table) for table in tables))
    if ends[-1] == 0:
        raise DataError(f"data.path={path}: holds no rows. Write a file that has some.")
    return ParquetRows(path.stem if path.is_file() else path.name, tuple(paths), ends, tuple(tables))


def open_saved(path: Path, split: str | None) -> TableRows:
    """A folder written by ``datasets``' ``save_to_disk``."""
    datasets = _datasets(str(path))
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, LookupError) as error:  # LookupError: what it raises for a saved set without rows
        raise DataError(
            f"data.path={path}: no rows can be read from it: {error}. Give a folder that save_to_disk has written, or "
            f"one that holds .parquet files."
        ) from error
    return TableRows(path.name, str(path), _chosen(loaded, str(path), split))


def open_hub(name: str, subset: str | None, split: str | None) -> TableRows:
    """A data set of the hub, fetched or out of the local cache."""
    datasets = _datasets(name)
    try:
        loaded = datasets.load_dataset(name, subset)
    except (OSError, ValueError, LookupError, datasets.exceptions.DatasetsError) as error:
        wanted = name if subset is None else f"{name} (data.subset={subset})"
        raise DataError(
            f"data.path={wanted}: no file or folder of this name, and no data set of the Hugging Face hub can be "
            f"loaded by it: {error}. Correct the name; or fetch it once where the hub can be reached, with "
            f"datasets.load_dataset(...), which fills the cache (HF_HOME); or write it to a .parquet or .jsonl file "
            f"and name that."
        ) from error
    return TableRows(name.rpartition("/")[2], name, _chosen(loaded, name, split))


def _datasets(path: str) -> ModuleType:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(f"data.path={path}: reading it needs `pip install 'rollog[train]'` (datasets).") from error
    module: ModuleType = datasets
    return module


def _chosen(loaded: Any, path: str, split: str | None) -> Any:
    """The split of what ``datasets`` has loaded."""
    if isinstance(loaded, dict):
        names: Sequence[str] = sorted(str(name) for name in loaded)
        if split is None and len(names) == 1:
            split = names[0]
        if split not in names:
            raise DataError(f"data.path={path}: it has no data.split={split}. Use one of: {', '.join(names)}.")
        loaded = loaded[split]
    elif split is not None:
        raise DataError(f"data.path={path}: has no splits, and data.split={split}. Remove data.split.")
    if len(loaded) == 0:
        raise DataError(f"data.path={path}: holds no rows. Save a data set that has some.")
    return loaded
