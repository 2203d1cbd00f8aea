"""Builders of histories, with boring defaults: N = 2 prompts a step, 2 rollouts each, in_order with lookahead K = 1.

An argument of ``history`` is one entry: an event, or a tuple of events that stand in one entry. Builders never assert.
Batch b holds the prompts 2b and 2b + 1 and is stamped for step b; prompt p reads row 100 + p; entry n is made at
``EPOCH_S`` + n seconds.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rollog.events.codec import seal
from rollog.events.log import GENESIS, Entry, Head
from rollog.events.vocabulary import (
    Admit,
    Checkpoint,
    Commit,
    Dispatch,
    Divert,
    Drop,
    Event,
    FailureKind,
    Open,
    Publish,
    Retry,
    Save,
    SaveReason,
    Select,
    Shrink,
    Stamp,
    Start,
    Train,
)
from rollog.replay.errors import BrokenInvariant
from rollog.replay.invariants import Audit
from rollog.replay.projector import fold_all
from rollog.replay.state import State

N = 2
ROLLOUTS = 2
EPOCH_S = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""

Decision = Event | tuple[Event, ...]


def settings(
    sampler: str = "in_order", lookahead: int = 1, determinism: str = "off", keep_last: int = 2, **sections: Any
) -> dict[str, Any]:
    """What a fold needs of a run's settings; ``sections`` (failure, flow) are limits, none by default."""
    window = "lookahead" if sampler == "in_order" else "max_staleness"
    return {
        "grpo": {"prompts_per_step": N, "rollouts_per_prompt": ROLLOUTS},
        "sampler": {"name": sampler, window: lookahead},
        "determinism": determinism,
        "checkpoint": {"keep_last": keep_last},
        **sections,
    }


def start(**changes: Any) -> Start:
    """The first entry; ``changes`` go to ``settings``."""
    return Start(run="demo", config=settings(**changes), dataset=digest("rows"), seed=7, num_rows=100)


def opened(epoch: int = 1, reason: str = "start") -> Open:
    """A controller takes the pen."""
    return Open(epoch=epoch, reason=reason, rollog="test", machine={})


def history(*decisions: Decision, begins: Sequence[Decision] | None = None, inputs: Iterable[str] = ()) -> list[Entry]:
    """Sealed entries: Start and Open (or ``begins``), then the decisions. ``inputs``: ids for the last entries."""
    begin = (start(), opened()) if begins is None else tuple(begins)
    answered = list(inputs)
    entries: list[Entry] = []
    epoch, previous = 1, GENESIS
    for number, decision in enumerate((*begin, *decisions), start=1):
        events = decision if isinstance(decision, tuple) else (decision,)
        epoch = next((event.epoch for event in events if isinstance(event, Open)), epoch)
        place = number - 1 - (len(begin) + len(decisions) - len(answered))
        entry = seal(
            offset=number,
            epoch=epoch,
            time=EPOCH_S + number,
            input=answered[place] if place >= 0 else None,
            events=events,
            previous=previous,
        )
        entries.append(entry)
        previous = entry.digest
    return entries


def folded(*decisions: Decision, begins: Sequence[Decision] | None = None) -> State:
    """The State after a history."""
    return fold_all(history(*decisions, begins=begins))


def audited(*decisions: Decision, begins: Sequence[Decision] | None = None, inputs: Iterable[str] = ()) -> Audit:
    """The audit of a whole history. Raises what it finds."""
    audit = Audit()
    for entry in history(*decisions, begins=begins, inputs=inputs):
        audit.follow(entry)
    audit.finish()
    return audit


def first_break(
    *decisions: Decision, begins: Sequence[Decision] | None = None, inputs: Iterable[str] = ()
) -> tuple[str, int] | None:
    """The law that a history breaks first, and how many entries from its end (0: the last); None if it breaks none."""
    try:
        audited(*decisions, begins=begins, inputs=inputs)
    except BrokenInvariant as broken:
        return broken.law, len(history(*decisions, begins=begins)) - broken.offset
    return None


def places(state: State) -> dict[int, str]:
    """Where each unsettled prompt is."""
    return {prompt: group.place.value for prompt, group in state.groups.items()}


class KeptLog:
    """``Reader`` on entries in a list."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)

    def head(self) -> Head:
        """Of the last entry."""
        last = self.entries[-1] if self.entries else None
        return Head(offset=0, digest=GENESIS) if last is None else Head(offset=last.offset, digest=last.digest)

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last``."""
        return iter(self.entries[first - 1 : last])


