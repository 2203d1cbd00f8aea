"""Public faults of this kind of software: whatever arrives twice, late, or from somebody who no longer counts.

Each docstring names the fault by its number and its report. The reports are about pending lists and ids by the server;
here the same faults are played on leases and fenced dense ids.
"""

import pytest

from rollog.events.errors import Fenced, LogUncertain
from rollog.events.log import Delivery
from rollog.events.memory_log import MemoryDesk, MemoryServer
from rollog.events.messages import Chunk, Result
from rollog.events.vocabulary import (
    Admit,
    Commit,
    Dispatch,
    FailureKind,
    Late,
    Open,
    Retry,
    Select,
)
from stage import Stage, small_plan
from watched_log import Moment


class TwiceDesk(MemoryDesk):
    """Everything that a worker says arrives twice."""

    def report(self, result: Result, lease: str | None = None) -> None:
        """Report, and again without looking whether the lease says that it was done."""
        super().report(result, lease)
        super().report(result)


class TwiceServer(MemoryServer):
    """A server whose workers say everything twice."""

    def desk(self) -> MemoryDesk:
        """A worker's connection."""
        return TwiceDesk(self)


def test_results_that_are_all_delivered_twice_leave_the_same_run() -> None:
    """B69, redis#5433: entries that had been acknowledged came again."""
    once, twice = Stage(small_plan()), Stage(small_plan(), server=TwiceServer)
    for stage in (once, twice):
        stage.fail(3, FailureKind.DATA)
        stage.train_steps(4)

    assert twice.steps == once.steps
    for kind in (Commit, Select, Dispatch, Admit):
        assert len(twice.events(kind)) == len(once.events(kind))
    assert twice.state.published == once.state.published
    assert len(twice.events(Late)) > 16


def test_a_result_that_was_trimmed_before_it_was_answered_is_told_and_made_again() -> None:
    """B67, redis#10756: entries trimmed while they were pending came as nothing, or were waited for without end."""
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.generator.finish(0)
    assert len(stage.controller.mailbox.wait(stage.state, stage.now, stage.now)) >= 1, "read, and not answered"
    stage.kill_controller()
    stage.server.results.clear()
    stage.resume()
    assert stage.events(Retry) == []
    stage.after(stage.plan.flow.rollout_timeout_s + stage.plan.flow.lease_s)

    (told,) = [retry for retry in stage.events(Retry) if retry.prompt == 0]
    assert told.kind is FailureKind.INFRA
    assert told.error.startswith("timeout after 6")
    stage.train_steps(1)
    assert stage.steps == {0: (0, 1, 2, 3)}


def test_a_result_that_waits_longer_than_its_deadline_for_a_controller_counts() -> None:
    """B67, the other side: what lies in the stream still is never given up."""
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.generator.finish(0)
    stage.kill_controller()
    stage.now += 10 * stage.plan.flow.rollout_timeout_s
    stage.resume()

    assert [(commit.prompt, commit.attempt) for commit in stage.events(Commit)] == [(0, 1)]
    assert all(retry.prompt != 0 for retry in stage.events(Retry))


def test_a_result_stream_that_is_read_again_from_its_beginning_is_not_processed_again() -> None:
    """B73, flightctl PR#2227: the group was created again at 0 after a restart, and everything was processed again."""
    seen: list[Delivery] = []

    def keep(moment: Moment) -> None:
        seen.extend(delivery for delivery in stage.server.results if delivery not in seen)

    stage = Stage(small_plan())
    stage.hook = keep
    stage.train_steps(3)
    before = stage.state
    stage.kill_controller()
    stage.server.results[:] = seen  # a server that has trimmed nothing
    assert len(seen) > 12
    stage.resume()

    assert [type(event) for entry in stage.entries(before.offset + 1) for event in entry.events] == [Open]


def test_a_rollout_that_takes_longer_than_its_lease_is_not_given_to_anybody_else_while_it_renews_it() -> None:
    """B75, mastra PR#23697: idle time shorter than the job delivered running work to a second consumer."""
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.after(300)
    other = stage.new_generator("gen-9")
    other.load()
    assert other.take() == ()
    stage.finish(0)

    assert stage.events(Retry) == []
    assert [(commit.prompt, commit.attempt) for commit in stage.events(Commit)] == [(0, 1)]


def test_what_a_worker_had_read_but_not_done_before_it_died_is_done_by_its_successor() -> None:
    """B77, GoWDK#197: reading only what is new strands everything that was read and not acknowledged."""
    stage = Stage(small_plan())
    stage.finish(0, 1, 2, 3)
    assert [type(message) for message in stage.rank.pull()] == [Chunk], "read, and nothing done"
    assert stage.generator.orders.keys() == {4, 5, 6, 7}
    stage.kill_trainer()
    stage.kill_generator()
    stage.settle()
    stage.train()
    stage.finish(4, 5, 6, 7)
    stage.train()

    assert stage.steps == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


def test_an_append_that_is_tried_again_after_a_time_out_stands_in_the_log_once() -> None:
    """B80, redis#12953: an append with an id by the server, retried after a lost reply, stored the event twice."""
    stage = Stage(small_plan())
    stage.generator.load()
    stage.generator.take()
    stage.generator.finish(0)
    landed = stage.state.offset + 1

    def hook(moment: Moment) -> None:
        if moment == Moment("after append", landed):
            stage.hook = lambda later: None
            raise LogUncertain("played: no answer in time")

    stage.hook = hook
    with pytest.raises(LogUncertain):
        stage.settle()
    assert stage.state.offset == landed, "it had landed"
    stage.resume()

    offsets = [entry.offset for entry in stage.entries()]
    assert offsets == list(range(1, len(offsets) + 1))
    answers = [entry.input for entry in stage.entries() if entry.input is not None]
    assert len(answers) == len(set(answers))


def test_of_two_controllers_the_older_stops_and_nothing_of_it_lands_whatever_its_clock_says() -> None:
    """B84, misskey#10482: with ids made by clients an event of the second writer was refused and lost."""
    stage = Stage(small_plan())
    older = stage.controller
    assert older is not None
    stage.now += 3600
    stage.resume()
    head = stage.state.offset
    stage.now -= 7200
    stage.generator.load()
    stage.generator.take()
    stage.generator.finish(0)
    with pytest.raises(Fenced):
        older.turn()
    assert stage.state.offset == head
    stage.settle()

    assert [commit.prompt for commit in stage.events(Commit)] == [0]
    stage.train_steps(1)
