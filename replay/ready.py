"""The buffer's finished groups, indexed: by slot, by step, and by the weights that they were born of.

Kept by the fold as groups come and go, so that no question about the buffer costs more because the buffer is full:
taking k groups costs k steps and a few logarithms, whether 100 wait or 10,000.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge

from sortedcontainers import SortedDict, SortedList


@dataclass(slots=True)
class ReadyIndex:
    """Prompts of finished groups, sorted three times; the slot orders those of one step and of one birth."""

    by_slot: SortedDict = field(default_factory=SortedDict)
    """slot -> prompt, in the order of the latest Dispatch."""
    by_step: SortedList = field(default_factory=SortedList)
    """(step, slot, prompt) of the stamped groups."""
    by_weight: SortedList = field(default_factory=SortedList)
    """(born, slot, prompt)."""
    unfinished: dict[int, int] = field(default_factory=dict)
    """Weights that orders in flight ask for -> how many such orders."""

    def copy(self) -> "ReadyIndex":
        """An index of its own with the same groups."""
        return ReadyIndex(
            by_slot=self.by_slot.copy(),
            by_step=self.by_step.copy(),
            by_weight=self.by_weight.copy(),
            unfinished=dict(self.unfinished),
        )

    def add(self, prompt: int, slot: int, step: int | None, born: int) -> None:
        """A group came into the buffer."""
        self.by_slot[slot] = prompt
        if step is not None:
            self.by_step.add((step, slot, prompt))
        self.by_weight.add((born, slot, prompt))

    def discard(self, prompt: int, slot: int, step: int | None, born: int) -> None:
        """A group left the buffer."""
        del self.by_slot[slot]
        if step is not None:
            self.by_step.remove((step, slot, prompt))
        self.by_weight.remove((born, slot, prompt))

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
        return (prompt for _, prompt in _slots(self.by_step, step))

    def of_steps_before(self, step: int) -> Iterator[int]:
        """Prompts stamped for a step before this one."""
        return _before(self.by_step, step)

    def of_weight(self, born: int) -> Iterator[int]:
        """Prompts born of these weights, in slot order."""
        return (prompt for _, prompt in _slots(self.by_weight, born))

    def of_weights_between(self, oldest: int, newest: int) -> Iterator[int]:
        """Prompts born of weights in this range, in slot order whatever their weights."""
        births = [_slots(self.by_weight, born) for born in self.weights_between(oldest, newest)]
        return (prompt for _, prompt in merge(*births))

    def weights_between(self, oldest: int, newest: int) -> Iterator[int]:
        """Birth weights in this range that ready groups have, oldest first."""
        while (first := next(self.by_weight.irange((oldest,)), None)) is not None and first[0] <= newest:
            yield first[0]
            oldest = first[0] + 1

    def older_than(self, oldest: int) -> Iterator[int]:
        """Prompts born of weights below ``oldest``."""
        return _before(self.by_weight, oldest)

    def furthest_after(self, step: int) -> int | None:
        """The prompt that may be lent: of the furthest step beyond ``step``, the one with the lowest slot."""
        if not self.by_step or self.by_step[-1][0] <= step:
            return None
        return next(self.of_step(self.by_step[-1][0]))


def _slots(groups: SortedList, key: int) -> Iterator[tuple[int, int]]:
    """(slot, prompt) of the groups of this step, or of this birth."""
    for found, slot, prompt in groups.irange((key,)):
        if found != key:
            return
        yield slot, prompt


def _before(groups: SortedList, key: int) -> Iterator[int]:
    """Prompts of the groups of a step, or of a birth, before this one."""
    for found, _, prompt in groups:
        if found >= key:
            return
        yield prompt
