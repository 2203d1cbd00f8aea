"""A process that an engine starts does not outlive its worker."""

import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path

PARENT = """
    import multiprocessing, select

    if __name__ == "__main__":
        import wait_for_ever

        child = multiprocessing.get_context("spawn").Process(target=wait_for_ever.main)
        child.start()
        select.select([], [], [])
    elif __name__ == "__mp_main__":
        from rollog.pipeline.parent_death import end_with_parent

        end_with_parent()
"""
CHILD = """
    import os, select

    def main():
        print(os.getpid(), flush=True)
        select.select([], [], [])
"""


def test_a_spawned_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(textwrap.dedent(PARENT))
    (tmp_path / "wait_for_ever.py").write_text(textwrap.dedent(CHILD))
    parent = subprocess.Popen([sys.executable, "parent.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = os.pidfd_open(int(parent.stdout.readline()))

        assert select.select([child], [], [], 0) == ([], [], []), "it lives as long as its parent"
        parent.kill()
        parent.wait()
        assert select.select([child], [], [], 60) == ([child], [], [])
        os.close(child)


def test_a_process_that_was_not_spawned_may_ask_for_it_too() -> None:
    code = "from rollog.pipeline.parent_death import end_with_parent; end_with_parent(); print('lives')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr
