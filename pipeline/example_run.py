"""What the examples behind ``make`` share: a free name, the real command, and what came of it, read from the log.

Rule 1: an example trains with the verb that everybody uses; there is no second path.
Rule 2: what an example says of its run is read from the run's log afterwards, not measured while it runs.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import typer

from rollog.events.vocabulary import Train
from rollog.pipeline import run_verbs
from rollog.pipeline.run_folder import RUNS
from rollog.replay import cli as reading
from rollog.replay.opening import Source, opened


def free_name(wanted: str, runs: Path = RUNS) -> str:
    """``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that no run has yet."""
    name, number = wanted, 1
    while (runs / name).exists():
        number += 1
        name = f"{wanted}-{number}"
    return name


def run_name(wanted: str, overrides: Sequence[str]) -> str:
    """The name that ``run=NAME`` among the overrides gives, else a free one."""
    given = [override.removeprefix("run=") for override in overrides if override.startswith("run=")]
    return given[-1] if given else free_name(wanted)


def train(config: Path, overrides: Sequence[str]) -> int:
    """``rollog train CONFIG KEY=VALUE ...`` in this process; returns its exit code."""
    return _exit_code(lambda: run_verbs.train(config, list(overrides)))


def verify(run: str) -> int:
    """``rollog verify RUN`` in this process; returns its exit code."""
    return _exit_code(lambda: reading.verify(run))


def rewards(run: str) -> list[float]:
    """The mean reward of each step of a run; a step that was trained again counts once, its groups are the same."""
    by_step: dict[int, float] = {}
    with opened(Source(run=run)) as timeline:
        for entry, state in timeline.moments():
            for event in entry.events:
                if isinstance(event, Train) and event.step not in by_step:
                    by_step[event.step] = mean([m.finished.reward_mean for m in state.step(event.step).members()])
    return [by_step[step] for step in sorted(by_step)]


def mean(values: Sequence[float]) -> float:
    """Their mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def look_next(run: str) -> Iterator[str]:
    """Lines that say what to look at next. They work as they stand, when nothing runs any more too."""
    rollog = "rollog" if shutil.which("rollog") else os.path.relpath(Path(sys.executable).parent / "rollog")
    commands = [
        (f"status {run}", "where every prompt is; the numbers add up in every direction"),
        (f"log {run} --oneline", "every decision, in the order in which it was made"),
        (f"log {run} --oneline --prompt 17", "the life of one prompt"),
        (f"show {run}@step:9", "one decision, what it rests on, and the difference it made"),
        (f"state {run}@step:9", "the whole state at that moment"),
        (f"verify {run}", "folds the log and checks every law at every offset"),
    ]
    width = max(len(command) for command, _ in commands)
    yield "look at it, now or at any time:"
    yield from (f"  {rollog} {command:<{width}}   {about}" for command, about in commands)


def _exit_code(verb: Callable[[], None]) -> int:
    try:
        verb()
    except typer.Exit as end:
        return end.exit_code
    return 0
