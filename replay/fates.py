"""What became of every single prompt: one byte each, for tables and maps that name prompts.

Rule 1: what is settled is read from the events, what is open from the State; a prompt that was handed out and is in
        neither is unaccounted for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from rollog.events.log import Entry
from rollog.events.vocabulary import Drop, Evict, Filter, Train
from rollog.replay.state import State


class Fate(IntEnum):
    """What became of a prompt; where one mark stands for several prompts, the greatest is shown."""

    NEVER_SEEN = 0
    """Not handed out yet."""
    TRAINED = 1
    """In a trained step."""
    OPEN = 2
    """Handed out and in one of the places where it waits for something."""
    FILTERED = 3
    """Finished, and useless."""
    EVICTED = 4
    """Finished or not, and too old."""
    DROPPED = 5
    """Given up."""
    UNACCOUNTED = 6
    """Handed out and nowhere: must not be."""


@dataclass(slots=True)
class Fates:
    """Follows a log. A step that is trained again changes nothing."""

    settled: bytearray = field(default_factory=bytearray)
    """A Fate an ordinal; NEVER_SEEN where nothing is settled."""

    def follow(self, state: State, entry: Entry) -> None:
        """Take the next entry; ``state`` is the State before it."""
        for event in entry.events:
            match event:
                case Train() if event.step >= state.version:
                    self._settle(Fate.TRAINED, [member.prompt for member in state.step(event.step).members()])
                case Drop():
                    self._settle(Fate.DROPPED, (event.prompt,))
                case Filter():
                    self._settle(Fate.FILTERED, (event.prompt,))
                case Evict():
                    self._settle(Fate.EVICTED, event.prompts)
                case _:
                    pass

    def _settle(self, fate: Fate, prompts: Sequence[int]) -> None:
        missing = max(prompts, default=-1) + 1 - len(self.settled)
        self.settled.extend(bytes(max(0, missing)))
        for prompt in prompts:
            self.settled[prompt] = fate

    def of(self, state: State, num_rows: int) -> bytearray:
        """The fates by ordinal of all prompts of all epochs of ``num_rows``; ``state``: after the last entry."""
        planned = num_rows * state.settings["data"]["epochs"] if state.offset else 0
        whole = max(planned, state.handed_out)  # a fork may go on with fewer rows
        fates = self.settled[:whole] + bytes(max(0, whole - len(self.settled)))
        for prompt in state.groups:
            fates[prompt] = Fate.OPEN
        nowhere = bytes([Fate.UNACCOUNTED])
        seen = fates[: state.handed_out].replace(bytes([Fate.NEVER_SEEN]), nowhere)
        return seen + fates[state.handed_out :]