def digest(name: str) -> str:
    """64 hexadecimal digits that show what they stand for."""
    return name.encode().hex().ljust(64, "0")[:64]


def prompts_of(batch: int) -> tuple[int, ...]:
    """The ordinals of a batch."""
    return tuple(range(batch * N, (batch + 1) * N))


def rows_of(prompts: Sequence[int]) -> tuple[int, ...]:
    """Their rows."""
    return tuple(100 + prompt for prompt in prompts)


def admitted(batch: int, *, step: int | None = -1) -> Decision:
    """A batch, stamped for its step; ``step=None``: not stamped."""
    prompts = prompts_of(batch)
    admit = Admit(batch=batch, prompts=prompts, rows=rows_of(prompts))
    return admit if step is None else (admit, Stamp(prompts=prompts, step=batch if step == -1 else step))


def diverted(*prompts: int) -> Divert:
    """Spares for the reserve."""
    return Divert(prompts=prompts, rows=rows_of(prompts))


def sent(prompt: int, attempt: int = 1, *, step: int | None = -1, weights: int = 0) -> Dispatch:
    """An order for the prompt's own step."""
    return Dispatch(prompt=prompt, attempt=attempt, step=prompt // N if step == -1 else step, weights=weights)


def committed(prompt: int, attempt: int = 1, *, born: int = 0, done: int | None = None, **fields: Any) -> Commit:
    """A finished group of 2 rollouts, 2 rows and 10 tokens, with reward 0.5."""
    usual: dict[str, Any] = {
        "blob": digest(f"group {prompt}.{attempt}"),
        "rollouts": ROLLOUTS,
        "rows": ROLLOUTS,
        "tokens": 10,
        "reward_mean": 0.5,
        "reward_std": 0.1,
        "worker": "gen-0",
    }
    return Commit(prompt=prompt, attempt=attempt, born=born, done=born if done is None else done, **usual | fields)


def retried(prompt: int, kind: FailureKind = FailureKind.INFRA, attempt: int = 1, not_before: float = 0.0) -> Retry:
    """The attempt failed."""
    return Retry(prompt=prompt, attempt=attempt, kind=kind, error="timeout after 300 s", not_before=not_before)


def dropped(prompt: int, kind: FailureKind = FailureKind.INFRA) -> tuple[Event, ...]:
    """Given up; its step closes one group short."""
    return (Drop(prompt=prompt, kind=kind, error="no budget left"), Shrink(step=prompt // N, prompt=prompt))


def selected(step: int, *prompts: int, chunk: int = 0, last: bool = True) -> Select:
    """The step takes these groups; none named: its whole batch."""
    return Select(step=step, chunk=chunk, prompts=prompts or prompts_of(step), last=last)


def trained(step: int, generation: int = 1) -> tuple[Event, ...]:
    """A step is trained for the first time, and its weights are published."""
    return (retrained(step, generation), published(step + 1))


def retrained(step: int, generation: int) -> Train:
    """A step is trained; alone in its entry when it is trained again."""
    return Train(
        step=step, generation=generation, loss=0.25, grad_norm=1.0, tokens=20, rows=4, padding=0, seconds=1.5
    )  # fmt: skip


def published(version: int) -> Publish:
    """Weights are ready."""
    return Publish(version=version, file=f"{version}-{digest(f'w{version}')}", digest=digest(f"w{version}"))


def saved(version: int, reason: SaveReason = SaveReason.PERIODIC) -> Save:
    """A checkpoint is ordered."""
    return Save(version=version, reason=reason)


def durable(version: int, manifest: str = "") -> Checkpoint:
    """A checkpoint is durable."""
    return Checkpoint(version=version, manifest=manifest or f"{version}-1-1", digest=digest(f"c{version}"))


def ready(batch: int, *, weights: int | None = None) -> list[Decision]:
    """A batch admitted, sent and finished, with weights of the version at which its gate opens."""
    made_by = max(0, batch - 1) if weights is None else weights
    prompts = prompts_of(batch)
    sends: list[Decision] = [sent(prompt, weights=made_by) for prompt in prompts]
    return [admitted(batch), *sends, *(committed(prompt, born=made_by) for prompt in prompts)]


def whole_step(step: int, generation: int = 1) -> list[Decision]:
    """A step from its batch to its version, nothing running before or after."""
    return [*ready(step, weights=step), selected(step), trained(step, generation)]


def steps(count: int) -> list[Decision]:
    """``count`` whole steps from the start, one after the other."""
    return [decision for step in range(count) for decision in whole_step(step)]
