"""The list of tests is the same for every hash seed: a parameter taken from a set splits pytest-xdist's workers.

Each worker lists the tests for itself, under a seed of its own, and the run ends when two lists differ.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def collected(seed: int) -> list[str]:
    """The names of all tests, in pytest's order, as a process with this hash seed sees them."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_list_of_tests_does_not_depend_on_the_hash_seed() -> None:
    first, second = [collected(seed) for seed in (1, 2)]
    assert len(first) > 1000
    assert second == first
