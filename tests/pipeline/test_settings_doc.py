"""The document of the settings is written from the settings."""

from rollog.pipeline.config import Plan, _fields
from rollog.pipeline.settings_doc import DOCUMENT, document


def test_the_document_is_what_the_settings_say() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m rollog.pipeline.settings_doc"


def test_every_setting_stands_in_it_with_its_default_and_its_meaning() -> None:
    rows = {line.split("`")[1]: line.split(" | ") for line in document().splitlines() if line.startswith("| `")}
    sections = {name for name, field in Plan.model_fields.items() if hasattr(field.annotation, "model_fields")}

    assert rows.keys() == {path for path, _ in _fields(Plan)} - sections
    assert [path for path, (_, default, meaning) in rows.items() if not default or len(meaning) < 10] == []
    assert rows["checkpoint.every_steps"][:2] == ["| `checkpoint.every_steps` ↻", "`10`"]
    assert rows["determinism"][:2] == ["| `determinism`", "`off`"]
    assert rows["optimizer.betas"][1] == "`[0.9, 0.99]`"
    assert rows["flow.lease_s"][1] == "`10`"
    assert rows["data.path"][1] == "must be given"
