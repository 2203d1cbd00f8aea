"""A run's folder is there with its settings, or its name is free."""

import subprocess
import sys
from pathlib import Path

import pytest

DEATH = Path(__file__).with_name("run_folder_death.py")


@pytest.mark.long
def test_a_death_at_any_line_of_making_it_leaves_a_run_or_a_name_that_is_free(
    tmp_path: Path,
) -> None:
    done = subprocess.run([sys.executable, DEATH, tmp_path], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
