"""What a process says of the machine that it runs on: bits can differ between two of them, prompts cannot."""

import os
import platform
from importlib import metadata
from typing import Any, Final

LIBRARIES: Final = ("torch", "transformers", "safetensors", "numpy")


def version_of(distribution: str) -> str:
    """The installed version; empty when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def num_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe(*, threads: int, devices: str = "cpu", ranks: int = 1) -> dict[str, Any]:
    """Ranks, threads, devices and library versions, as Open and Join hold them."""
    return {
        "ranks": ranks,
        "threads": threads,
        "devices": devices,
        "processor": platform.machine(),
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := version_of(name))},
    }
