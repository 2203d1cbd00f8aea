"""docs/events.md tells every event and every reason, field by field, as events/vocabulary.py has them."""

import dataclasses
import enum
import re
from pathlib import Path

from rollog.events import vocabulary

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "events.md").read_text()
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, flags=re.M | re.S))
REASONS = {
    name: kind
    for name, kind in vars(vocabulary).items()
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum) and kind.__module__ == vocabulary.__name__
}


def names(section: str) -> list[str]:
    """The first column of the section's table, without its head."""
    return re.findall(r"^\| `(\w+)` \| .+ \|$", section, flags=re.M)


def test_the_page_has_every_event_and_every_reason_and_nothing_else() -> None:
    assert sorted(SECTIONS) == sorted([*(f"`{tag}`" for tag in vocabulary.TAGS), *REASONS])


def test_each_event_is_told_with_all_its_fields_in_their_order() -> None:
    told = {tag: names(SECTIONS[f"`{tag}`"]) for tag in vocabulary.TAGS}

    assert told == {
        tag: [field.name for field in dataclasses.fields(event)] for tag, (event, _) in vocabulary.TAGS.items()
    }


def test_each_reason_is_told_with_all_its_values() -> None:
    assert {name: names(SECTIONS[name]) for name in REASONS} == {
        name: [member.value for member in kind] for name, kind in REASONS.items()
    }


def test_what_an_older_reader_may_skip_says_so() -> None:
    skippable = {tag for tag in vocabulary.TAGS if "may skip it" in SECTIONS[f"`{tag}`"]}

    assert skippable == {tag for tag, (event, _) in vocabulary.TAGS.items() if event in vocabulary.OPTIONAL}
