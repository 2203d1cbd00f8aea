"""kind "context_compaction": how the rows of a step are padded and shared, where a rollout has one row or more.

A step closes on exactly so many rollouts. In ours: every finished group has all its rollouts, and no step may shrink.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adapters.ledger import Ledger
from adapters.mismatch import Mismatch, compare
from rollog.events.vocabulary import Drop, FailureKind, Select, Shrink, Stop
from rollog.pipeline.rollouts import GroupRollouts, Rollout, Row, Span
from rollog.pipeline.scheduling import schedule
from rollog.pipeline.training.batching import BatchShape, blocks, micro_batches, shard, train_rows


def run(scenario: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Build the groups, cut them as the trainer does, and count."""
    shape = BatchShape(
        micro_batch=scenario["micro_batch"],
        logprob_batch=scenario["logprob_batch"],
        ranks=scenario["dp"],
        block_per_group=True,
    )
    groups = [group_of(prompt, segments) for prompt, segments in enumerate(scenario["segments_per_rollout"])]
    padded = blocks(groups, shape)
    shares = [[shard(block, rank, shape.ranks) for rank in range(shape.ranks)] for block in padded]
    rows_per_gpu = [[len(share) for share in of_block] for of_block in shares]
    micro = [[len(list(micro_batches(share, shape.micro_batch))) for share in of_block] for of_block in shares]
    for name, counts in (("rows", rows_per_gpu), ("micro batches", micro)):
        yield from compare(scenario, f"every GPU gets as many {name}", [1] * len(groups), [len(set(c)) for c in counts])
    got = {
        "Q": shape.multiple,
        "real_rows": [len(train_rows(group)) for group in groups],
        "padding_rows": [sum(row.padding for row in block) for block in padded],
        "padded_rows": [len(block) for block in padded],
        "rows_per_gpu_per_group": [counts[0] for counts in rows_per_gpu],
        "microbatches_per_gpu_per_group": [counts[0] for counts in micro],
        "total_rows": sum(len(block) for block in padded),
        "microbatches_per_gpu": sum(counts[0] for counts in micro),
        "rollouts": sum(group.num_rollouts for group in groups),
        **closing(groups, scenario["train_global_batch_size"]),
    }
    yield from compare(scenario, "rows", scenario["expect"], got)
    trained = [row for block in padded for row in block if row.padding and (row.num_valid or row.advantage)]
    yield from compare(scenario, "padding that is trained", [], trained)


def closing(groups: Sequence[GroupRollouts], size: int) -> dict[str, Any]:
    """What the scheduler does with a step of ``size`` rollouts whose other groups are lost."""
    wanted = size // groups[0].num_rollouts
    ledger = Ledger(grpo={"prompts_per_step": wanted}, failure={"min_step_fraction": 1.0})
    ledger.admit()
    for _ in range(wanted):
        prompt = ledger.dispatch(weights=0, step=0)
        if prompt < len(groups):
            ledger.commit(prompt, done=0)
        else:
            dropped = Drop(prompt=prompt, kind=FailureKind.INFRA, error="as recorded")
            ledger.append(dropped, Shrink(step=0, prompt=prompt))
    match schedule(ledger.state, ledger.policy, ledger.now):
        case (Select(last=True, prompts=prompts),) if len(prompts) == len(groups):
            return {"optimizer_steps": 1}
        case (Stop(),):
            return {"optimizer_steps": 0, "error": "step must close on exactly train_global_batch_size rollouts"}
        case other:
            return {"optimizer_steps": other}


def group_of(prompt: int, segments: Sequence[int]) -> GroupRollouts:
    """A group whose rollouts have so many rows."""
    rollouts = (Rollout(rows=(row(),) * count, reward=float(number)) for number, count in enumerate(segments))
    return GroupRollouts(prompt=prompt, attempt=1, rollouts=tuple(rollouts))


def row() -> Row:
    """A prompt token and an answer token."""
    return Row(
        tokens=np.array([1, 2], dtype=np.int32),
        written=np.array([False, True]),
        logprobs=np.array([0.0, -1.0], dtype=np.float32),
        spans=(Span(version=0, tokens=1),),
    )
