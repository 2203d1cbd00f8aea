"""After entries were archived and cut off, the server's append-only file still holds them: it is rewritten.

Rule 1: nothing depends on it but room on the disk and the time of the next start. So a server that cannot, or does not
        let us, is no error: the reason is returned, and the next archive asks again.
Rule 2: it is awaited: a rewrite that somebody's exit cuts short leaves a half behind.
"""

from typing import Final

from rollog.events.connection import Connection, Patience, ServerSaid, pause
from rollog.events.server_settings import server_info

REWRITE_WITHIN_S: Final = 120.0


def rewrite(connection: Connection) -> str | None:
    """Rewrite the file and wait for its end; returns why it could not be, None when it was."""
    try:
        connection.call("BGREWRITEAOF")
    except ServerSaid as said:
        if "in progress" not in str(said) and "scheduled" not in str(said):
            return f"the server does not rewrite its append-only file: {said}"
    patience = Patience(REWRITE_WITHIN_S)
    while True:
        info = server_info(connection)
        if info.get("aof_rewrite_in_progress") != "1" and info.get("aof_rewrite_scheduled") != "1":
            break
        if patience.over:
            return f"the server's append-only file is still being rewritten after {REWRITE_WITHIN_S:g} s"
        pause()
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        return "the server could not rewrite its append-only file: make room on its disk, see its log"
    return None
