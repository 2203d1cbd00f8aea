"""A worker's sign of life, and what it learns from it."""

import select
import time
from dataclasses import replace

import pytest

from rollog.events.errors import ServerUnreachable
from rollog.events.memory_log import MemoryServer
from rollog.events.messages import Cause, Order
from rollog.pipeline.heartbeat import Heartbeat, Orphaned, Replaced
from rollog.pipeline.worker_desk import PatientDesk

WITHIN_S = 5.0


@pytest.fixture
def server():
    made = MemoryServer(time.monotonic)
    log = made.log()
    log.open("controller")
    log.put_lease("worker:gen-0", 3, "gen-0")
    log.put_lease("controller", 1, "controller")
    return made


def heartbeat(server, *, orphan_s: float = 60.0, connect=None) -> Heartbeat:
    return Heartbeat(connect or server.desk, "gen-0", (("worker:gen-0", 3),), lease_s=0.06, orphan_s=orphan_s)


def until(happened):
    """Wait for what another thread does; the last answer."""
    deadline = time.monotonic() + WITHIN_S
    while not (answer := happened()) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return answer


def hold(server, prompt: int) -> None:
    order = Order(
        prompt=prompt, attempt=1, step=0, weights=0, row=0, data_failures=0, cause=Cause(offset=1, epoch=1, digest="00")
    )
    server.work[prompt] = order
    assert server.desk().take("gen-0", server.epoch, 0) == order


def test_leases_stay_fresh_while_the_worker_does_something_else(server):
    hold(server, 7)
    with heartbeat(server) as beating:
        beating.hold([("p:7", 1)])
        until(lambda: server.leases["p:7"].refreshed > server.leases["p:7"].began + 0.1)

        for key in ("worker:gen-0", "p:7"):
            assert time.monotonic() - server.leases[key].refreshed < 0.06 * 20
        assert beating.lost() == []


def test_an_order_that_was_decided_about_is_lost_once(server):
    hold(server, 7)
    with heartbeat(server) as beating:
        beating.hold([("p:7", 1)])
        del server.leases["p:7"]
        lost = until(beating.lost)
        beating.hold([])

        assert set(lost) == {("p:7", 1)}


def test_a_process_whose_name_was_taken_over_ends(server):
    with heartbeat(server) as beating:
        log = server.log()
        log.open("another")
        log.put_lease("worker:gen-0", 4, "gen-0")

        with pytest.raises(Replaced, match="worker:gen-0"):
            until(beating.lost)


def test_a_worker_that_sees_no_controller_for_too_long_ends(server):
    del server.leases["controller"]
    with heartbeat(server, orphan_s=0.2) as beating, pytest.raises(Orphaned, match="rollog resume"):
        until(beating.lost)


def test_a_stale_controller_does_not_count_as_one(server):
    old = server.leases["controller"]
    server.leases["controller"] = replace(old, refreshed=old.refreshed - 3600)
    with heartbeat(server, orphan_s=0.2) as beating, pytest.raises(Orphaned):
        until(beating.lost)


class Away:
    """A server that is not there, until it is."""

    def __init__(self, desk, failures: int) -> None:
        self._desk, self.failures = desk, failures

    def _try(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise ServerUnreachable("no answer")

    def epoch(self):
        self._try()
        return self._desk.epoch()

    def refresh(self, worker, claims):
        self._try()
        return self._desk.refresh(worker, claims)

    def leases(self):
        return self._desk.leases()

    def close(self): ...


def test_a_server_that_is_away_for_a_while_costs_time_only(server):
    with heartbeat(server, connect=lambda: Away(server.desk(), 3)) as beating:
        assert PatientDesk(Away(server.desk(), 3), beating).epoch() == server.epoch
        assert beating.lost() == []


def test_a_server_that_stays_away_ends_the_worker(server):
    with heartbeat(server, orphan_s=0.2, connect=lambda: Away(server.desk(), 10**9)) as beating:
        patient = PatientDesk(Away(server.desk(), 10**9), beating)

        with pytest.raises(Orphaned):
            patient.epoch()
