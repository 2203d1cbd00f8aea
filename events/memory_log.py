"""The log in memory, for tests and simulations: the same promises as a server's, without a server.

Rule 1: ``MemoryServer`` holds what a server would hold; ``log()`` and ``desk()`` are connections to it. A simulated
        controller dies by being forgotten; the server stays.
Rule 2: it never waits: ``block_s`` returns at once with what is there. Time is the ``clock`` it was given.
Rule 3: it is trusted because it passes the Redis log's tests (``tests/events/test_log_contract.py``); each method says
        which script it mirrors.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import TypeVar

from rollog.events.codec import digest_of, pack_message, unseal
from rollog.events.errors import Conflict, Fenced, LostTail, MissingEntry
from rollog.events.leases import claim_of
from rollog.events.log import GENESIS, Delivery, Entry, Head, Lease, Leases, Outbox, Pen, Reader, Shortening
from rollog.events.messages import Notice, Order, Result, TrainMessage
from rollog.events.outbox import ControlBook, step_of
from rollog.events.stream_ids import stream_id_key

M = TypeVar("M")
T = TypeVar("T")


@dataclass(slots=True)
class _Stored:
    """An entry as bytes, with the digest before it. ``decoded``: what its bytes say, once somebody has asked."""

    entry: Entry
    previous: str
    decoded: Entry | None = None

    def read(self) -> Entry:
        """The entry out of its bytes, decoded once for the same bytes."""
        header, payload = self.entry.header, self.entry.payload
        if self.decoded is None or self.decoded.header is not header or self.decoded.payload is not payload:
            self.decoded = unseal(header, payload, self.entry.digest, self.previous)
        return self.decoded


class MemoryServer:
    """What one server holds for one run. ``clock``: seconds; ``under_pressure``: set it to play a full memory.

    ``archive``: where entries lie that it no longer holds, or never held.
    """

    def __init__(self, clock: Callable[[], float], log_id: str = "memory", archive: Reader | None = None) -> None:
        self.clock = clock
        self.archive = archive
        self.planted: Head | None = None
        self.log_id = log_id
        self.under_pressure = False
        self.epoch = 0
        self.nonce: str | None = None
        self.entries: list[_Stored] = []
        self.work: dict[int, Order] = {}
        self.train: list[tuple[str, TrainMessage]] = []
        self.control: list[tuple[str, Notice]] = []
        self.results: list[Delivery] = []
        self.leases: dict[str, Lease] = {}
        self.num_ids = 0

    @property
    def head(self) -> Head:
        """Offset and digest of the last entry."""
        if not self.entries:
            return self.planted or Head(offset=0, digest=GENESIS)
        last = self.entries[-1].entry
        return Head(offset=last.offset, digest=last.digest)

    def next_id(self) -> str:
        """A stream id that is higher than all before."""
        self.num_ids += 1
        return f"{self.num_ids}-0"

    def log(self) -> "MemoryLog":
        """A controller's connection."""
        return MemoryLog(self)

    def desk(self) -> "MemoryDesk":
        """A worker's connection."""
        return MemoryDesk(self)


