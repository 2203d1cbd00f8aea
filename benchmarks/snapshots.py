"""How long a resume and a status of a long log take, once the server answers: with a snapshot and by folding it all.

    python benchmarks/snapshots.py [--entries 1000000]

The log is written with the codec and appended to an embedded server: in_order, 8 prompts a step, a checkpoint every 10
steps, snapshots as a run saves them (``snapshots.EVERY``). Asked for: at most 1/20 of the time of a full fold, and a
State below 100 kB. Ends with 1 when one of them does not hold.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from rollog.events import server
from rollog.events.codec import seal
from rollog.events.log import Outbox
from rollog.events.redis_log import RedisLog
from rollog.events.vocabulary import (
    Admit,
    Checkpoint,
    Commit,
    Dispatch,
    Event,
    Open,
    Publish,
    Save,
    SaveReason,
    Select,
    Stamp,
    Start,
    Train,
)
from rollog.replay import snapshots
from rollog.replay.openings import last_machine
from rollog.replay.projector import fold_all
from rollog.replay.state import State
from rollog.replay.tally import Tally, follow_all

GROUPS = 8
WINDOW = 512
SETTINGS = {
    "grpo": {"prompts_per_step": GROUPS, "rollouts_per_prompt": 8},
    "sampler": {"name": "in_order", "lookahead": 1},
    "checkpoint": {"keep_last": 2},
}
MOST = 1 / 20
MOST_BYTES = 100_000


def history() -> Iterator[tuple[Event, ...]]:
    """A run without end, one entry after another."""
    yield (Start(run="bench", config=SETTINGS, dataset="rows", seed=0, num_rows=1 << 30),)
    yield (Open(epoch=1, reason="start", rollog="bench", machine={"ranks": 1}),)
    version = 0
    while True:
        prompts = tuple(range(GROUPS * version, GROUPS * (version + 1)))
        yield Admit(batch=version, prompts=prompts, rows=prompts), Stamp(prompts=prompts, step=version)
        for prompt in prompts:
            yield (Dispatch(prompt=prompt, attempt=1, step=version, weights=version),)
        for prompt in prompts:
            yield (committed(prompt, version),)
        if version % 10 == 0:
            yield (Save(version=version, reason=SaveReason.PERIODIC),)
            yield (Checkpoint(version=version, manifest=f"{version}-1-1", digest=f"{version:064x}"),)
        yield (Select(step=version, chunk=0, prompts=prompts, last=True),)
        yield trained(version), Publish(version=version + 1, file=f"{version + 1}-x", digest=f"{version:064x}")
        version += 1


def committed(prompt: int, version: int) -> Commit:
    """A finished group of average size."""
    return Commit(
        prompt=prompt, attempt=1, blob=f"{prompt:064x}", born=version, done=version, rollouts=8, rows=8, tokens=4_000,
        reward_mean=0.5, reward_std=0.3, worker="gen-0",
    )  # fmt: skip


def trained(version: int) -> Train:
    """One optimizer step."""
    return Train(
        step=version, generation=1, loss=0.1, grad_norm=1.0, tokens=32_000, rows=64, padding=0, seconds=9.0,
        logprob_gap=None,
    )  # fmt: skip


def build(log: RedisLog, folder: Path, num_entries: int) -> int:
    """Append the history, and save snapshots as a run does; returns the largest snapshot's bytes."""
    pen, state, tally, largest, saved_at = log.open("bench"), State(), Tally(), 0, 0
    previous, window = pen.head.digest, []
    for offset, events in zip(range(1, num_entries + 1), history(), strict=False):
        entry = seal(offset=offset, epoch=pen.epoch, time=float(offset), input=None, events=events, previous=previous)
        previous = entry.digest
        window.append((entry, Outbox()))
        follow_all((entry,), state, tally)
        if offset - saved_at >= snapshots.EVERY and offset <= num_entries - snapshots.EVERY + 1:
            largest, saved_at = max(largest, snapshots.save(folder, state, tally).stat().st_size), offset
        if len(window) == WINDOW or offset == num_entries:
            log.append(window)
            window = []
    return largest


def timed(what: str, do: Callable[[], object]) -> float:
    """Seconds of wall time; said on stdout."""
    begin = time.perf_counter()
    do()
    took = time.perf_counter() - begin
    print(f"{what:<52} {took:10.3f} s")
    return took


def main() -> int:
    """Build, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    num_entries = parser.parse_args().entries
    with tempfile.TemporaryDirectory(prefix="rollog-") as name:
        run_folder = Path(name)
        saved = run_folder / "snapshots"
        running = server.start(run_folder)
        try:
            with closing(RedisLog(running.address(), "bench")) as log:
                timed(f"{num_entries:,} entries written", lambda: build(log, saved, num_entries))
                largest = max(path.stat().st_size for path in saved.iterdir())
                tail = num_entries - snapshots.offsets(saved)[0]
                full = timed("full fold", lambda: fold_all(log.read()))
                print(f"a resume and a status read a snapshot and {tail:,} entries")
                resume = timed("resume: snapshot, tail, machine", lambda: (
                    snapshots.at(saved, log, num_entries), last_machine(log, num_entries)
                ))  # fmt: skip
                everything = timed("status by folding everything", lambda: follow_all(log.read()))
                status = timed("status: snapshot, tail", lambda: snapshots.tallied(saved, log, num_entries))
        finally:
            running.shutdown()
    print(
        f"resume {full / resume:.0f} times faster, status {everything / status:.0f} times; snapshot {largest:,} bytes"
    )
    return 0 if resume <= MOST * full and status <= MOST * everything and largest < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
