"""A file that an event will name is durable before it has its name: strace shows the order of the calls."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = "write,fsync,rename,renameat,renameat2"

BEGIN = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
"""
SCRIPTS = {
    "a blob": """
from rollog.events.blobs import Blobs
Blobs(folder).put(b"x" * 1000)
""",
    "a mark": """
from rollog.events.mark import Mark, MarkFile
MarkFile(folder / "mark").keep(Mark(log_id="i", offset=1, digest="", epoch=1))
""",
    "a segment": """
from rollog.events.codec import seal
from rollog.events.file_log import seal_tail
from rollog.events.log import GENESIS, Outbox
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Note
log = MemoryServer(clock=lambda: 0.0).log()
log.open("a")
entry = seal(offset=1, epoch=1, time=0.0, input=None, events=[Note(what="n", text="t")], previous=GENESIS)
log.append([(entry, Outbox())])
seal_tail(log, folder, "i")
""",
    "a checkpoint's folder": """
from rollog.pipeline.durable import keep, new_folder
with new_folder(folder) as made:
    for name in ("weights", "optimizer"):
        (made / name).write_bytes(b"x" * 1000)
    keep(made, "final")
""",
    "a manifest": """
from rollog.pipeline.durable import write_file
write_file(folder / "manifest", b"x" * 1000)
""",
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_the_bytes_are_synced_then_the_name_is_given_then_the_folder_is_synced(what: str, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        assert os.environ.get("CI") != "true", "strace is missing; .ci/run installs it"
        pytest.skip("no strace on this machine (Debian: apt-get install strace)")
    folder, trace = tmp_path / "folder", tmp_path / "trace"
    folder.mkdir()
    command = [strace, "-f", "-y", "-o", trace, "-e", f"trace={CALLS}"]
    subprocess.run([*command, sys.executable, "-c", BEGIN + SCRIPTS[what], folder], check=True)

    calls = [line.partition(" ")[2].strip() for line in trace.read_text().splitlines() if str(folder) in line]
    (named,) = [number for number, call in enumerate(calls) if call.startswith("rename")]
    draft, name = re.findall(r'"([^"]+)"', calls[named])
    written = {
        found[1]: number
        for number, call in enumerate(calls)
        if (found := re.match(rf"write\(\d+<({re.escape(draft)}[^>]*)>", call))
    }
    assert written
    for file, last_write in written.items():
        assert last_write < synced(calls, file) < named
    assert named < synced(calls, str(Path(name).parent))


def synced(calls: list[str], path: str) -> int:
    """The place of the last call that synced it, and well; -1 for none."""
    done = [n for n, call in enumerate(calls) if re.match(rf"fsync\(\d+<{re.escape(path)}>\) += 0", call)]
    return max(done, default=-1)
