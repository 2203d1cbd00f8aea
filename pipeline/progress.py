"""Live progress of a run: what the screens of a terminal show, on stderr.

    demo   step 9/1,871  v10  reward 0.412 ▂▃▄▅  loss 0.021  wait 1.4 s  train 8.9 s  tok 412k
           buffer   step 10 ████████████░░░░ 12/16   step 11 ███░░░░░░░░░░░░░ 3/16
           inflight 30   backing off 2   cursor 12   frontier 141 (+4 settled beyond)   generators v10 v10 v10 v9
           waste    failed 1.2%        @ 4,812

Rule 1: every number is read from durable entries or from the State, none is measured here.
Rule 2: on a terminal the lines are drawn again at most ten times a second; elsewhere there is one line a step.
"""

import sys
from collections import deque
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Checkpoint,
    Commit,
    Dispatch,
    Drop,
    Note,
    Resume,
    Retry,
    Role,
    Select,
    Stall,
    Stop,
    Train,
)
from rollog.pipeline.manner import Manner
from rollog.pipeline.waiting import Wait
from rollog.replay.screens import oneline
from rollog.replay.state import Place, State
from rollog.replay.wording import printable

BARS = "▁▂▃▄▅▆▇█"
CURVE_STEPS = 12
BAR_CELLS = 16


