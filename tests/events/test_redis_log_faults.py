"""A lost request, a lost answer, a late one: the log has each entry once, or says that it does not know."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollog.events.codec import unpack_message
from rollog.events.errors import Conflict, Fenced, LogUncertain, LostTail, ServerRefused, ServerUnreachable
from rollog.events.log import Outbox
from rollog.events.mark import MarkFile
from rollog.events.messages import GroupDone, NewWeights, Order, WorkerJoined
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.events.server import EmbeddedServer
from rollog.events.server_settings import server_info
from rollog.events.vocabulary import Role

NAMES = iter(range(1_000_000))


@pytest.fixture
def run() -> str:
    return f"faults-{next(NAMES)}"


@pytest.fixture
def through(server: EmbeddedServer, proxy: Any, run: str) -> Iterator[Callable[..., RedisLog]]:
    """A controller's connection that passes the proxy."""
    made: list[RedisLog] = []

    def connect(**options: Any) -> RedisLog:
        made.append(RedisLog(proxy.address(server.address()), run, **options))
        return made[-1]

    yield connect
    for log in made:
        log.close()


@pytest.fixture
def direct(server: EmbeddedServer, run: str) -> Iterator[RedisLog]:
    """A connection past the proxy."""
    log = RedisLog(server.address(), run)
    yield log
    log.close()


@pytest.fixture
def admin(server: EmbeddedServer) -> Iterator[Any]:
    connection = server.address().connect()
    yield connection
    connection.close()


def prompts_in_flight(admin: Any, run: str, epoch: int) -> list[int]:
    return [int(prompt) for prompt in admin.call("ZRANGE", f"{{{run}}}:work:{epoch}", 0, -1)]


def result_of(order: Order) -> GroupDone:
    return GroupDone(
        prompt=order.prompt, attempt=order.attempt, cause=order.cause, blob="ab" * 32, born=0, done=0, rollouts=1,
        rows=1, tokens=1, reward_mean=0.0, reward_std=0.0, worker="w",
    )  # fmt: skip


@pytest.mark.parametrize("fault", ["lost", "reset", "unanswered", "cut", "half", "late"])
def test_a_window_of_64_is_sent_again_with_identical_bytes_and_no_alarm(
    through: Any, direct: Any, proxy: Any, writer: Any, admin: Any, run: str, fault: str
) -> None:
    pen = writer(through())
    pen.say()
    window = pen.window(64)
    proxy.faults.append(fault)
    pen.log.append(window)
    pen.say()
    proxy.release()
    assert [entry.offset for entry in direct.read()] == list(range(1, 67))
    assert list(direct.read(2, 65)) == [entry for entry, _ in window]
    assert prompts_in_flight(admin, run, 1) == list(range(2, 66))


def test_any_series_of_faults_leaves_each_entry_and_each_order_once(
    through: Any, direct: Any, proxy: Any, writer: Any, admin: Any, run: str
) -> None:
    rng = random.Random(11)
    pen = writer(through())
    for size in [1, 5, 17, 64]:
        proxy.faults.extend(rng.choices(["lost", "reset", "unanswered", "cut", "half", "late"], k=3))
        pen.log.append(pen.window(size))
    proxy.release()
    assert [entry.offset for entry in direct.read()] == list(range(1, 88))
    assert prompts_in_flight(admin, run, 1) == list(range(1, 88))


def test_after_the_deadline_nothing_is_claimed_and_a_new_epoch_goes_on(
    through: Any, direct: Any, proxy: Any, writer: Any
) -> None:
    pen = writer(through(answer_within_s=0.2))
    pen.say()
    proxy.faults.extend(["unanswered"] * 100)
    with pytest.raises(LogUncertain, match=r"entries 2\.\.2"):
        pen.say()
    proxy.faults.clear()
    again = writer(pen.log, "second")
    assert (again.pen.epoch, again.head.offset) == (2, 2)
    again.say()
    assert [entry.epoch for entry in direct.read()] == [1, 1, 2]


