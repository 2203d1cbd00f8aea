"""A trainer that dies at any file operation of a save or of deleting old ones leaves the newest whole one to resume."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("saving_death.py")
TESTS = SCRIPT.parents[2]


def test_a_death_at_every_write_sync_and_rename_of_a_save_leaves_the_newest_whole_checkpoint(
    model_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, SCRIPT, model_folder, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 0, done.stderr
    saves, tears, prunes, *names = done.stdout.split()
    assert int(saves) > 60
    assert int(tears) >= 5
    assert int(prunes) > 15
    assert {"write", "fsync", "rename", "mkdir", "serialize_file"} <= set(names)
