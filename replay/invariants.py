"""What must hold in every history, beside the laws of each State.

``Audit`` follows a whole log and keeps a fate per ordinal of its own: the State forgets what is settled, so its own
books could not show that a settled prompt came back. Each law has a name; a break names its law and its offset. What
the settings allowed is judged in ``limits``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from rollog.events.log import Entry
from rollog.events.stream_ids import stream_id_key
from rollog.events.vocabulary import (
    Admit,
    Borrow,
    Checkpoint,
    Commit,
    Configure,
    Dispatch,
    Divert,
    Drop,
    Event,
    Evict,
    Filter,
    Finish,
    FinishReason,
    Fork,
    Open,
    Publish,
    Replace,
    Requeue,
    Resume,
    Retry,
    Save,
    SaveReason,
    Select,
    Stamp,
    Start,
    Train,
)
from rollog.replay.errors import BrokenInvariant
from rollog.replay.laws import LAWS, ONE_PLACE, check
from rollog.replay.limits import LIMITS, exceeded
from rollog.replay.projector import fold
from rollog.replay.state import Place, State

GATE: Final = "each batch admitted once, when its gate is open"
ONCE: Final = "each step trained exactly its groups, none twice"
STALENESS: Final = "staleness within the bound for every selected group"
LOANS: Final = "every loan repaid, forgiven or open"
WHOLE: Final = "every finished group has all its rollouts"
NO_NEW_WORK: Final = "no new work while the run stops"
AFTER_FINISH: Final = "nothing decided between Finish and Open"
ONE_ANSWER: Final = "each result answered once, in order"
ONE_WRITER: Final = "each entry written by the controller that holds the pen"
VERSIONS: Final = "each version published when it is made, saved and loaded as it was made"
DURABLE_END: Final = "no end without its reason, or before everything trained is durable"

HISTORY_LAWS: Final = (
    GATE, ONCE, STALENESS, LOANS, WHOLE, NO_NEW_WORK, AFTER_FINISH, ONE_ANSWER, ONE_WRITER, VERSIONS, DURABLE_END,
    *LIMITS,
)  # fmt: skip
ALL_LAWS: Final = (*LAWS, *HISTORY_LAWS)

STRANDED: Final = "no stamped step can be stranded"
SETTLING: Final = (Place.SELECTED, Place.RESERVE)
COMING: Final = (Place.WAITING, Place.IN_FLIGHT, Place.BACKING_OFF)
GATED: Final = ("in_order", "ready_first", "weight_fifo")
SETTLED: Final = ("trained", "dropped", "filtered", "evicted")


@dataclass(slots=True)
class Audit:
    """Follows a log entry by entry: folds it, checks every law, and keeps a fate per ordinal beside the State.

    ``partial``: the last step stamped by a change of settings. ``max_staleness``: of selected groups, in versions.
    ``unpublished``: older weights that a pinned fork's trainer makes again. ``bounds``: K when a group that is not
    selected was dispatched.
    """

    state: State = field(default_factory=State)
    fates: dict[int, str] = field(default_factory=dict)
    steps: dict[int, tuple[int, ...]] = field(default_factory=dict)
    bounds: dict[int, int] = field(default_factory=dict)
    entries: int = 0
    max_staleness: int = 0
    partial: int | None = None
    unpublished: Sequence[int] = ()

    def follow(self, entry: Entry) -> None:
        """Take the next entry. Raises ``BrokenHistory`` or ``BrokenInvariant`` with its offset."""
        version, cursor, in_flight = self.state.version, self.state.cursor, self.state.count(Place.IN_FLIGHT)
        finished, last_input = self.state.finish is not None, self.state.input
        self.unpublished = self.state.unpublished()
        fold(self.state, entry)
        self.entries += 1
        if finished and not any(isinstance(event, (Open, Fork)) for event in entry.events[:1]):
            self._broken(AFTER_FINISH, "the run is finished, and no controller has opened it again")
        if entry.epoch != self.state.epoch and not any(isinstance(event, (Start, Fork)) for event in entry.events):
            self._broken(ONE_WRITER, f"writer epoch {entry.epoch} writes while {self.state.epoch} holds the pen")
        if entry.input is not None:
            self._check_input(entry.input, last_input)
        for event in entry.events:
            self._track(event)
        for event in entry.events:
            self._judge(event, entry.events, version, cursor)
        check(self.state)
        self._check_last_step()
        for law, how in exceeded(self.state, entry.events, in_flight, cursor):
            self._broken(law, how)

    def finish(self) -> None:
        """At the head: the fates and the State's counts must be the same books."""
        counted = dict.fromkeys(SETTLED, 0)
        for fate in self.fates.values():
            if fate in counted:
                counted[fate] += 1
        state = self.state
        booked = {name: getattr(state, name) for name in SETTLED}
        self._require(ONE_PLACE, counted == booked, f"the fates are {counted}, the State's counts {booked}")
        handed_out = len(self.fates)
        self._require(ONE_PLACE, handed_out == state.handed_out, f"{handed_out} fates, {state.handed_out} handed out")
        ended = state.loans_repaid + state.loans_forgiven
        self._require(
            LOANS,
            state.loans_made == ended + len(state.loans),
            f"{state.loans_made} made, {state.loans_repaid} repaid, {state.loans_forgiven} forgiven, "
            f"{len(state.loans)} open",
        )

    def _check_last_step(self) -> None:
        """The last stamped step may lack groups only when a change of sampler left it partial."""
        state, last = self.state, self.state.cursor
        if state.rules is None or state.rules.sampler != "in_order" or last < state.filling or last == self.partial:
            return
        meant = [g for g in state.groups.values() if g.step == last and g.place not in SETTLING]
        have = len(meant) + state.step(last).taken
        if have != state.target(last) and not state.step(last).closed:
            how = f"step {last} can never have its {state.target(last)} groups: {have} are meant for it"
            self._broken(STRANDED, how)

    def _track(self, event: Event) -> None:
        """Move the fates of the ordinals that the event names."""
        match event:
            case Admit():
                self._move(event.prompts, (None, "reserve"), "open")
            case Divert():
                self._move(event.prompts, (None,), "reserve")
            case Replace() | Borrow():
                self._move((event.spare,), ("reserve",), "open")
            case Dispatch():
                self._move((event.prompt,), ("open",), "open")
            case Commit():
                self._move((event.prompt,), ("open",), "buffer")
            case Retry():
                self._move((event.prompt,), ("open", "buffer"), "open")
            case Drop():
                self._move((event.prompt,), ("open", "buffer", "reserve"), "dropped")
            case Filter():
                self._move((event.prompt,), ("buffer",), "filtered")
            case Evict():
                self._move(event.prompts, ("open", "buffer", "reserve"), "evicted")
            case Requeue():
                self._move(event.prompts, ("open", "buffer"), "open")
            case Select():
                self._move(event.prompts, ("buffer",), "selected")
            case _:
                pass

    def _judge(self, event: Event, events: Sequence[Event], version: int, cursor: int) -> None:
        """What only a history can show. ``version``, ``cursor``: before the entry."""
        state = self.state
        if state.stopping is not None and isinstance(event, (Admit, Divert, Dispatch, Select)):
            self._broken(NO_NEW_WORK, f"{type(event).__name__} while the run stops")
        match event:
            case Admit():
                self._admitted(event, cursor)
            case Borrow():
                later = event.lender > event.borrower
                self._require(LOANS, later, f"step {event.lender} lends to the later step {event.borrower}")
            case Configure():
                if state.rules is not None and state.rules.sampler != "in_order":
                    self.bounds.clear()  # what was ordered for a step is taken by age now
                self.partial = state.cursor
            case Stamp():
                sent = {other.prompt for other in events if isinstance(other, Dispatch)}
                for prompt in event.prompts:  # an order given for another step says nothing about this one
                    if prompt not in sent:
                        self.bounds.pop(prompt, None)
            case Dispatch():
                self._dispatched(event)
            case Commit():
                whole = state.rules is not None and state.rules.rollouts_per_prompt
                told = (len(event.row_counts), sum(event.row_counts)) in ((0, 0), (event.rollouts, event.rows))
                if event.rollouts != whole or event.rows < event.rollouts or not told:
                    has = f"prompt {event.prompt} has {event.rollouts} rollouts in {event.rows} rows {event.row_counts}"
                    self._broken(WHOLE, f"{has}, {whole} are wanted")
            case Select():
                self._selected(event)
            case Train():
                if event.step >= version:
                    self._move(self.steps.get(event.step, ()), ("selected",), "trained")
                    published = any(isinstance(e, Publish) and e.version == event.step + 1 for e in events)
                    self._require(VERSIONS, published, f"version {event.step + 1} is made and not published")
            case Publish():
                made = event.version == state.version or event.version in self.unpublished
                self._require(VERSIONS, made, f"version {event.version} is published at version {state.version}")
            case Save():
                at_hand = event.version == state.version == state.standing
                how = f"a checkpoint of {event.version} is ordered while the trainer stands at {state.standing}"
                self._require(VERSIONS, at_hand, how)
                first = event.reason is not SaveReason.PERIODIC or not state.step(event.version).chunks
                how = f"checkpoint {event.version} is ordered after step {event.version} took groups"
                self._require(VERSIONS, first, how)
            case Checkpoint():
                ordered = event.version == 0 or event.version in state.saves
                self._require(VERSIONS, ordered, f"checkpoint {event.version} was never ordered")
            case Resume():
                saved = state.checkpoints.get(event.version)
                first_model = event.version == 0 and not event.checkpoint
                durable = saved is not None and saved.manifest == event.checkpoint
                how = f"the trainer loads {event.checkpoint or 'the first model'} as version {event.version}"
                self._require(VERSIONS, first_model or durable, how)
            case Finish():
                self._ended(event)
            case _:
                pass

    def _admitted(self, event: Admit, cursor: int) -> None:
        """K bounds the batches outstanding; what is lost gives batches back; a partial step is completed any time."""
        state, rules = self.state, self.state.rules
        assert rules is not None
        if event.batch == cursor:
            how = f"batch {cursor} is admitted again, and no change of settings left its step partial"
            self._require(GATE, cursor == self.partial and rules.sampler == "in_order", how)
        elif rules.sampler in GATED:
            given_back = 0 if rules.sampler == "in_order" else -(-state.lost // rules.prompts_per_step)
            how = f"batch {event.batch} at version {state.version}, {given_back} given back, K = {rules.lookahead}"
            self._require(GATE, cursor - given_back < state.version + rules.lookahead, how)

    def _dispatched(self, event: Dispatch) -> None:
        """Keep K for the selection; a stamped prompt starts only when its step is within K of the version."""
        rules, state = self.state.rules, self.state
        if rules is None or rules.sampler != "in_order" or event.step is None:
            self.bounds.pop(event.prompt, None)
            return
        self.bounds[event.prompt] = rules.lookahead
        if event.step - state.version > rules.lookahead:
            sent = f"prompt {event.prompt} is sent for step {event.step} at version {state.version}"
            self._broken(STALENESS, f"{sent}, K = {rules.lookahead}")

    def _selected(self, event: Select) -> None:
        state, rules = self.state, self.state.rules
        assert rules is not None
        stands = event.step == state.version == state.standing
        self._require(ONCE, stands, f"step {event.step} takes groups while the trainer stands at {state.standing}")
        self._require(ONCE, bool(event.prompts) or event.last, f"step {event.step} takes nothing and does not close")
        step = state.steps[event.step]
        nothing_comes = state.exhausted and not any(state.count(place) for place in COMING)
        full = step.taken == state.target(event.step) or nothing_comes
        how = f"step {event.step} closes with {step.taken} groups, {state.target(event.step)} are wanted"
        self._require(ONCE, full or not event.last, how)
        self.steps[event.step] = (*self.steps.get(event.step, ()), *event.prompts)
        for member in step.chunks[-1].members:
            born, done = member.finished.born, member.finished.done
            staleness = event.step - born
            self.max_staleness = max(self.max_staleness, staleness)
            bound = self.bounds.pop(member.prompt, None)
            if rules.sampler in ("windowed", "weight_fifo"):
                bound = rules.lookahead
            if bound is not None and staleness > bound:
                old = f"prompt {member.prompt} is {staleness} versions old, begun by weights {born}"
                self._broken(STALENESS, f"{old}; the bound is {bound}")
            asked = max(0, event.step - rules.lookahead)
            if rules.pinned and not born == done == asked:
                made = f"prompt {member.prompt} was made by weights {born} to {done}"
                self._broken(STALENESS, f"{made}, pinned asks for exactly {asked}")

    def _ended(self, event: Finish) -> None:
        state, durable = self.state, self.state.newest_checkpoint()
        safe = state.version == 0 or durable == state.version
        self._require(DURABLE_END, safe, f"finished at version {state.version}, and {durable} is durable")
        asked = event.reason in (FinishReason.STOPPED, FinishReason.FAILED)
        how = f"finished ({event.reason.value}), and {'nobody' if state.stopping is None else 'somebody'} asked for it"
        self._require(DURABLE_END, asked == (state.stopping is not None), how)
        ended = event.reason is not FinishReason.EXHAUSTED or state.exhausted
        self._require(DURABLE_END, ended, "finished as exhausted, and the data is not at its end")
        idle = state.filling == state.version == state.standing
        self._require(DURABLE_END, idle, f"finished while step {state.standing} is being trained")
        unsettled = tuple(sorted(state.groups))
        self._require(ONE_PLACE, event.left == unsettled, f"left names {event.left}, unsettled are {unsettled}")

    def _check_input(self, answered: str, last: str | None) -> None:
        try:
            later = stream_id_key(answered) > stream_id_key(last)
        except ValueError as error:
            raise BrokenInvariant(self.state.offset, ONE_ANSWER, str(error)) from None
        if not later:
            self._broken(ONE_ANSWER, f"result {answered} is answered after {last}")

    def _move(self, prompts: Sequence[int], before: Sequence[str | None], after: str) -> None:
        for prompt in prompts:
            fate = self.fates.get(prompt)
            if fate not in before:
                self._broken(ONE_PLACE, f"prompt {prompt} was {fate or 'never handed out'} and becomes {after}")
            self.fates[prompt] = after

    def _require(self, law: str, holds: bool, otherwise: str) -> None:
        """For what few entries ask: ``otherwise`` is put together each time."""
        if not holds:
            self._broken(law, otherwise)

    def _broken(self, law: str, how: str) -> NoReturn:
        raise BrokenInvariant(self.state.offset, law, how)


__all__ = ("ALL_LAWS", "HISTORY_LAWS", "LAWS", "Audit", "check")
