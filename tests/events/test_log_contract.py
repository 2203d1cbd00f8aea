"""One contract for all logs: the memory log is trusted because it passes the server's tests."""

from dataclasses import replace
from typing import Any

import pytest

from rollog.events.codec import unpack_message
from rollog.events.errors import Conflict, Fenced, MissingEntry
from rollog.events.log import GENESIS, Head, Outbox
from rollog.events.messages import (
    Chunk,
    Doorbell,
    Ending,
    GroupDone,
    NewGeneration,
    NewWeights,
    Order,
    SaveOrder,
    WorkerJoined,
)
from rollog.events.outbox import step_of
from rollog.events.vocabulary import Note, Role, SaveReason

BLOB = "ab" * 32


def done(order: Order, worker: str) -> GroupDone:
    return GroupDone(
        prompt=order.prompt, attempt=order.attempt, cause=order.cause, blob=BLOB, born=0, done=0, rollouts=8,
        rows=8, tokens=100, reward_mean=0.5, reward_std=0.1, worker=worker,
    )  # fmt: skip


def published(version: int) -> NewWeights:
    return NewWeights(version=version, file=f"{version}.safetensors", digest=BLOB)


# --- the pen ----------------------------------------------------------------------------------------------------------


def test_an_empty_log_has_no_entries_and_the_head_before_the_first(store: Any, writer: Any) -> None:
    log = store.log()
    assert log.head() == Head(offset=0, digest=GENESIS)
    assert list(log.read()) == []
    assert store.desk().epoch() == 0
    pen = log.open("a")
    assert (pen.epoch, pen.head) == (1, Head(offset=0, digest=GENESIS))
    assert store.desk().epoch() == 1


def test_the_same_nonce_gets_the_same_epoch_and_another_one_the_next(store: Any) -> None:
    first, second = store.log(), store.log()
    assert first.open("a").epoch == 1
    assert first.open("a").epoch == 1
    assert second.open("b").epoch == 2
    assert first.open("a").epoch == 3


def test_two_controllers_the_older_is_fenced_and_nothing_of_it_lands(store: Any, writer: Any) -> None:
    older = writer(store.log(), "a")
    older.say()
    newer = writer(store.log(), "b")
    with pytest.raises(Fenced, match="epoch 2"):
        older.dispatch(7)
    with pytest.raises(Fenced):
        older.log.hand_over(Outbox())
    with pytest.raises(Fenced):
        older.log.put_lease("controller", 1, "a")
    with pytest.raises(Fenced):
        older.log.end_leases(["controller"])
    assert store.log().head().offset == 1
    assert store.desk().take("w", 2, 0) is None
    newer.say()
    assert [entry.epoch for entry in store.log().read()] == [1, 2]


def test_the_log_id_stays(store: Any) -> None:
    first = store.log().open("a").log_id
    assert store.log().open("b").log_id == first


def test_writing_needs_the_pen(store: Any) -> None:
    with pytest.raises(ValueError, match=r"open\(\)"):
        store.log().hand_over(Outbox())


# --- append and read --------------------------------------------------------------------------------------------------


