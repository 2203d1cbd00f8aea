"""What the first own entry of a fork says: pure functions of the State at the parent's entry.

    Fork, [Evict], [Retry...], [Configure, Stamp...], [Checkpoint], Resume

Rule 1: one entry, so that no reader ever sees half of a fork.
Rule 2: another data set, seed, step size or group size, another model, and under ``pinned`` other weights to answer
        with, change what a prompt or a group is: everything open is evicted, and the next step takes new ordinals.
Rule 3: a step that has taken groups keeps them, so such a fork cannot begin inside of one: it names the entry before.
Rule 4: a finished group whose blob is gone is generated again.
Rule 5: the trainer begins at a checkpoint; the recorded steps above it are trained again, under the new settings.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rollog.events.codec import seal
from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Checkpoint,
    Configure,
    Event,
    Evict,
    EvictReason,
    FailureKind,
    Fork,
    Resume,
    Retry,
)
from rollog.pipeline.errors import PipelineError, PlanError
from rollog.pipeline.reconfigure import configure
from rollog.replay.projector import fold
from rollog.replay.state import Place, SavedCheckpoint, State

ANOTHER_GROUP: Final = ("seed", "grpo.prompts_per_step", "grpo.rollouts_per_prompt", "model.path")
"""Settings that change what a prompt or a group is; beside them the rows of the data set, by their fingerprint."""
ANOTHER_WEIGHTS: Final = ("determinism", "sampler.")
"""Settings that change, under ``pinned``, by which weights an order is answered."""


class NoFork(PipelineError):
    """No fork can begin at this entry; the message names the nearest at which one can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What makes the fork another run. ``run``, ``parent``: names; ``changes``: dotted path -> new value.

    ``dataset``, ``seed``, ``num_rows``: of the fork, changed or not.
    """

    run: str
    parent: str
    reason: str
    dataset: str
    seed: int
    num_rows: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0
    """Wall time of the fork, in seconds."""


def fork_entry(
    state: State, terms: Terms, checkpoint: SavedCheckpoint | None, blob_exists: Callable[[str], bool]
) -> Entry:
    """The entry after ``state``, with which the fork begins at ``checkpoint`` (None: the model it began with).

    Raises ``NoFork`` where the terms do not fit the moment, ``PlanError`` for what no fork can change.
    """
    anew = evicts(state, terms)
    _must_fit(state, terms, anew)
    events: list[Event] = [_fork(state, terms)]
    if anew:
        prompts = sorted(p for p, group in state.groups.items() if group.place is not Place.SELECTED)
        events.append(Evict(prompts=tuple(prompts), reason=EvictReason.FORK))
    else:
        events += _gone(state, blob_exists)
    here = _after(state, events)
    if anew:
        events.append(Configure(changes=terms.changes, cursor=here.filling - 1))
    else:
        events += configure(here, terms.changes)
    here = _after(state, events)
    if checkpoint is not None and here.checkpoints.get(checkpoint.version) != checkpoint:
        events.append(Checkpoint(version=checkpoint.version, manifest=checkpoint.manifest, digest=checkpoint.digest))
    version, manifest = (0, "") if checkpoint is None else (checkpoint.version, checkpoint.manifest)
    events.append(Resume(version=version, checkpoint=manifest, reason="fork"))
    return _sealed(state, events, terms.time)


def evicts(state: State, terms: Terms) -> bool:
    """Whether the terms change what a prompt or a group is."""
    now = (state.dataset, state.seed, state.num_rows)
    if now != (terms.dataset, terms.seed, terms.num_rows) or _changed(terms.changes, ANOTHER_GROUP):
        return True
    return _pinned(state, terms) and _changed(terms.changes, ANOTHER_WEIGHTS)


def newest_start(state: State, terms: Terms) -> int:
    """The highest version that the fork's trainer may begin at.

    Under ``pinned`` prompts are answered with exactly the weights of up to K versions ago: it makes them again.
    """
    if not _pinned(state, terms):
        return state.version
    assert state.rules is not None
    return max(0, state.version - int(terms.changes.get("sampler.lookahead", state.rules.lookahead)))


def _must_fit(state: State, terms: Terms, anew: bool) -> None:
    if terms.changes.get("model.path") is not None and (state.version > 0 or state.handed_out > 0):
        raise PlanError(
            f"model.path={terms.changes['model.path']}: a fork goes on with the weights of its parent's model, and "
            f"entry {state.offset:,} stands at v{state.version} with {state.handed_out:,} prompts handed out. "
            f"Start a new run (rollog train) for another model."
        )
    step = state.step(state.version)
    if anew and step.chunks:
        before = step.chunks[0].cause.offset - 1
        raise NoFork(
            f"step {state.version} has taken {step.taken} groups at entry {state.offset:,}, and the changes would make "
            f"them another kind of group. Fork at @{before}, the entry before the first of them, or after the step."
        )


def _fork(state: State, terms: Terms) -> Fork:
    same = (state.dataset, state.seed, state.num_rows) == (terms.dataset, terms.seed, terms.num_rows)
    return Fork(
        run=terms.run,
        parent=terms.parent,
        offset=state.offset,
        digest=state.digest,
        changes=terms.changes,
        reason=terms.reason,
        dataset=None if same else terms.dataset,
        seed=None if same else terms.seed,
        num_rows=None if same else terms.num_rows,
    )


def _gone(state: State, blob_exists: Callable[[str], bool]) -> Sequence[Retry]:
    return [
        Retry(
            prompt=group.prompt,
            attempt=group.attempt,
            kind=FailureKind.LOST,
            error="its blob was swept before the fork",
            not_before=0.0,
        )
        for group in state.at(Place.BUFFER)
        if group.finished is not None and not blob_exists(group.finished.blob)
    ]


def _after(state: State, events: Sequence[Event]) -> State:
    return fold(state.copy(), _sealed(state, events, 0.0))


def _sealed(state: State, events: Sequence[Event], time: float) -> Entry:
    """Under an epoch after the parent's: the fork's first controller takes the next one."""
    return seal(
        offset=state.offset + 1,
        epoch=state.epoch + 1,
        time=time,
        input=None,
        events=events,
        previous=state.digest,
    )


def _pinned(state: State, terms: Terms) -> bool:
    assert state.rules is not None
    return bool(terms.changes.get("determinism", "pinned" if state.rules.pinned else "off") == "pinned")


def _changed(changes: Mapping[str, Any], names: Collection[str]) -> bool:
    return any(path == name or (name.endswith(".") and path.startswith(name)) for path in changes for name in names)
