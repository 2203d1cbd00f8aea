"""Our decisions against the recorded ones: ``python -m tests.conformance FILE...`` from the repository's root.

    a line of a vector file --> its kind's adapter --> real events, folded --> our functions --> compare

Prints how many scenarios of each kind there were and every mismatch; exits 1 if there is any, 2 if a file is no vector
file. ``tests/vectors/README.md`` says where the vectors come from and what the adapters take away.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a module: what tests share lies beside this file
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from adapters import compaction, floor, frontier, pump, retry, sampler
from adapters.mismatch import Mismatch
from rollog.replay.errors import ReplayError

Scenario = Mapping[str, Any]

ADAPTERS: Mapping[str, Callable[[Scenario], Iterator[Mismatch]]] = {
    "sampler": sampler.run,
    "context_compaction": compaction.run,
    "retry": retry.run,
    "pump": pump.run,
    "step_floor": floor.run,
    "frontier": frontier.run,
}
"""Kind -> the adapter that replays a scenario of it."""


def read(path: str | Path) -> list[Scenario]:
    """The scenarios of a vector file. Raises ``ValueError`` with file and line for what is none."""
    scenarios: list[Scenario] = []
    for number, line in enumerate(Path(path).read_text().splitlines(), start=1):
        try:
            scenario = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON ({error}). Each line of a vector file is an object.") from None
        if not isinstance(scenario, dict) or scenario.get("kind") not in ADAPTERS:
            raise ValueError(f"{path}:{number}: no scenario; its kind must be one of {', '.join(ADAPTERS)}.")
        scenarios.append(scenario)
    return scenarios


def replay(scenario: Scenario) -> list[Mismatch]:
    """All mismatches of a scenario. Where ours has gone another way and nothing more can follow, that is the last."""
    found: list[Mismatch] = []
    try:
        for mismatch in ADAPTERS[scenario["kind"]](scenario):
            found.append(mismatch)
    except (ReplayError, LookupError) as error:
        found.append(Mismatch(scenario["id"], "the replay cannot go on", "what was recorded", repr(error)))
    return found


def main(paths: Sequence[str]) -> int:
    """Replay every file; returns the exit code."""
    if not paths:
        print("usage: python -m tests.conformance FILE...", file=sys.stderr)
        return 2
    scenarios: Counter[str] = Counter()
    mismatches: Counter[str] = Counter()
    for path in paths:
        try:
            found = read(path)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        for scenario in found:
            scenarios[scenario["kind"]] += 1
            for mismatch in replay(scenario):
                mismatches[scenario["kind"]] += 1
                print(mismatch)
    for kind, count in scenarios.items():
        print(f"{kind:20} {count:5} scenarios {mismatches[kind]:5} mismatches")
    print(f"{'all':20} {scenarios.total():5} scenarios {mismatches.total():5} mismatches")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
