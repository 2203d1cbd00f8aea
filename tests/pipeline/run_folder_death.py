"""Dies at every line of making a run's folder, one line after another. Run by test_run_folder.py in a process of its
own.

For each line: a forked child runs up to it and ends on the spot, as under SIGKILL; then the run is there with its
settings, or its name is free. Prints the number of lines died at.
"""

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from rollog.pipeline import durable, run_folder
from rollog.pipeline.config import Plan
from rollog.pipeline.run_folder import NoSuchRun, RunFolder

WATCHED = {run_folder.__file__, durable.__file__}


def die_at(line: int) -> None:
    passed = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal passed
        if frame.f_code.co_filename not in WATCHED:
            return None
        passed += event == "line"
        if passed == line:
            os._exit(9)
        return trace

    sys.settrace(trace)


def main(root: Path) -> None:
    plan = Plan.from_settings({"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}})
    line, seen, finished = 0, set(), False
    while not finished:
        line += 1
        runs = root / str(line)
        if (child := os.fork()) == 0:
            die_at(line)
            RunFolder.create(plan, runs)
            os._exit(0)
        finished = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        try:
            found = RunFolder.open("demo", runs)
        except NoSuchRun:
            found = RunFolder.create(plan, runs)
            seen.add("free")
        else:
            seen.add("there")
        assert found.plan() == plan, line
        assert found.path.stat().st_mode & 0o077 == 0, line
    assert seen == {"free", "there"}
    print(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
