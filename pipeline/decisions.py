"""What follows from an input: pure functions of (state, policy, input, now).

Rule 1: every answer of a worker makes exactly one entry; ``Late`` when nothing else follows from it.
Rule 2: an answer counts only for the very order it echoes (offset, writer epoch, digest of the entry).
Rule 3: budgets are counted from the log, so a restart cannot refill them.
Rule 4: a prompt that stops the run backs off; it is not lost.
"""

import math
from typing import assert_never

from rollog.events.messages import (
    BlobUnreadable,
    CheckpointDone,
    GroupCancelled,
    GroupDone,
    GroupFailed,
    Result,
    ScaleRequest,
    StepDone,
    StopRequest,
    WeightsLoaded,
    WeightsReady,
    WorkerJoined,
    WorkerLeft,
)
from rollog.events.vocabulary import (
    Archive,
    Cancel,
    Checkpoint,
    Commit,
    Drop,
    Event,
    Evict,
    EvictReason,
    FailureKind,
    Filter,
    FilterReason,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Publish,
    Repay,
    Requeue,
    Resume,
    Retry,
    Role,
    Stall,
    Stop,
    StopReason,
    Train,
)
from rollog.pipeline import fleet
from rollog.pipeline.dropping import leave_step, leaves_hole
from rollog.pipeline.inputs import (
    Answer,
    BlobGone,
    Input,
    LeaseLost,
    MemoryShort,
    Overdue,
    Sealed,
    Stalled,
    StopAsked,
    TrainerGone,
    WorkerGone,
)
from rollog.pipeline.policy import Policy
from rollog.pipeline.scheduling import schedule
from rollog.pipeline.stalls import in_words, progress
from rollog.pipeline.waiting import Wait
from rollog.replay.state import Group, Place, State

Events = tuple[Event, ...]

MAX_ERROR_CHARS = 500
"""Longer error texts are cut: an entry holds facts, the worker's own log holds the traceback."""

GAP_ALARM = 1e-2
"""Mean logprob difference (nats per token) between generator and trainer under the same weights that is no rounding:
published reports of a generator on stale weights show 0.2, of a healthy pair in float32 below 0.001."""


def decide(state: State, policy: Policy, event: Input, now: float) -> Events:
    """The entry that this input causes at wall time ``now``; empty when nothing follows (never for an Answer)."""
    match event:
        case Answer(result=None):
            return (Late(what="not a message"),)
        case Answer(result=result):
            assert result is not None
            return _answer(state, policy, result, now)
        case LeaseLost():
            group = _running(state, event.prompt, event.attempt)
            return () if group is None else _lost(state, policy, group, f"{event.worker or 'its worker'} is gone", now)
        case Overdue():
            group = _running(state, event.prompt, event.attempt)
            error = f"timeout after {event.ran_s:.0f} s ({event.worker})"
            return () if group is None else _failed(state, policy, group, FailureKind.INFRA, error, now)
        case BlobGone():
            group = state.groups.get(event.prompt)
            if group is None or group.place is not Place.BUFFER or group.attempt != event.attempt:
                return ()
            return (_retry(group, FailureKind.LOST, event.error, now),)
        case TrainerGone():
            return () if event.generation != state.generation else _resume(state, event)
        case WorkerGone():
            gone = Leave(worker=event.worker, role=event.role, reason=event.reason)
            return (gone,) if event.worker in state.workers else ()
        case Stalled():
            return _stalled(state, policy, event, now)
        case MemoryShort():
            text = "the log's server uses more than four fifths of its memory: until it uses less, no batch is admitted"
            return () if state.finish is not None else (Stall(what="memory", text=text),)
        case Sealed():
            due = event.first == state.archived + 1 and event.last < state.offset and state.finish is None
            moved = Archive(first=event.first, last=event.last, file=event.file, digest=event.digest)
            return (moved,) if due else ()
        case StopAsked():
            return _stop(state, event.reason, now + event.within_s)
        case _:
            assert_never(event)


