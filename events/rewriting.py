"""The server's append-only file is rewritten: after entries were archived and cut off, and before a new pen writes.

    begin --> under way --> under way --> ... --> done, or failed and why

Rule 1: after an archive nothing depends on it but room on the disk and the time of the next start. So a server that
        cannot, or does not let us, is no error: the reason is told, and the next archive asks again.
Rule 2: nobody stands still for it: a rewrite of gigabytes takes minutes. Whoever began it looks again later.
Rule 3: only the end of a run waits, and not without end: a rewrite that the server's exit cuts short was for nothing.
Rule 4: Redis, as far as 8.2, cuts a file that a kill has torn inside a script's block of commands after the last whole
        command, and does not run the block. What is appended then would stand behind an open MULTI, and the next load
        would run the torn block in its place. A rewrite goes on in a new file from its first moment, so a controller
        begins one there before it writes to a server for the first time since that started. Killed before it is done,
        the server finds the open block in a file that is not the last one: it takes the block off and ends, and its
        next start loads all. Valkey 9.1 cuts off the block itself.
"""

from collections.abc import Callable
from typing import Final

from rollog.events.connection import Connection, Patience, ServerSaid, pause
from rollog.events.errors import ServerRefused
from rollog.events.log import Shortening
from rollog.events.server_settings import cuts_torn_blocks, server_info

WAIT_S: Final = 120.0
"""The end of a run waits so long at most."""


def begin(connection: Connection) -> Shortening:
    """Let the server rewrite its file, in a process of its own."""
    try:
        connection.call("BGREWRITEAOF")
    except ServerSaid as said:
        if "in progress" not in str(said) and "scheduled" not in str(said):
            return Shortening(failed=f"the server does not rewrite its append-only file: {said}")
    return Shortening(under_way=True)


def leave_torn_block(connection: Connection) -> None:
    """Go on in a new file, where the server may have left an open block at the end of this one (rule 4).

    Waits while the server saves for others, as it begins no new file then. Raises ``ServerRefused`` when it does not
    begin one.
    """
    if cuts_torn_blocks(connection):
        return
    failed, patience = begin(connection).failed, Patience(WAIT_S)
    while failed is None and server_info(connection, "persistence").get("aof_rewrite_scheduled") == "1":
        if patience.over:
            failed = f"the server still saves for others after {WAIT_S:g} s"
        pause()
    if failed is not None:
        raise ServerRefused(
            f"{failed}. Before anything is appended this server must begin a new file, as it may have cut the last one "
            "inside a block of commands: let this user run BGREWRITEAOF, see that the server's disk has room, or use "
            "Valkey 9.1"
        )


def look(connection: Connection) -> Shortening:
    """What has become of it."""
    info = server_info(connection, "persistence")
    if info.get("aof_rewrite_in_progress") == "1" or info.get("aof_rewrite_scheduled") == "1":
        return Shortening(under_way=True)
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        failed = "the server could not rewrite its append-only file: make room on its disk, see its log"
        return Shortening(failed=failed)
    return Shortening()


def wait_for(look: Callable[[], Shortening], within_s: float = WAIT_S) -> Shortening:
    """Look until it is not under way any more, or the time is over."""
    patience = Patience(within_s)
    while (seen := look()).under_way and not patience.over:
        pause()
    return seen
