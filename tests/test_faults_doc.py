"""docs/faults.md tells every fault that the servers are tried with, and on which of them."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import servers

ROOT = Path(__file__).resolve().parent.parent
LINES = [
    (columns[1].strip(), columns[2].strip(), columns[3].strip(), columns[4].strip().strip("`"))
    for line in (ROOT / "docs" / "faults.md").read_text().splitlines()
    if len(columns := line.split("|")) == 6 and "::" in line
]
WHOLE = ["test_synced_answers", "test_server_kills", "test_full_disk", "test_damaged_files", "test_server_users"]
"""Every test of these files stands in the table."""


def test_every_line_says_what_was_done_and_what_happened_and_no_test_stands_there_twice() -> None:
    assert len(LINES) > 40
    assert all(done and happened for done, happened, _, _ in LINES)
    tests = [test for _, _, _, test in LINES]
    assert len(tests) == len(set(tests))


def test_every_test_of_a_fault_stands_in_the_table() -> None:
    there = {
        f"tests/events/{name}.py::{test}"
        for name in WHOLE
        for test in re.findall(r"^def (test_\w+)", (ROOT / "tests" / "events" / f"{name}.py").read_text(), flags=re.M)
    }
    assert there - {test for _, _, _, test in LINES} == set()


def test_every_test_runs_on_the_servers_that_its_line_names() -> None:
    files = sorted({test.partition("::")[0] for _, _, _, test in LINES})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: defaultdict[str, set[str]] = defaultdict(set)
    for test, parameters in re.findall(r"^(tests/\S+::\w+)(\[.*\])?$", done.stdout, flags=re.M):
        found[test] |= {name for name in servers.ALL if name in parameters}
    wanted = {"all three": set(servers.ALL), "Valkey 9.1": set()}
    assert {test: wanted[on] for _, _, on, test in LINES} == {test: found.get(test) for _, _, _, test in LINES}
