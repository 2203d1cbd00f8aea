"""A prompt that exposes weights that did not change: same log probabilities, other digest.

Rule 1: a load is judged against the load before it. The first load of a process is not: nothing tells what the model
that it began with should say. A process that a canary ended is therefore not ended again for the same reason.
Rule 2: no tolerance. Weights whose bytes differ shift at least one bit of many log probabilities, each of which sums
over the whole vocabulary; numbers that are all equal come from equal weights.
"""

from dataclasses import dataclass
from typing import Self

from rollog.pipeline.generation.engine import EngineLost

LONGEST = 64
"""Tokens: long enough for attention to matter, short enough to cost nothing."""
STRIDE = 7919
"""A prime: the tokens are spread over the vocabulary."""


@dataclass(slots=True)
class Canary:
    """`tokens`: the prompt. `heard`: what the engine said of it after the load before, and those weights' digest."""

    tokens: tuple[int, ...]
    heard: tuple[tuple[float, ...], str] | None = None

    @classmethod
    def of(cls, vocabulary: int, positions: int) -> Self:
        """For a model that knows `vocabulary` tokens and holds `positions`, one of which is left for an answer."""
        return cls(tokens=tuple((place * STRIDE + 1) % vocabulary for place in range(min(LONGEST, positions - 1))))

    def hear(self, logprobs: tuple[float, ...], version: int, digest: str) -> None:
        """What the engine says under `version`. Raises EngineLost when it is what it said under other weights."""
        before, self.heard = self.heard, (logprobs, digest)
        if before is not None and before[0] == logprobs and before[1] != digest:
            raise EngineLost(
                f"the engine was given version {version} and answers the canary, to the last bit, as it did with the "
                f"weights before: they did not change (digest {before[1][:12]} before, {digest[:12]} now); start "
                f"another engine"
            )
