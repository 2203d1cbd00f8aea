"""Many histories, in blocks of seeds, on several processes.

Rule 1: a block ends at its first failure; all blocks together name the lowest seed that failed.
Rule 2: how many processes play has no say in what they play.
Rule 3: Python looks for garbage between two histories, not in the middle of one, and not among what is imported: nearly
        all of a history is freed without it, and looking took a tenth of the time.
"""

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rollog.events.memory_log import MemoryServer
from rollog.pipeline.simulate import Outcome
from rollog.pipeline.simulation.histories import History, draw, play
from rollog.pipeline.simulation.world import MakeServer

BLOCK: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a block of seeds showed. ``failed``: the seed that failed, and ``how``."""

    histories: int = 0
    deaths: int = 0
    stalls: int = 0
    entries: int = 0
    steps: int = 0
    failed: int | None = None
    how: str = ""

    def __add__(self, other: "Block") -> "Block":
        """Both together."""
        first = min((each for each in (self, other) if each.failed is not None), key=_failed, default=self)
        return Block(
            histories=self.histories + other.histories,
            deaths=self.deaths + other.deaths,
            stalls=self.stalls + other.stalls,
            entries=self.entries + other.entries,
            steps=self.steps + other.steps,
            failed=first.failed,
            how=first.how,
        )


def _failed(block: Block) -> int:
    assert block.failed is not None
    return block.failed


def how_it_fails(history: History, make_server: MakeServer = MemoryServer) -> str | None:
    """What is broken when this history is played; None when nothing is."""
    try:
        play(history, make_server)
    except Exception as error:  # noqa: BLE001  whatever it is, it names the seed and ends the search
        return f"{type(error).__name__}: {error}"
    return None


def play_block(first: int, count: int, play_one: Callable[[History], Outcome] = play) -> Block:
    """Play the seeds ``first`` .. ``first + count - 1`` on the memory log, up to the first that fails."""
    total = Block()
    with garbage_kept() as collect:
        for seed in range(first, first + count):
            total += _played(seed, play_one)
            if total.failed is not None:
                break
            collect()
    return total


def _played(seed: int, play_one: Callable[[History], Outcome]) -> Block:
    """The block of this one seed."""
    try:
        outcome = play_one(draw(seed))
    except Exception as error:  # noqa: BLE001  becomes the block's failure
        return Block(histories=1, failed=seed, how=f"{type(error).__name__}: {error}")
    return Block(
        histories=1,
        deaths=outcome.deaths,
        stalls=outcome.stalls,
        entries=outcome.state.offset,
        steps=outcome.state.version,
    )


@contextmanager
def garbage_kept() -> Iterator[Callable[[], object]]:
    """Garbage stays until it is collected by what this gives; what is there already is never looked at."""
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        gc.unfreeze()


def play_blocks(first: int, count: int, jobs: int, size: int = BLOCK) -> Iterator[Block]:
    """The blocks of ``count`` seeds, in order, each when it is played; no more after one with a failure."""
    blocks = [(start, min(size, first + count - start)) for start in range(first, first + count, size)]
    if jobs == 1:
        played = (play_block(*block) for block in blocks)
        yield from _up_to_a_failure(played)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from _up_to_a_failure(pool.map(play_block, *zip(*blocks, strict=True)))
        pool.shutdown(cancel_futures=True)


def _up_to_a_failure(blocks: Iterator[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if block.failed is not None:
            return
