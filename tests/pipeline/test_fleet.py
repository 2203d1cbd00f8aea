"""The number of generators is a setting that may change at any time: who is told what, and who leaves."""

from dataclasses import replace

import pytest

from rollog.events.messages import FleetSize, GroupDone, ScaleRequest, WorkerLeft
from rollog.events.vocabulary import Configure, Event, Late
from rollog.pipeline import fleet, outbox
from rollog.pipeline.decisions import decide
from rollog.pipeline.errors import PlanError
from rollog.pipeline.inputs import Answer
from rollog.pipeline.scaling import parsed
from scripted_generator import Desk, Engine, generator, order, weights
from stage import Stage, small_plan


def asked_for(stage: Stage, generators: int) -> tuple[Event, ...]:
    return decide(stage.state, stage.policy, Answer(id="9-0", result=ScaleRequest(generators=generators)), stage.now)


def test_another_size_is_one_change_of_settings_that_moves_nothing_else() -> None:
    stage = Stage(small_plan())
    cursor = stage.state.cursor

    assert asked_for(stage, 5) == (Configure(changes={"generation.workers": 5}, cursor=cursor),)


@pytest.mark.parametrize("generators", [0, -1, fleet.MAX_GENERATORS + 1])
def test_the_same_size_and_no_size_change_nothing(generators: int) -> None:
    stage = Stage(small_plan())

    assert asked_for(stage, generators) == (Late(what="scale"),)
    assert asked_for(stage, fleet.size_of(stage.state)) == (Late(what="scale"),)


def test_a_run_that_is_stopping_is_not_scaled() -> None:
    stage = Stage(small_plan())
    stage.ask_to_stop(60)

    assert asked_for(stage, 5) == (Late(what="scale"),)


def test_generators_are_told_the_size_by_the_entry_and_under_each_new_epoch() -> None:
    stage = Stage(small_plan())
    stage.generator.desk.report(ScaleRequest(generators=5))
    stage.settle()

    (entry,) = [entry for entry in stage.entries() if isinstance(entry.events[0], Configure)]
    assert outbox.of_entry(stage.state, entry, lambda state: 0).control == (FleetSize(generators=5),)
    assert FleetSize(generators=5) in outbox.of_state(stage.state, lambda state: 0).control


def test_a_generator_beyond_the_size_takes_nothing_more_finishes_what_it_holds_and_leaves() -> None:
    orders = [order(n) for n in range(4)]
    desk = Desk([[weights(0)], [FleetSize(generators=2)], [], [], []], orders)
    surplus = generator(desk, engine=Engine(steps=3), room=2)
    surplus.name = "gen-2"
    surplus.terms = replace(surplus.terms, generators=3, max_inflight=6)

    assert surplus.run() == "the fleet has 2 generators now"

    assert [done.prompt for done in desk.said(GroupDone)] == [0, 1]
    assert len(desk.orders) == 2
    assert isinstance(desk.reports[-1][0], WorkerLeft)


def test_a_generator_within_the_size_stays_and_holds_its_new_share() -> None:
    desk, engine = Desk([[weights(0), FleetSize(generators=4)], []], [order(n) for n in range(8)]), Engine(steps=99)
    one = generator(desk, engine=engine)
    one.terms = replace(one.terms, generators=1, max_inflight=8)

    assert one.run() == "the run ended: script"

    assert len(engine.requests) == 2


def test_a_surplus_generator_that_is_wanted_again_before_it_has_left_stays() -> None:
    notices = [[weights(0)], [FleetSize(generators=1)], [FleetSize(generators=2)], [], []]
    desk = Desk(notices, [order(n) for n in range(2)])
    one = generator(desk, engine=Engine(steps=4), room=2)
    one.name = "gen-1"
    one.terms = replace(one.terms, generators=2)

    assert one.run() == "the run ended: script"


@pytest.mark.parametrize("words", [["generators=0"], ["generators=many"], ["trainers=2"], ["generators=2", "seed=1"]])
def test_what_cannot_be_scaled_is_refused_with_what_can(words: list[str]) -> None:
    with pytest.raises(PlanError, match="generators=N"):
        parsed(words)


def test_the_size_is_read_from_the_command_line() -> None:
    assert parsed(["generators=4"]) == 4
