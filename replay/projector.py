"""The fold: what each event does to the State.

Rule 1: one ``match``, one ``case`` per event; the type checker names a forgotten one.
Rule 2: an event that cannot follow from what stands before it raises ``BrokenHistory``; nothing is guessed.
Rule 3: an entry is folded whole: the State between two events of one entry is seen by nobody.
Rule 4: folding one event copies nothing that grows with the run or the buffer. The State is changed in place by this
        file alone; whoever needs an older one folds again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from rollog.events.log import Entry
from rollog.events.messages import Cause
from rollog.events.vocabulary import (
    Admit,
    Archive,
    Borrow,
    Cancel,
    Checkpoint,
    Commit,
    Configure,
    Dispatch,
    Divert,
    Drop,
    Event,
    Evict,
    Exhaust,
    FailureKind,
    Filter,
    Finish,
    Fork,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Open,
    Publish,
    Repay,
    Replace,
    Requeue,
    Resume,
    Retry,
    Save,
    Select,
    Shrink,
    Stall,
    Stamp,
    Start,
    Stop,
    StopReason,
    Train,
)
from rollog.replay.errors import BrokenHistory
from rollog.replay.state import (
    Finished,
    Group,
    Loan,
    Member,
    Place,
    Rules,
    SavedCheckpoint,
    Selection,
    State,
    Step,
    Stopping,
    Weights,
    Worker,
)


def fold_all(entries: Iterable[Entry], state: State | None = None) -> State:
    """The State after these entries, starting from ``state`` (default: an empty log's)."""
    state = State() if state is None else state
    for entry in entries:
        fold(state, entry)
    return state


def fold(state: State, entry: Entry) -> State:
    """Fold one entry into the State, in place, and return it. Raises ``BrokenHistory`` with the offset."""
    try:
        _check(entry.offset == state.offset + 1, f"it follows entry {state.offset}")
        _check(entry.epoch >= state.epoch, f"its writer epoch {entry.epoch} is older than {state.epoch}")
        state.offset, state.digest = entry.offset, entry.digest
        if entry.input is not None:
            state.input = entry.input
        for event in entry.events:
            _apply(state, event, entry.cause)
    except BrokenHistory as broken:
        names = ", ".join(type(event).__name__ for event in entry.events)
        raise BrokenHistory(f"entry {entry.offset} ({names}) cannot stand in this log: {broken}") from None
    return state


def _apply(state: State, event: Event, cause: Cause) -> None:
    match event:
        case Start():
            _check(state.generation == 0, "the run has started already")
            state.run, state.dataset, state.seed, state.num_rows = event.run, event.dataset, event.seed, event.num_rows
            state.settings = dict(event.config)
            state.rules = Rules.of(state.settings)
            state.generation = cause.offset
        case Fork():
            state.run = event.run
            _change_settings(state, event.changes)
            for group in state.at(Place.IN_FLIGHT):
                _move(state, group, Place.WAITING)
            state.standing = state.newest_checkpoint() or 0
        case Open():
            _check(event.epoch > state.epoch, f"writer epoch {event.epoch} does not follow {state.epoch}")
            state.epoch, state.resumes_in_vain = event.epoch, 0
            for group in state.groups.values():
                group.lost_attempts = 0
            if state.finish is not None:
                _pardon(state)
                state.stopping = state.finish = None
        case Configure():
            _configure(state, event)
        case Resume():
            _check(event.version <= state.version, f"version {event.version} is above {state.version}")
            state.generation, state.standing = cause.offset, event.version
            # The newest whole checkpoint is loaded: what is recorded above it is not whole, and must be saved again.
            for version in [version for version in state.checkpoints if version > event.version]:
                del state.checkpoints[version]
            state.resumes_in_vain += 1
        case Admit():
            # The same batch again completes a step that a change of sampler left partial.
            _check(
                event.batch in (state.cursor, state.cursor + 1), f"batch {event.batch} does not follow {state.cursor}"
            )
            state.cursor = event.batch
            for prompt, row in zip(event.prompts, event.rows, strict=True):
                _hand_out(state, prompt, row, Place.WAITING)
        case Divert():
            for prompt, row in zip(event.prompts, event.rows, strict=True):
                _check(prompt not in state.groups, f"prompt {prompt} is handed out twice")
                _hand_out(state, prompt, row, Place.RESERVE)
        case Stamp():
            state.stamps_made = True
            for prompt in event.prompts:
                places = (Place.WAITING, Place.IN_FLIGHT, Place.BACKING_OFF, Place.BUFFER)
                _stamp(state, _group(state, prompt, *places), event.step)
        case Dispatch():
            group = _group(state, event.prompt, Place.WAITING, Place.BACKING_OFF)
            _check(event.attempt == group.attempt + 1, f"attempt {event.attempt} does not follow {group.attempt}")
            _check(event.step == group.step, f"prompt {event.prompt} is stamped {group.step}, not {event.step}")
            state.slots += 1
            group.slot, group.attempt, group.weights, group.order = state.slots, event.attempt, event.weights, cause
            _move(state, group, Place.IN_FLIGHT)
        case Retry():
            _retry(state, event)
        case Commit():
            group = _group(state, event.prompt, Place.IN_FLIGHT, attempt=event.attempt)
            group.finished = Finished(
                blob=event.blob,
                born=event.born,
                done=event.done,
                rollouts=event.rollouts,
                rows=event.rows,
                tokens=event.tokens,
                reward_mean=event.reward_mean,
                reward_std=event.reward_std,
                worker=event.worker,
            )
            state.consecutive_drops = 0
            state.commits += 1
            _move(state, group, Place.BUFFER)
            group.order, group.not_before = None, 0.0
        case Drop():
            group = _unselected(state, event.prompt)
            state.lost += group.place is not Place.RESERVE
            state.skipped += event.kind is FailureKind.DATA
            state.consecutive_drops += event.kind is FailureKind.INFRA
            state.dropped += 1
            _remove(state, group)
        case Filter():
            _remove(state, _group(state, event.prompt, Place.BUFFER))
            state.filtered += 1
            state.lost += 1
        case Shrink():
            state.steps.setdefault(event.step, Step()).shortfall += 1
            if event.loan is not None:
                _end_loan(state, event.loan)
                state.loans_forgiven += 1
        case Replace():
            spare = _spare_stands_in(state, event.spare, event.nth)
            for number, loan in state.loans.items():
                if loan.spare == event.dropped:  # whoever stands in for a debtor owes the debt
                    state.loans[number] = replace(loan, spare=event.spare)
                    spare.loan = number
        case Borrow():
            group = _group(state, event.prompt, Place.BUFFER)
            _check(group.step == event.lender, f"prompt {event.prompt} is stamped {group.step}, not {event.lender}")
            _stamp(state, group, event.borrower)
            _spare_stands_in(state, event.spare, event.nth).loan = event.loan
            state.loans[event.loan] = Loan(
                prompt=event.prompt, lender=event.lender, borrower=event.borrower, spare=event.spare
            )
            state.loans_made += 1
        case Repay():
            _end_loan(state, event.loan)
            state.loans_repaid += 1
        case Evict():
            for prompt in event.prompts:
                group = _unselected(state, prompt)
                state.lost += group.place is not Place.RESERVE
                _remove(state, group)
            state.evicted += len(event.prompts)
        case Cancel():
            group = _group(state, event.prompt, Place.IN_FLIGHT, attempt=event.attempt)
            _move(state, group, Place.WAITING)
            group.order = None
        case Requeue():
            for prompt in event.prompts:
                group = _unselected(state, prompt)
                group.requeues += 1
                _move(state, group, Place.WAITING)
                group.finished, group.not_before = None, 0.0
        case Select():
            _select(state, event, cause)
        case Train():
            _train(state, event)
        case Publish():
            _check(event.version <= state.version, f"version {event.version} is above {state.version}")
            state.resumes_in_vain = 0
            state.published[event.version] = Weights(file=event.file, digest=event.digest)
            kept = max(_rules(state).lookahead, 1) + 1
            for version in sorted(state.published)[:-kept]:
                del state.published[version]
        case Load():
            worker = state.workers.get(event.worker)
            if worker is not None:
                state.workers[event.worker] = Worker(role=worker.role, version=event.version)
        case Save():
            state.saves[event.version] = cause
        case Checkpoint():
            state.checkpoints[event.version] = SavedCheckpoint(
                version=event.version, manifest=event.manifest, digest=event.digest
            )
            for version in sorted(state.checkpoints)[: -_rules(state).keep_last]:
                del state.checkpoints[version]
            _forget_old_steps(state)
        case Join():
            state.workers[event.worker] = Worker(role=event.role)
        case Leave():
            state.workers.pop(event.worker, None)
        case Exhaust():
            state.exhausted = True
        case Stop():
            state.stopping = Stopping(
                reason=event.reason, deadline=event.deadline, prompt=event.prompt, detail=event.detail
            )
        case Finish():
            state.finish = event.reason
        case Late() | Archive() | Stall() | Note():
            pass
        case _:
            assert_never(event)


def _retry(state: State, event: Retry) -> None:
    """An attempt failed, or a finished group's blob vanished; of a selected group the place stays."""
    group = _group(state, event.prompt, Place.IN_FLIGHT, Place.BUFFER, attempt=event.attempt)
    _check(group.place is Place.IN_FLIGHT or event.kind is FailureKind.LOST, f"prompt {event.prompt} is finished")
    match event.kind:
        case FailureKind.INFRA:
            group.infra_failures += 1
        case FailureKind.DATA:
            group.data_failures += 1
            group.seed_failures += 1
        case FailureKind.LOST:
            # Counted per writer epoch: killing the whole run, again and again, must not give a prompt up.
            group.lost_attempts += group.order is not None and group.order.epoch == state.epoch
        case FailureKind.USER:
            raise BrokenHistory("a person drops, and does not retry")
    group.last_failure, group.not_before = event.kind, event.not_before
    _move(state, group, Place.BACKING_OFF)
    group.finished = group.order = None


def _select(state: State, event: Select, cause: Cause) -> None:
    _check(event.step == state.filling, f"step {event.step} is not the one being filled ({state.filling})")
    step = state.steps.setdefault(event.step, Step())
    _check(event.chunk == len(step.chunks), f"chunk {event.chunk} does not follow {len(step.chunks)} chunks")
    members = []
    for prompt in event.prompts:
        group = _group(state, prompt, Place.BUFFER)
        assert group.finished is not None
        members.append(Member(prompt=prompt, finished=group.finished))
        _move(state, group, Place.SELECTED)
        group.step = event.step
    step.chunks.append(Selection(cause=cause, members=tuple(members), last=event.last))


def _train(state: State, event: Train) -> None:
    _check(event.generation == state.generation, f"trainer generation {event.generation} is not {state.generation}")
    _check(event.step == state.standing, f"the trainer stands at {state.standing}, not at {event.step}")
    step = state.step(event.step)
    _check(step.closed, f"the last chunk of step {event.step} is not selected")
    state.standing += 1
    state.resumes_in_vain = 0
    if event.step < state.version:  # trained again after the trainer's death: its groups are settled already
        return
    state.version += 1
    for member in step.members():
        _remove(state, _group(state, member.prompt, Place.SELECTED))
    state.trained += step.taken
    _forget_old_steps(state)


def _forget_old_steps(state: State) -> None:
    """Keep selections and Saves back to the *oldest* kept checkpoint: the newest may turn out broken."""
    oldest = min(state.oldest_kept_checkpoint(), state.standing)
    for number in [number for number in state.steps if number < oldest]:
        del state.steps[number]
    for version in [version for version in state.saves if version < oldest]:
        del state.saves[version]


def _pardon(state: State) -> None:
    """After a failed run is opened again, only the counter that ran out starts anew, only of the prompt named."""
    stopping = state.stopping
    if stopping is None or stopping.reason is not StopReason.FAILED or stopping.prompt is None:
        return
    group = state.groups.get(stopping.prompt)
    if group is not None and group.last_failure is FailureKind.INFRA:
        group.infra_failures = 0
    elif group is not None and group.last_failure is FailureKind.DATA:
        group.data_failures = 0


def _hand_out(state: State, prompt: int, row: int, place: Place) -> Group:
    group = state.groups.get(prompt)
    if group is not None:  # a spare that is admitted (drain)
        _check(group.place is Place.RESERVE and place is Place.WAITING, f"prompt {prompt} is handed out twice")
        _move(state, group, place)
        return group
    _check(prompt == state.handed_out, f"prompt {prompt} is not the next ({state.handed_out})")
    state.handed_out += 1
    group = state.groups[prompt] = Group(prompt=prompt, row=row, place=place)
    state.places[place][prompt] = None
    return group


def _spare_stands_in(state: State, prompt: int, nth: int) -> Group:
    group = _group(state, prompt, Place.RESERVE)
    group.nth = nth
    _move(state, group, Place.WAITING)
    return group


def _end_loan(state: State, loan: int) -> None:
    _check(loan in state.loans, f"loan {loan} is not open")
    spare = state.groups.get(state.loans.pop(loan).spare)
    if spare is not None:
        spare.loan = None


def _group(state: State, prompt: int, *places: Place, attempt: int | None = None) -> Group:
    """The group, which must be at one of these places and, if given, at this attempt."""
    group = state.groups.get(prompt)
    _check(group is not None, f"prompt {prompt} is settled or was never handed out")
    assert group is not None
    _check(group.place in places, f"prompt {prompt} is {group.place.value}")
    _check(attempt is None or attempt == group.attempt, f"prompt {prompt} is at attempt {group.attempt}, not {attempt}")
    return group


def _unselected(state: State, prompt: int) -> Group:
    return _group(state, prompt, *(place for place in Place if place is not Place.SELECTED))


def _stamp(state: State, group: Group, step: int | None) -> None:
    """Mean the group for another step, wherever it is."""
    _leave(state, group)
    group.step = step
    _enter(state, group)


def _move(state: State, group: Group, place: Place) -> None:
    _leave(state, group)
    group.place = place
    _enter(state, group)


def _remove(state: State, group: Group) -> None:
    _leave(state, group)
    del state.groups[group.prompt]


def _enter(state: State, group: Group) -> None:
    state.places[group.place][group.prompt] = None
    if group.place is Place.BUFFER:
        assert group.finished is not None
        state.ready.add(group.prompt, group.slot, group.step, group.finished.born)
    elif group.place is Place.IN_FLIGHT:
        state.ready.start(group.weights)


def _leave(state: State, group: Group) -> None:
    del state.places[group.place][group.prompt]
    if group.place is Place.BUFFER:
        assert group.finished is not None
        state.ready.discard(group.slot, group.step, group.finished.born)
    elif group.place is Place.IN_FLIGHT:
        state.ready.end(group.weights)


def _configure(state: State, event: Configure) -> None:
    """Settings change. With another sampler, stamps and debts of the old one mean nothing; new stamps follow as events."""
    before = _rules(state).sampler
    _change_settings(state, event.changes)
    state.cursor = event.cursor
    if _rules(state).sampler == before:
        return
    state.lost, state.stamps_made = 0, False
    state.loans_forgiven += len(state.loans)
    state.loans.clear()
    for group in state.groups.values():
        group.loan, group.nth = None, 0
        if group.place not in (Place.SELECTED, Place.RESERVE):
            _stamp(state, group, None)
    for number, step in state.steps.items():
        if number >= state.filling:
            step.shortfall = 0


def _change_settings(state: State, changes: Any) -> None:
    """Set dotted paths; the sections on the way are copied, so that no other holder of the settings sees it."""
    for path, value in changes.items():
        *sections, name = path.split(".")
        section: dict[str, Any] = state.settings
        for part in sections:
            section[part] = dict(section.get(part) or {})
            section = section[part]
        section[name] = value
    if changes:
        state.rules = Rules.of(state.settings)


def _rules(state: State) -> Rules:
    if state.rules is None:
        raise BrokenHistory("the log does not begin with Start")
    return state.rules


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenHistory(otherwise)


__all__: Sequence[str] = ("fold", "fold_all")
