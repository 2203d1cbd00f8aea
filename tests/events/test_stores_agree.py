"""Random histories on the memory log and on a real server: every answer and everything that can be seen is the same."""

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from rollog.events.codec import seal, unpack_message
from rollog.events.errors import Fenced
from rollog.events.log import Desk, Entry, Head, Log, Outbox, Pen
from rollog.events.memory_log import MemoryServer
from rollog.events.messages import Ending, GroupDone, NewGeneration, NewWeights, Notice, Order, SaveOrder
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.events.server import EmbeddedServer
from rollog.events.vocabulary import Note, SaveReason

BLOB = "ab" * 32
WORKERS = ["one", "two"]


class Actor:
    """Plays one history; whatever it sees goes into ``seen``, without times and stream ids."""

    def __init__(self, seed: int, logs: list[Log], desk: Desk) -> None:
        self.rng = random.Random(seed)
        self.logs, self.desk = logs, desk
        self.pens: list[Pen | None] = [None for _ in logs]
        self.heads = [Head(offset=0, digest="") for _ in logs]
        self.orders: dict[int, Order] = {}
        self.taken: list[tuple[str, Order]] = []
        self.answered = 0
        self.nonces = 0
        self.seen: list[Any] = []

    def play(self, num_steps: int) -> list[Any]:
        self.take_pen(0)
        for _ in range(num_steps):
            act = self.rng.choices(
                [self.append, self.take, self.report, self.refresh, self.leases, self.change, self.hand_over],
                [30, 25, 15, 8, 8, 4, 5],
            )[0]
            self.seen.append((act.__name__, act()))
            self.look()
        return self.seen

    def look(self) -> None:
        epoch = self.desk.epoch()
        self.seen.append((
            epoch,
            self.logs[0].head(),
            [message for _, message in self.desk.train(epoch, None, 0)],
            [notice for _, notice in self.desk.control(epoch, None, 0)],
            [unpack_message(delivery.body) for delivery in self.logs[0].results(None, 0)],
            sorted((key, each.number, each.worker, each.done) for key, each in self.desk.leases().by_key.items()),
        ))  # fmt: skip

    def writer(self) -> int:
        return self.rng.choice([index for index, pen in enumerate(self.pens) if pen is not None])

    def take_pen(self, index: int) -> int:
        self.nonces += 1
        pen = self.logs[index].open(f"nonce-{self.nonces}")
        self.pens[index], self.heads[index] = pen, pen.head
        return pen.epoch

    def change(self) -> int:
        return self.take_pen(self.rng.randrange(len(self.logs)))

    def append(self) -> str:
        index = self.writer()
        pen, head = self.pens[index], self.heads[index]
        assert pen is not None
        window, orders = [], dict(self.orders)
        for _ in range(self.rng.randint(1, 3)):
            entry = seal(
                offset=head.offset + 1, epoch=pen.epoch, time=1.0, input=None,
                events=[Note(what="n", text=str(self.rng.random()))], previous=head.digest,
            )  # fmt: skip
            window.append((entry, self.outbox(entry, orders)))
            head = Head(offset=entry.offset, digest=entry.digest)
        try:
            self.logs[index].append(window)
        except Fenced:
            return "fenced"
        self.orders, self.heads[index] = orders, head
        return "ok"

    def outbox(self, entry: Entry, orders: dict[int, Order]) -> Outbox:
        ended = [prompt for prompt in list(orders) if self.rng.random() < 0.2]
        for prompt in ended:
            del orders[prompt]
        made = []
        for prompt in self.rng.sample(range(12), self.rng.randint(0, 2)):
            attempt = orders[prompt].attempt + 1 if prompt in orders else entry.offset
            order = Order(
                prompt=prompt, attempt=attempt, step=None, weights=self.rng.randint(0, 3), row=prompt,
                data_failures=0, cause=entry.cause,
            )  # fmt: skip
            orders.pop(prompt, None)
            orders[prompt] = order
            made.append(order)
        version = entry.offset // 4 + self.rng.randint(0, 3)
        train = [SaveOrder(generation=1, version=version, reason=SaveReason.STOP, cause=entry.cause)]
        control: list[Notice] = [
            NewWeights(version=self.rng.randint(0, 5), file="f", digest=BLOB),
            NewGeneration(generation=entry.offset),
            Ending(reason="x"),
        ]
        deliveries = self.logs[0].results(None, 0)
        read = deliveries[0].id if deliveries and self.rng.random() < 0.5 else None
        return Outbox(
            orders=tuple(made),
            ended=tuple(ended),
            train=tuple(train * self.rng.randint(0, 1)),
            control=tuple(self.rng.sample(control, self.rng.randint(0, 2))),
            results_read=read,
            train_from=entry.offset // 4 if self.rng.random() < 0.2 else None,
        )

    def take(self) -> Order | None:
        worker, epoch = self.rng.choice(WORKERS), self.desk.epoch() - (self.rng.random() < 0.1)
        order = self.desk.take(worker, epoch, self.rng.randint(0, 3), exactly=self.rng.random() < 0.3)
        if order is not None:
            self.taken.append((worker, order))
        return order

    def report(self) -> None:
        if not self.taken:
            return
        worker, order = self.rng.choice(self.taken)
        result = GroupDone(
            prompt=order.prompt, attempt=order.attempt, cause=order.cause, blob=BLOB, born=0, done=0, rollouts=1,
            rows=1, tokens=1, reward_mean=0.0, reward_std=0.0, worker=worker,
        )  # fmt: skip
        self.desk.report(result, f"p:{order.prompt}" if self.rng.random() < 0.9 else None)

    def refresh(self) -> list[str]:
        claims = [(f"p:{order.prompt}", order.attempt) for _, order in self.taken[-5:]]
        return list(self.desk.refresh(self.rng.choice(WORKERS), claims))

    def leases(self) -> str:
        log = self.logs[self.writer()]
        try:
            if self.rng.random() < 0.7:
                log.put_lease(f"rank:{self.rng.randint(0, 1)}", self.rng.randint(1, 2), self.rng.choice(WORKERS))
            else:
                log.end_leases([f"rank:{self.rng.randint(0, 1)}"])
        except Fenced:
            return "fenced"
        return "ok"

    def hand_over(self) -> str:
        kept = [order for order in self.orders.values() if self.rng.random() < 0.8]
        try:
            self.logs[self.writer()].hand_over(Outbox(orders=tuple(kept), control=(NewGeneration(generation=9),)))
        except Fenced:
            return "fenced"
        self.orders = {order.prompt: order for order in kept}
        return "ok"


@pytest.fixture
def stores(server: EmbeddedServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    run = f"agree-{request.node.callspec.id}"
    logs = [RedisLog(server.address(), run) for _ in range(2)]
    with closing(RedisDesk(server.address("worker"), run)) as desk, closing(logs[0]), closing(logs[1]):
        yield logs, desk


@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_looks_the_same_in_both_stores(stores: Any, seed: int) -> None:
    memory = MemoryServer(clock=lambda: 0.0)
    expected = Actor(seed, [memory.log(), memory.log()], memory.desk()).play(120)
    found = Actor(seed, *stores).play(120)
    for step, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one == other, f"step {step // 2}"
    acts = {seen[0] for seen in expected[::2]}
    assert acts == {"append", "take", "report", "refresh", "leases", "change", "hand_over"}
    assert list(memory.log().read()) == list(stores[0][0].read())
