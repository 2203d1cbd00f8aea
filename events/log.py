"""The log: what a store of entries promises, and what the workers see beside it.

Rule 1: offsets are dense: 1, 2, 3, ... An entry is appended whole or not at all, once, by the holder of the pen.
Rule 2: each entry's digest covers its bytes and the digest before it; bytes are copied, never encoded again.
Rule 3: what an entry tells the workers (its outbox) is written in the same script as the entry itself.
Rule 4: an offset that is nowhere is an error, never an empty answer.

``Log`` is the controller's side, ``Desk`` the workers' side. Every store passes the same tests of both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rollog.events.messages import Cause, Notice, Order, Result, TrainMessage
from rollog.events.vocabulary import Event

GENESIS: Final = "0" * 32
"""The digest before the first entry."""

MAX_ENTRY_BYTES: Final = 1 << 20
MAX_DISPATCHES_PER_ENTRY: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One atomic decision as it stands in the log.

    ``time``: wall time in seconds; ``input``: the answered result's id.
    """

    offset: int
    epoch: int
    time: float
    input: str | None
    events: tuple[Event, ...]
    digest: str
    header: bytes
    payload: bytes

    @property
    def cause(self) -> Cause:
        """The name that messages of this entry carry and results echo."""
        return Cause(offset=self.offset, epoch=self.epoch, digest=self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry's offset and digest; (0, GENESIS) for an empty log."""

    offset: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """What one entry tells the workers. ``ended``: ordinals whose order and lease go.

    ``control``: whoever names published weights names all that hold; control is cut before them. ``results_read``: the
    results up to this id are answered and can be trimmed. ``train_from``: train messages of steps below can be trimmed;
    no trainer begins before it any more.
    """

    orders: tuple[Order, ...] = ()
    ended: tuple[int, ...] = ()
    train: tuple[TrainMessage, ...] = ()
    control: tuple[Notice, ...] = ()
    results_read: str | None = None
    train_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """The right to write: the writer epoch, and the head that was found."""

    epoch: int
    head: Head
    log_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """A store gives the room of trimmed entries back: it does so now, has done it, or could not, and why.

    After a failure it is asked again at the next ``trim``.
    """

    under_way: bool = False
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One result as it lies in the results stream; ``body`` is not decoded yet, it came from a worker."""

    id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's claim. ``number``: the attempt, the trainer generation, or a process id, by kind of key.

    Keys: ``p:<ordinal>`` (an order), ``rank:<n>`` (a trainer rank), ``worker:<name>`` (a process that is there),
    ``controller``. ``began`` and ``refreshed`` are the server's time in seconds. ``done``: its result is in the stream.
    """

    key: str
    number: int
    worker: str
    began: float
    refreshed: float
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """All leases at one moment ``now`` of the server's clock."""

    now: float
    by_key: Mapping[str, Lease]


class Reader(Protocol):
    """Reading disturbs nobody."""

    def head(self) -> Head:
        """Offset and digest of the last entry."""
        ...

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last`` (None: to the head), in order, their digest chain checked.

        Raises ``CorruptEntry`` for bytes that are not what was written, ``MissingEntry`` for an offset that is nowhere.
        """
        ...


class Log(Reader, Protocol):
    """The controller's side."""

    def open(self, nonce: str) -> Pen:
        """Take the pen. Older writers are fenced from here on. The same nonce gets the same epoch."""
        ...

    def plant(self, head: Head, epoch: int, log_id: str) -> None:
        """Begin a log whose entries up to ``head`` lie in segments; the first pen's epoch is ``epoch`` + 1.

        ``epoch``: at least that of the entry at ``head``. Done twice it is done once. Raises ``Conflict`` when the
        store holds another log.
        """
        ...

    def trim(self, last: int) -> Shortening:
        """Forget the entries up to ``last``, which lie in segments and of which it is said so in the log.

        The store begins to give their room back, and does not wait for that.
        """
        ...

    def shortening(self) -> Shortening:
        """What has become of giving the room back after the last ``trim``."""
        ...

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append the entries as one pipelined window, each atomic and durable, each with its outbox.

        Answers lost on the way are asked again with identical bytes. Raises ``Fenced`` when another controller holds
        the pen, ``Conflict`` for two histories, ``LostTail`` when the server's log is shorter than what was
        acknowledged, ``LogUncertain`` when no answer came in time: then open again with a new nonce and fold.
        """
        ...

    def hand_over(self, outbox: Outbox) -> None:
        """Fill this epoch's orders, train and control from the fold and delete the older epochs', in one script."""
        ...

    def results(self, after: str | None, block_s: float) -> Sequence[Delivery]:
        """Results after that id, oldest first; waits up to ``block_s`` seconds for the first."""
        ...

    def leases(self) -> Leases:
        """All leases, with the server's clock."""
        ...

    def put_lease(self, key: str, number: int, worker: str) -> None:
        """Write a lease for a process that is being started, or refresh the controller's own."""
        ...

    def end_leases(self, keys: Sequence[str]) -> None:
        """Take away the leases of processes that are gone."""
        ...

    def pressure(self) -> bool:
        """Whether the server's memory is above four fifths of its limit."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Desk(Protocol):
    """The workers' side. Workers never see the log."""

    def epoch(self) -> int:
        """The writer epoch in force; 0 before the first controller."""
        ...

    def take(self, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Order | None:
        """The first order in flight that nobody holds and that asks for weights <= ``version`` (``exactly``: equal).

        Its lease is written in the same script. None: nothing to do, or ``epoch`` is no longer in force.
        """
        ...

    def take_up_to(self, most: int, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Sequence[Order]:
        """Up to ``most`` such orders in the order of their dispatch, in one script: one wait for the server's disk."""
        ...

    def refresh(self, worker: str, claims: Sequence[tuple[str, int]]) -> Sequence[str]:
        """Refresh these (key, number) leases in one script; returns the keys that are gone or somebody else's."""
        ...

    def report(self, result: Result, lease: str | None = None) -> None:
        """Put the result into the stream and mark the lease done, in one transaction."""
        ...

    def report_all(self, results: Sequence[tuple[Result, str | None]]) -> None:
        """Report all of them, in order, each with its lease: one wait for the server's disk."""
        ...

    def train(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, TrainMessage]]:
        """Messages for trainer ranks after that id; waits up to ``block_s`` (at most 2) seconds."""
        ...

    def control(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, Notice]]:
        """Notices after that id; waits up to ``block_s`` (at most 2) seconds."""
        ...

    def leases(self) -> Leases:
        """All leases, with the server's clock (``controller`` tells whether somebody steers)."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...
