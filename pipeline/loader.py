"""Rows by ordinal: any prompt of the run, at any time, with nothing to save and nothing to restore.

Rule 1: ordinal o is epoch o div M, position o mod M of M rows; its row follows from the seed alone (``permutation``).
Rule 2: a row is plain: texts, numbers, lists and maps, always with ``prompt``, ``answer`` and ``source``.
Rule 3: every row is checked before the run begins.
Rule 4: the fingerprint is of the content as the run sees it, not of the file: the same rows as JSONL, as Parquet, in a
        data set folder and from the hub have the same one.
"""

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import msgpack

from rollog.pipeline import permutation
from rollog.pipeline.errors import DataError
from rollog.pipeline.settings import Data
from rollog.pipeline.sources import Source, open_source
from rollog.pipeline.tables import Row


@dataclass(frozen=True, slots=True)
class Loader:
    """The data set of a run. ``Loader.open`` reads and checks it."""

    source: Source
    data: Data
    seed: int
    prompts_per_step: int
    fingerprint: str
    """64 hex digits over the content of all rows in their own order."""

    @classmethod
    def open(cls, data: Data, *, seed: int, prompts_per_step: int) -> Self:
        """Reads every row once. DataError names file, line (or row) and column of the first that is wrong."""
        source, digest = open_source(data), blake2b(digest_size=32)
        for index, raw in enumerate(source):
            digest.update(json.dumps(_checked_row(raw, data, source, index), sort_keys=True).encode() + b"\n")
        return cls(source, data, seed, prompts_per_step, digest.hexdigest())

    @property
    def num_rows(self) -> int:
        """M."""
        return len(self.source)

    @property
    def num_prompts(self) -> int:
        """Ordinals that are handed out: whole batches only."""
        return self.data.epochs * self.num_rows - self.left

    @property
    def left(self) -> int:
        """Prompts at the end of the last epoch that fill no step and are never handed out."""
        return self.data.epochs * self.num_rows % self.prompts_per_step

    def check_unchanged(self, recorded: str) -> None:
        """DataError when the rows are not those whose fingerprint the log's Start entry holds."""
        if self.fingerprint != recorded:
            raise DataError(
                f"data.path={self.data.path}: its {self.num_rows} rows are not those that the run began with "
                f"(fingerprint {self.fingerprint[:12]}, recorded {recorded[:12]}). Put the old data back, or use "
                f"`rollog fork`."
            )

    def remaining(self, handed_out: int) -> int:
        """Prompts still to hand out after ``handed_out`` of them."""
        return max(0, self.num_prompts - handed_out)

    def row_index(self, ordinal: int) -> int:
        """Row of the data set that belongs to ``ordinal``."""
        return permutation.row_index(ordinal, num_rows=self.num_rows, seed=self.seed)

    def row(self, index: int) -> Row:
        """Row ``index`` of the data set: ``prompt``, ``answer``, ``source`` and every column with another name."""
        return _checked_row(self.source[index], self.data, self.source, index)


def _checked_row(raw: Row, data: Data, source: Source, index: int) -> Row:
    """The row under the names that the run uses. A mapped column hides an unmapped one of the same name."""
    for column in (data.prompt, data.answer, data.source):
        if column is not None and column not in raw:
            raise DataError(
                f"{source.place(index)}: no column {column!r}; it has {', '.join(sorted(raw)) or 'none'}. Mend the "
                f"row, or name the right column in data.prompt, data.answer or data.source."
            )
    mapped = {data.prompt, data.answer, data.source}
    row: Row = {name: value for name, value in raw.items() if name not in mapped}
    row["prompt"] = raw[data.prompt]
    row["answer"] = None if data.answer is None else raw[data.answer]
    row["source"] = source.name if data.source is None else raw[data.source]
    if not _is_prompt(row["prompt"]):
        raise DataError(
            f"{source.place(index)} column {data.prompt!r}: {row['prompt']!r} is no prompt. Give a text that is "
            f'not empty, or a list of chat messages {{"role": ..., "content": ...}}.'
        )
    if "completion" in row:
        raise DataError(
            f"{source.place(index)} column 'completion': the reward gets the model's answer under this name. Rename it."
        )
    _check_plain(row, source, index)
    return row


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    messages = value if isinstance(value, list) else []
    return bool(messages) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        for message in messages
    )


def _check_plain(row: Row, source: Source, index: int) -> None:
    """Rows go to the reward in MessagePack and into the fingerprint as JSON: dates, bytes and huge numbers cannot."""
    for column, value in row.items():
        try:
            msgpack.packb(value)
            json.dumps(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{source.place(index)} column {column!r}: {error}. Store it as a text, or leave the column out."
            ) from error
