"""What ``rollog report`` shows, as one plain model that is read once from the log: the page draws it and adds nothing.

Rule 1: a step is counted as it was trained first, as in ``coverage``; one that is trained again changes nothing here.
Rule 2: staleness is the step less the oldest weights that made a group, in versions.
Rule 3: however long the run, a plot has at most ``MOST_POINTS`` points and the map of prompts ``MOST_CELLS`` cells: a
        point is the mean of neighbouring steps, a cell shows what is worst among neighbouring prompts. Each epoch has
        a bar of its own, however many there are.
Rule 4: a step waited from the moment at which the version was its own until its last group was committed (wall time of
        the entries, seconds), as ``rollog why RUN step:9`` has it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollog.events.log import Entry
from rollog.events.vocabulary import Borrow, Commit, Train
from rollog.replay.coverage import Coverage
from rollog.replay.fates import Fate
from rollog.replay.state import State
from rollog.replay.status import status
from rollog.replay.tally import TrainedStep
from rollog.replay.writers import naming_the_writer

SCHEMA: Final = "rollog.report/1"
MOST_POINTS: Final = 500
MOST_CELLS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The steps ``first`` to ``last`` together. ``reward``: mean over groups; ``loss``: mean over steps.

    ``padding_share``: of all rows, 0 to 1; ``train_s``, ``wait_s``: seconds a step, mean (rule 4); ``borrowed``,
    ``lent``: finished groups that moved between steps; ``oldest``: the greatest staleness.
    """

    first: int
    last: int
    groups: int
    rollouts: int
    rows: int
    padding: int
    padding_share: float
    tokens: int
    reward: float
    loss: float
    train_s: float
    wait_s: float
    borrowed: int
    lent: int
    oldest: int


@dataclass(slots=True)
class _Tables:
    """Follows a log beside its coverage."""

    coverage: Coverage = field(default_factory=Coverage)
    steps: list[TrainedStep] = field(default_factory=list)
    oldest: dict[int, int] = field(default_factory=dict)
    """Step -> the greatest staleness of its groups."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Staleness -> tokens trained."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Attempts that a finished group took -> groups."""
    began: dict[int, float] = field(default_factory=dict)
    """Step -> when the version was its own."""
    committed: dict[int, float] = field(default_factory=dict)
    """Prompt -> when its group was finished; until it is trained."""
    waited_s: dict[int, float] = field(default_factory=dict)
    borrowed: Counter[int] = field(default_factory=Counter)
    lent: Counter[int] = field(default_factory=Counter)

    def follow(self, entry: Entry) -> None:
        """Take the next entry."""
        self.began.setdefault(self.coverage.state.version, entry.time)
        for event in entry.events:
            match event:
                case Commit():
                    self.attempts[event.attempt] += 1
                    self.committed[event.prompt] = entry.time
                case Train() if event.step >= self.coverage.state.version:
                    self._train(self.coverage.state, event.step)
                case Borrow():
                    self.borrowed[event.borrower] += 1
                    self.lent[event.lender] += 1
                case _:
                    pass
        step = self.coverage.follow(entry)
        if step is not None:
            self.steps.append(step)

    def _train(self, state: State, step: int) -> None:
        """Read the step's groups from the State before it is trained."""
        members = list(state.step(step).members())
        for member in members:
            self.staleness[step - member.finished.born] += member.finished.tokens
        last = max((self.committed.pop(member.prompt) for member in members), default=0.0)
        self.waited_s[step] = max(0.0, last - self.began[step])
        self.oldest[step] = max((step - member.finished.born for member in members), default=0)

    def points(self, most: int) -> list[Point]:
        """The trained steps, neighbours together where there are too many."""
        each = -(-len(self.steps) // most) or 1
        return [self._point(self.steps[at : at + each]) for at in range(0, len(self.steps), each)]

    def _point(self, steps: Sequence[TrainedStep]) -> Point:
        groups = sum(step.groups for step in steps)
        rows = sum(step.rows for step in steps)
        padding = sum(step.padding for step in steps)
        return Point(
            first=steps[0].step,
            last=steps[-1].step,
            groups=groups,
            rollouts=sum(step.rollouts for step in steps),
            rows=rows,
            padding=padding,
            padding_share=padding / (rows + padding) if rows + padding else 0.0,
            tokens=sum(step.tokens for step in steps),
            reward=sum(step.reward_mean * step.groups for step in steps) / groups if groups else 0.0,
            loss=sum(step.loss for step in steps) / len(steps),
            train_s=sum(step.seconds for step in steps) / len(steps),
            wait_s=sum(self.waited_s[step.step] for step in steps) / len(steps),
            borrowed=sum(self.borrowed[step.step] for step in steps),
            lent=sum(self.lent[step.step] for step in steps),
            oldest=max(self.oldest[step.step] for step in steps),
        )

    def cells(self, most: int) -> tuple[int, list[Fate]]:
        """(prompts a cell, the fates of all prompts of all epochs by ordinal)."""
        fates = self.coverage.cells()
        each = -(-len(fates) // most) or 1
        return each, [Fate(max(fates[at : at + each])) for at in range(0, len(fates), each)]


def report(entries: Iterable[Entry], *, points: int = MOST_POINTS, cells: int = MOST_CELLS) -> dict[str, Any]:
    """The model of a log from its first entry on. ``status`` is that of ``rollog status`` at the same moment.

    ``points``, ``cells``: at most so many.
    """
    tables = _Tables()
    for entry in naming_the_writer(entries):
        tables.follow(entry)
    each, shown = tables.cells(cells)
    return {
        "schema": SCHEMA,
        "status": status(tables.coverage.state, tables.coverage.tally),
        "coverage": tables.coverage.to_plain(),
        "points": tables.points(points),
        "staleness": dict(sorted(tables.staleness.items())),
        "attempts": dict(sorted(tables.attempts.items())),
        "prompts_per_cell": each,
        "cells": shown,
    }