class Screen(Protocol):
    """Where the lines go."""

    def draw(self, lines: list[str]) -> None:
        """Show these lines in the place of the last ones."""
        ...

    def say(self, line: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """The last lines stay."""
        ...


class TerminalScreen:
    """Redraws in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=True, refresh_per_second=10, transient=False)
        self._live.start()

    def draw(self, lines: list[str]) -> None:
        """Show these lines in the place of the last ones."""
        self._live.update(Text("\n".join(lines), overflow="ellipsis", no_wrap=True))

    def say(self, line: str) -> None:
        """Above the live lines."""
        self._live.console.print(Text(line))

    def close(self) -> None:
        """The last lines stay."""
        self._live.stop()


class PlainScreen:
    """For files and pipes: only lines that stay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, lines: list[str]) -> None:
        """Nothing: a file is not drawn over."""

    def say(self, line: str) -> None:
        """One line."""
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to put back."""


class Progress:
    """The Observer of a run in the foreground."""

    def __init__(self, screen: Screen, *, max_steps: int, every_entry: bool = False) -> None:
        """``every_entry``: say each one as it lands."""
        self._screen = screen
        self._every_entry = every_entry
        self._plain = isinstance(screen, PlainScreen)
        self._max_steps = max_steps
        self._recorded = 0
        """Steps below this are trained again."""
        self._selected_at: dict[int, float] = {}
        self._trained_at: float | None = None
        self._curve: deque[float] = deque(maxlen=CURVE_STEPS)
        self._step_line = "no step is trained yet"
        self._tokens = 0
        self._attempts = 0
        self._failed = 0

    @classmethod
    def on(cls, stream: TextIO, *, max_steps: int, every_entry: bool = False, no_color: bool = False) -> "Progress":
        """Live lines on a terminal, one line a step elsewhere."""
        console = Console(file=stream, highlight=False, no_color=no_color or None)
        screen = TerminalScreen(console) if console.is_terminal else PlainScreen(stream)
        return cls(screen, max_steps=max_steps, every_entry=every_entry)

    def entry(self, state: State, entry: Entry) -> None:
        """Note what this entry says."""
        if self._every_entry:
            self._screen.say(printable(oneline(entry)))
        for event in entry.events:
            match event:
                case Commit():
                    self._tokens += event.tokens
                case Dispatch():
                    self._attempts += 1
                case Retry():
                    self._failed += 1
                case Drop():
                    self._screen.say(f"prompt {event.prompt} is given up ({event.kind.value}): {event.error}")
                case Select():
                    if event.last:
                        self._selected_at[event.step] = entry.time
                case Train():
                    self._train(state, event, entry)
                case Checkpoint():
                    self._screen.say(f"checkpoint v{event.version} saved (offset {entry.offset:,})")
                case Resume():
                    self._recorded = state.version
                    again = state.version - event.version
                    self._screen.say(
                        f"trainer starts again from v{event.version} ({event.reason}); {again} recorded steps are "
                        f"trained again"
                    )
                case Stop():
                    self._screen.say(stopping_line(event, entry.time, state.count(Place.IN_FLIGHT)))
                case Stall():
                    self._screen.say(f"stalled: {event.text}")
                case Note():
                    self._screen.say(f"note: {event.text}")
                case _:
                    pass

    def waiting(self, state: State, wait: Wait) -> None:
        """Draw the screen."""
        if not self._plain:
            self._screen.draw(self._lines(state))

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._screen.close()

    def _train(self, state: State, event: Train, entry: Entry) -> None:
        rewards = [member.finished.reward_mean for member in state.step(event.step).members()]
        selected_at, before = self._selected_at.pop(event.step, entry.time), self._trained_at
        wait_s = 0.0 if before is None else max(0.0, selected_at - before)
        self._trained_at = entry.time
        reward = sum(rewards) / len(rewards) if rewards else None
        if reward is not None:
            self._curve.append(reward)
        parts = [
            f"step {event.step + 1:,}/{self._max_steps:,}",
            f"v{event.step + 1}" + (" again" if event.step < self._recorded else ""),
            "reward -" if reward is None else f"reward {reward:.3f} {curve(self._curve)}",
            f"loss {event.loss:.3g}",
            f"wait {wait_s:.1f} s",
            f"train {event.seconds:.1f} s",
            f"tok {thousands(self._tokens)}",
        ]
        self._step_line = "  ".join(parts)
        if self._plain:
            self._screen.say(f"{self._step_line}  @ {entry.offset:,}")

    def _lines(self, state: State) -> list[str]:
        generators = [w.version for w in state.workers.values() if w.role is Role.GENERATOR]
        beyond = state.settled() - min(state.frontier(), state.settled())
        flow = [
            f"inflight {state.count(Place.IN_FLIGHT)}",
            f"reserve {state.count(Place.RESERVE)}",
            f"backing off {state.count(Place.BACKING_OFF)}",
            f"cursor {state.cursor}",
            f"frontier {state.frontier():,} (+{beyond} settled beyond)",
            "generators " + (" ".join("-" if v is None else f"v{v}" for v in generators) or "starting"),
        ]
        failed = self._failed / self._attempts if self._attempts else 0.0
        return [
            self._step_line,
            "buffer   " + (buffer_bars(state) or "empty"),
            "   ".join(flow),
            f"waste    failed {failed:.1%}        @ {state.offset:,}    rollog status {state.run}",
        ]


def stopping_line(stop: Stop, now: float, in_flight: int) -> str:
    """What the first Ctrl-C answers."""
    if stop.detail:
        return f"stopping: {stop.detail}"
    left_s = max(0.0, stop.deadline - now)
    return f"stopping: no new prompts; {in_flight} in flight, waiting up to {left_s:.0f} s (Ctrl-C again to abort)"


def buffer_bars(state: State) -> str:
    """One bar for each step that has finished groups waiting, three at most."""
    steps: dict[int, int] = {}
    for group in state.at(Place.BUFFER):
        if group.step is not None:
            steps[group.step] = steps.get(group.step, 0) + 1
    return "    ".join(
        f"step {step} {bar(count, state.target(step))} {count}/{state.target(step)}"
        for step, count in sorted(steps.items())[:3]
    )


def bar(part: int, whole: int) -> str:
    """A bar of fixed length."""
    filled = round(BAR_CELLS * part / max(1, whole))
    return "█" * filled + "░" * (BAR_CELLS - filled)


def curve(values: "deque[float]") -> str:
    """The last values as small columns between their least and their largest."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


def thousands(count: int) -> str:
    """412345 -> 412k."""
    return f"{count}" if count < 1000 else f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"


class Silence:
    """The Observer of a run whose person wants no messages."""

    def entry(self, state: State, entry: Entry) -> None:
        """Nothing."""

    def waiting(self, state: State, wait: Wait) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing to put back."""


def progress_of(manner: Manner, max_steps: int) -> Progress | Silence:
    """The progress of a command, on stderr."""
    if manner.quiet:
        return Silence()
    return Progress.on(sys.stderr, max_steps=max_steps, every_entry=manner.verbose, no_color=manner.no_color)