class MemoryLog:
    """``Log`` on a ``MemoryServer``."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._nonce: str | None = None
        self._epoch = 0
        self._book = ControlBook()

    def head(self) -> Head:
        """Offset and digest of the last entry."""
        return self._server.head

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last``, decoded from their bytes."""
        server, head = self._server, self._server.head.offset
        end = head if last is None else last
        if first < 1 or end > head:
            raise MissingEntry(f"entries {first}..{end} were asked for; the log holds 1..{head}")
        before = head - len(server.entries)
        if first <= min(before, end):
            if server.archive is None:
                raise MissingEntry(f"entry {first} is neither in the memory nor in a segment")
            yield from server.archive.read(first, min(before, end))
        for stored in server.entries[max(0, first - 1 - before) : max(0, end - before)]:
            yield stored.read()

    def plant(self, head: Head, epoch: int, log_id: str) -> None:
        """Begin a log whose entries up to ``head`` lie elsewhere (plant.lua)."""
        server = self._server
        if server.planted is None and server.nonce is None:
            server.planted, server.epoch, server.log_id = head, epoch, log_id
        elif (server.planted, server.log_id) != (head, log_id):
            raise Conflict(f"the server holds another log under this run's name, {server.log_id}: choose another name")

    def trim(self, last: int) -> Shortening:
        """Forget the entries up to ``last`` (trim.lua)."""
        self._fence()
        server, head = self._server, self._server.head.offset
        if last >= head:
            raise ValueError(f"entry {last} cannot go: the log ends with {head}")
        del server.entries[: max(0, last - (head - len(server.entries)))]
        return Shortening()

    def shortening(self) -> Shortening:
        """It takes no time."""
        return Shortening()

    def open(self, nonce: str) -> Pen:
        """Take the pen (open.lua)."""
        server = self._server
        if server.nonce != nonce:
            server.epoch += 1
            server.nonce = nonce
            server.work.clear()
            server.train.clear()
            server.control.clear()
        self._nonce, self._epoch, self._book = nonce, server.epoch, ControlBook()
        return Pen(epoch=server.epoch, head=server.head, log_id=server.log_id)

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append each entry with its outbox (append.lua)."""
        server = self._server
        for entry, outbox in window:
            self._fence()
            if entry.epoch != self._epoch:
                raise ValueError(f"entry {entry.offset} is of epoch {entry.epoch}; this writer holds {self._epoch}")
            head = server.head
            before = head.offset - len(server.entries)
            if before < entry.offset <= head.offset:
                there = server.entries[entry.offset - 1 - before].entry.digest
                if there == entry.digest:
                    continue
                raise Conflict(f"entry {entry.offset} has the digest {there} in the log and {entry.digest} here")
            if entry.offset != head.offset + 1:
                raise LostTail(f"entry {entry.offset} cannot follow the log's head {head.offset}")
            if digest_of(head.digest, entry.header, entry.payload) != entry.digest:
                raise Conflict(
                    f"entry {entry.offset} does not follow the log's last entry, whose digest is {head.digest}"
                )
            server.entries.append(_Stored(entry, head.digest))
            self._send(outbox)

    def hand_over(self, outbox: Outbox) -> None:
        """Fill this epoch's orders, train and control anew (hand_over.lua)."""
        self._fence()
        server = self._server
        server.work.clear()
        server.train.clear()
        server.control.clear()
        self._book = ControlBook()
        running = {f"p:{order.prompt}": order.attempt for order in outbox.orders}
        for key, lease in list(server.leases.items()):
            if key.startswith("p:") and running.get(key) != lease.number:
                del server.leases[key]
        self._send(outbox)

    def results(self, after: str | None, block_s: float) -> Sequence[Delivery]:
        """Results after that id, oldest first; never waits."""
        results = self._server.results
        return results[_after(results, after, _id_of_delivery) :]

    def leases(self) -> Leases:
        """All leases."""
        return Leases(now=self._server.clock(), by_key=dict(self._server.leases))

    def put_lease(self, key: str, number: int, worker: str) -> None:
        """Write or refresh a lease (put_lease.lua)."""
        self._fence()
        now, had = self._server.clock(), self._server.leases.get(key)
        kept = had is not None and (had.number, had.worker) == (number, worker)
        began = had.began if had is not None and kept else now
        self._server.leases[key] = Lease(
            key=key, number=number, worker=worker, began=began, refreshed=now, done=had.done if had and kept else False
        )

    def end_leases(self, keys: Sequence[str]) -> None:
        """Take away leases of processes (end_leases.lua)."""
        self._fence()
        for key in keys:
            if key.startswith("p:"):
                raise ValueError(f"the lease {key} ends with the entry that ends its attempt, not by end_leases")
            self._server.leases.pop(key, None)

    def pressure(self) -> bool:
        """What ``under_pressure`` says."""
        return self._server.under_pressure

    def close(self) -> None:
        """Nothing to let go of."""

    def _fence(self) -> None:
        server = self._server
        if self._nonce is None:
            raise ValueError("open() the log before writing to it")
        if (server.nonce, server.epoch) != (self._nonce, self._epoch):
            raise Fenced(f"epoch {server.epoch} holds the pen; this writer's epoch {self._epoch} is over: stop")

    def _send(self, outbox: Outbox) -> None:
        """Write one outbox; the order of its parts is that of the script."""
        server = self._server
        for prompt in outbox.ended:
            server.work.pop(prompt, None)
            server.leases.pop(f"p:{prompt}", None)
        for order in outbox.orders:
            pack_message(order)
            server.work.pop(order.prompt, None)
            server.work[order.prompt] = order
            lease = server.leases.get(f"p:{order.prompt}")
            if lease is not None and lease.number != order.attempt:
                del server.leases[f"p:{order.prompt}"]
        if outbox.train_from is not None:
            while server.train and step_of(server.train[0][1]) < outbox.train_from:
                del server.train[0]
        for message in outbox.train:
            pack_message(message)
            server.train.append((server.next_id(), message))
        notices, cut = self._book.notices(outbox)
        if cut:
            server.control.clear()
        for notice in outbox.control:  # what is said again was packed when it was said first
            pack_message(notice)
        for notice in notices:
            server.control.append((server.next_id(), notice))
        if outbox.results_read is not None:
            results = server.results
            server.results = results[_after(results, outbox.results_read, _id_of_delivery) :]


