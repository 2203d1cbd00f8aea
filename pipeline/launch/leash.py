"""A command that ends when its parent ends: ``python -m rollog.pipeline.launch.leash PARENT COMMAND...``.

The kernel sends SIGKILL when the parent is gone, however it went (PR_SET_PDEATHSIG, see prctl(2)). The wish survives
exec, so the command itself needs to know nothing of it.
"""

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def leashed(parent: int) -> tuple[str, ...]:
    """What stands before a command that is to end with process ``parent``, which must be the one that starts it."""
    return (sys.executable, "-m", "rollog.pipeline.launch.leash", str(parent))


def main() -> None:
    """Become the command."""
    parent, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        sys.exit(f"process {parent} was gone before its command began")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
