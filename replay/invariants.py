"""What must hold at every offset.

``LAWS`` look at one State. ``Audit`` follows a whole log and keeps a fate per ordinal of its own: the State forgets
what is settled, so its own books could not show that a settled prompt came back.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Admit,
    Commit,
    Dispatch,
    Divert,
    Drop,
    Evict,
    Filter,
    Finish,
    Open,
    Publish,
    Requeue,
    Resume,
    Select,
    Train,
)
from rollog.replay.errors import BrokenInvariant
from rollog.replay.projector import fold
from rollog.replay.state import Place, State


def _conservation(state: State) -> Iterator[str]:
    """Every ordinal handed out is in exactly one place."""
    if state.handed_out != len(state.groups) + state.settled():
        yield (
            f"{state.handed_out} prompts were handed out, but {len(state.groups)} are in a place "
            f"and {state.settled()} settled"
        )
    for place, prompts in state.places.items():
        for prompt in prompts:
            if prompt not in state.groups or state.groups[prompt].place is not place:
                yield f"prompt {prompt} is listed at {place.value} and is not there"
    if sum(len(prompts) for prompts in state.places.values()) != len(state.groups):
        yield "a prompt is in two places or in none"


def _standing(state: State) -> Iterator[str]:
    """The trainer never stands above the version, and below it only over recorded steps."""
    if not 0 <= state.standing <= state.version:
        yield f"the trainer stands at {state.standing} and the version is {state.version}"
    for step in range(state.standing, state.version):
        if not state.step(step).closed:
            yield f"step {step} must be trained again, and its selections are gone"


def _steps(state: State) -> Iterator[str]:
    """A step takes no more groups than its target, and selected groups wait for the step at hand."""
    for number, step in state.steps.items():
        if number >= state.version and step.taken > state.target(number):
            yield f"step {number} took {step.taken} groups, {state.target(number)} wanted"
        if step.closed and number > state.version:
            yield f"step {number} is closed before step {state.version} is trained"
    selected = {m.prompt for n, step in state.steps.items() if n >= state.version for m in step.members()}
    if selected != set(state.places[Place.SELECTED]):
        yield f"the selections name {sorted(selected)}, the places {sorted(state.places[Place.SELECTED])}"


def _stamps(state: State) -> Iterator[str]:
    """in_order: each admitted step has its full number of prompts, finished, running, selected or given up."""
    if state.rules is None or state.rules.sampler != "in_order":
        return
    meant: dict[int, int] = {}
    for group in state.groups.values():
        if group.place is Place.RESERVE or group.place is Place.SELECTED:
            continue
        if group.step is None or not state.filling <= group.step <= state.cursor:
            yield f"prompt {group.prompt} ({group.place.value}) is stamped {group.step}"
            continue
        meant[group.step] = meant.get(group.step, 0) + 1
    for number in range(state.filling, state.cursor + 1):
        have = meant.get(number, 0) + state.step(number).taken
        if have != state.target(number) and not state.step(number).closed:
            yield f"step {number} can never have its {state.target(number)} groups: {have} are meant for it"


def _weights(state: State) -> Iterator[str]:
    """A group is born of weights at least as new as its order asked for, and never of weights to come."""
    for group in state.groups.values():
        if group.finished is None:
            continue
        if not group.weights <= group.finished.born <= group.finished.done <= state.version:
            yield (
                f"prompt {group.prompt} was ordered with weights {group.weights}, made by {group.finished.born} to "
                f"{group.finished.done} at version {state.version}"
            )
    if state.published and max(state.published) > state.version:
        yield f"weights {max(state.published)} are published, the version is {state.version}"


def _loans(state: State) -> Iterator[str]:
    """Every open loan has a living spare that owes it, and the other way round."""
    owing = {group.loan: group.prompt for group in state.groups.values() if group.loan is not None}
    for loan, terms in state.loans.items():
        if owing.get(loan) != terms.spare:
            yield f"loan {loan} is owed by prompt {terms.spare}, which does not know of it"
    for loan, prompt in owing.items():
        if loan not in state.loans:
            yield f"prompt {prompt} owes loan {loan}, which is not open"


def _attempts(state: State) -> Iterator[str]:
    """A prompt in flight has an order; no other has."""
    for group in state.groups.values():
        if (group.order is not None) != (group.place is Place.IN_FLIGHT):
            yield f"prompt {group.prompt} is {group.place.value} and its order is {group.order}"


LAWS: Final[Mapping[str, Callable[[State], Iterator[str]]]] = {
    "every prompt in exactly one place": _conservation,
    "the trainer stands at or below the version": _standing,
    "no step takes more than its target": _steps,
    "no stamped step can be stranded": _stamps,
    "no group older or newer than its order allows": _weights,
    "every loan has its debtor": _loans,
    "an order for each prompt in flight": _attempts,
}


def check(state: State) -> None:
    """Raise ``BrokenInvariant`` for the first law that does not hold."""
    for law, broken in LAWS.items():
        for how in broken(state):
            raise BrokenInvariant(f"at offset {state.offset}: not {law}: {how}")


@dataclass(slots=True)
class Audit:
    """Follows a log entry by entry: folds it, checks every law, and keeps a fate per ordinal beside the State."""

    state: State = field(default_factory=State)
    fates: dict[int, str] = field(default_factory=dict)
    steps: dict[int, tuple[int, ...]] = field(default_factory=dict)
    entries: int = 0
    loans_repaid: int = 0
    max_staleness: int = 0

    def follow(self, entry: Entry) -> None:
        """Take the next entry. Raises ``BrokenHistory`` or ``BrokenInvariant`` with its offset."""
        version, finished, last_input = self.state.version, self.state.finish is not None, self.state.input
        fold(self.state, entry)
        self.entries += 1
        self._require(
            entry, not finished or isinstance(entry.events[0], Open), "nothing is decided between Finish and Open"
        )
        self._require(
            entry,
            entry.input is None or last_input is None or result_order(entry.input) > result_order(last_input),
            f"result {entry.input} was answered before",
        )
        for event in entry.events:
            match event:
                case Admit(prompts=prompts) | Divert(prompts=prompts):
                    for prompt in prompts:
                        self._move(entry, prompt, {None, "reserve"}, "reserve" if isinstance(event, Divert) else "open")
                case Commit(prompt=prompt):
                    self._move(entry, prompt, {"open"}, "buffer")
                case Dispatch(prompt=prompt):
                    self._move(entry, prompt, {"open", "reserve", "buffer"}, "open")
                    self._require(entry, self.state.stopping is None, "no new work is sent out while the run stops")
                case Drop(prompt=prompt):
                    self._move(entry, prompt, {"open", "reserve"}, "dropped")
                case Filter(prompt=prompt):
                    self._move(entry, prompt, {"buffer"}, "filtered")
                case Evict(prompts=prompts):
                    for prompt in prompts:
                        self._move(entry, prompt, {"open", "buffer", "reserve"}, "evicted")
                case Requeue(prompts=prompts):
                    for prompt in prompts:
                        self._move(entry, prompt, {"open", "buffer"}, "open")
                case Select():
                    self._select(entry, event)
                case Train(step=step):
                    self._train(entry, step, version)
                case Publish() | Resume():
                    self._require(entry, event.version <= self.state.version, "a version is used before it is made")
                case Finish():
                    durable = self.state.newest_checkpoint()
                    self._require(
                        entry,
                        self.state.version == 0 or durable == self.state.version,
                        f"finished at version {self.state.version}, but only {durable} is durable",
                    )
                    self._require(entry, event.left == tuple(sorted(self.state.groups)), "left names what is unsettled")
                case _:
                    pass
        check(self.state)

    def finish(self) -> None:
        """At the head: the fates and the State's counts must be the same books."""
        counted = dict.fromkeys(("trained", "dropped", "filtered", "evicted"), 0)
        for fate in self.fates.values():
            if fate in counted:
                counted[fate] += 1
        state = self.state
        booked = {
            "trained": state.trained,
            "dropped": state.dropped,
            "filtered": state.filtered,
            "evicted": state.evicted,
        }
        if counted != booked or len(self.fates) != state.handed_out:
            raise BrokenInvariant(f"at offset {state.offset}: the fates {counted} are not the State's counts {booked}")

    def _select(self, entry: Entry, event: Select) -> None:
        for prompt in event.prompts:
            self._move(entry, prompt, {"buffer"}, "selected")
        self.steps[event.step] = (*self.steps.get(event.step, ()), *event.prompts)
        rules = self.state.rules
        for member in self.state.steps[event.step].chunks[-1].members:
            staleness = event.step - member.finished.born
            self.max_staleness = max(self.max_staleness, staleness)
            if rules is not None and rules.pinned:
                asked = max(0, event.step - rules.lookahead)
                exact = member.finished.born == member.finished.done == asked
                self._require(entry, exact, f"prompt {member.prompt} was not made by exactly weights {asked}")

    def _train(self, entry: Entry, step: int, version: int) -> None:
        if step < version:  # trained again
            return
        for prompt in self.steps.get(step, ()):
            self._move(entry, prompt, {"selected"}, "trained")

    def _move(self, entry: Entry, prompt: int, before: set[str | None], after: str) -> None:
        fate = self.fates.get(prompt)
        self._require(entry, fate in before, f"prompt {prompt} was {fate or 'never handed out'} and becomes {after}")
        self.fates[prompt] = after

    @staticmethod
    def _require(entry: Entry, holds: bool, otherwise: str) -> None:
        if not holds:
            raise BrokenInvariant(f"at offset {entry.offset}: {otherwise}")


def result_order(result_id: str) -> tuple[int, int]:
    """A result's id ``<milliseconds>-<sequence>`` as numbers that compare in the order of the stream."""
    time_ms, _, sequence = result_id.partition("-")
    return int(time_ms), int(sequence or 0)
