"""What a generator does with notices: which weights it loads, and when."""

from dataclasses import replace

import pytest

from rollog.events.messages import (
    GroupCancelled,
    GroupDone,
    WeightsLoaded,
)
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.generation.engine import EngineLost
from scripted_generator import CAUSE, Desk, Engine, generator, order, weights


def test_nothing_is_answered_before_published_weights_are_loaded():
    desk = Desk([[], [], []], [order(0)])

    generator(desk).run()

    assert not desk.said(GroupDone)
    assert desk.orders


def test_only_the_newest_of_several_versions_is_loaded_and_never_a_lower_one():
    desk, engine = Desk([[weights(1), weights(2), weights(3)], [weights(2)], [weights(4)]]), Engine()

    generator(desk, engine=engine).run()

    assert engine.loaded == [3, 4]
    assert [loaded.version for loaded in desk.said(WeightsLoaded)] == [3, 4]


def test_a_version_that_was_published_anew_with_other_bytes_is_loaded_again():
    desk, engine = Desk([[weights(3, "a")], [weights(3, "a")], [weights(3, "b")]]), Engine()

    generator(desk, engine=engine).run()

    assert engine.loaded == [3, 3]
    assert [loaded.digest for loaded in desk.said(WeightsLoaded)] == ["a", "b"]


def test_an_order_waits_for_weights_as_new_as_it_names():
    desk, engine = Desk([[weights(1)], [], [weights(2)], []], [order(0, weights=2)]), Engine()

    generator(desk, engine=engine).run()

    (done,) = desk.said(GroupDone)
    assert (done.born, done.done) == (2, 2)


def test_weights_are_loaded_while_an_answer_runs_and_it_goes_on():
    desk, engine = Desk([[weights(1)], [weights(2)], [], []], [order(0, weights=1)]), Engine(steps=2)

    generator(desk, engine=engine).run()

    assert engine.loaded == [1, 2]
    assert len(engine.requests) == 1
    assert desk.said(GroupDone)


def test_pinned_loads_exactly_what_an_order_names_after_the_others_are_finished():
    desk = Desk([[weights(0), weights(1), weights(2)], *([[]] * 6)], [order(0, weights=1), order(1, weights=0)])
    engine = Engine(steps=2)

    generator(desk, engine=engine, pinned=True).run()

    assert engine.loaded == [0, 1]
    assert {done.prompt: done.born for done in desk.said(GroupDone)} == {1: 0, 0: 1}


def test_weights_that_were_deleted_meanwhile_are_passed_over_when_newer_ones_come():
    desk, engine = Desk([[weights(1)], [weights(3)]]), Engine(missing={1})

    generator(desk, engine=engine).run()

    assert engine.loaded == [3]


def test_weights_that_stay_unreadable_end_the_generator():
    desk, engine = Desk([[weights(1)], *([[]] * 9)]), Engine(missing={1})
    slow = generator(desk, engine=engine)
    ticks = iter(range(0, 1000, 3))
    slow.clock = lambda: float(next(ticks))

    with pytest.raises(PipelineError, match="does not exist"):
        slow.run()


def test_an_engine_that_is_lost_while_it_loads_ends_the_generator_at_once():
    desk, engine = Desk([[weights(1)], [weights(2)]], [order(0)]), Engine(lost_at={2}, steps=9)

    with pytest.raises(EngineLost, match="version 2"):
        generator(desk, engine=engine).run()

    assert engine.loaded == [1]


def test_what_was_born_too_early_for_every_step_is_cancelled_and_reported():
    too_new = replace(weights(4), oldest_useful=2)
    desk, engine = Desk([[weights(1)], [too_new], []], [order(5)]), Engine(steps=99)

    generator(desk, engine=engine).run()

    (cancelled,) = desk.said(GroupCancelled)
    assert (cancelled.prompt, cancelled.attempt, cancelled.cause, cancelled.born) == (5, 1, CAUSE, 1)
    assert (cancelled, "p:5") in desk.reports
    assert engine.aborted == ["5.1"]


def test_a_new_writer_epoch_is_read_from_its_start():
    desk = Desk([[weights(0)], [], [weights(1)]], epochs=[1, 1, 2])

    generator(desk).run()

    assert desk.read_after[:3] == [(1, None), (1, "1-0"), (2, None)]
