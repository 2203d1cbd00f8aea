"""``docs/settings.md``, written from the settings themselves: ``python -m rollog.pipeline.settings_doc``.

Rule 1: names, defaults and meanings stand in ``settings`` and ``config`` only; a test compares the document with them.
Rule 2: one table a section, in the order of the code. What a resume may change is marked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollog.pipeline.config import Plan, may_change

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

LINE_END, QUOTE = "\n", "'"

ABOUT: Final = """# Settings

Written by `python -m rollog.pipeline.settings_doc` from the settings themselves; change them there.

A run is described by a YAML file. `defaults: [base, other]` at its top names files beside it, whose settings lie
beneath its own. On the command line `name=value` goes on top of both: `rollog train run.yaml grpo.max_steps=9`. A
name that is not here is refused, as is a value of the wrong kind, a value out of its range, and every combination of
settings that could not do what it says. `rollog train run.yaml --dry-run` prints all settings of a run, and every
bound that follows from them.

Units stand in the names: `_s` is seconds, `_tokens` tokens; other counts are counts of what they name. `null` means
that the value is derived, as the text says. N is `grpo.prompts_per_step`, K is `sampler.lookahead` or
`sampler.max_staleness`.

`rollog resume RUN name=value` may change the settings marked with ↻. The others make the run what it is.
"""


def document() -> str:
    """The whole document."""
    sections = [
        (name, field.annotation)
        for name, field in Plan.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    ]
    parts = [ABOUT, "## The run itself\n", *_table(Plan, "")]
    for name, section in sections:
        parts += [f"\n## {name}\n", f"{_plain(section.__doc__ or '')}\n", *_table(section, f"{name}.")]
    return "\n".join(parts) + "\n"


def _table(model: type[BaseModel], above: str) -> Iterator[str]:
    """The rows of a section; a section inside it follows under its dotted name."""
    yield "| setting | default | meaning |\n|---|---|---|"
    for name, field in model.model_fields.items():
        inner = _inner(field)
        if inner is not None and not above:
            continue
        mark = " ↻" if may_change(f"{above}{name}") else ""
        yield f"| `{above}{name}`{mark} | {_default(field)} | {_plain(field.description or '')} |"
        if inner is not None:
            for part, deeper in inner.model_fields.items():
                yield f"| `{above}{name}.{part}` | {_default(deeper)} | {_plain(deeper.description or '')} |"


def _inner(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a setting is, if it is one."""
    for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = list(field.default) if isinstance(field.default, tuple) else field.default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000)
    return f"`{text.partition(LINE_END)[0].strip(QUOTE)}`"


def _plain(text: str) -> str:
    """A docstring as one line of a Markdown table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
