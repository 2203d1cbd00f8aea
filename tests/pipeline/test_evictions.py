"""What has grown too old: evicted for good or handed out again, while it runs as well as when it is finished.

windowed with N = 1 and K = 0 unless a test says else: after every step all older groups are too old. The generator
begins whatever is in flight when it finishes the next group, with the newest weights: with few in flight, groups are
fresh.
"""

from typing import Any

from rollog.events.messages import GroupCancelled
from rollog.events.vocabulary import Admit, Cancel, Dispatch, Evict, EvictReason, FailureKind, Late, Requeue, Retry
from rollog.replay.state import Place
from stage import Stage, small_plan


def windowed(*, again: int | None = None, capacity: int = 4, name: str = "windowed", **sections: Any) -> Stage:
    """``again``: how often an evicted prompt is handed out again; None: never."""
    failure = {} if again is None else {"evicted_prompts": "requeue", "max_requeues": again}
    flow = {"max_buffered_groups": capacity} | sections.pop("flow", {})
    return Stage(
        small_plan(
            grpo={"prompts_per_step": sections.pop("n", 1)},
            sampler={"name": name, "max_staleness": sections.pop("window", 0)},
            failure=failure | sections.pop("failure", {}),
            flow=flow,
            **sections,
        )
    )


def cancel(stage: Stage, prompt: int) -> None:
    """The generator obeys the notice: it aborts what was born too early, and reports."""
    order, born = stage.generator.orders.pop(prompt)
    cancelled = GroupCancelled(
        prompt=prompt, attempt=order.attempt, cause=order.cause, born=born, worker=stage.generator.name
    )
    stage.generator.desk.report(cancelled, f"p:{prompt}")
    stage.settle()


# --- finished groups --------------------------------------------------------------------------------------------------


def test_by_default_what_is_too_old_is_gone() -> None:
    stage = windowed()
    stage.finish(0, 1, 2)
    stage.train()

    assert stage.events(Evict) == [Evict(prompts=(1, 2), reason=EvictReason.STALE)]
    assert (stage.state.evicted, stage.state.lost) == (2, 2)
    assert {1, 2}.isdisjoint(stage.state.groups)


def test_evicting_comes_before_selecting_so_that_no_step_trains_what_is_too_old() -> None:
    stage = windowed(flow={"max_inflight_prompts": 2})
    stage.finish(0)
    stage.finish(1)
    stage.train()
    stage.finish(2)
    assert stage.state.filling == 1, "2 was begun with weights 0, as 1 was"
    stage.finish(3)
    stage.train()

    assert (stage.steps[0], stage.steps[1]) == ((0,), (3,))
    assert [event.prompts for event in stage.events(Evict)] == [(1,), (2,)]


def test_an_eviction_frees_the_room_that_the_group_took() -> None:
    stage = windowed(capacity=3)
    stage.finish(0, 1, 2)
    assert stage.state.num_open() == 3
    stage.train()

    assert stage.state.num_open() == 3, "two have gone, and two were admitted"
    assert [admit.prompts for admit in stage.events(Admit)] == [(number,) for number in range(6)]


def test_a_group_is_kept_as_long_as_its_weights_are_in_the_window() -> None:
    stage = windowed(window=1)
    stage.finish(0, 1, 2, 3)
    stage.train()
    assert stage.events(Evict) == []
    stage.train()

    assert (stage.steps[0], stage.steps[1]) == ((0,), (1,))
    assert stage.events(Evict) == [Evict(prompts=(2, 3), reason=EvictReason.STALE)]


def test_a_requeued_prompt_waits_again_without_its_group_and_is_sent_before_new_ones() -> None:
    stage = windowed(again=1, flow={"max_inflight_prompts": 1})
    stage.finish(0)
    stage.finish(1)
    stage.train()
    assert stage.events(Requeue) == [Requeue(prompts=(1,))]
    assert stage.events(Evict) == []
    group = stage.state.groups[1]
    assert (group.place, group.finished, group.requeues) == (Place.WAITING, None, 1)
    for prompt in (2, 1, 3):
        assert stage.at(Place.IN_FLIGHT) == [prompt]
        stage.finish(prompt)

    sent = [(order.prompt, order.attempt, order.weights) for order in stage.events(Dispatch)]
    assert sent[:5] == [(0, 1, 0), (1, 1, 0), (2, 1, 0), (1, 2, 1), (3, 1, 1)]


