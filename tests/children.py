"""The processes that a test has started, by what stands on their command line."""

from contextlib import suppress

import psutil


def children(word: str) -> list[psutil.Process]:
    """Those of this process with ``word`` on their command line; other tests may have left other children."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # one that is gone already, and waits to be noticed
            if any(word in each for each in child.cmdline()):
                found.append(child)
    return found