def _answer(state: State, policy: Policy, result: Result, now: float) -> Events:
    match result:
        case GroupDone():
            group = _running(state, result.prompt, result.attempt)
            if group is None or group.order != result.cause:
                return (Late(what="group", prompt=result.prompt, attempt=result.attempt, worker=result.worker),)
            if not _plausible(state, group, result):  # its lease is done: nobody else would end this attempt
                error = f"{result.worker} reported a group that cannot be: {result}"
                return _failed(state, policy, group, FailureKind.INFRA, error, now)
            return _commit(state, policy, group, result)
        case GroupCancelled():
            group = _running(state, result.prompt, result.attempt)
            if group is None or group.order != result.cause:
                return (Late(what="cancelled", prompt=result.prompt, attempt=result.attempt, worker=result.worker),)
            return _cancelled(state, policy, group, result, now)
        case GroupFailed():
            group = _running(state, result.prompt, result.attempt)
            if group is None or group.order != result.cause:
                return (Late(what="failure", prompt=result.prompt, attempt=result.attempt, worker=result.worker),)
            if result.kind is FailureKind.LOST:
                return _lost(state, policy, group, result.error, now)
            kind = FailureKind.INFRA if result.kind is FailureKind.USER else result.kind  # no worker is a person
            return _failed(state, policy, group, kind, result.error, now)
        case StepDone():
            return _step_done(state, result)
        case WeightsReady():
            if result.generation != state.generation or not _asked_for(state, result.version):
                return (Late(what="weights", generation=result.generation, worker=result.worker),)
            return (Publish(version=result.version, file=result.file, digest=result.digest),)
        case CheckpointDone():
            # A checkpoint of an older generation is as good: its manifest names an entry of this log.
            if result.version > state.version or result.version < state.oldest_kept_checkpoint():
                return (Late(what="checkpoint", generation=result.generation, worker=result.worker),)
            return (Checkpoint(version=result.version, manifest=result.manifest, digest=result.digest),)
        case BlobUnreadable():
            if result.generation != state.generation:
                return (Late(what="blob", prompt=result.prompt, generation=result.generation, worker=result.worker),)
            text = f"step {result.step}: the blob of prompt {result.prompt} cannot be read: {result.error}"
            return (Note(what="unreadable blob", text=_cut(text)),)
        case WorkerJoined():
            return (Join(worker=result.worker, role=result.role),)
        case WeightsLoaded():
            return (Load(worker=result.worker, version=result.version, digest=result.digest),)
        case WorkerLeft():
            if result.worker not in state.workers:
                return (Late(what="leave", worker=result.worker),)
            return (Leave(worker=result.worker, role=result.role, reason=_cut(result.reason)),)
        case StopRequest():
            return _stop(state, result.reason, now + result.within_s) or (Late(what="stop"),)
        case ScaleRequest():
            return fleet.scaled(state, result) or (Late(what="scale"),)
        case _:
            assert_never(result)


def _commit(state: State, policy: Policy, group: Group, result: GroupDone) -> Events:
    """A finished group pays its debt; or it is useless, and leaves its step as a dropped prompt does.

    Where its step may not lose it, it is trained all the same.
    """
    commit = Commit(
        prompt=result.prompt,
        attempt=result.attempt,
        blob=result.blob,
        born=result.born,
        done=result.done,
        rollouts=result.rollouts,
        rows=result.rows,
        tokens=result.tokens,
        reward_mean=result.reward_mean,
        reward_std=result.reward_std,
        worker=result.worker,
        row_counts=result.row_counts,
    )
    if result.refused or (policy.filters_equal_rewards and result.reward_std == 0.0):
        reason = FilterReason.RULE if result.refused else FilterReason.EQUAL_REWARDS
        if not leaves_hole(state, policy, group):
            return (commit, Filter(prompt=group.prompt, reason=reason), *leave_step(state, policy, group))
        text = f"prompt {group.prompt} is trained though it is useless ({reason.value}): no spare for step {group.step}"
        remark: Events = (Note(what="not filtered", text=text),)
    else:
        remark = ()
    repaid = () if group.loan is None else (Repay(loan=group.loan, prompt=group.prompt),)
    return (commit, *repaid, *remark)


