"""A process that ends when its parent does, however the parent went.

A worker that is killed cannot end the processes that its engine started. The kernel can: it sends SIGKILL when the
thread that started this process is gone (PR_SET_PDEATHSIG, see prctl(2)). Linux only.
"""

import ctypes
import os
import signal
from multiprocessing import parent_process
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Call it in a process that multiprocessing spawned, as early as possible."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    parent = parent_process()
    if parent is not None and os.getppid() != parent.pid:
        raise SystemExit(f"process {parent.pid} was gone before its child {os.getpid()} began")
