"""Where rows come from: a JSONL file, a data set folder, a reasoning-gym task. Raw rows by index, each with its place.

Rule 1: a source gives any row by its index; nothing is streamed, because an ordinal's row must be there at any time.
Rule 2: what cannot be read is a DataError with file and line (or row), found when the source is opened and not mid-run.
Rule 3: ``datasets`` and ``reasoning_gym`` are imported when a plan asks for them; the base install has neither.
"""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from rollog.pipeline.errors import DataError
from rollog.pipeline.settings import Data, Task

TASK_PREFIX: Final = "reasoning_gym:"

Row = dict[str, Any]


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
    if data.path.startswith(TASK_PREFIX):
        return _task(data.path.removeprefix(TASK_PREFIX), data.task or Task())
    path = Path(data.path)
    if path.is_dir():
        return _folder(path, data.split)
    if path.is_file() and path.suffix == ".jsonl":
        return _jsonl(path)
    if path.exists():
        raise DataError(f"data.path={path}: files named *{path.suffix} cannot be read. Convert it to a .jsonl file.")
    raise DataError(
        f"data.path={path}: no such file or folder. Correct the path; a data set of the Hugging Face hub is first "
        f"saved with datasets.load_dataset(...).save_to_disk(FOLDER), and a reasoning-gym task is {TASK_PREFIX}<task>."
    )


@dataclass(frozen=True, slots=True)
class JsonlRows:
    """Lines of a JSONL file, kept as bytes and parsed when asked for."""

    path: Path
    lines: tuple[bytes, ...]
    numbers: tuple[int, ...]
    """Line in the file of each row, from 1; blank lines hold no row."""

    @property
    def name(self) -> str:
        return self.path.stem

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Row:
        try:
            row = json.loads(self.lines[index], parse_constant=_refuse_constant)
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
        return f"{self.path} line {self.numbers[index]}"


def _jsonl(path: Path) -> JsonlRows:
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    numbered = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if not numbered:
        raise DataError(f"{path}: holds no rows. Give it one JSON object a line.")
    return JsonlRows(path, tuple(line for _, line in numbered), tuple(number for number, _ in numbered))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


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


def _folder(path: Path, split: str | None) -> TableRows:
    """A folder written by ``datasets``' ``save_to_disk`` (Arrow files; nothing in it runs code)."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(f"data.path={path}: reading it needs `pip install 'rollog[train]'` (datasets).") from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, LookupError) as error:  # LookupError: what it raises for a saved set without rows
        raise DataError(
            f"data.path={path}: no rows can be read from it: {error}. Give a folder that save_to_disk has written."
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        names = sorted(str(name) for name in loaded)
        if split is None and len(names) == 1:
            split = names[0]
        if split not in names:
            raise DataError(f"data.path={path}: it has no data.split={split}. Use one of: {', '.join(names)}.")
        loaded = loaded[split]
    elif split is not None:
        raise DataError(f"data.path={path}: has no splits, and data.split={split}. Remove data.split.")
    if len(loaded) == 0:
        raise DataError(f"data.path={path}: holds no rows. Save a data set that has some.")
    return TableRows(path.name, str(path), loaded)


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
