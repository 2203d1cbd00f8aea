"""``rollog coverage``: what became of the prompts of every epoch, and how many rows training them took.

Rule 1: coverage = trained / (prompts - open - never seen), in percent: how many of the prompts whose turn has come were
        trained. A prompt that is unaccounted for counts as not trained. None when no turn has come.
Rule 2: rows are those of the steps as they were trained first; a step trained again after a trainer's death costs time,
        and trains nothing new.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollog.events.log import Entry
from rollog.events.vocabulary import Fork
from rollog.replay.conservation import Conservation, table
from rollog.replay.coverage_by import EPOCH, SOURCE, Sources, rows_by
from rollog.replay.errors import BadReference
from rollog.replay.fates import Fates
from rollog.replay.projector import fold
from rollog.replay.state import State
from rollog.replay.tally import Tally, TrainedStep
from rollog.replay.writers import naming_the_writer

SCHEMA: Final = "rollog.coverage/1"
EPOCH_SCHEMA: Final = "rollog.coverage_of_epoch/1"
ROW_SCHEMA: Final = "rollog.coverage_row/1"


@dataclass(slots=True)
class RowTotals:
    """Sums over trained steps. ``rows_per_rollout``: number of rows -> rollouts, of those for which the log says it."""

    steps: int = 0
    groups: int = 0
    rollouts: int = 0
    rows: int = 0
    padding: int = 0
    tokens: int = 0
    rows_per_rollout: Counter[int] = field(default_factory=Counter)

    def add(self, step: TrainedStep) -> None:
        """Count one more step."""
        self.steps += 1
        self.groups += step.groups
        self.rollouts += step.rollouts
        self.rows += step.rows
        self.padding += step.padding
        self.tokens += step.tokens
        self.rows_per_rollout.update(step.rows_per_rollout)

    def to_plain(self) -> dict[str, Any]:
        """For screens and JSON. ``tokens``: valid ones; ``padding_share``: of all rows, 0 to 1."""
        computed = self.rows + self.padding
        return {
            "steps": self.steps,
            "groups": self.groups,
            "rollouts": self.rollouts,
            "rows": self.rows,
            "padding": self.padding,
            "padding_share": round(self.padding / computed, 6) if computed else 0.0,
            "tokens": self.tokens,
            "rows_per_rollout": dict(sorted(self.rows_per_rollout.items())),
        }


@dataclass(slots=True)
class Coverage:
    """Follows a log and keeps what the table needs. ``state``: the fold of the entries so far."""

    state: State = field(default_factory=State)
    tally: Tally = field(default_factory=Tally)
    book: Conservation = field(default_factory=Conservation)
    fates: Fates = field(default_factory=Fates)
    totals: RowTotals = field(default_factory=RowTotals)

    def follow(self, entry: Entry) -> TrainedStep | None:
        """Take the next entry; the step that it trained for the first time, if it did."""
        self.book.follow(entry)
        self.fates.follow(self.state, entry)
        self.tally.follow(self.state, entry)
        fold(self.state, entry)
        if not self.tally.recent or self.tally.recent[-1].offset != entry.offset:
            return None
        self.totals.add(self.tally.recent[-1])
        return self.tally.recent[-1]

    def cells(self) -> bytearray:
        """The fate of every prompt of every epoch, by ordinal."""
        return self.fates.of(self.state, self.book.num_rows)

    def to_plain(self) -> dict[str, Any]:
        """The table, plain values only."""
        state = self.state
        epochs = self.book.rows(state, state.settings["data"]["epochs"]) if state.offset else []
        return {
            "schema": SCHEMA,
            "run": state.run,
            "offset": state.offset,
            "coverage": percent(epochs),
            "epochs": [{"schema": EPOCH_SCHEMA, **row, "coverage": percent([row])} for row in epochs],
            "trained": self.totals.to_plain(),
        }


def coverage(entries: Iterable[Entry], by: Sequence[str] = (EPOCH,), sources: Sources | None = None) -> dict[str, Any]:
    """The table of a log from its first entry on. ``by`` another key than the epoch: its rows are added as ``rows``.

    Raises ``BadReference`` when it is by source and nobody knows the sources.
    """
    table = Coverage()
    for entry in naming_the_writer(entries):
        if SOURCE in by:
            _refuse_other_data(entry, table.state.handed_out)
        table.follow(entry)
    model, state = table.to_plain(), table.state
    if SOURCE not in by:
        return model
    if sources is None:
        raise BadReference("--by source needs the data set, which this command does not read: use `rollog coverage`")
    rows = rows_by(by, table.cells(), state.num_rows, sources(state)) if state.offset else []
    return model | {"rows": [{"schema": ROW_SCHEMA, **row, "coverage": percent([row])} for row in rows]}


def _refuse_other_data(entry: Entry, handed_out: int) -> None:
    """One data set says the sources of all prompts, or of none."""
    for event in entry.events:
        if isinstance(event, Fork) and handed_out and (event.dataset, event.seed, event.num_rows) != (None, None, None):
            raise BadReference(
                f"entry {entry.offset}: this fork went on with other data after {handed_out:,} prompts, whose sources "
                f"only the data of {event.parent} says: use --by epoch here, and --by source on {event.parent}"
            )


def percent(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """The coverage of these epochs together."""
    trained = due = 0
    for row in rows:
        trained += row["trained"]
        due += row["prompts"] - row["open"] - row["never_seen"]
    return round(100 * trained / due, 3) if due else None


def screen(model: dict[str, Any]) -> Iterator[str]:
    """The table, and two lines below it."""
    rows = model.get("rows", model["epochs"])
    counts = [{name: value for name, value in row.items() if name not in ("schema", "coverage")} for row in rows]
    if counts:
        yield from table(counts)
        yield ""
    covered = model["coverage"]
    said = "no prompt's turn has come" if covered is None else f"{covered:g}% of the prompts whose turn has come"
    yield f"coverage    {said}"
    trained = model["trained"]
    spread = ", ".join(f"{rollouts:,} of {number}" for number, rollouts in trained["rows_per_rollout"].items())
    yield (
        f"trained     {trained['steps']:,} steps, {trained['groups']:,} groups, {trained['rollouts']:,} rollouts in "
        f"{trained['rows']:,} rows ({spread or 'not told'}), {trained['tokens']:,} valid tokens, "
        f"{trained['padding']:,} padding rows ({100 * trained['padding_share']:.1f}%)"
    )