def _cancelled(state: State, policy: Policy, group: Group, result: GroupCancelled, now: float) -> Events:
    """The attempt had grown too old while it ran: its order ends, and the same entry says where the prompt goes."""
    if result.born >= policy.sampler.oldest_useful(state):  # the sampler or its window was changed meanwhile
        return (_retry(group, FailureKind.LOST, "cancelled under other settings", now),)
    cancel = Cancel(prompt=group.prompt, attempt=group.attempt, reason=EvictReason.STALE.value)
    if policy.requeues and group.requeues < policy.failure.max_requeues:
        return (cancel, Requeue(prompts=(group.prompt,)))
    return (cancel, Evict(prompts=(group.prompt,), reason=EvictReason.STALE))


def _stop(state: State, reason: StopReason, deadline: float) -> Events:
    """A stop, or one that leaves less time than the stop before it; never in the place of a failure."""
    before = state.stopping
    said = before is not None and (before.reason is StopReason.FAILED or before.deadline <= deadline)
    return () if said or state.finish is not None else (Stop(reason=reason, deadline=deadline),)


def _stalled(state: State, policy: Policy, stalled: Stalled, now: float) -> Events:
    """Say it, and stop the run if it is to be stopped. It has moved meanwhile, or it stops: then it is no stall."""
    if stalled.progress != progress(state) or state.stopping is not None or state.finish is not None:
        return ()
    waits = None if stalled.oldest else schedule(state, policy, now, stalled.pressure)
    text = in_words(stalled, waits.why if isinstance(waits, Wait) else None)
    stall = Stall(what="stall", text=_cut(text))
    if not policy.aborts_stalls:
        return (stall,)
    return (stall, Stop(reason=StopReason.FAILED, deadline=now, detail=_cut(f"stalled: {text} (flow.stall_action)")))


def _step_done(state: State, result: StepDone) -> Events:
    trained = result.generation == state.generation and result.step == state.standing
    if not trained or not state.step(result.step).closed:
        return (Late(what="step", step=result.step, generation=result.generation, worker=result.worker),)
    events: list[Event] = [
        Train(
            step=result.step,
            generation=result.generation,
            loss=result.loss,
            grad_norm=result.grad_norm,
            tokens=result.tokens,
            rows=result.rows,
            padding=result.padding,
            seconds=result.seconds,
            logprob_gap=result.logprob_gap,
        )
    ]
    # Published for every new version, and when steps trained again have come back to one that orders may ask for.
    if result.digest and (result.step >= state.version or _asked_for(state, result.step + 1)):
        events.append(Publish(version=result.step + 1, file=result.file, digest=result.digest))
    if result.logprob_gap is not None and result.logprob_gap > GAP_ALARM:
        text = (
            f"step {result.step}: the generators' logprobs differ from the trainer's by {result.logprob_gap:.3g} nats "
            f"per token under the same weights; a generator runs other weights than it says"
        )
        events.append(Note(what="logprob_gap", text=text))
    return tuple(events)


def _resume(state: State, gone: TrainerGone) -> Events:
    """A new trainer generation, from the newest whole checkpoint at or below the version.

    A manifest that is on disk while its event is not on the log (the controller died between them) is announced first.
    """
    oldest = state.oldest_kept_checkpoint()
    usable = [checkpoint for checkpoint in gone.whole if oldest <= checkpoint.version <= state.version]
    newest = max(usable, key=lambda checkpoint: checkpoint.version, default=None)
    events: list[Event] = []
    if newest is not None and state.checkpoints.get(newest.version) != newest:
        events.append(Checkpoint(version=newest.version, manifest=newest.manifest, digest=newest.digest))
    version, manifest = (0, "") if newest is None else (newest.version, newest.manifest)
    events.append(Resume(version=version, checkpoint=manifest, reason=_cut(gone.reason)))
    rank_left = [name for name, worker in state.workers.items() if worker.role is Role.TRAINER]
    events.extend(Leave(worker=name, role=Role.TRAINER, reason=_cut(gone.reason)) for name in rank_left)
    return tuple(events)


