"""Which groups a step may train, when a batch may be admitted, and what has grown too old: pure functions of the State.

    sampler       gate: closed while             a step v may take, in this order        too old
    in_order      cursor >= v + K                stamped v, by slot                      stamped < v
    windowed      never                          v - K <= born <= v, by slot (or         born < v - K
                                                 freshest first)
    ready_first   cursor - given back >= v + K   born <= v, by slot                      never
    weight_fifo   cursor - given back >= v + K   of the oldest weights in the window     born < v - K
                                                 that any group carries, by slot

K is ``lookahead`` or ``max_staleness``; a sampler of the user's own stands in ``custom_sampler``. A group's weights are
those that it was born of or, while it runs, those that its order asks for. Given back: ceil(lost / N), lost = admitted
prompts settled without training; without it a filtered or dropped group would be missing from every step to come, and
the run would wait for itself.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Protocol, assert_never

from rollog.pipeline.custom_sampler import CustomSampler
from rollog.pipeline.settings import Sampler as SamplerSettings
from rollog.replay.state import Group, State


class Sampler(Protocol):
    """What a sampler answers. It keeps nothing: every question is answered from the State."""

    stamps: bool
    """Whether an admitted batch is meant for one step."""
    window: int
    """K."""

    def gate_open(self, state: State) -> bool:
        """Whether the next batch may be admitted."""
        ...

    def may_start(self, state: State, group: Group) -> bool:
        """Whether an attempt of this group may start now."""
        ...

    def eligible(self, state: State) -> Iterator[int]:
        """The finished prompts that the step being filled may take, best first."""
        ...

    def minimum(self, state: State, wanted: int) -> int:
        """Groups that a chunk waits for, where ``wanted`` are asked for by the settings."""
        ...

    def rest(self, state: State) -> Iterator[int]:
        """What is eligible at the end of the data, when nothing runs any more and a step takes what there is."""
        ...

    def too_old(self, state: State) -> Sequence[int]:
        """Finished prompts that no step to come can take."""
        ...

    def oldest_useful(self, state: State) -> int:
        """Attempts born of weights below this are of no use to any step; 0: all are."""
        ...

    def capacity(self, prompts_per_step: int) -> int:
        """Admitted and not yet selected groups that the sampler needs room for, or the run could wait for itself."""
        ...


class InOrder:
    """Batch b is stamped for step b, and a step trains exactly the groups stamped for it."""

    stamps = True

    def __init__(self, lookahead: int) -> None:
        self.window = lookahead

    def gate_open(self, state: State) -> bool:
        """At most K + 1 batches are outstanding; one version more frees exactly one."""
        return state.cursor < state.version + self.window

    def may_start(self, state: State, group: Group) -> bool:
        """Not before its step is within the window: the order's weights would be too old when it is trained."""
        return group.step is None or group.step <= state.version + self.window

    def eligible(self, state: State) -> Iterator[int]:
        """Stamped for this step, by slot; weights are ignored."""
        return state.ready.of_step(state.filling)

    def minimum(self, state: State, wanted: int) -> int:
        """As the settings say: what the step waits for is on its way."""
        return wanted

    def rest(self, state: State) -> Iterator[int]:
        """The same as ever."""
        return self.eligible(state)

    def too_old(self, state: State) -> Sequence[int]:
        """Stamped for a step that is closed."""
        return list(state.ready.of_steps_before(state.version))

    def oldest_useful(self, state: State) -> int:
        """No attempt is cancelled: its step waits for it."""
        return 0

    def capacity(self, prompts_per_step: int) -> int:
        """N(K + 1): steps v .. v + K."""
        return prompts_per_step * (self.window + 1)


