"""The log in one Redis stream: the controller's side.

Rule 1: the script answers one of
            OK         appended, with its outbox
            DUPLICATE  an earlier try had landed: success
            GAP        the head is another one: success if that head is an entry of this window, for all up to it
            FENCED     another controller holds the pen: stop
            CONFLICT   two histories: stop
            GONE       the log or its meta was deleted: stop
            USED       another log has this run's name: stop
            TYPE       a key holds something else: stop
Rule 2: no answer means that nothing is known. The identical bytes are sent again until there is an answer or the
        deadline passes; reading the tail would not be enough, the first try can still land.
Rule 3: errors that say "not applied" (LOADING, OOM, MISCONF, READONLY, BUSY, NOSCRIPT) are asked again the same way.
Rule 4: the mark outside is kept once a second of the entries' own time and at every checkpoint, after the answer.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from rollog.events import rewriting
from rollog.events.codec import FORMAT, digest_of
from rollog.events.connection import Address, Argument, Patience, Script, ServerSaid, pause
from rollog.events.errors import (
    Conflict,
    CorruptEntry,
    Fenced,
    LogUncertain,
    LostTail,
    ServerRefused,
    ServerUnreachable,
)
from rollog.events.leases import parse_leases
from rollog.events.log import GENESIS, Delivery, Entry, Head, Leases, Outbox, Pen, Reader, Shortening
from rollog.events.mark import Mark, MarkFile, check_mark
from rollog.events.outbox import ControlBook, append_arguments, hand_over_arguments
from rollog.events.redis_reader import RedisReader, stream_messages, text_of, whole_number
from rollog.events.server_settings import server_info
from rollog.events.vocabulary import Checkpoint

NOT_APPLIED: Final = {"LOADING", "OOM", "MISCONF", "READONLY", "BUSY", "NOSCRIPT"}
MAX_BLOCK_S: Final = 2.0
RESULTS_PER_READ: Final = 512
MARK_EVERY_S: Final = 1.0
PRESSURE: Final = 0.8

_APPEND: Final = Script.packaged("append")
_OPEN: Final = Script.packaged("open")
_HAND_OVER: Final = Script.packaged("hand_over")
_LEASE: Final = Script.packaged("lease")
_PLANT: Final = Script.packaged("plant")
_TRIM: Final = Script.packaged("trim")


class RedisLog(RedisReader):
    """``Log`` on a Redis or Valkey server, over one connection."""

    def __init__(
        self,
        address: Address,
        run: str,
        *,
        mark: MarkFile | None = None,
        accept_loss: bool = False,
        archive: Reader | None = None,
        answer_within_s: float = 30.0,
        revive: Callable[[], object] | None = None,
    ) -> None:
        """``mark``: the file that remembers how far the log had come; ``accept_loss``: go on from a log behind it.

        ``archive``: where entries lie that the stream no longer holds. ``answer_within_s``: how long an unanswered call
        is asked again. ``revive``: called when the server is away (the embedded one is started again with it).
        """
        super().__init__(address, run, archive=archive, answer_within_s=answer_within_s, revive=revive)
        self._mark = mark
        self._accept_loss = accept_loss
        self._nonce = ""
        self._pen: Pen | None = None
        self._oldest = 1
        self._head = Head(offset=0, digest=GENESIS)
        self._book = ControlBook()
        self._marked_at = float("-inf")
        self._marked = 0
        self._mark_due = Patience(0.0)

    def open(self, nonce: str) -> Pen:
        """Take the pen. Raises ``LostTail`` when the mark outside knows more than the server."""
        if not nonce:
            raise ValueError("a nonce names one controller; it must not be empty")
        mark = self._mark.read() if self._mark is not None else None
        if mark is not None:
            try:
                self.check_mark()
            except LostTail:
                if self.log_id() is None or not self._accept_loss:
                    raise
        self._insist(lambda: rewriting.leave_torn_block(self._connection))
        reply = self._answer(_OPEN, [self.keys.log, self.keys.meta], [
            nonce, nonce, FORMAT, GENESIS, 0 if mark is None else mark.epoch,
        ])  # fmt: skip
        epoch, offset, digest, log_id, oldest = reply[1:]
        self._nonce, self._oldest, self._book = nonce, whole_number(oldest, f"{self.keys.meta} oldest"), ControlBook()
        self._head = Head(offset=whole_number(offset, f"{self.keys.meta} offset"), digest=text_of(digest))
        self._pen = Pen(epoch=whole_number(epoch, f"{self.keys.meta} epoch"), head=self._head, log_id=text_of(log_id))
        self._check_end()
        self._keep_mark()  # a log that was sealed at its end is not at its end any more
        return self._pen

    def check_mark(self) -> None:
        """Compare the server with the mark outside; writes nothing. Raises ``LostTail`` when the mark knows more."""
        mark = self._mark.read() if self._mark is not None else None
        if mark is not None:
            head, log_id = self.head(), self.log_id()
            check_mark(mark, log_id, head, self.digest_at(mark.offset) if log_id is not None else None)

    def plant(self, head: Head, epoch: int, log_id: str) -> None:
        """Begin a log whose entries up to ``head`` lie in segments; the first pen's epoch is ``epoch`` + 1."""
        self._insist(lambda: rewriting.leave_torn_block(self._connection))
        try:
            arguments: list[Argument] = [log_id, FORMAT, epoch, head.offset, head.digest]
            reply = self._insist(lambda: self._connection.run(_PLANT, [self.keys.log, self.keys.meta], arguments))
        except ServerSaid as said:
            raise ServerRefused(f"the server refused: {said}. {_remedy(said)}") from said
        if reply[0] != b"OK":
            self._refuse(reply[0].decode(), reply)
        if self._mark is not None:
            self._mark.keep(Mark(log_id=log_id, offset=head.offset, digest=head.digest, epoch=epoch))

    def trim(self, last: int) -> Shortening:
        """Forget the entries up to ``last`` and let the server begin to shorten its file."""
        pen = self._held()
        if last >= self._head.offset:
            raise ValueError(f"entry {last} cannot go: the log ends with {self._head.offset}")
        self._answer(_TRIM, [self.keys.log, self.keys.meta], [pen.epoch, self._nonce, last + 1])
        return self._insist(lambda: rewriting.begin(self._connection))

    def shortening(self) -> Shortening:
        """Whether the server still shortens its file, or why it could not."""
        return self._insist(lambda: rewriting.look(self._connection))

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append the window in one round trip; asked again with identical bytes until every entry is answered."""
        if not window:
            return
        entries = [entry for entry, _ in window]
        commands = self._commands(window)
        patience, landed = self._patience(), 0
        while landed < len(entries):
            refusal: Exception
            try:
                replies = self._connection.pipeline(commands[landed:])
            except ServerUnreachable as error:
                refusal = LogUncertain(f"no answer for entries {entries[landed].offset}..{entries[-1].offset}: {error}")
                if self._revive is not None and not patience.over:
                    self._revive()
            else:
                landed, said = self._judge(entries, landed, replies)
                if said is None:
                    continue
                if said.code == "NOSCRIPT":
                    try:
                        patience.insist(self._begin_again, self._revive)
                    except ServerUnreachable as error:
                        raise LogUncertain(f"no answer before entry {entries[landed].offset}: {error}") from error
                    continue
                refusal = ServerRefused(f"entry {entries[landed].offset} was not appended: {said}. {_remedy(said)}")
            if patience.over:
                raise refusal
            pause()
        self._head = Head(offset=entries[-1].offset, digest=entries[-1].digest)
        self._mark_if_due(entries)

    def hand_over(self, outbox: Outbox) -> None:
        """Fill this epoch's keys anew, and delete the older epochs'."""
        pen, self._book = self._held(), ControlBook()
        keys = [self.keys.meta, self.keys.leases, *self.keys.derived(pen.epoch)]
        for epoch in range(self._oldest, pen.epoch):
            keys += self.keys.derived(epoch)
        fence: list[Argument] = [pen.epoch, self._nonce, self._head.offset, self._head.digest]
        self._answer(_HAND_OVER, keys, [*fence, *hand_over_arguments(outbox, self._book)])
        self._oldest = pen.epoch

    def results(self, after: str | None, block_s: float) -> Sequence[Delivery]:
        """Results after that id; returns after at most 2 s even with none, so that signals are seen."""
        messages = self._insist(lambda: stream_messages(
            self._connection, self.keys.results, after, min(block_s, MAX_BLOCK_S), RESULTS_PER_READ
        ))  # fmt: skip
        if self._head.offset > self._marked and self._mark_due.over:  # also while nothing is appended
            self._keep_mark()
        return [Delivery(id=id, body=body) for id, body in messages]

    def leases(self) -> Leases:
        """All leases, with the server's clock."""
        time, found = self._insist(lambda: self._connection.pipeline([["TIME"], ["HGETALL", self.keys.leases]]))
        return parse_leases(time, found)

    def put_lease(self, key: str, number: int, worker: str) -> None:
        """Write a lease, or refresh it if it is the same one."""
        self._lease("put", key, number, worker)

    def end_leases(self, keys: Sequence[str]) -> None:
        """Take away leases of processes; an order's lease ends with its entry only."""
        for key in keys:
            if key.startswith("p:"):
                raise ValueError(f"the lease {key} ends with the entry that ends its attempt, not by end_leases")
        if keys:
            self._lease("end", *keys)

    def pressure(self) -> bool:
        """Whether the server's memory is above four fifths of its limit; never without a limit."""
        info = self._insist(lambda: server_info(self._connection, "memory"))
        limit = int(info.get("maxmemory", 0))
        return limit > 0 and int(info["used_memory"]) > PRESSURE * limit

    def _begin_again(self) -> None:
        """Scripts are gone: the server was started anew, and knows nothing of what it had cut."""
        rewriting.leave_torn_block(self._connection)
        self._connection.call("SCRIPT", "LOAD", _APPEND.text)

    def _held(self) -> Pen:
        if self._pen is None:
            raise ValueError("open() the log before writing to it")
        return self._pen

    def _commands(self, window: Sequence[tuple[Entry, Outbox]]) -> list[Sequence[Argument]]:
        pen = self._held()
        keys = [self.keys.log, self.keys.meta, *self.keys.derived(pen.epoch), self.keys.results, self.keys.leases]
        commands: list[Sequence[Argument]] = []
        offset, previous = self._head.offset, self._head.digest
        for entry, outbox in window:
            if entry.offset != offset + 1 or entry.epoch != pen.epoch:
                raise ValueError(f"{entry.cause} cannot follow entry {offset} under epoch {pen.epoch}")
            if digest_of(previous, entry.header, entry.payload) != entry.digest:
                raise ValueError(f"{entry.cause} was not sealed after the digest {previous}")
            frame: list[Argument] = [
                pen.epoch, self._nonce, entry.offset, previous, entry.digest, entry.header, entry.payload,
            ]  # fmt: skip
            commands.append(_APPEND.command(keys, [*frame, *append_arguments(outbox, self._book)]))
            offset, previous = entry.offset, entry.digest
        return commands

    def _judge(self, entries: Sequence[Entry], landed: int, replies: Sequence[Any]) -> tuple[int, ServerSaid | None]:
        """How many entries are known to have landed, and why the next one has not, if the server said so."""
        for entry, reply in zip(entries[landed:], replies, strict=True):
            if isinstance(reply, ServerSaid):
                if reply.code not in NOT_APPLIED:
                    raise LogUncertain(f"entry {entry.offset}: {reply}")
                return landed, reply
            code = reply[0].decode()
            if code in ("OK", "DUPLICATE"):
                landed = entry.offset - entries[0].offset + 1
            elif code == "GAP":
                head = Head(offset=whole_number(reply[1], f"{self.keys.meta} offset"), digest=text_of(reply[2]))
                landed = max(landed, self._found(entries, head))
            else:
                self._refuse(code, reply)
        return landed, None

    def _found(self, entries: Sequence[Entry], head: Head) -> int:
        """How many of ``entries`` a log with this head holds."""
        if head == self._head:
            return 0
        index = head.offset - entries[0].offset
        if 0 <= index < len(entries) and entries[index].digest == head.digest:
            return index + 1
        if head.offset <= self._head.offset:
            raise LostTail(
                f"the log ends with entry {head.offset}, {head.digest}, but entry {self._head.offset}, "
                f"{self._head.digest}, was acknowledged: the server lost its tail. "
                "Restore the server's data, or resume with --accept-loss"
            )
        raise Conflict(f"the log's head is entry {head.offset} with digest {head.digest}, which this writer never sent")

    def _answer(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> list[Any]:
        """Run a script that may run twice, and read its answer."""
        try:
            reply: list[Any] = self._insist(lambda: self._connection.run(script, keys, arguments))
        except ServerSaid as said:
            raise ServerRefused(f"the server refused: {said}. {_remedy(said)}") from said
        code = reply[0].decode()
        if code == "GAP":
            raise LogUncertain(
                f"the log ends with entry {text_of(reply[1])}, not {self._head.offset}: open and fold again"
            )
        if code != "OK":
            self._refuse(code, reply)
        return reply

    def _refuse(self, code: str, reply: Sequence[Any]) -> None:
        about = " ".join(text_of(each) if isinstance(each, bytes) else str(each) for each in reply[1:])
        match code:
            case "FENCED":
                epoch = self._pen.epoch if self._pen else 0
                raise Fenced(f"epoch {about} holds the pen; this writer's epoch {epoch} is over: stop")
            case "CONFLICT":
                raise Conflict(f"the log already holds another entry at this offset, with digest {about}")
            case "GONE":
                raise LostTail(
                    f"the key {about} of this run is gone: somebody deleted it or emptied the server. "
                    "Restore the server's data, or start a new run from an archive"
                )
            case "USED":
                raise Conflict(f"the server holds another log under this run's name, {about}: choose another name")
            case "TYPE":
                raise Conflict(f"a key of this run holds something else ({about}): another program writes there")
            case "FORMAT":
                raise ServerRefused(f"the log has format {about}, not {FORMAT}: use the rollog that made it")
        raise AssertionError(f"a script answered {code}")

    def _lease(self, *arguments: Argument) -> None:
        pen = self._held()
        self._answer(_LEASE, [self.keys.meta, self.keys.leases], [pen.epoch, self._nonce, *arguments])

    def _check_end(self) -> None:
        """The stream must end with the entry that meta names."""
        found = self.last_in_stream()
        if found is not None and found != self._head:
            raise CorruptEntry(
                f"meta says that the log ends with {self._head}, the stream ends with {found}: "
                "something else wrote into the run's keys; restore the log from an archive"
            )

    def _mark_if_due(self, entries: Sequence[Entry]) -> None:
        passed = entries[-1].time - self._marked_at >= MARK_EVERY_S or self._mark_due.over
        if passed or any(isinstance(event, Checkpoint) for entry in entries for event in entry.events):
            self._marked_at = entries[-1].time
            self._keep_mark()

    def _keep_mark(self) -> None:
        pen = self._held()
        if self._mark is not None:
            head = self._head
            self._mark.keep(Mark(log_id=pen.log_id, offset=head.offset, digest=head.digest, epoch=pen.epoch))
        self._marked, self._mark_due = self._head.offset, Patience(MARK_EVERY_S)


def _remedy(said: ServerSaid) -> str:
    stumbled = "user_script" in str(said)  # over a value that no rollog has written
    damaged = "Something else wrote into the run's keys, or the server's data was damaged: restore it from an archive"
    return {
        "OOM": "Its memory is full: raise maxmemory, or archive old entries",
        "MISCONF": "It cannot write to its disk: make room, see its log",
        "READONLY": "It is a replica: give the address of its primary",
        "BUSY": "It runs somebody's script: end that with SCRIPT KILL",
        "NOPERM": "This user may not write the log: connect as controller",
    }.get(said.code, damaged if stumbled else "See the server's log")
