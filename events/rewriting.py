"""After entries were archived and cut off, the server's append-only file still holds them: it is rewritten.

    begin --> under way --> under way --> ... --> done, or failed and why

Rule 1: nothing depends on it but room on the disk and the time of the next start. So a server that cannot, or does not
        let us, is no error: the reason is told, and the next archive asks again.
Rule 2: nobody stands still for it: a rewrite of gigabytes takes minutes. Whoever began it looks again later.
Rule 3: only the end of a run waits, and not without end: a rewrite that the server's exit cuts short was for nothing.
"""

from collections.abc import Callable
from typing import Final

from rollog.events.connection import Connection, Patience, ServerSaid, pause
from rollog.events.log import Shortening
from rollog.events.server_settings import server_info

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
