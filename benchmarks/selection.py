"""What a full buffer costs: selecting, asking the scheduler, folding, among 100 groups and among 10,000.

    python benchmarks/selection.py [--check]

None of these depends on how much is buffered: among 10,000 groups it may cost at most twice what it costs among 100,
in the same run. --check: exit 1 when it costs more.

N = 16. The groups stand in slot order and are spread over the versions of the window (K = 3), or over steps of N each
for in_order. Times are per call, the best of many rounds: the machine's noise only ever adds.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from rollog.events.codec import seal
from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Admit,
    Commit,
    Dispatch,
    Event,
    FailureKind,
    Open,
    Retry,
    Select,
    Stamp,
    Start,
    Train,
)
from rollog.pipeline.config import Plan
from rollog.pipeline.policy import Policy
from rollog.pipeline.samplers import select
from rollog.pipeline.scheduling import schedule
from rollog.replay.projector import fold
from rollog.replay.state import State

SAMPLERS = ("in_order", "windowed", "windowed, freshest first", "ready_first", "weight_fifo")
SMALL, LARGE = 100, 10_000
N, K = 16, 3
VERSION = K
LIMIT = 2.0
ROUNDS, CALLS = 40, 25
AT_ONCE = 256
"""Groups made in one entry while the buffer is filled."""

BLOB = "0" * 64


class Rows:
    """Ordinal o reads row o."""

    num_rows = 1 << 20

    def row_index(self, ordinal: int) -> int:
        """The row of an ordinal."""
        return ordinal


@dataclass(slots=True)
class Buffer:
    """A State with many finished groups, and the terms under which it is asked."""

    state: State
    policy: Policy

    def append(self, *events: Event) -> None:
        """Fold one entry."""
        fold(self.state, self.next_entry(*events))

    def next_entry(self, *events: Event, ahead: int = 0) -> Entry:
        """The entry that says these events, ``ahead`` entries after the next."""
        state = self.state
        offset = state.offset + 1 + ahead
        return seal(offset=offset, epoch=1, time=0.0, input=None, events=events, previous=state.digest)


def build(sampler: str, size: int) -> Buffer:
    """A run at version K whose buffer holds ``size`` finished groups, and in which nothing else is open."""
    name, _, freshest = sampler.partition(", ")
    settings = {"name": name, "lookahead" if name == "in_order" else "max_staleness": K}
    plan = Plan.from_settings(
        {
            "run": "selection",
            "model": {"path": "none"},
            "data": {"path": "none.jsonl"},
            "grpo": {"prompts_per_step": N},
            "sampler": settings | ({"freshest_first": True} if freshest else {}),
            "checkpoint": {"every_steps": 1_000_000},
            "flow": {"max_buffered_groups": LARGE + 2 * N},
        }
    )
    buffer = Buffer(State(), Policy.of(plan, Rows()))
    buffer.append(Start(run="selection", config=plan.settings(), dataset=BLOB, seed=0, num_rows=Rows.num_rows))
    buffer.append(Open(epoch=1, reason="start", rollog="benchmark", machine={}))
    for step in range(VERSION):
        buffer.append(Admit(batch=step, prompts=(), rows=()))
        buffer.append(Select(step=step, chunk=0, prompts=(), last=True))
        buffer.append(Train(step=step, generation=1, loss=0.0, grad_norm=1.0, tokens=1, rows=1, padding=0, seconds=1.0))
    for first in range(0, size, AT_ONCE):
        fill(buffer, range(first, min(first + AT_ONCE, size)))
    return buffer


def fill(buffer: Buffer, prompts: range) -> None:
    """Admit, send and finish these prompts."""
    meant = {prompt: VERSION + prompt // N for prompt in prompts} if buffer.policy.sampler.stamps else {}
    for batch in range(buffer.state.cursor + 1, max(meant.values(), default=-1) + 1):
        buffer.append(Admit(batch=batch, prompts=(), rows=()))
    buffer.append(Admit(batch=buffer.state.cursor, prompts=tuple(prompts), rows=tuple(prompts)))
    for step in sorted(set(meant.values())):
        buffer.append(Stamp(prompts=tuple(prompt for prompt in prompts if meant[prompt] == step), step=step))
    buffer.append(*[sent(prompt, 1, meant.get(prompt)) for prompt in prompts])
    buffer.append(*[finished(prompt, 1) for prompt in prompts])


def sent(prompt: int, attempt: int, step: int | None) -> Dispatch:
    """An order, with one of the versions of the window."""
    return Dispatch(prompt=prompt, attempt=attempt, step=step, weights=prompt % (K + 1))


def finished(prompt: int, attempt: int) -> Commit:
    """Its group."""
    return Commit(
        prompt=prompt,
        attempt=attempt,
        blob=BLOB,
        born=prompt % (K + 1),
        done=VERSION,
        rollouts=8,
        rows=8,
        tokens=64,
        reward_mean=0.5,
        reward_std=0.5,
        worker="gen-0",
    )


# --- what is measured -------------------------------------------------------------------------------------------------


def selecting(buffer: Buffer) -> object:
    """All that the scheduler asks a sampler about a step: who is too old, and which groups the step takes."""
    state, sampler = buffer.state, buffer.policy.sampler
    sampler.too_old(state)
    return select(sampler.eligible(state), min(sampler.minimum(state, N), N), N)


def scheduling(buffer: Buffer) -> object:
    """The scheduler's whole answer: a selection or, while a step trains, what it waits for."""
    return schedule(buffer.state, buffer.policy, 0.0)


