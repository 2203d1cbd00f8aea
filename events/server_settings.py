"""Which settings a server must have so that it cannot lose an acknowledged entry; read back at every start.

Rule 1: a wrong setting is refused, with the line that mends it. Nothing is set silently on somebody else's server.
Rule 2: ``relaxed`` (``appendfsync everysec``) is a choice with a name: it can lose acknowledged entries on a kill.
Rule 3: the default user keeps its permissions, even when it is switched off: Redis 7.0 and 8.2 replay scripts from
        the append-only file as that user, and without permissions every scripted entry is lost at load, silently.
"""

from dataclasses import dataclass
from typing import Any, Final

from rollog.events.connection import Connection, ServerSaid
from rollog.events.errors import ServerRefused

OLDEST_VERSION: Final = (7, 0)
TORN_BLOCKS_CUT_SINCE: Final = (9, 1)
"""Of Valkey; no Redis does."""

REQUIRED: Final = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "save": "",
    "maxmemory-policy": "noeviction",
    "auto-aof-rewrite-percentage": "0",
}
"""Setting -> value, as written in a configuration file."""

DEFAULT_USER_LINE: Final = "user default off ~* &* +@all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says about itself. ``version``: its own number, not the protocol's."""

    name: str
    version: str


def settings_check(connection: Connection, *, relaxed: bool = False) -> ServerFacts:
    """Read the settings back. Raises ``ServerRefused`` with one line to mend each wrong one.

    The connection's user must be allowed to run CONFIG GET, INFO and ACL GETUSER.
    """
    wanted = REQUIRED | ({"appendfsync": "everysec"} if relaxed else {})
    try:
        info = server_info(connection)
        facts = _facts(info)
        found = {key: _text_map(connection.call("CONFIG", "GET", key)).get(key) for key in wanted}
        default_user = _text_map(connection.call("ACL", "GETUSER", "default"))
    except ServerSaid as said:
        raise ServerRefused(
            f"the server does not let its settings be read ({said}): give this user +config|get +info +acl|getuser"
        ) from said
    wrong = [
        f"{key} is {found[key]!r}: put the line `{key} {value or chr(34) * 2}` into its configuration file"
        for key, value in wanted.items()
        if found[key] != value and not (relaxed and key == "appendfsync" and found[key] == "always")
    ]
    if "+@all" not in default_user.get("commands", "") or "~*" not in default_user.get("keys", ""):
        wrong.append(f"the default user may not do everything: put the line `{DEFAULT_USER_LINE}` into its ACL")
    if info.get("role", "master") != "master":
        wrong.append("it is a replica: give the address of its primary")
    if info.get("cluster_enabled") == "1":
        wrong.append("it is a cluster node: put the line `cluster-enabled no` into its configuration file")
    if wrong:
        raise ServerRefused(f"{facts.name} {facts.version} would lose entries: " + "; ".join(wrong))
    return facts


def server_info(connection: Connection, section: str = "default") -> dict[str, str]:
    """What INFO says in this section; the default one is most of them."""
    lines = _text(connection.call("INFO", section)).splitlines()
    return {key: value for key, colon, value in (line.partition(":") for line in lines) if colon}


def cuts_torn_blocks(connection: Connection) -> bool:
    """Whether the server, at its start, cuts off the whole of a block of commands that a kill has torn."""
    return version_key(server_info(connection, "server").get("valkey_version", "")) >= TORN_BLOCKS_CUT_SINCE


def _facts(info: dict[str, str]) -> ServerFacts:
    protocol = info.get("redis_version", "0.0.0")
    name = "valkey" if "valkey_version" in info else "redis"
    facts = ServerFacts(name=name, version=info.get("valkey_version", protocol))
    if version_key(protocol) < OLDEST_VERSION:
        raise ServerRefused(f"{name} {facts.version} is too old: use Redis 7.0 or newer, or any Valkey")
    return facts


def version_key(version: str) -> tuple[int, int]:
    """Major and minor number."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major) if major.isdigit() else 0, int(minor) if minor.isdigit() else 0)


def _text_map(reply: Any) -> dict[str, str]:
    """A flat list of keys and values as strings."""
    return {_text(key): _text(value) for key, value in zip(reply[::2], reply[1::2], strict=True)}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return " ".join(_text(each) for each in value)
    return str(value)
