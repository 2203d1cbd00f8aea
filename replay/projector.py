"""The fold: what each event does to the State.

Rule 1: one ``match``, one ``case`` per event; the type checker names a forgotten one.
Rule 2: an event that cannot follow from what stands before it raises ``BrokenHistory``; nothing is guessed.
Rule 3: an entry is folded whole: the State between two events of one entry is seen by nobody.
Rule 4: folding one event copies nothing that grows with the run or the buffer. The State is changed in place by this
        file alone; whoever needs an older one folds again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

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
    EvictReason,
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
    Train,
)
from rollog.replay import new_terms
from rollog.replay.errors import BrokenHistory
from rollog.replay.places import find, find_idle, hand_out, move, remove, require, stamp
from rollog.replay.state import (
    OPEN_PLACES,
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
from rollog.replay.writers import naming_the_writer


def fold_all(entries: Iterable[Entry], state: State | None = None) -> State:
    """The State after these entries, starting from ``state`` (default: an empty log's)."""
    state = State() if state is None else state
    for entry in naming_the_writer(entries):
        fold(state, entry)
    return state


def fold(state: State, entry: Entry) -> State:
    """Fold one entry into the State, in place, and return it. Raises ``BrokenHistory`` with the offset."""
    try:
        if entry.offset != state.offset + 1:
            raise BrokenHistory(f"it follows entry {state.offset}")
        if entry.epoch < state.epoch:
            raise BrokenHistory(f"its writer epoch {entry.epoch} is older than {state.epoch}")
        if state.generation == 0 and not any(isinstance(event, Start) for event in entry.events[:1]):
            raise BrokenHistory("the log does not begin with Start")
        state.offset, state.digest = entry.offset, entry.digest
        if entry.input is not None:
            state.input = entry.input
        for event in entry.events:
            _apply(state, event, entry)
    except BrokenHistory as broken:
        names = ", ".join(type(event).__name__ for event in entry.events)
        raise BrokenHistory(f"entry {entry.offset} ({names}) cannot stand in this log: {broken}") from None
    return state


def _apply(state: State, event: Event, entry: Entry) -> None:
    match event:
        case Start():
            require(state.generation == 0, "the run has started already")
            state.run, state.dataset, state.seed, state.num_rows = event.run, event.dataset, event.seed, event.num_rows
            state.settings = dict(event.config)
            state.rules = Rules.of(state.settings)
            state.generation = entry.offset
        case Fork():
            new_terms.fork(state, event)
        case Open():
            require(event.epoch > state.epoch, f"writer epoch {event.epoch} does not follow {state.epoch}")
            state.epoch, state.resumes_in_vain = event.epoch, 0
            for group in state.groups.values():
                group.lost_attempts = 0
            if state.finish is not None:
                new_terms.pardon(state)
                state.stopping = state.finish = None
        case Configure():
            new_terms.configure(state, event)
        case Resume():
            require(event.version <= state.version, f"version {event.version} is above {state.version}")
            state.generation, state.standing = entry.offset, event.version
            # The newest whole checkpoint is loaded: what is recorded above it is not whole, and must be saved again.
            for version in [v for v in state.checkpoints if v > event.version or not event.checkpoint]:
                del state.checkpoints[version]
            state.resumes_in_vain += 1
        case Admit():
            # The same batch again completes a step that a change of sampler left partial.
            require(
                event.batch in (state.cursor, state.cursor + 1), f"batch {event.batch} does not follow {state.cursor}"
            )
            require(len(event.prompts) == len(event.rows), "there is not one row for each prompt")
            state.cursor = event.batch
            for prompt, row in zip(event.prompts, event.rows, strict=True):
                hand_out(state, prompt, row, Place.WAITING)
        case Divert():
            require(len(event.prompts) == len(event.rows), "there is not one row for each prompt")
            for prompt, row in zip(event.prompts, event.rows, strict=True):
                require(prompt not in state.groups, f"prompt {prompt} is handed out twice")
                hand_out(state, prompt, row, Place.RESERVE)
        case Stamp():
            state.stamps_made = True
            for prompt in event.prompts:
                places = (Place.WAITING, Place.IN_FLIGHT, Place.BACKING_OFF, Place.BUFFER)
                stamp(state, find(state, prompt, *places), event.step)
        case Dispatch():
            group = find(state, event.prompt, Place.WAITING, Place.BACKING_OFF)
            if event.attempt != group.attempt + 1:
                raise BrokenHistory(f"attempt {event.attempt} does not follow {group.attempt}")
            if event.step != group.step:
                raise BrokenHistory(f"prompt {event.prompt} is stamped {group.step}, not {event.step}")
            state.slots += 1
            group.slot, group.attempt, group.weights = state.slots, event.attempt, event.weights
            group.order = entry.cause
            move(state, group, Place.IN_FLIGHT)
        case Retry():
            _retry(state, event)
        case Commit():
            group = find(state, event.prompt, Place.IN_FLIGHT, attempt=event.attempt)
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
            move(state, group, Place.BUFFER)
            group.order, group.not_before = None, 0.0
        case Drop():
            group = find(state, event.prompt, *OPEN_PLACES, Place.RESERVE)
            state.lost += group.place is not Place.RESERVE
            state.skipped += event.kind is FailureKind.DATA
            state.consecutive_drops += event.kind is FailureKind.INFRA
            state.dropped += 1
            remove(state, group)
        case Filter():
            remove(state, find(state, event.prompt, Place.BUFFER))
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
            group = find(state, event.prompt, Place.BUFFER)
            require(group.step == event.lender, f"prompt {event.prompt} is stamped {group.step}, not {event.lender}")
            require(event.loan not in state.loans, f"loan {event.loan} is open already")
            stamp(state, group, event.borrower)
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
                group = find_idle(state, prompt)
                state.lost += group.place is not Place.RESERVE
                remove(state, group)
            state.evicted += len(event.prompts)
            if event.reason is EvictReason.FORK:
                new_terms.clean_slate(state)
        case Cancel():
            group = find(state, event.prompt, Place.IN_FLIGHT, attempt=event.attempt)
            move(state, group, Place.WAITING)
            group.order = None
        case Requeue():
            for prompt in event.prompts:
                group = find_idle(state, prompt)
                group.requeues += 1
                move(state, group, Place.WAITING)
                group.finished, group.not_before = None, 0.0
        case Select():
            _select(state, event, entry.cause)
        case Train():
            _train(state, event)
        case Publish():
            require(event.version <= state.version, f"version {event.version} is above {state.version}")
            state.published[event.version] = Weights(file=event.file, digest=event.digest)
            assert state.rules is not None
            kept = max(state.rules.lookahead, 1) + 1
            for version in sorted(state.published)[:-kept]:
                del state.published[version]
        case Load():
            worker = state.workers.get(event.worker)
            if worker is not None:
                state.workers[event.worker] = Worker(role=worker.role, version=event.version)
        case Save():
            state.saves[event.version] = entry.cause
        case Checkpoint():
            if event.version > (state.newest_checkpoint() or 0):
                state.resumes_in_vain = 0
            state.checkpoints[event.version] = SavedCheckpoint(
                version=event.version, manifest=event.manifest, digest=event.digest
            )
            assert state.rules is not None
            for version in sorted(state.checkpoints)[: -state.rules.keep_last]:
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
        case Archive():
            require(event.first == state.archived + 1, f"entry {event.first} does not follow {state.archived}")
            require(event.first <= event.last < entry.offset, f"entries {event.first}..{event.last} are not all there")
            state.archived = event.last
        case Late() | Stall() | Note():
            pass
        case _:
            assert_never(event)


def _retry(state: State, event: Retry) -> None:
    """An attempt failed, or the blob of a finished group vanished before it was selected."""
    group = find(state, event.prompt, Place.IN_FLIGHT, Place.BUFFER, attempt=event.attempt)
    require(group.place is Place.IN_FLIGHT or event.kind is FailureKind.LOST, f"prompt {event.prompt} is finished")
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
    move(state, group, Place.BACKING_OFF)
    group.finished = group.order = None


def _select(state: State, event: Select, cause: Cause) -> None:
    require(event.step == state.filling, f"step {event.step} is not the one being filled ({state.filling})")
    step = state.steps.setdefault(event.step, Step())
    require(event.chunk == len(step.chunks), f"chunk {event.chunk} does not follow {len(step.chunks)} chunks")
    members = []
    for prompt in event.prompts:
        group = find(state, prompt, Place.BUFFER)
        assert group.finished is not None
        members.append(Member(prompt=prompt, finished=group.finished))
        move(state, group, Place.SELECTED)
        group.step = event.step
    step.chunks.append(Selection(cause=cause, members=tuple(members), last=event.last))


def _train(state: State, event: Train) -> None:
    require(event.generation == state.generation, f"trainer generation {event.generation} is not {state.generation}")
    require(event.step == state.standing, f"the trainer stands at {state.standing}, not at {event.step}")
    step = state.step(event.step)
    require(step.closed, f"the last chunk of step {event.step} is not selected")
    state.standing += 1
    if event.step < state.version:  # trained again after the trainer's death: its groups are settled already
        return
    state.resumes_in_vain = 0
    state.version += 1
    for member in step.members():
        remove(state, find(state, member.prompt, Place.SELECTED))
    state.trained += step.taken
    _forget_old_steps(state)


def _forget_old_steps(state: State) -> None:
    """Keep selections and Saves back to the *oldest* kept checkpoint: the newest may turn out broken."""
    oldest = state.oldest_kept_step()
    for number in [number for number in state.steps if number < oldest]:
        del state.steps[number]
    for version in [version for version in state.saves if version < oldest]:
        del state.saves[version]


def _spare_stands_in(state: State, prompt: int, nth: int) -> Group:
    group = find(state, prompt, Place.RESERVE)
    group.nth = nth
    move(state, group, Place.WAITING)
    return group


def _end_loan(state: State, loan: int) -> None:
    require(loan in state.loans, f"loan {loan} is not open")
    spare = state.groups.get(state.loans.pop(loan).spare)
    if spare is not None:
        spare.loan = None


__all__: Sequence[str] = ("fold", "fold_all")
