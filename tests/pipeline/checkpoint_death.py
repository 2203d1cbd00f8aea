"""Dies at every line of replacing a checkpoint by a newer one, one line after another. Run by test_checkpoints.py in a
process of its own.

For each line: a forked child runs up to it and ends on the spot, as under SIGKILL; then the folder must hold the older
checkpoint, the newer one or both, each whole; and writing again must succeed. Prints the number of lines died at.
"""

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from rollog.pipeline import checkpoints, durable
from rollog.pipeline.checkpoints import Ordered, broken_files, list_manifests, newest_whole, prune, write

WATCHED = {checkpoints.__file__, durable.__file__}
OLD = Ordered(log="log", offset=5, digest="aa", epoch=1, version=1, generation=1)
NEW = Ordered(log="log", offset=9, digest="bb", epoch=1, version=2, generation=1)


def fill(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"w" * 1000)
    (folder / "trainer.json").write_bytes(b"{}")


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
    write(root, OLD, fill)
    line = 0
    seen = set()
    finished = False
    while not finished:
        line += 1
        if (child := os.fork()) == 0:
            die_at(line)
            write(root, NEW, fill)
            prune(root, keep_versions={NEW.version})
            os._exit(0)
        finished = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found = list_manifests(root)
        assert [manifest.ordered for manifest in found] in ([OLD], [OLD, NEW], [NEW]), (line, found)
        assert not any(broken_files(manifest) for manifest in found), line
        seen.add(tuple(manifest.version for manifest in found))
        assert write(root, NEW, fill).ordered == NEW, line
        assert newest_whole(root) == list_manifests(root)[-1], line
        durable.delete_folder(root / NEW.folder_name)
        write(root, OLD, fill)
        durable.sweep(root)
    assert seen == {(1,), (1, 2), (2,)}
    assert [path.name for path in root.iterdir()] == [OLD.folder_name]
    print(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
