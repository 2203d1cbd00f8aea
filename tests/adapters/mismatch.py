"""What a vector expects and what ours gave."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference, in one scenario."""

    scenario: str
    where: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.scenario}: {self.where}: expected {self.expected!r}, got {self.got!r}"


def compare(scenario: Mapping[str, Any], where: str, expected: Any, got: Any) -> Iterator[Mismatch]:
    """A mismatch unless they are equal."""
    if expected != got:
        yield Mismatch(scenario["id"], where, expected, got)
