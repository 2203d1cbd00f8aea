"""Four samplers, question by question: the gate, who is selected in which order, who is too old, what is useless.

A slot is written (weights), running(weights) or meant(step, weights); ordinals are slot order, from 0.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from adapters.ledger import Ledger
from rollog.events.vocabulary import Admit, Drop, Evict, EvictReason, FailureKind, Filter, FilterReason, Select
from rollog.pipeline.samplers import Sampler, make_sampler, select
from rollog.pipeline.scheduling import schedule
from rollog.pipeline.simulate import simulate
from rollog.pipeline.simulation.world import Script
from rollog.pipeline.waiting import WaitFor
from stage import Stage, small_plan

Slot = tuple[int, int | None, bool]

UNSTAMPED = ("windowed", "ready_first", "weight_fifo")
GATED = ("in_order", "ready_first", "weight_fifo")


def done(weights: int) -> Slot:
    return weights, None, True


def running(weights: int) -> Slot:
    return weights, None, False


def meant(step: int, weights: int = 0, *, ready: bool = True) -> Slot:
    return weights, step, ready


def settings(name: str, window: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "lookahead" if name == "in_order" else "max_staleness": window, **more}


class Buffer(Ledger):
    """A State at version v with these slots."""

    def __init__(self, name: str, window: int, version: int, slots: Sequence[Slot] = (), **more: Any) -> None:
        flow = more.pop("flow", {})
        size = more.pop("n", 4)
        super().__init__(sampler=settings(name, window, **more), grpo={"prompts_per_step": size}, flow=flow)
        self.admit(version)
        for _ in range(version):
            self.train()
        for weights, step, ready in slots:
            prompt = self.dispatch(weights, step)
            if ready:
                self.commit(prompt, done=max(weights, version))

    @property
    def sampler(self) -> Sampler:
        return self.policy.sampler

    def selects(self, minimum: int, maximum: int) -> Sequence[int] | None:
        """What is chosen, and taken out."""
        chosen = select(self.sampler.eligible(self.state), minimum, maximum)
        if chosen is not None:
            self.select(chosen, last=False)
        return chosen


# --- the gate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GATED)
def test_one_version_more_frees_exactly_one_batch(name: str) -> None:
    buffer = Buffer(name, 1, version=0)
    buffer.admit(2)
    for _ in range(5):
        assert not buffer.sampler.gate_open(buffer.state)
        buffer.train()
        assert buffer.sampler.gate_open(buffer.state)
        buffer.admit()


def test_windowed_has_no_gate() -> None:
    buffer = Buffer("windowed", 0, version=0)
    buffer.admit(50)

    assert buffer.sampler.gate_open(buffer.state)


@pytest.mark.parametrize("name", ["ready_first", "weight_fifo"])
def test_one_prompt_lost_of_a_batch_gives_a_whole_batch_back_and_n_more_another(name: str) -> None:
    buffer = Buffer(name, 1, version=0, n=3)
    buffer.admit(2)
    given_back = []
    for _ in range(7):
        prompt = buffer.dispatch(0, None)
        buffer.append(Drop(prompt=prompt, kind=FailureKind.INFRA, error="gone"))
        before = buffer.state.cursor
        while buffer.sampler.gate_open(buffer.state):
            buffer.admit()
        given_back.append(buffer.state.cursor - before)

    assert given_back == [1, 0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("how", ["dropped", "filtered", "evicted"])
def test_every_way_of_being_lost_counts_for_the_gate(how: str) -> None:
    buffer = Buffer("ready_first", 0, version=0, n=1)
    buffer.admit()
    prompt = buffer.dispatch(0, None)
    assert not buffer.sampler.gate_open(buffer.state)
    if how == "dropped":
        buffer.append(Drop(prompt=prompt, kind=FailureKind.DATA, error="gone"))
    else:
        buffer.commit(prompt, done=0)
        lost = Filter(prompt=prompt, reason=FilterReason.EQUAL_REWARDS)
        buffer.append(lost if how == "filtered" else Evict(prompts=(prompt,), reason=EvictReason.STALE))

    assert buffer.sampler.gate_open(buffer.state)


def test_in_order_gives_nothing_back_because_the_step_has_shrunk() -> None:
    buffer = Buffer("in_order", 0, version=0)
    buffer.admit()
    buffer.append(Drop(prompt=buffer.dispatch(0, 0), kind=FailureKind.INFRA, error="gone"))

    assert not buffer.sampler.gate_open(buffer.state)


@pytest.mark.parametrize(
    ("name", "need"), [("in_order", 12), ("windowed", 7), ("ready_first", 15), ("weight_fifo", 15)]
)
def test_the_room_that_each_sampler_needs_for_n_4_and_k_2(name: str, need: int) -> None:
    assert make_sampler(small_plan(sampler=settings(name, 2)).sampler).capacity(4) == need


# --- selection --------------------------------------------------------------------------------------------------------


def test_windowed_takes_what_was_born_in_the_window_in_slot_order() -> None:
    buffer = Buffer("windowed", 2, version=5, slots=[done(3), done(5), done(1), running(4), done(6)])

    assert buffer.selects(1, 9) == [0, 1]


def test_windowed_freshest_first_breaks_ties_by_slot() -> None:
    slots = [done(3), done(5), done(4), done(5), done(4)]
    buffer = Buffer("windowed", 2, version=5, slots=slots, freshest_first=True)

    assert buffer.selects(1, 4) == [1, 3, 2, 4]
    assert buffer.selects(1, 4) == [0]


def test_ready_first_takes_whatever_is_finished_by_slot_and_nothing_from_the_future() -> None:
    buffer = Buffer("ready_first", 1, version=3, slots=[done(1), done(3), done(2), done(4)])

    assert buffer.selects(3, 3) == [0, 1, 2]
    assert buffer.selects(1, 1) is None


def test_in_order_looks_at_the_stamp_and_never_at_the_weights() -> None:
    buffer = Buffer("in_order", 9, version=5, slots=[meant(6, 5), meant(5, 100), meant(5, 0)])

    assert buffer.selects(1, 9) == [1, 2]


def test_weight_fifo_drains_the_oldest_weights_that_any_slot_carries_ready_or_not() -> None:
    buffer = Buffer("weight_fifo", 3, version=5, slots=[done(3), done(5), running(3), done(1)])
    assert buffer.selects(2, 2) is None, "one of weights 3 is ready, and one still runs"
    assert buffer.selects(1, 2) == [0]
    assert buffer.selects(1, 2) is None, "the one that runs still owns weights 3"

    buffer.commit(2, done=5)
    assert buffer.selects(1, 2) == [2]
    assert buffer.selects(1, 2) == [1], "1 was born before the window, and is never taken"


def test_weight_fifo_takes_nothing_when_all_weights_lie_outside_of_the_window() -> None:
    assert Buffer("weight_fifo", 1, version=5, slots=[done(9), done(3)]).selects(1, 1) is None


def test_weight_fifo_waits_for_its_minimum_only_while_more_of_these_weights_can_come() -> None:
    sampler = {"n": 4, "flow": {"min_groups_for_streaming": 2}}
    waits = Buffer("weight_fifo", 2, version=1, slots=[done(0), running(0), done(1), done(1)], **sampler)
    takes = Buffer("weight_fifo", 2, version=1, slots=[done(0), running(1), done(1), done(1)], **sampler)

    assert waits.sampler.minimum(waits.state, 2) == 2
    assert takes.sampler.minimum(takes.state, 2) == 1
    decision = schedule(waits.state, waits.policy, 0.0)
    assert not (isinstance(decision, tuple) and isinstance(decision[0], Select))
    assert schedule(takes.state, takes.policy, 0.0) == (Select(step=1, chunk=0, prompts=(0,), last=False),)


def test_at_the_end_of_the_data_weight_fifo_takes_all_weights_of_the_window_oldest_first() -> None:
    buffer = Buffer("weight_fifo", 1, version=2, slots=[done(2), done(1), done(0), done(2)])

    assert list(buffer.sampler.eligible(buffer.state)) == [1]
    assert list(buffer.sampler.rest(buffer.state)) == [1, 0, 3]


def test_fewer_than_the_minimum_take_nothing_and_the_maximum_is_not_waited_for() -> None:
    buffer = Buffer("ready_first", 1, version=0, slots=[done(0), done(0), done(0)])

    assert buffer.selects(4, 4) is None
    assert buffer.selects(2, 4) == [0, 1, 2]


# --- eviction and what is useless -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["windowed", "weight_fifo"])
def test_what_was_born_before_the_window_is_too_old_once_it_is_finished(name: str) -> None:
    buffer = Buffer(name, 2, version=5, slots=[done(2), done(3), running(2), done(0)])
    assert sorted(buffer.sampler.too_old(buffer.state)) == [0, 3]

    buffer.commit(2, done=5)
    assert sorted(buffer.sampler.too_old(buffer.state)) == [0, 2, 3]


def test_ready_first_evicts_nothing_ever() -> None:
    buffer = Buffer("ready_first", 0, version=5, slots=[done(0), done(5)])

    assert list(buffer.sampler.too_old(buffer.state)) == []


def test_in_order_evicts_by_stamp_so_that_it_never_disagrees_with_selection() -> None:
    buffer = Buffer("in_order", 5, version=2, slots=[meant(2), meant(1), meant(1, ready=False), meant(3)])
    assert list(buffer.sampler.too_old(buffer.state)) == [1]

    buffer.commit(2, done=2)
    assert list(buffer.sampler.too_old(buffer.state)) == [1, 2]


@pytest.mark.parametrize(("name", "oldest"), [("windowed", 3), ("ready_first", 0), ("weight_fifo", 0), ("in_order", 0)])
def test_only_windowed_has_running_attempts_that_no_step_can_use(name: str, oldest: int) -> None:
    buffer = Buffer(name, 2, version=5)

    assert buffer.sampler.oldest_useful(buffer.state) == oldest


# --- the theorem ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bounded"), [("windowed", True), ("weight_fifo", True), ("ready_first", False)])
def test_windowed_and_weight_fifo_train_nothing_older_than_k_and_ready_first_does(name: str, bounded: bool) -> None:
    oldest = 0
    for seed in range(3):
        plan = small_plan(
            grpo={"prompts_per_step": 2},
            sampler=settings(name, 1),
            flow={"min_groups_for_streaming": 1},
            failure={"max_skipped_prompts": "unlimited", "min_step_fraction": 0.1},
        )
        script = Script(seed=seed, generators=3, slow_rate=0.3, slow_s=60, data_rate=0.05, controller_death_rate=0.02)
        oldest = max(oldest, simulate(plan, 24, script).audit.max_staleness)

    assert oldest == 1 if bounded else oldest > 1


@pytest.mark.parametrize("name", UNSTAMPED)
def test_an_unstamped_sampler_stamps_nothing_and_a_drop_shrinks_no_step(name: str) -> None:
    failure = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited", "min_step_fraction": 1.0}
    stage = Stage(small_plan(grpo={"prompts_per_step": 2}, sampler=settings(name, 0), failure=failure))
    assert {group.step for group in stage.state.groups.values()} == {None}
    stage.fail(0, FailureKind.DATA)
    stage.finish(1)
    assert stage.waits_for() is not WaitFor.NOTHING
    assert stage.state.steps == {}
    stage.finish(2)
    stage.train()

    assert stage.steps[0] == (1, 2), "the gate gave the batch of the lost prompt back"
    assert [admit.batch for admit in stage.events(Admit)] == list(range(len(stage.events(Admit))))