def test_open_asked_again_gets_the_same_epoch(through: Any, direct: Any, proxy: Any) -> None:
    log = through()
    proxy.faults.extend(["unanswered", "half"])
    assert log.open("a").epoch == 1
    assert direct.open("b").epoch == 2


def test_a_hand_over_that_comes_late_undoes_nothing(
    through: Any, proxy: Any, writer: Any, admin: Any, run: str
) -> None:
    pen = writer(through())
    pen.say()
    proxy.faults.append("late")
    pen.log.hand_over(Outbox())
    pen.dispatch(5)
    proxy.release()
    assert prompts_in_flight(admin, run, 1) == [5]


def test_a_taken_order_whose_answer_was_lost_is_given_again_to_the_same_call(
    server: EmbeddedServer, through: Any, proxy: Any, writer: Any, run: str
) -> None:
    pen = writer(through())
    orders = [pen.dispatch(1), pen.dispatch(2)]
    desk = RedisDesk(proxy.address(server.address("worker")), run)
    proxy.faults.extend(["unanswered"])
    assert [desk.take("w", 1, 0), desk.take("w", 1, 0), desk.take("w", 1, 0)] == [*orders, None]
    desk.close()


def test_orders_taken_together_whose_answer_was_lost_are_all_given_again_to_the_same_call(
    server: EmbeddedServer, through: Any, proxy: Any, writer: Any, run: str
) -> None:
    pen = writer(through())
    orders = [pen.dispatch(prompt) for prompt in (1, 2, 3)]
    desk = RedisDesk(proxy.address(server.address("worker")), run)
    proxy.faults.extend(["unanswered"])
    assert [list(desk.take_up_to(2, "w", 1, 0)), list(desk.take_up_to(2, "w", 1, 0))] == [orders[:2], orders[2:]]
    desk.close()


def test_results_reported_together_are_counted_once_whatever_was_lost_or_forgotten(
    server: EmbeddedServer, through: Any, direct: Any, admin: Any, proxy: Any, writer: Any, run: str
) -> None:
    pen = writer(through())
    results = [result_of(pen.dispatch(prompt)) for prompt in (1, 2, 3)]
    desk = RedisDesk(proxy.address(server.address("worker")), run)
    desk.take_up_to(3, "w", 1, 0)
    admin.call("SCRIPT", "FLUSH")
    proxy.faults.append("unanswered")
    desk.report_all([(result, f"p:{result.prompt}") for result in results])
    assert [unpack_message(each.body) for each in direct.results(None, 0)] == results
    desk.close()


def test_a_report_asked_again_counts_once(
    server: EmbeddedServer, through: Any, direct: Any, proxy: Any, writer: Any, run: str
) -> None:
    pen = writer(through())
    order = pen.dispatch(1)
    desk = RedisDesk(proxy.address(server.address("worker")), run)
    desk.take("w", 1, 0)
    proxy.faults.append("unanswered")
    desk.report(result_of(order), "p:1")
    assert len(direct.results(None, 0)) == 1
    desk.close()


def test_a_worker_that_reaches_no_server_is_told_so(server: EmbeddedServer, proxy: Any, run: str) -> None:
    desk = RedisDesk(proxy.address(server.address("worker")), run, answer_within_s=0.1)
    proxy.faults.extend(["lost"] * 50)
    with pytest.raises(ServerUnreachable, match="does not answer"):
        desk.epoch()
    desk.close()


def test_a_blocked_read_returns_when_a_result_comes_and_after_its_time_without(
    server: EmbeddedServer, direct: Any, run: str
) -> None:
    desk = RedisDesk(server.address("worker"), run)
    assert list(desk.train(1, None, 0.05)) == []
    assert list(direct.results(None, 0.05)) == []
    desk.report(WorkerJoined(worker="w", role=Role.TRAINER, machine={}))
    assert len(direct.results(None, 2.0)) == 1
    desk.close()