class MemoryDesk:
    """``Desk`` on a ``MemoryServer``."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def epoch(self) -> int:
        """The writer epoch in force."""
        return self._server.epoch

    def take(self, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Order | None:
        """The first free order that fits (take.lua)."""
        server = self._server
        if epoch != server.epoch:
            return None
        for prompt, order in server.work.items():
            key = f"p:{prompt}"
            if key not in server.leases and (order.weights == version or (order.weights < version and not exactly)):
                now = server.clock()
                server.leases[key] = Lease(
                    key=key, number=order.attempt, worker=worker, began=now, refreshed=now, done=False
                )
                return order
        return None

    def take_up_to(self, most: int, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Sequence[Order]:
        """The first free orders that fit."""
        taken = (self.take(worker, epoch, version, exactly=exactly) for _ in range(most))
        return [order for order in taken if order is not None]

    def refresh(self, worker: str, claims: Sequence[tuple[str, int]]) -> Sequence[str]:
        """Refresh leases; returns the keys that are gone or somebody else's (refresh.lua)."""
        server, now, gone = self._server, self._server.clock(), []
        for key, number in claims:
            lease = server.leases.get(key)
            if lease is None or (lease.number, lease.worker) != (number, worker):
                gone.append(key)
            else:
                server.leases[key] = _refreshed(lease, now)
        return gone

    def report(self, result: Result, lease: str | None = None) -> None:
        """Put the result into the stream and mark the lease done (report.lua)."""
        server = self._server
        body = pack_message(result)
        if lease is not None:
            held = server.leases.get(lease)
            if held is not None and (held.number, held.worker) == claim_of(result):
                if held.done:
                    return
                server.leases[lease] = replace(held, done=True)
        server.results.append(Delivery(id=server.next_id(), body=body))

    def report_all(self, results: Sequence[tuple[Result, str | None]]) -> None:
        """Report one after the other."""
        for result, lease in results:
            self.report(result, lease)

    def train(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, TrainMessage]]:
        """Messages for trainer ranks after that id; never waits."""
        return self._after(self._server.train, epoch, after)

    def control(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, Notice]]:
        """Notices after that id; never waits."""
        return self._after(self._server.control, epoch, after)

    def leases(self) -> Leases:
        """All leases."""
        return Leases(now=self._server.clock(), by_key=dict(self._server.leases))

    def close(self) -> None:
        """Nothing to let go of."""

    def _after(self, stream: list[tuple[str, M]], epoch: int, after: str | None) -> Sequence[tuple[str, M]]:
        if epoch != self._server.epoch or not stream:
            return ()
        return stream[_after(stream, after, _id_of_message) :]


def _after(stream: Sequence[T], after: str | None, id_of: Callable[[T], str]) -> int:
    """Where in a stream, whose ids rise, the part behind that id begins."""
    if after is None or not stream:
        return 0
    if id_of(stream[-1]) == after:  # most readers have read all there is
        return len(stream)
    if id_of(stream[0]) == after:  # and most answers are given to the oldest result
        return 1
    return bisect_right(stream, stream_id_key(after), key=lambda item: stream_id_key(id_of(item)))


_id_of_delivery = attrgetter("id")
_id_of_message = itemgetter(0)


def _refreshed(lease: Lease, now: float) -> Lease:
    """The lease, refreshed now: ``dataclasses.replace`` takes three times as long, and leases are refreshed most."""
    return Lease(
        key=lease.key, number=lease.number, worker=lease.worker, began=lease.began, refreshed=now, done=lease.done
    )
