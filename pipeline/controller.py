"""The controller. Start reading here.

    mailbox --> decide --> append --> fold --> schedule --> append --> fold --> ... --> Wait
                             |
                             +--> work, train, control (the same script)

    waits for a result      unblocked by: Commit, Retry, Drop
    waits for the trainer   unblocked by: Train
    waits for the gate      unblocked by: Train (the version moved)
    waits for a checkpoint  unblocked by: Checkpoint
    waits for a time        unblocked by: the mailbox, which comes back then

One loop owns the State; there are no locks. An effect exists only through an entry that is already durable: what the
workers are told is written by the same script as the entry, and processes are started for what the State says.

Entries that stand ready together go out as one pipelined window; each is folded when it is put into the window. If the
window fails, the State is thrown away, and everything begins again with taking the pen: there is no second path.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollog.events.codec import seal
from rollog.events.errors import LogUncertain
from rollog.events.log import Entry, Log, Outbox
from rollog.events.vocabulary import Event, FinishReason, Open, Start
from rollog.pipeline import outbox
from rollog.pipeline.decisions import decide
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.fatal import fatal
from rollog.pipeline.inputs import Answer
from rollog.pipeline.mailbox import Mailbox
from rollog.pipeline.policy import Policy
from rollog.pipeline.scheduling import schedule
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.projector import fold, fold_all
from rollog.replay.state import State

MAX_WINDOW = 64
"""Entries in one pipelined window, at most."""

MAX_REOPENINGS = 20
"""Times in a row that a log without an answer is opened again; each waits for its own deadline."""


class Observer(Protocol):
    """Somebody who watches: live progress, a test. Sees each entry once it is durable; never changes anything."""

    def entry(self, state: State, entry: Entry) -> None:
        """The entry is durable; ``state`` may be some entries ahead of it."""
        ...

    def waiting(self, state: State, wait: Wait) -> None:
        """Nothing can be decided now."""
        ...


@dataclass(slots=True, kw_only=True)
class Controller:
    """Decides, appends, folds. ``start`` is the first entry of a fresh log; ``clock`` gives wall time in seconds."""

    log: Log
    mailbox: Mailbox
    policy: Policy
    start: Start
    clock: Callable[[], float]
    nonce: Callable[[], str]
    version: str
    """Of rollog."""
    machine: Mapping[str, Any]
    observer: Observer
    changes: Sequence[Callable[[State], tuple[Event, ...]]] = ()
    """What a resume changes: each is asked once, after the first Open, for an entry of its own."""
    recall: Callable[[], State] = State
    """The State of a snapshot that fits the log; an empty one when there is none."""
    state: State = field(default_factory=State)
    window: list[tuple[Entry, Outbox]] = field(default_factory=list)

    def run(self) -> FinishReason:
        """Drive the run to its Finish.

        Raises ``Fenced`` when another controller took the pen, ``RunFailed`` when the run cannot go on.
        """
        reason: str | None = "start"
        wait: Wait | None = None
        failures = 0
        while True:
            try:
                if reason is not None:
                    self.open(reason)
                    wait = None
                wait = self.turn(wait)
            except LogUncertain as uncertain:
                failures += 1
                if failures > MAX_REOPENINGS:
                    raise
                reason = f"the log gave no answer: {uncertain}"
                continue
            reason, failures = None, 0
            if wait.why is WaitFor.NOTHING:
                assert self.state.finish is not None
                return self.state.finish

    def open(self, reason: str) -> None:
        """Take the pen, fold, say so, and tell the workers everything under the new writer epoch."""
        self.window.clear()
        pen = self.log.open(self.nonce())
        recalled = self.recall()
        self.state = fold_all(self.log.read(recalled.offset + 1), recalled)
        if self.state.offset == 0:
            self._append((self.start,), epoch=pen.epoch)
        opened = Open(epoch=pen.epoch, reason=reason[:200], rollog=self.version, machine=self.machine)
        self._append((opened,), epoch=pen.epoch)
        self._flush()
        for change in self.changes:
            if events := change(self.state):
                self._append(events)
        self._flush()
        self.changes = ()
        self.log.hand_over(outbox.of_state(self.state, self.policy.sampler.oldest_useful))
        self.mailbox.start_after(self.state.input)

    def turn(self, wait: Wait | None = None) -> Wait:
        """Wait for the outside once, and decide what follows from it, or from nothing but the time that has passed.

        ``wait``: what the turn before ended with; without it everything is decided first that can be.
        """
        if wait is None:
            wait = self._advance(self.log.pressure())
            self._flush()
        self.observer.waiting(self.state, wait)
        if wait.why is WaitFor.NOTHING:
            return wait
        inputs = self.mailbox.wait(self.state, wait.until, self.clock())
        pressure = self.log.pressure()
        for event in inputs:
            answered = event.id if isinstance(event, Answer) else None
            why = fatal(self.state, event)
            events = decide(self.state, self.policy, event, self.clock())
            if events and (why is None or answered is not None):
                self._append(events, input=answered)
            if why is not None:
                self._flush()
                raise RunFailed(why)
            wait = self._advance(pressure)
            if wait.why is WaitFor.NOTHING:  # what has arrived beyond the Finish waits for the next Open
                break
        if not inputs:
            wait = self._advance(pressure)
        self._flush()
        return wait

    def _advance(self, pressure: bool) -> Wait:
        """Ask the scheduler again after each entry, until it says what it waits for."""
        while True:
            decision = schedule(self.state, self.policy, self.clock(), pressure)
            if isinstance(decision, Wait):
                return decision
            self._append(decision)

    def _append(self, events: tuple[Event, ...], *, input: str | None = None, epoch: int | None = None) -> None:
        """Put one entry into the window and fold it."""
        entry = seal(
            offset=self.state.offset + 1,
            epoch=self.state.epoch if epoch is None else epoch,
            time=self.clock(),
            input=input,
            events=events,
            previous=self.state.digest,
        )
        fold(self.state, entry)
        told = outbox.of_entry(self.state, entry, self.policy.sampler.oldest_useful)
        self.window.append((entry, told))
        if len(self.window) >= MAX_WINDOW:
            self._flush()

    def _flush(self) -> None:
        """Make the window durable. What was folded and did not land is thrown away by the ``open`` that follows."""
        window, self.window = self.window, []
        if window:
            self.log.append(window)
        for entry, _ in window:
            self.observer.entry(self.state, entry)
