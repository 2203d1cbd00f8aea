"""The workers' side of a Redis log. Workers never see the entries.

Rule 1: a claim and a report are one script each, and both can be asked again: the same call of ``take`` gets the same
        order, and a lease that is done already has its result in the stream.
Rule 2: a read blocks for at most 2 s; then the worker reads the epoch, for a blocked XREAD does not notice that its
        stream was deleted.
"""

import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from rollog.events.codec import pack_message, unpack_message
from rollog.events.connection import Address, Argument, Patience, Script, ServerSaid
from rollog.events.errors import ServerRefused
from rollog.events.keys import Keys
from rollog.events.leases import claim_of, parse_leases
from rollog.events.log import Leases
from rollog.events.messages import Notice, Order, Result, TrainMessage
from rollog.events.redis_reader import stream_messages, whole_number

MAX_BLOCK_S: Final = 2.0
MESSAGES_PER_READ: Final = 256

_TAKE: Final = Script.packaged("take")
_REFRESH: Final = Script.packaged("refresh")
_REPORT: Final = Script.packaged("report")

T = TypeVar("T")


class RedisDesk:
    """``Desk`` on a Redis or Valkey server, over one connection."""

    def __init__(self, address: Address, run: str, *, answer_within_s: float = 5.0) -> None:
        """``answer_within_s``: how long an unanswered call is asked again before ``ServerUnreachable``."""
        self._keys = Keys(run)
        self._connection = address.connect()
        self._answer_within_s = answer_within_s
        self._name = os.urandom(8).hex()
        self._num_takes = 0

    def epoch(self) -> int:
        """The writer epoch in force; 0 before the first controller."""
        found = self._insist(lambda: self._connection.call("HGET", self._keys.meta, "epoch"))
        return 0 if found is None else whole_number(found, f"{self._keys.meta} epoch")

    def take(self, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Order | None:
        """The first free order that fits, now leased to ``worker``."""
        return next(iter(self.take_up_to(1, worker, epoch, version, exactly=exactly)), None)

    def take_up_to(self, most: int, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Sequence[Order]:
        """The first free orders that fit, now leased to ``worker``."""
        self._num_takes += 1
        keys = self._keys
        reply = self._insist(lambda: self._connection.run(_TAKE, [keys.leases], [
            keys.meta, keys.work(epoch), keys.orders(epoch), epoch, worker, version, int(exactly),
            f"{self._name}-{self._num_takes}", most,
        ]))  # fmt: skip
        return [cast(Order, unpack_message(body)) for body in reply[1:]]

    def refresh(self, worker: str, claims: Sequence[tuple[str, int]]) -> Sequence[str]:
        """Refresh these leases; returns the keys that are gone or somebody else's."""
        if not claims:
            return []
        flat: list[Argument] = [part for claim in claims for part in claim]
        gone = self._insist(lambda: self._connection.run(_REFRESH, [self._keys.leases], [worker, *flat]))
        return [key.decode() for key in gone]

    def report(self, result: Result, lease: str | None = None) -> None:
        """Put the result into the stream and mark the lease done."""
        self.report_all([(result, lease)])

    def report_all(self, results: Sequence[tuple[Result, str | None]]) -> None:
        """Report all of them in one round trip."""
        calls: list[list[Argument]] = []
        for result, lease in results:
            attempt, worker = claim_of(result) or (0, "")
            calls.append([pack_message(result), lease or "", attempt, worker])
        keys = [self._keys.results, self._keys.leases]
        self._insist(lambda: self._connection.run_all(_REPORT, keys, calls))

    def train(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, TrainMessage]]:
        """Messages for trainer ranks after that id."""
        found = self._read(self._keys.train(epoch), after, block_s)
        return [(id, cast(TrainMessage, unpack_message(body))) for id, body in found]

    def control(self, epoch: int, after: str | None, block_s: float) -> Sequence[tuple[str, Notice]]:
        """Notices after that id."""
        found = self._read(self._keys.control(epoch), after, block_s)
        return [(id, cast(Notice, unpack_message(body))) for id, body in found]

    def leases(self) -> Leases:
        """All leases, with the server's clock."""
        time, found = self._insist(lambda: self._connection.pipeline([["TIME"], ["HGETALL", self._keys.leases]]))
        return parse_leases(time, found)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _read(self, key: str, after: str | None, block_s: float) -> list[tuple[str, bytes]]:
        block_s = min(block_s, MAX_BLOCK_S)
        return self._insist(lambda: stream_messages(self._connection, key, after, block_s, MESSAGES_PER_READ))

    def _insist(self, ask: Callable[[], T]) -> T:
        try:
            return Patience(self._answer_within_s).insist(ask)
        except ServerSaid as said:
            raise ServerRefused(f"the server refused a worker's call: {said}") from said
