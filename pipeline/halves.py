"""What a controller had begun to write when it died. The next one sweeps it at its start.

Rule: its age does not matter, for only one controller drives a run. What workers have begun is not touched here: a new
      trainer sweeps checkpoints and weights, ``rollog gc`` what generators have left.
"""

from pathlib import Path

from rollog.pipeline.durable import TEMPORARY
from rollog.pipeline.run_folder import RunFolder


def controllers_halves(folder: RunFolder) -> list[Path]:
    """Files that a controller writes under a temporary name: settings, mark, segments, saved States, pid files."""
    found = [
        *folder.path.glob(f"{TEMPORARY}*"),
        *folder.path.glob("*.tmp"),
        *folder.log.glob("s*/*.tmp"),
        *folder.logs.glob("*.tmp"),
    ]
    return [path for path in found if path.is_file()]


def sweep_at_start(folder: RunFolder) -> None:
    """What the controller before this one left half written."""
    for half in controllers_halves(folder):
        half.unlink(missing_ok=True)