# --- what others do to the keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["log", "meta"])
def test_a_deleted_key_stops_the_writer_and_never_begins_a_fresh_log(
    direct: Any, writer: Any, admin: Any, run: str, key: str
) -> None:
    pen = writer(direct)
    pen.say()
    admin.call("DEL", f"{{{run}}}:{key}")
    with pytest.raises(LostTail, match=f"{key} of this run is gone"):
        pen.say()
    with pytest.raises(LostTail):
        writer(direct, "second")


@pytest.mark.parametrize("key", ["work:1", "orders:1", "train:1", "control:1", "results", "leases"])
def test_a_key_that_holds_something_else_refuses_the_entry_before_it_is_written(
    direct: Any, writer: Any, admin: Any, run: str, key: str
) -> None:
    pen = writer(direct)
    pen.say()
    admin.call("SET", f"{{{run}}}:{key}", "mine")
    with pytest.raises(Conflict, match="string"):
        pen.say()
    assert direct.head().offset == 1


def test_a_foreign_entry_is_a_conflict(direct: Any, writer: Any, admin: Any, run: str) -> None:
    pen = writer(direct)
    pen.say()
    entry = replace(pen.sealed())
    admin.call("HSET", f"{{{run}}}:meta", "offset", "2", "digest", "ab" * 16)
    with pytest.raises(Conflict, match="another entry"):
        direct.append([(entry, Outbox())])


def test_a_head_with_another_digest_is_found_out(direct: Any, writer: Any, admin: Any, run: str) -> None:
    pen = writer(direct)
    pen.say()
    admin.call("HSET", f"{{{run}}}:meta", "digest", "ab" * 16)
    with pytest.raises(LostTail, match="entry 1"):
        pen.say()
    assert admin.call("XLEN", f"{{{run}}}:log") == 1


def test_a_server_that_lost_its_tail_is_found_out(direct: Any, writer: Any, admin: Any, run: str) -> None:
    pen = writer(direct)
    first, _ = pen.say(), pen.say()
    admin.call("HSET", f"{{{run}}}:meta", "offset", "1", "digest", first.digest)
    admin.call("XDEL", f"{{{run}}}:log", "2-0")
    with pytest.raises(LostTail, match="entry 2"):
        pen.say()


def test_a_log_behind_its_mark_is_refused_unless_the_loss_is_accepted(
    server: EmbeddedServer, direct: Any, writer: Any, admin: Any, run: str, tmp_path: Any
) -> None:
    mark = MarkFile(tmp_path / "mark.json")
    log = RedisLog(server.address(), run, mark=mark)
    pen = writer(log)
    first = pen.say(time=1.0)
    pen.say(time=1.5)
    assert mark.read().offset == 1
    pen.say(time=2.0)
    assert mark.read().offset == 3
    admin.call("HSET", f"{{{run}}}:meta", "offset", "1", "digest", first.digest)
    admin.call("XDEL", f"{{{run}}}:log", "2-0", "3-0")
    with pytest.raises(LostTail, match="2 acknowledged entries are missing"):
        log.open("second")
    accepting = RedisLog(server.address(), run, mark=mark, accept_loss=True)
    assert accepting.open("third").head.offset == 1
    assert mark.read().offset == 1
    log.close()
    accepting.close()


def test_the_epoch_goes_on_from_the_mark(
    server: EmbeddedServer, writer: Any, admin: Any, run: str, tmp_path: Any
) -> None:
    mark = MarkFile(tmp_path / "mark.json")
    log = RedisLog(server.address(), run, mark=mark)
    writer(log, "a").say()
    mark.keep(replace(mark.read(), epoch=41))
    assert log.open("b").epoch == 42
    log.close()


