"""Does every prompt of every epoch add up? The view ``conservation``, one row an epoch.

    prompts = trained + dropped + filtered + evicted + open + never seen + unaccounted

Rule 1: two books are compared: what is settled is counted from the events alone, what is open or never seen is read
        from the State. Neither knows the other, so a prompt that is lost or counted twice shows as unaccounted, which
        must be 0.
Rule 2: epochs are those of the data set that the run began with.
Rule 3: it keeps four counts an epoch and the prompts that are selected right now, however long the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollog.events.log import Entry
from rollog.events.vocabulary import Drop, Evict, Filter, Select, Start, Train
from rollog.replay.state import State

SETTLEMENTS: Final = ("trained", "dropped", "filtered", "evicted")


@dataclass(slots=True)
class Conservation:
    """Follows a log and counts what is settled. ``counts``: settlement -> epoch -> prompts."""

    num_rows: int = 0
    counts: dict[str, dict[int, int]] = field(default_factory=lambda: {name: {} for name in SETTLEMENTS})
    selected: dict[int, list[int]] = field(default_factory=dict)
    """Step -> prompts, until it is trained for the first time."""

    def follow(self, entry: Entry) -> None:
        """Take the next entry."""
        for event in entry.events:
            match event:
                case Start():
                    self.num_rows = event.num_rows
                case Select():
                    self.selected.setdefault(event.step, []).extend(event.prompts)
                case Train():
                    self._settle("trained", self.selected.pop(event.step, ()))
                case Drop():
                    self._settle("dropped", (event.prompt,))
                case Filter():
                    self._settle("filtered", (event.prompt,))
                case Evict():
                    self._settle("evicted", event.prompts)
                case _:
                    pass

    def rows(self, state: State, num_epochs: int) -> list[dict[str, int]]:
        """One row an epoch; ``state`` is the fold of the same log."""
        size = self.num_rows
        open_: dict[int, int] = {}
        for prompt in state.groups:
            open_[prompt // size] = open_.get(prompt // size, 0) + 1
        return [self._row(epoch, open_.get(epoch, 0), state.handed_out) for epoch in range(num_epochs)]

    def _row(self, epoch: int, open_: int, handed_out: int) -> dict[str, int]:
        settled = {name: self.counts[name].get(epoch, 0) for name in SETTLEMENTS}
        never_seen = max(0, min(self.num_rows, (epoch + 1) * self.num_rows - handed_out))
        unaccounted = self.num_rows - sum(settled.values()) - open_ - never_seen
        return {"epoch": epoch, "prompts": self.num_rows, **settled, "open": open_, "never_seen": never_seen,
                "unaccounted": unaccounted}  # fmt: skip

    def _settle(self, how: str, prompts: Sequence[int]) -> None:
        count = self.counts[how]
        for prompt in prompts:
            epoch = prompt // self.num_rows
            count[epoch] = count.get(epoch, 0) + 1


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows and, if there are several, their sum, as aligned lines. Columns of an epoch or a text are not summed."""
    names = list(rows[0])
    heads = [name for name in names if name == "epoch" or isinstance(rows[0][name], str)]
    total = {name: "" if name in heads else sum(row[name] for row in rows) for name in names} | {names[0]: "all"}
    shown = [*rows, total] if len(rows) > 1 else list(rows)
    cells = [[name.replace("_", " ") for name in names]]
    cells += [[value if isinstance(value, str) else f"{value:,}" for value in row.values()] for row in shown]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