class _Unstamped:
    """What the three samplers share that take groups by age."""

    stamps = False

    def __init__(self, max_staleness: int) -> None:
        self.window = max_staleness

    def may_start(self, state: State, group: Group) -> bool:
        """At any time."""
        return True

    def gate_open(self, state: State) -> bool:
        """Outstanding batches are bounded, and what was lost is given back."""
        assert state.rules is not None
        given_back = -(-state.lost // state.rules.prompts_per_step)
        return state.cursor - given_back < state.version + self.window

    def eligible(self, state: State) -> Iterator[int]:
        """Left to the sampler."""
        raise TypeError(f"{type(self).__name__} must say which groups are eligible")

    def minimum(self, state: State, wanted: int) -> int:
        """As the settings say: more batches come."""
        return wanted

    def rest(self, state: State) -> Iterator[int]:
        """The same as ever."""
        return self.eligible(state)

    def oldest_useful(self, state: State) -> int:
        """No attempt is cancelled."""
        return 0

    def capacity(self, prompts_per_step: int) -> int:
        """N(K + 1) as for stamped batches, and N - 1 groups of a batch of which one was lost."""
        return prompts_per_step * (self.window + 1) + prompts_per_step - 1

    def _oldest(self, state: State) -> int:
        return max(0, state.version - self.window)


class Windowed(_Unstamped):
    """Whatever is fresh enough; only capacity bounds what is admitted."""

    def __init__(self, max_staleness: int, freshest_first: bool = False) -> None:
        super().__init__(max_staleness)
        self.freshest_first = freshest_first

    def gate_open(self, state: State) -> bool:
        """There is no gate."""
        return True

    def eligible(self, state: State) -> Iterator[int]:
        """Born in the window."""
        if not self.freshest_first:
            return state.ready.of_weights_between(self._oldest(state), state.version)
        weights = state.ready.weights_between(self._oldest(state), state.version)
        return chain.from_iterable(map(state.ready.of_weight, reversed(list(weights))))

    def too_old(self, state: State) -> Sequence[int]:
        """Born before the window."""
        return list(state.ready.older_than(self._oldest(state)))

    def oldest_useful(self, state: State) -> int:
        """What was born before the window can never be selected, so its generator may stop."""
        return self._oldest(state)

    def capacity(self, prompts_per_step: int) -> int:
        """2N - 1: N - 1 groups that no step can begin with, and a batch that completes it."""
        return 2 * prompts_per_step - 1


class ReadyFirst(_Unstamped):
    """Whatever is finished, first come first served: bounds the batches outstanding, not the age."""

    def eligible(self, state: State) -> Iterator[int]:
        """By slot, however old."""
        groups = state.groups
        for prompt in state.ready.by_slot.values():
            finished = groups[prompt].finished
            if finished is not None and finished.born <= state.version:
                yield prompt

    def too_old(self, state: State) -> Sequence[int]:
        """Never: late stragglers stay selectable for ever."""
        return ()


class WeightFifo(_Unstamped):
    """Oldest weights first, and none of newer weights while a group of older ones may still come."""

    def eligible(self, state: State) -> Iterator[int]:
        """The ready groups of the oldest weights in the window that any group carries, ready or not."""
        oldest = self._oldest(state)
        ready = next(state.ready.weights_between(oldest, state.version), None)
        running = min((born for born in state.ready.unfinished if oldest <= born <= state.version), default=None)
        if ready is not None and (running is None or ready <= running):
            yield from state.ready.of_weight(ready)

    def minimum(self, state: State, wanted: int) -> int:
        """One, when no order that runs carries the weights being drained: waiting for more of them would never end."""
        ready = next(state.ready.weights_between(self._oldest(state), state.version), None)
        return 1 if ready is not None and ready not in state.ready.unfinished else wanted

    def rest(self, state: State) -> Iterator[int]:
        """All in the window, oldest weights first."""
        for born in state.ready.weights_between(self._oldest(state), state.version):
            yield from state.ready.of_weight(born)

    def too_old(self, state: State) -> Sequence[int]:
        """Born before the window."""
        return list(state.ready.older_than(self._oldest(state)))


def select(eligible: Iterator[int], minimum: int, maximum: int) -> Sequence[int] | None:
    """The first ``maximum`` eligible prompts, without waiting to fill it; None if there are fewer than ``minimum``.

    Raises ``ValueError`` unless 1 <= minimum <= maximum.
    """
    if minimum < 1 or maximum < minimum:
        raise ValueError(f"cannot select between {minimum} and {maximum} groups; ask for 1 <= minimum <= maximum")
    chosen = list(islice(eligible, maximum))
    return None if len(chosen) < minimum else chosen


def make_sampler(settings: SamplerSettings) -> Sampler:
    """The sampler that the settings name. Raises ``PlanError`` when a custom one cannot be loaded."""
    match settings.name:
        case "in_order":
            return InOrder(settings.lookahead)
        case "windowed":
            return Windowed(settings.max_staleness, settings.freshest_first)
        case "ready_first":
            return ReadyFirst(settings.max_staleness)
        case "weight_fifo":
            return WeightFifo(settings.max_staleness)
        case "custom":
            assert settings.target is not None
            return CustomSampler(settings.target, settings.options)
        case _:
            assert_never(settings.name)