def test_a_prompt_is_handed_out_again_so_many_times_and_then_gone() -> None:
    stage = windowed(again=2, flow={"max_inflight_prompts": 1})
    for fresh in (0, 2, 3):
        stage.finish(fresh)  # the step has taken this one
        stage.finish(1)
        stage.train()

    assert stage.events(Requeue) == [Requeue(prompts=(1,))] * 2
    assert stage.events(Evict) == [Evict(prompts=(1,), reason=EvictReason.STALE)]
    assert [order.attempt for order in stage.events(Dispatch) if order.prompt == 1] == [1, 2, 3]


def test_a_requeued_prompt_does_not_pass_the_gate_again() -> None:
    failure = {"max_data_attempts": 1, "max_skipped_prompts": "unlimited"}
    stage = windowed(again=1, name="weight_fifo", n=2, capacity=8, failure=failure)
    stage.fail(0, FailureKind.DATA)  # the gate gives its batch back: 2 and 3
    stage.finish(1, 2, 3)
    stage.train()
    assert stage.steps[0] == (1, 2)
    assert stage.events(Requeue) == [Requeue(prompts=(3,))]

    after = [type(event) for entry in stage.entries() for event in entry.events]
    after = after[after.index(Requeue) :]
    assert after[:3] == [Requeue, Dispatch, Admit], "it is sent first, and is no batch of its own"
    assert [admit.batch for admit in stage.events(Admit)] == [0, 1, 2]
    assert stage.state.lost == 1, "only prompt 0"


def test_budgets_of_a_requeued_prompt_go_on() -> None:
    failure = {"max_infra_attempts": 3, "backoff_base_s": 0, "max_consecutive_dropped_prompts": 9}
    stage = windowed(again=1, failure=failure)
    stage.fail(1)
    stage.finish(0, 1)
    stage.train()
    assert stage.events(Requeue)[0].prompts == (1,)
    assert stage.state.groups[1].infra_failures == 1
    stage.fail(1)
    stage.fail(1)

    assert stage.state.dropped == 1


# --- attempts that run ------------------------------------------------------------------------------------------------


def test_a_running_attempt_that_no_step_can_use_is_cancelled_and_its_prompt_evicted_in_one_entry() -> None:
    stage = windowed()
    stage.finish(0)
    stage.train()
    cancel(stage, 1)

    (entry,) = [entry for entry in stage.entries() if isinstance(entry.events[0], Cancel)]
    assert entry.events == (
        Cancel(prompt=1, attempt=1, reason="stale"),
        Evict(prompts=(1,), reason=EvictReason.STALE),
    )
    assert stage.state.evicted == 1


def test_a_cancelled_prompt_is_handed_out_again_while_it_may_be() -> None:
    stage = windowed(again=1, flow={"max_inflight_prompts": 2})
    stage.finish(0)
    stage.train()
    cancel(stage, 1)
    (entry,) = [entry for entry in stage.entries() if isinstance(entry.events[0], Cancel)]
    assert entry.events[1:] == (Requeue(prompts=(1,)),)
    assert stage.state.groups[1].attempt == 2
    stage.finish(2)
    stage.train()
    cancel(stage, 1)

    assert stage.events(Evict)[-1].prompts == (1,), "once is the limit"


def test_generators_are_told_the_oldest_weights_that_are_of_use() -> None:
    stage = windowed(window=1, flow={"max_inflight_prompts": 1})
    for prompt in range(3):
        stage.finish(prompt)
        stage.train()
    notices = [notice for _, notice in stage.server.desk().control(stage.server.desk().epoch(), None, 0.0)]
    useful = {notice.version: notice.oldest_useful for notice in notices if hasattr(notice, "oldest_useful")}

    assert useful[3] == 2


def test_a_cancelled_attempt_that_was_not_too_old_is_lost_and_sent_again_at_no_cost() -> None:
    """The sampler was changed meanwhile: in_order waits for every prompt of a step."""
    stage = windowed()
    stage.finish(0)
    stage.train()
    stage.generator.refresh()
    stage.kill_controller()
    stage.resume(small_plan(grpo={"prompts_per_step": 1}, flow={"max_buffered_groups": 4}))
    assert stage.state.rules is not None
    assert stage.state.rules.sampler == "in_order"
    cancel(stage, 1)

    assert [(r.prompt, r.kind) for r in stage.events(Retry)] == [(1, FailureKind.LOST)]
    assert stage.state.groups[1].attempt == 2


def test_a_cancellation_that_comes_twice_is_late() -> None:
    stage = windowed(again=1)
    stage.finish(0)
    stage.train()
    order, born = stage.generator.orders[1]
    cancel(stage, 1)
    stage.generator.orders[1] = (order, born)
    cancel(stage, 1)

    assert stage.events(Late)[-1] == Late(what="cancelled", prompt=1, attempt=1, worker="gen-0")
    assert len(stage.events(Cancel)) == 1
