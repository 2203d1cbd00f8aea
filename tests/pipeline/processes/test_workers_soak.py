"""A minute of random faults against a whole run; ``make soak`` gives ten, and ``make soak SECONDS=n`` as many as asked.

``ROLLOG_SOAK_SECONDS`` is how long the faults go on, ``ROLLOG_SOAK_SEED`` which they are.
"""

import os

import pytest

from soak import Soak

SECONDS = float(os.environ.get("ROLLOG_SOAK_SECONDS", "60"))
SEED = int(os.environ.get("ROLLOG_SOAK_SEED", "0"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 900)]


def test_a_run_under_random_faults_holds_what_was_acknowledged_and_every_law(tmp_path):
    soak = Soak(tmp_path / "soak", SEED)
    try:
        soak.run(SECONDS)
        figures = soak.judge()
    finally:
        soak.close()

    for name, figure in figures.items():
        print(f"{figure:>9,}  {name}")
    assert soak.counts.total() > 0
