"""How a verb's answer is written: ``-o table|json|jsonl|yaml|csv``.

Rule 1: data on stdout, everything else on stderr.
Rule 2: one plain model is written in every format; a table is drawn by the verb from the same model.
Rule 3: every JSON object carries its ``schema``; a number that JSON does not know (nan, infinity) is null.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import yaml


class Format(StrEnum):
    """What an answer is written as."""

    TABLE = "table"
    """For people."""
    JSON = "json"
    """One object."""
    JSONL = "jsonl"
    """One object a line: rows where the verb has rows, else one line."""
    YAML = "yaml"
    """The object as YAML."""
    CSV = "csv"
    """A header line, then a line a row; nested values as JSON. Without rows: dotted path, value."""


JSON_INDENT: Final = 2


def written(model: Mapping[str, Any], format: Format, rows: str | None = None) -> Iterator[str]:
    """The lines of the model in a format that is not a table. ``rows``: the key under which it holds its rows."""
    plain = finite(model)
    match format:
        case Format.JSON:
            yield json.dumps(plain, indent=JSON_INDENT, ensure_ascii=False)
        case Format.JSONL:
            yield from json_lines(plain[rows] if rows else [plain])
        case Format.YAML:
            yield yaml_text(plain)
        case Format.CSV:
            yield from csv_lines(plain[rows] if rows else [{"path": p, "value": v} for p, v in flat(plain)])
        case Format.TABLE:
            raise ValueError("a table is drawn by the verb itself")


def yaml_text(value: Any) -> str:
    """Any plain value as YAML, without the last line break."""
    return yaml.safe_dump(finite(value), sort_keys=False, allow_unicode=True).removesuffix("\n").removesuffix("\n...")


def json_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One compact JSON object a row."""
    return (json.dumps(finite(row), separators=(",", ":"), ensure_ascii=False) for row in rows)


def csv_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A header of every key in order of appearance, then a line a row."""
    kept = list(rows)
    names = list(dict.fromkeys(name for row in kept for name in row))
    yield _csv_line(names)
    for row in kept:
        yield _csv_line([_cell(row.get(name)) for name in names])


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every leaf; lists count as leaves."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flat(item, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def finite(value: Any) -> Any:
    """The value with null in place of nan and infinity, which JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
