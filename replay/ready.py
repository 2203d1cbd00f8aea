"""The buffer's finished groups, indexed: by slot, by step, and by the weights that they were born of.

Kept by the fold as groups come and go, so that no question about the buffer costs more because the buffer is full:
taking k groups costs k steps and a few logarithms, whether 100 wait or 10,000.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedDict


@dataclass(slots=True)
class ReadyIndex:
    """Prompts of finished groups. Their keys are sorted; an empty bucket is not kept."""

    by_slot: SortedDict = field(default_factory=SortedDict)
    """slot -> prompt, in the order of the latest Dispatch."""
    by_step: SortedDict = field(default_factory=SortedDict)
    """step -> slot -> prompt, of the stamped groups."""
    by_weight: SortedDict = field(default_factory=SortedDict)
    """born -> slot -> prompt."""
    unfinished: dict[int, int] = field(default_factory=dict)
    """Weights that orders in flight ask for -> how many such orders."""

    def copy(self) -> "ReadyIndex":
        """An index of its own with the same groups."""
        return ReadyIndex(
            by_slot=self.by_slot.copy(),
            by_step=SortedDict({step: slots.copy() for step, slots in self.by_step.items()}),
            by_weight=SortedDict({born: slots.copy() for born, slots in self.by_weight.items()}),
            unfinished=dict(self.unfinished),
        )

    def add(self, prompt: int, slot: int, step: int | None, born: int) -> None:
        """A group came into the buffer."""
        self.by_slot[slot] = prompt
        if step is not None:
            _put_in(self.by_step, step, slot, prompt)
        _put_in(self.by_weight, born, slot, prompt)

    def discard(self, slot: int, step: int | None, born: int) -> None:
        """A group left the buffer."""
        del self.by_slot[slot]
        if step is not None:
            _take_out(self.by_step, step, slot)
        _take_out(self.by_weight, born, slot)

    def start(self, weights: int) -> None:
        """An order went out."""
        self.unfinished[weights] = self.unfinished.get(weights, 0) + 1

    def end(self, weights: int) -> None:
        """An order's attempt ended."""
        self.unfinished[weights] -= 1
        if not self.unfinished[weights]:
            del self.unfinished[weights]

    def of_step(self, step: int) -> Iterator[int]:
        """Prompts stamped for this step, in slot order."""
        yield from self.by_step.get(step, {}).values()

    def of_steps_before(self, step: int) -> Iterator[int]:
        """Prompts stamped for a step before this one."""
        for stamped in self.by_step:
            if stamped >= step:
                return
            yield from self.of_step(stamped)

    def of_weight(self, born: int) -> Iterator[int]:
        """Prompts born of these weights, in slot order."""
        yield from self.by_weight.get(born, {}).values()

    def weights_between(self, oldest: int, newest: int) -> Iterator[int]:
        """Birth weights in this range that ready groups have, oldest first."""
        yield from self.by_weight.irange(oldest, newest)

    def older_than(self, oldest: int) -> Iterator[int]:
        """Prompts born of weights below ``oldest``."""
        for born in self.by_weight:
            if born >= oldest:
                return
            yield from self.of_weight(born)

    def furthest_after(self, step: int) -> int | None:
        """The prompt that may be lent: of the furthest step beyond ``step``, the one with the lowest slot."""
        if not self.by_step or self.by_step.peekitem()[0] <= step:
            return None
        prompt: int = self.by_step.peekitem()[1].peekitem(0)[1]
        return prompt


def _put_in(buckets: SortedDict, key: int, slot: int, prompt: int) -> None:
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = SortedDict()
    bucket[slot] = prompt


def _take_out(buckets: SortedDict, key: int, slot: int) -> None:
    bucket = buckets[key]
    del bucket[slot]
    if not bucket:
        del buckets[key]