def test_entries_come_back_in_order_as_they_were_written(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    written = [pen.say(Note(what="n", text=str(number))) for number in range(5)]
    assert list(store.log().read()) == written
    assert list(store.log().read(2, 3)) == written[1:3]
    assert list(store.log().read(6)) == []
    assert store.log().head() == Head(offset=5, digest=written[-1].digest)


def test_a_window_lands_whole_and_in_order(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    window = pen.window(600)
    pen.log.append(window)
    assert list(store.log().read()) == [entry for entry, _ in window]
    pen.log.append([])
    assert store.log().head().offset == 600


def test_an_offset_that_is_nowhere_is_an_error(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    pen.say()
    for first, last in [(0, 1), (1, 2), (3, 4)]:
        with pytest.raises(MissingEntry):
            list(store.log().read(first, last))


def test_an_entry_that_does_not_follow_the_head_is_refused(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    pen.say()
    other = replace(pen.sealed(), offset=5)
    with pytest.raises(Exception, match="follow"):
        pen.log.append([(other, Outbox())])
    assert store.log().head().offset == 1


def test_an_entry_sealed_after_another_digest_is_refused(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    pen.say()
    pen.head = Head(offset=1, digest="ab" * 16)
    with pytest.raises((ValueError, Conflict)):
        pen.say()
    assert store.log().head().offset == 1


# --- orders -----------------------------------------------------------------------------------------------------------


def test_orders_are_taken_once_in_the_order_of_their_dispatch(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    orders = [pen.dispatch(prompt) for prompt in (3, 1, 2)]
    assert [desk.take("w", 1, 0) for _ in range(4)] == [*orders, None]
    leases = store.log().leases()
    assert {key: (lease.number, lease.worker, lease.done) for key, lease in leases.by_key.items()} == {
        f"p:{prompt}": (1, "w", False) for prompt in (1, 2, 3)
    }
    assert all(lease.began == lease.refreshed <= leases.now for lease in leases.by_key.values())


def test_several_orders_are_taken_at_once_as_one_by_one(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    orders = [pen.dispatch(prompt, weights=weights) for prompt, weights in ((3, 0), (1, 1), (2, 0), (4, 0))]
    assert list(desk.take_up_to(2, "w", 1, 0)) == [orders[0], orders[2]]
    assert list(desk.take_up_to(9, "w", 1, 1, exactly=True)) == [orders[1]]
    assert list(desk.take_up_to(9, "w", 1, 1)) == [orders[3]]
    assert list(desk.take_up_to(9, "w", 1, 1)) == []
    assert list(desk.take_up_to(9, "w", 2, 1)) == []
    assert sorted(pen.log.leases().by_key) == ["p:1", "p:2", "p:3", "p:4"]


def test_an_order_waits_for_its_weights(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    newer, older = pen.dispatch(1, weights=4), pen.dispatch(2, weights=3)
    assert desk.take("w", 1, 2) is None
    assert desk.take("w", 1, 3) == older
    assert desk.take("w", 1, 5, exactly=True) is None
    assert desk.take("w", 1, 4, exactly=True) == newer


def test_a_lease_is_never_taken_over_and_ends_with_its_attempt(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    pen.dispatch(1)
    assert desk.take("one", 1, 0) is not None
    assert desk.take("two", 1, 0) is None
    pen.say(outbox=Outbox(ended=(1,)))
    assert store.log().leases().by_key == {}
    assert desk.refresh("one", [("p:1", 1)]) == ["p:1"]
    again = pen.dispatch(1, attempt=2)
    assert desk.take("two", 1, 0) == again
    assert store.log().leases().by_key["p:1"].number == 2


def test_a_new_attempt_takes_the_older_lease_away_by_itself(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    pen.dispatch(1)
    pen.dispatch(2)
    assert desk.take("one", 1, 0) is not None
    again = pen.dispatch(1, attempt=2)
    assert [desk.take("two", 1, 0).prompt, desk.take("two", 1, 0)] == [2, again]


def test_an_outbox_lands_with_its_entry_or_not_at_all(store: Any, writer: Any) -> None:
    older, newer = store.log(), store.log()
    pen = writer(older, "a")
    entry = pen.sealed()
    newer.open("b")
    body = Outbox(control=(Ending(reason="x"),), ended=(1,))
    with pytest.raises(Fenced):
        older.append([(entry, body)])
    desk = store.desk()
    assert list(desk.control(1, None, 0)) == []
    assert list(desk.control(2, None, 0)) == []


def test_a_worker_of_an_older_epoch_gets_nothing(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    pen.dispatch(1)
    store.log().open("b")
    assert desk.epoch() == 2
    assert desk.take("w", 1, 0) is None
    assert desk.take("w", 2, 0) is None


# --- leases -----------------------------------------------------------------------------------------------------------


def test_only_its_holder_refreshes_a_lease(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    pen.dispatch(1)
    desk.take("one", 1, 0)
    pen.log.put_lease("rank:0", 7, "trainer-0")
    claims = [("p:1", 1), ("rank:0", 7)]
    assert desk.refresh("one", claims) == ["rank:0"]
    assert desk.refresh("trainer-0", claims) == ["p:1"]
    assert desk.refresh("one", [("p:1", 2)]) == ["p:1"]
    assert desk.refresh("one", []) == []


def test_a_lease_written_again_keeps_its_beginning_only_for_the_same_holder(store: Any, writer: Any) -> None:
    pen = writer(store.log())
    pen.log.put_lease("rank:0", 7, "a|b")
    first = store.desk().leases().by_key["rank:0"]
    pen.log.put_lease("rank:0", 7, "a|b")
    again = pen.log.leases().by_key["rank:0"]
    assert (again.began, again.worker) == (first.began, "a|b")
    assert again.refreshed >= first.refreshed
    pen.log.put_lease("rank:0", 8, "a|b")
    assert pen.log.leases().by_key["rank:0"].number == 8
    pen.log.end_leases(["rank:0", "worker:none"])
    assert pen.log.leases().by_key == {}
    with pytest.raises(ValueError, match="p:1"):
        pen.log.end_leases(["p:1"])


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_result_waits_until_an_entry_has_answered_it(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    orders = [pen.dispatch(prompt) for prompt in (1, 2)]
    for order in orders:
        desk.take("w", 1, 0)
        desk.report(done(order, "w"), f"p:{order.prompt}")
    first, second = pen.log.results(None, 0.01)
    assert unpack_message(first.body) == done(orders[0], "w")
    assert [each.id for each in pen.log.results(first.id, 0)] == [second.id]
    pen.say(outbox=Outbox(ended=(1,), results_read=first.id))
    later = store.log()
    later.open("b")
    assert [each.id for each in later.results(None, 0)] == [second.id]


def test_a_report_marks_its_lease_done_and_counts_once(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    order = pen.dispatch(1)
    desk.take("w", 1, 0)
    desk.report(done(order, "w"), "p:1")
    desk.report(done(order, "w"), "p:1")
    assert len(pen.log.results(None, 0)) == 1
    assert pen.log.leases().by_key["p:1"].done
    assert desk.take("w", 1, 0) is None


def test_a_report_of_an_ended_attempt_is_still_delivered_and_marks_nothing(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    order = pen.dispatch(1)
    desk.take("w", 1, 0)
    pen.dispatch(1, attempt=2, ended=[1])
    desk.take("w", 1, 0)
    desk.report(done(order, "w"), "p:1")
    assert len(pen.log.results(None, 0)) == 1
    lease = pen.log.leases().by_key["p:1"]
    assert (lease.number, lease.done) == (2, False)


def test_several_results_are_reported_at_once_in_their_order(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    results = [done(pen.dispatch(prompt), "w") for prompt in (2, 1, 3)]
    desk.take_up_to(3, "w", 1, 0)
    desk.report_all([(result, f"p:{result.prompt}") for result in results])
    desk.report_all([(results[1], "p:1")])
    desk.report_all([])
    assert [unpack_message(each.body) for each in pen.log.results(None, 0)] == results
    assert all(lease.done for lease in pen.log.leases().by_key.values())


def test_a_report_needs_no_lease(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    joined = WorkerJoined(worker="w", role=Role.GENERATOR, machine={"threads": 2})
    desk.report(joined)
    (delivery,) = pen.log.results(None, 0)
    assert unpack_message(delivery.body) == joined


# --- control and train ------------------------------------------------------------------------------------------------


def test_orders_ring_the_doorbell(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    pen.dispatch(1)
    pen.say()
    ((id, notice),) = desk.control(1, None, 0)
    assert notice == Doorbell()
    assert list(desk.control(1, id, 0)) == []


def test_control_is_cut_at_a_publish_and_keeps_what_still_holds(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    pen.say(outbox=Outbox(control=(NewGeneration(generation=1), published(0))))
    for prompt in range(5):
        pen.dispatch(prompt)
    pen.say(outbox=Outbox(control=(published(1), published(2))))
    pen.dispatch(9)
    assert [notice for _, notice in desk.control(1, None, 0)] == [
        NewGeneration(generation=1),
        published(1),
        published(2),
        Doorbell(),
    ]


def test_hand_over_replaces_everything_derived(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log(), "a"), store.desk()
    running, ended = pen.dispatch(1), pen.dispatch(2)
    assert [desk.take("w", 1, 0), desk.take("w", 1, 0)] == [running, ended]
    pen.log.put_lease("rank:0", 1, "t")
    waiting = pen.dispatch(3)
    newer = writer(store.log(), "b")
    chunk = Chunk(
        generation=1, step=0, chunk=0, last=True, prompts=(4,), blobs=(BLOB,), rollouts=(8,), rows=(8,), tokens=(9,),
        cause=running.cause,
    )  # fmt: skip
    for _ in range(2):  # asked again, it gives the same
        newer.log.hand_over(Outbox(orders=(running, waiting), train=(chunk,), control=(published(3),)))
    assert list(desk.control(1, None, 0)) == []
    assert [message for _, message in desk.train(2, None, 0)] == [chunk]
    assert [notice for _, notice in desk.control(2, None, 0)] == [published(3), Doorbell()]
    assert set(newer.log.leases().by_key) == {"p:1", "rank:0"}
    assert desk.refresh("w", [("p:1", 1)]) == []
    assert desk.take("w", 2, 0) == waiting
    assert desk.take("w", 2, 0) is None
    later = newer.dispatch(5)
    assert desk.take("w", 2, 0) == later


def test_train_is_cut_from_its_front_up_to_the_first_step_that_may_be_trained_again(store: Any, writer: Any) -> None:
    pen, desk = writer(store.log()), store.desk()
    cause = pen.dispatch(1).cause

    def told() -> list[int]:
        return [step_of(message) for _, message in desk.train(1, None, 0)]

    def chunk(step: int, generation: int = 1) -> Chunk:
        return Chunk(
            generation=generation, step=step, chunk=0, last=True, prompts=(4,), blobs=(BLOB,), rollouts=(8,), rows=(8,),
            tokens=(9,), cause=cause,
        )  # fmt: skip

    pen.say(outbox=Outbox(train=(chunk(5), chunk(6), chunk(7))))
    pen.say(outbox=Outbox(train=(chunk(6, 2), chunk(7, 2), chunk(8, 2))))
    save = SaveOrder(generation=2, version=9, reason=SaveReason.PERIODIC, cause=cause)
    pen.say(outbox=Outbox(train=(save,), train_from=7))
    assert told() == [7, 6, 7, 8, 9], "the 6 of the second generation stands behind a 7"
    pen.say(outbox=Outbox(train=tuple(map(chunk, range(10, 150)))))
    pen.say(outbox=Outbox(train_from=9))
    assert told() == list(range(9, 150))
    pen.say(outbox=Outbox(train_from=3))
    pen.say(outbox=Outbox(train_from=149))
    assert told() == [149]
    pen.say(outbox=Outbox(train_from=200, train=(chunk(200),)))
    assert told() == [200]


def test_a_server_without_a_limit_is_under_no_pressure(store: Any, writer: Any) -> None:
    assert writer(store.log()).log.pressure() is False
