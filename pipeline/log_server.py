"""The controller's way to the log: the embedded server or one at an address, and the connection to it.

Rule 1: an embedded server that dies while the run goes on is started again; what was acknowledged is on its disk.
Rule 2: whoever ends the run ends the embedded server; a server at an address is left alone, but refused as long as
        its settings would lose entries.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from rollog.events import server
from rollog.events.connection import Address, Patience
from rollog.events.errors import ServerUnreachable
from rollog.events.file_log import GrowingLog, seal_tail
from rollog.events.mark import check_mark
from rollog.events.planting import obey_planting
from rollog.events.reading import ANSWER_WITHIN_S, mark_of, segments_of, snapshots_of
from rollog.events.redis_log import RedisLog
from rollog.events.redis_reader import RedisReader
from rollog.events.server_settings import settings_check
from rollog.pipeline.config import Plan, apply_changes
from rollog.pipeline.run_folder import EMBEDDED, RunFolder, UsedName, server_url

ADDRESS: Final = "log.redis"


def check_server(plan: Plan) -> None:
    """Refuse a server at an address that would lose entries, or that holds a log under this run's name already.

    Raises ``ServerRefused``, ``ServerUnreachable``, ``UsedName``. An embedded server belongs to the run's folder alone.
    """
    if plan.log.redis == EMBEDDED:
        return
    address = Address.parse(server_url(plan))
    _settings_of(address, relaxed=plan.log.durability == "relaxed")
    with closing(RedisReader(address, plan.run)) as reader:
        head = reader.head()
    if head.offset > 0:
        raise UsedName(
            f"run={plan.run}: the server {address} holds a log of this name with {head.offset:,} entries, whose folder "
            f"is not here. Resume it where its folder is, or choose another name (run=...)."
        )


def _settings_of(address: Address, *, relaxed: bool) -> None:
    """Refuse settings that would lose entries. One lost answer is no reason to refuse: it is asked for again."""
    with closing(address.connect()) as connection:
        Patience(ANSWER_WITHIN_S).insist(lambda: settings_check(connection, relaxed=relaxed))


def plan_at(plan: Plan, overrides: Mapping[str, Any]) -> Plan:
    """The plan, with the server where a resume says that it is now; whether it holds this log is found out later."""
    address = overrides.get(ADDRESS)
    return plan if address is None else Plan.from_settings(apply_changes(plan.settings(), {ADDRESS: address}))


class LogServer:
    """The server of a run that this process writes to."""

    def __init__(self, folder: RunFolder, plan: Plan, *, accept_loss: bool = False) -> None:
        """Start or find the server. Raises ``ServerRefused``, ``ServerUnreachable``.

        ``accept_loss``: a log that lost its tail is taken as it is.
        """
        self._folder: Path = folder.path.resolve()
        self.accept_loss = accept_loss
        self._relaxed = plan.log.durability == "relaxed"
        self._embedded: server.EmbeddedServer | None = None
        if plan.log.redis == EMBEDDED:
            self._revive()
        address = folder.address(plan, "controller")
        if plan.log.redis != EMBEDDED:
            _settings_of(address, relaxed=self._relaxed)
        self.log = RedisLog(
            address,
            plan.run,
            mark=mark_of(self._folder),
            archive=GrowingLog(segments_of(self._folder)),
            accept_loss=accept_loss,
            revive=self._revive if self._embedded else None,
        )
        obey_planting(self._folder, self.log)

    def log_id(self) -> str:
        """The id of the log. Raises ``LostTail`` when it is gone, ``ServerUnreachable`` when there never was one."""
        found = self.log.log_id()
        if found is None:
            if (mark := mark_of(self._folder).read()) is not None:
                check_mark(mark, None, self.log.head(), None)
            raise ServerUnreachable("the server holds no log yet: it gets its id when a controller opens it")
        return found

    @property
    def snapshots(self) -> Path:
        """Where States of this log are saved."""
        return snapshots_of(self._folder)

    def seal(self) -> None:
        """Seal the log's tail into a segment: from now on it can be read without a server."""
        seal_tail(self.log, segments_of(self._folder), self.log_id())

    def close(self, *, shutdown: bool) -> None:
        """Let go of the connection; with ``shutdown`` end the embedded server."""
        self.log.close()
        if shutdown and self._embedded is not None:
            self._embedded.shutdown()

    def leave(self) -> None:
        """Let go of the connection after a look; a server that was started for it and serves nobody else ends."""
        self.log.close()
        if self._embedded is not None and self._embedded.ours and not self._embedded.others_connected():
            self._embedded.shutdown()

    def _revive(self) -> None:
        self._embedded = server.start(self._folder, relaxed=self._relaxed)