def test_an_emptied_server_is_an_error_and_not_a_fresh_log(
    server: EmbeddedServer, writer: Any, admin: Any, run: str, tmp_path: Any
) -> None:
    log = RedisLog(server.address(), run, mark=MarkFile(tmp_path / "mark.json"))
    pen = writer(log)
    pen.say()
    admin.call("DEL", f"{{{run}}}:meta", f"{{{run}}}:log")
    for accept_loss in (False, True):
        again = RedisLog(server.address(), run, mark=MarkFile(tmp_path / "mark.json"), accept_loss=accept_loss)
        with pytest.raises(LostTail, match="holds no log; 1 entries were acknowledged"):
            again.open("b")
        again.close()
    assert admin.call("EXISTS", f"{{{run}}}:meta") == 0
    log.close()


def test_a_full_memory_refuses_the_entry_whole_and_later_takes_it(
    server: EmbeddedServer, writer: Any, admin: Any, run: str
) -> None:
    log = RedisLog(server.address(), run, answer_within_s=0.2)
    pen = writer(log)
    pen.say()
    window = pen.window(3)
    used = int(server_info(admin)["used_memory"])
    try:
        admin.call("CONFIG", "SET", "maxmemory", used // 2)
        assert log.pressure()
        with pytest.raises(ServerRefused, match="raise maxmemory"):
            log.append(window)
        assert log.head().offset == 1
        admin.call("CONFIG", "SET", "maxmemory", used * 10)
        assert not log.pressure()
        log.append(window)
    finally:
        admin.call("CONFIG", "SET", "maxmemory", 0)
    assert [entry.offset for entry in log.read()] == [1, 2, 3, 4]
    log.close()


def test_scripts_that_the_server_forgot_are_loaded_again(direct: Any, writer: Any, admin: Any) -> None:
    pen = writer(direct)
    pen.say()
    admin.call("SCRIPT", "FLUSH")
    pen.log.append(pen.window(5))
    admin.call("SCRIPT", "FLUSH")
    pen.log.hand_over(Outbox(control=(NewWeights(version=1, file="f", digest="ab" * 32),)))
    assert direct.head().offset == 6


# --- the worker's rights ----------------------------------------------------------------------------------------------


def test_a_worker_can_neither_read_nor_write_the_log_nor_write_what_orders_it(
    server: EmbeddedServer, direct: Any, writer: Any, run: str
) -> None:
    writer(direct).dispatch(1)
    worker = server.address("worker").connect()
    for command in [
        ("XADD", "log", "2-0", "payload", "x"),
        ("XRANGE", "log", "-", "+"),
        ("HSET", "meta", "epoch", "9"),
        ("XADD", "train:1", "*", "m", "x"),
        ("XADD", "control:1", "*", "m", "x"),
        ("HSET", "orders:1", "1", "x"),
        ("DEL", "results"),
        ("XTRIM", "results", "MAXLEN", "0"),
    ]:
        name, key, *rest = command
        with pytest.raises(Exception, match="NOPERM"):
            worker.call(name, f"{{{run}}}:{key}", *rest)
    for script in ["redis.call('HSET', ARGV[1], 'epoch', '9')", "redis.call('XADD', ARGV[1], '*', 'm', 'x')"]:
        digest = worker.call("SCRIPT", "LOAD", script)
        for key in ["meta", "log", "train:1"]:
            with pytest.raises(Exception, match=r"ACL|NOPERM|can't"):
                worker.call("EVALSHA", digest, 0, f"{{{run}}}:{key}")
    for command in [("CONFIG", "GET", "*"), ("FLUSHALL",), ("SHUTDOWN",), ("ACL", "LIST"), ("BGREWRITEAOF",)]:
        with pytest.raises(Exception, match="NOPERM"):
            worker.call(*command)
    worker.close()
    assert direct.head().offset == 1


def test_a_fenced_writer_stays_fenced_whatever_is_lost(through: Any, direct: Any, proxy: Any, writer: Any) -> None:
    older = writer(through())
    direct.open("newer")
    proxy.faults.append("unanswered")
    with pytest.raises(Fenced):
        older.say()
    assert direct.head().offset == 0