def selection(buffer: Buffer) -> tuple[Event, ...]:
    """The entry that closes the step being filled."""
    chosen = tuple(islice(buffer.policy.sampler.rest(buffer.state), N))
    return (Select(step=buffer.state.filling, chunk=0, prompts=chosen, last=True),)


def life(buffer: Buffer, attempt: int) -> list[Entry]:
    """A group's blob is lost, it is sent again, it is finished again: the buffer is as full as before."""
    group = buffer.state.groups[0]
    lost = Retry(prompt=0, attempt=attempt, kind=FailureKind.LOST, error="gone", not_before=0.0)
    events = (lost, sent(0, attempt + 1, group.step), finished(0, attempt + 1))
    return [buffer.next_entry(event, ahead=ahead) for ahead, event in enumerate(events)]


def fold_s(buffer: Buffer) -> float:
    """Seconds to fold one event of such a life, the best of many."""
    times = []
    for attempt in range(1, ROUNDS * CALLS // 4):
        entries = life(buffer, attempt)
        begun = time.perf_counter()
        for entry in entries:
            fold(buffer.state, entry)
        times.append((time.perf_counter() - begun) / len(entries))
    return min(times)


def call_s(call: Callable[[Buffer], object], buffer: Buffer) -> float:
    """Seconds of one call, the best of several rounds."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(CALLS):
            call(buffer)
        times.append((time.perf_counter() - begun) / CALLS)
    return min(times)


def measure(sampler: str) -> dict[str, tuple[float, float]]:
    """What is measured -> seconds among few and among many."""
    few, many = build(sampler, SMALL), build(sampler, LARGE)
    times = {
        "select": (call_s(selecting, few), call_s(selecting, many)),
        "fold one event": (fold_s(few), fold_s(many)),
        "schedule": (call_s(scheduling, few), call_s(scheduling, many)),
    }
    for buffer in (few, many):
        buffer.append(*selection(buffer))
    return times | {"schedule, waiting": (call_s(scheduling, few), call_s(scheduling, many))}


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    print(f"{'':26}{'':18}{SMALL:>10,} groups{LARGE:>10,} groups{'ratio':>8}")
    worst = 0.0
    for sampler in SAMPLERS:
        for what, (few, many) in measure(sampler).items():
            print(f"{sampler:26}{what:18}{1e6 * few:14.1f} µs{1e6 * many:14.1f} µs{many / few:8.2f}")
            worst = max(worst, many / few)
    print(f"\nat most {worst:.2f} times as long among {LARGE:,} groups as among {SMALL} (limit {LIMIT:g})")
    return int("--check" in arguments and worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
