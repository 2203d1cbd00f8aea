"""Where rows come from: a file, a folder, the hub, a reasoning-gym task. Raw rows by index, each with its place.

Rule 1: a source gives any row by its index; nothing is streamed, because an ordinal's row must be there at any time.
Rule 2: what cannot be read is a DataError with file and line (or row), found when the source is opened and not mid-run.
Rule 3: ``datasets`` and ``reasoning_gym`` are imported when a plan asks for them; the base install has neither.
"""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

from rollog.pipeline.errors import DataError
from rollog.pipeline.settings import Data, Task
from rollog.pipeline.tables import Row, TableRows, open_hub, open_parquet, open_saved

TASK_PREFIX: Final = "reasoning_gym:"
READ: Final = (".jsonl", ".parquet")
"""Endings of the files that can be read."""
SUFFIXES: Final = frozenset({*READ, ".json", ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst"})
"""Names that end so are meant as files, whether they exist or not."""
HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""org/name"""


class Source(Protocol):
    """Rows by index."""

    @property
    def name(self) -> str:
        """What the rows are called in tables by source when no column says it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...

    def __iter__(self) -> Iterator[Row]: ...

    def place(self, index: int) -> str:
        """Where row ``index`` stands, for messages."""


def open_source(data: Data) -> Source:
    """The source that ``data.path`` names. DataError when there is none, or it is empty or malformed."""
    path, name = Path(data.path), data.path
    if name.startswith(TASK_PREFIX):
        _has_neither(data, split=data.split, subset=data.subset)
        return _task(name.removeprefix(TASK_PREFIX), data.task or Task())
    if path.is_dir():
        parquet = any(path.glob("*.parquet"))
        _has_neither(data, split=data.split if parquet else None, subset=data.subset)
        return open_parquet(path) if parquet else open_saved(path, data.split)
    if path.suffix in SUFFIXES or path.exists() or not HUB_ID.fullmatch(name):
        _has_neither(data, split=data.split, subset=data.subset)
        return _file(path)
    return open_hub(name, data.subset, data.split)


def _file(path: Path) -> Source:
    if not path.exists():
        raise DataError(
            f"data.path={path}: no such file or folder. Correct the path; a data set of the Hugging Face hub is named "
            f"org/name, and a reasoning-gym task {TASK_PREFIX}<task>."
        )
    match path.suffix:
        case ".jsonl":
            return _jsonl(path)
        case ".parquet":
            return open_parquet(path)
        case suffix:
            known = " or ".join(READ)
            raise DataError(f"data.path={path}: files named *{suffix} cannot be read. Convert it to {known}.")


def _has_neither(data: Data, **names: str | None) -> None:
    """Refuse settings that nothing here would read."""
    for name, value in names.items():
        if value is not None:
            raise DataError(f"data.path={data.path}: has no {name}s, and data.{name}={value}. Remove data.{name}.")


@dataclass(frozen=True, slots=True)
class JsonlRows:
    """Lines of a JSONL file, kept as bytes and parsed when asked for."""

    path: Path
    lines: tuple[bytes, ...]
    """Row by row: row 0 is the file's line 1."""

    @property
    def name(self) -> str:
        return self.path.stem

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Row:
        try:
            row = json.loads(self.lines[index], parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{self.place(index)} column {error.colno}: not JSON: {error.msg}. Mend or remove this line."
            ) from error
        except ValueError as error:
            raise DataError(f"{self.place(index)}: not JSON: {error}. Mend or remove this line.") from error
        if not isinstance(row, dict):
            raise DataError(
                f"{self.place(index)}: a {type(row).__name__} where an object with columns is needed, such as "
                f'{{"prompt": ..., "answer": ...}}.'
            )
        return row

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> str:
        return f"{self.path} line {index + 1}"


def _jsonl(path: Path) -> JsonlRows:
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise DataError(f"{path}: holds no rows. Give it one JSON object a line.")
    lines = tuple(content.removesuffix(b"\n").split(b"\n"))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path} line {number} column 1: a blank line where a row is needed. Remove this line.")
    return JsonlRows(path, lines)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _task(name: str, task: Task) -> TableRows:
    """Problems of a reasoning-gym task as rows with prompt, answer, metadata."""
    origin = f"{TASK_PREFIX}{name}"
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise DataError(f"data.path={origin}: needs `pip install 'rollog[train]'` (reasoning-gym).") from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        raise DataError(
            f"data.path={origin}: no such task. "
            + (
                f"Did you mean {' or '.join(near)}?"
                if near
                else f"There are {len(DATASETS)}, such as basic_arithmetic."
            )
        )
    try:
        problems = list(reasoning_gym.create_dataset(name, size=task.size, seed=task.seed, **task.options))
        # Metadata may hold tuples and number keys, which neither the log's digests nor the reward's pipe know.
        rows = json.loads(json.dumps(problems))
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        raise DataError(f"data.path={origin}: the task refuses data.task.options={task.options}: {error}") from error
    table = [{"prompt": row.pop("question"), **row} for row in rows]
    return TableRows(name, origin, table)
