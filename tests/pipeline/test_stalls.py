"""The stall watchdog: what counts as a stall, what the log says of it, and how a stalled run is stopped."""

from typing import Any

import pytest

from rollog.events.vocabulary import FinishReason, Open, Stall, Stop, StopReason
from rollog.pipeline.errors import RunFailed
from rollog.replay.state import Place
from stage import Stage, small_plan

TIMEOUT_S = 50.0


def stalling(action: str = "warn", **sections: Any) -> Stage:
    """A run that may stand still for 50 s; its rollouts for 40 s."""
    flow = {"stall_timeout_s": TIMEOUT_S, "rollout_timeout_s": 40.0, "reward_timeout_s": 30.0, "stall_action": action}
    return Stage(small_plan(flow=flow, **sections))


def stalls(stage: Stage) -> list[str]:
    return [stall.text for stall in stage.events(Stall)]


def untaken(stage: Stage) -> Stage:
    """Orders are out and nobody takes them: no attempt can be overdue."""
    assert stage.at(Place.IN_FLIGHT)
    return stage


def test_a_run_that_moves_is_no_stall() -> None:
    stage = stalling()

    for _ in range(3):
        stage.train_steps(1)
        stage.after(TIMEOUT_S - 10)

    assert stalls(stage) == []


def test_a_stall_names_the_oldest_prompt_in_flight_its_worker_and_its_age() -> None:
    stage = stalling(failure={"backoff_base_s": 0.5, "backoff_max_s": 0.5})
    stage.finish()
    taken = min(stage.generator.orders)

    stage.after(46)  # all attempts were overdue, and are sent again
    stage.finish()
    stage.after(15)

    (text,) = stalls(stage)
    assert text.startswith("no group finished and no step trained for 52 s; ")
    assert text.endswith(f"the oldest in flight is prompt {taken}, attempt 2, with gen-0 for 6 s")


def test_orders_that_no_generator_takes_are_a_stall() -> None:
    stage = untaken(stalling())

    stage.after(TIMEOUT_S + 4)

    assert stalls(stage)[0].endswith("the oldest in flight is prompt 0, attempt 1, which no generator has taken")


def test_a_stall_is_said_once_in_each_timeout() -> None:
    stage = untaken(stalling())

    stage.after(3 * TIMEOUT_S + 20)

    assert len(stalls(stage)) == 3


def test_a_run_with_nothing_in_flight_can_stall_and_says_what_it_waits_for() -> None:
    stage = stalling(sampler={"name": "in_order", "lookahead": 0})
    stage.finish(*range(4))
    assert not stage.at(Place.IN_FLIGHT)

    stage.after(TIMEOUT_S + 9)

    (text,) = stalls(stage)
    assert text.endswith("nothing is in flight, and the run waits for the trainer's next step, which opens the gate")


def test_a_new_controller_counts_anew() -> None:
    stage = untaken(stalling())
    stage.after(TIMEOUT_S - 5)
    stage.kill_controller()
    stage.resume()

    stage.after(TIMEOUT_S - 5)

    assert len(stage.events(Open)) == 2
    assert stalls(stage) == []


def test_a_stopping_run_is_no_stall() -> None:
    stage = stalling(sampler={"name": "in_order", "lookahead": 0})
    stage.finish(*range(4))
    stage.ask_to_stop(within_s=0.0)

    stage.after(3 * TIMEOUT_S)  # the trainer never trains the step that is selected

    assert stage.events(Stop)
    assert stalls(stage) == []


def test_a_stall_stops_a_run_that_is_to_abort() -> None:
    stage = untaken(stalling("abort"))

    stage.after(TIMEOUT_S + 4)

    (stop,) = stage.events(Stop)
    assert stop.reason is StopReason.FAILED
    assert stop.prompt is None
    assert stop.detail == f"stalled: {stalls(stage)[0]} (flow.stall_action)"
    assert stage.state.finish is FinishReason.FAILED


def test_an_aborted_run_that_cannot_even_save_ends_with_an_error() -> None:
    stage = stalling("abort", sampler={"name": "in_order", "lookahead": 0})
    stage.finish(*range(4))  # selected, and the trainer hangs

    with pytest.raises(RunFailed, match=r"the failed run cannot end.*It failed by this: stalled: no group finished"):
        stage.after(3 * TIMEOUT_S)

    assert len(stage.events(Stall)) == 1
    assert stage.state.finish is None


def test_memory_pressure_is_said_once_when_it_begins() -> None:
    stage = stalling()
    stage.server.under_pressure = True
    stage.after(20)
    stage.server.under_pressure = False
    stage.after(10)
    stage.server.under_pressure = True
    stage.after(10)

    said = [stall for stall in stage.events(Stall) if stall.what == "memory"]
    assert len(said) == 2
    assert "no batch is admitted" in said[0].text