def _asked_for(state: State, version: int) -> bool:
    """Whether generators wait for these weights, which have been made before."""
    return version == state.version or version in state.unpublished()


def _running(state: State, prompt: int, attempt: int) -> Group | None:
    group = state.groups.get(prompt)
    return group if group is not None and group.place is Place.IN_FLIGHT and group.attempt == attempt else None


def _plausible(state: State, group: Group, result: GroupDone) -> bool:
    """Whether a finished group can have been made by this order: what a correct worker always reports."""
    assert state.rules is not None
    return (
        group.weights <= result.born <= result.done <= state.version
        and (not state.rules.pinned or result.born == result.done == group.weights)
        and result.rollouts == state.rules.rollouts_per_prompt
        and result.rows >= result.rollouts
        and (len(result.row_counts), sum(result.row_counts)) in ((0, 0), (result.rollouts, result.rows))
        and math.isfinite(result.reward_mean)
        and math.isfinite(result.reward_std)
    )


def _lost(state: State, policy: Policy, group: Group, error: str, now: float) -> Events:
    """Nobody's fault: at once again, without a budget, up to a high limit under one writer epoch."""
    here = group.lost_attempts + (group.order is not None and group.order.epoch == state.epoch)
    if here > policy.failure.max_lost_attempts:
        return _give_up(state, policy, group, FailureKind.INFRA, error, now)
    return (_retry(group, FailureKind.LOST, error, now),)


def _failed(state: State, policy: Policy, group: Group, kind: FailureKind, error: str, now: float) -> Events:
    limits = policy.failure
    if kind is FailureKind.INFRA:
        failures = group.infra_failures + 1
        if failures >= limits.max_infra_attempts:
            return _give_up(state, policy, group, kind, error, now)
        backoff_s = min(limits.backoff_base_s * 2 ** (failures - 1), limits.backoff_max_s)
        return (_retry(group, kind, error, now + backoff_s),)
    if group.data_failures + 1 >= limits.max_data_attempts:
        return _give_up(state, policy, group, kind, error, now)
    return (_retry(group, kind, error, now),)


def _give_up(state: State, policy: Policy, group: Group, kind: FailureKind, error: str, now: float) -> Events:
    """The prompt's budget is gone. If the run's budget is gone too the run stops, and the prompt backs off."""
    limits = policy.failure
    retry = _retry(group, kind, error, now)
    if kind is FailureKind.DATA and state.skipped >= limits.skip_limit:
        spent = (
            f"prompt {group.prompt} failed {group.data_failures + 1} times by its own fault and the run may skip "
            f"{limits.max_skipped_prompts} (failure.max_skipped_prompts): {error}"
        )
    elif kind is FailureKind.INFRA and state.consecutive_drops + 1 > limits.max_consecutive_dropped_prompts:
        spent = (
            f"prompt {group.prompt} failed {group.infra_failures + 1} times with the machinery and the run may drop "
            f"{limits.max_consecutive_dropped_prompts} in a row (failure.max_consecutive_dropped_prompts): {error}"
        )
    elif leaves_hole(state, policy, group):
        short = policy.in_rollouts(policy.prompts_per_step - 1)
        spent = (
            f"prompt {group.prompt} cannot be given up: without it step {group.step} has {short}, under context "
            f"compaction it needs all, and no spare is left (failure.reserve_prompts, "
            f"failure.max_replacement_attempts): {error}"
        )
    else:
        return (Drop(prompt=group.prompt, kind=kind, error=_cut(error)), *leave_step(state, policy, group))
    if state.stopping is not None:  # judged after the next Open: the counter stays full
        return (retry,)
    return (retry, Stop(reason=StopReason.FAILED, deadline=now, prompt=group.prompt, detail=_cut(spent)))


def _retry(group: Group, kind: FailureKind, error: str, not_before: float) -> Retry:
    return Retry(prompt=group.prompt, attempt=group.attempt, kind=kind, error=_cut(error), not_before=not_before)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"
