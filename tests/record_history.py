"""Records the logs of tests/histories: ``python tests/record_history.py [NAME...]``, or ``--again`` to fold them anew.

    real processes, a real server  -->  NAME.rollog (rollog archive: the log, no blobs)  +  NAME.json (what it folds to)

Rule 1: a recorded log is never changed or thrown away: every later rollog must fold it. What is recorded anew gets
        another name, or replaces one that no release has had.
Rule 2: NAME.json holds facts that no change of the code may change (``facts``), and digests of States, which change
        with the shape of the State. ``--again`` writes the digests anew, and only where the facts are the same.
Rule 3: small: a few hundred entries each.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rollog.events.log import Entry
from rollog.events.reading import open_reader
from rollog.events.vocabulary import Event, Finish, Open, Select, Train
from rollog.pipeline.machine import version_of
from rollog.replay.plain import state_digest
from rollog.replay.projector import fold
from rollog.replay.state import State
from scene import ROLLOG, Scene

HISTORIES: Final = Path(__file__).parent / "histories"
RULES: Final = '''
import select

def reward(prompt, completion, answer, **row):
    """Every ninth row has a fault of its own, and tells so late; every fifth is slow."""
    if row["number"] % 9 == 4:
        select.select([], [], [], 0.3)
        raise ValueError("no right answer is known")
    if row["number"] % 5 == 2:
        select.select([], [], [], 0.2)
    return float(len(completion))
'''


def loans(scene: Scene) -> str:
    """in_order with replace: spares, loans and their payment, filtered groups; everybody is killed once."""
    scene.settings |= {"reward": "rules.py:reward", "sampler": {"name": "in_order", "lookahead": 2}}
    scene.settings["failure"] = {
        "on_dropped_prompt": "replace", "reserve_prompts": 2, "max_replacement_attempts": 2,
        "max_skipped_prompts": "unlimited", "min_step_fraction": 0.25, "filter": "equal_rewards",
    }  # fmt: skip
    scene.settings["flow"]["max_inflight_prompts"] = 12
    run_with_deaths(scene)
    return "demo"


def requeues(scene: Scene) -> str:
    """windowed with requeue, streamed in chunks, resumed as in_order: old attempts are cancelled and begun again."""
    scene.settings |= {"reward": "rules.py:reward", "sampler": {"name": "windowed", "max_staleness": 0}}
    scene.settings["failure"] = {
        "evicted_prompts": "requeue", "max_skipped_prompts": "unlimited", "min_step_fraction": 0.25,
    }  # fmt: skip
    scene.settings["flow"] |= {"min_groups_for_streaming": 2, "max_inflight_prompts": 12}
    scene.start()
    scene.wait_for(lambda state: state.version >= 6)
    scene.kill("gen-1")
    scene.wait_for(lambda state: state.version >= 7)
    scene.controllers[-1].terminate()
    assert scene.finish() == 75, scene.output
    scene.overrides = ["sampler.name=in_order", "flow.min_groups_for_streaming=null", "failure.evicted_prompts=drop"]
    scene.start()
    assert scene.finish() == 0, scene.output
    return "demo"


def fork(scene: Scene) -> str:
    """Steps that close short, and a fork from the midst of them under other settings."""
    scene.settings |= {"reward": "rules.py:reward"}
    scene.settings["failure"] = {"max_skipped_prompts": "unlimited", "min_step_fraction": 0.25}
    run_with_deaths(scene)
    changes = ("grpo.rollouts_per_prompt=4", "failure.max_data_attempts=1")
    verb = ("fork", "demo@step:5", "again", *changes, "--reason", "more rollouts")
    done = subprocess.run([*ROLLOG, *verb], cwd=scene.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    scene.settings["run"] = "again"
    scene.start()
    assert scene.finish() == 0, scene.output
    return "again"


def run_with_deaths(scene: Scene) -> None:
    """A run in which generator, controller and trainer are killed, one after another."""
    scene.start()
    scene.wait_for(lambda state: state.version >= 2)
    scene.kill("gen-0")
    scene.wait_for(lambda state: state.version >= 4)
    scene.kill_controller()
    scene.start()
    scene.wait_for(lambda state: state.version >= 7)
    scene.kill("rank-0")
    assert scene.finish() == 0, scene.output


RECIPES: Final[Mapping[str, Callable[[Scene], str]]] = {
    "loans-0.1.0": loans,
    "requeues-0.1.0": requeues,
    "fork-0.1.0": fork,
}


def folded(entries: Iterable[Entry]) -> tuple[dict[str, Any], dict[str, str]]:
    """(the facts, the digest of the State at each Open and at the end by offset)."""
    state, digests, kinds = State(), {}, Counter[type[Event]]()
    chosen: dict[int, list[int]] = {}
    trained: set[int] = set()
    for entry in entries:
        fold(state, entry)
        for event in entry.events:
            kinds[type(event)] += 1
            match event:
                case Select():
                    chosen.setdefault(event.step, []).extend(event.prompts)
                case Train():
                    trained.add(event.step)
                case Open() | Finish():
                    digests[str(entry.offset)] = state_digest(state)
    digests[str(state.offset)] = state_digest(state)
    facts = {
        "run": state.run, "entries": state.offset, "digest": state.digest, "version": state.version,
        "handed_out": state.handed_out, "trained": state.trained, "dropped": state.dropped,
        "filtered": state.filtered, "finish": state.finish.value if state.finish else None,
        "events": {kind.__name__: number for kind, number in sorted(kinds.items(), key=lambda each: each[0].__name__)},
        "steps": {str(step): sorted(chosen[step]) for step in sorted(trained)},
    }  # fmt: skip
    return facts, digests


def record(name: str) -> None:
    """Play the recipe, archive the run, and write down what it folds to."""
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        scene = Scene(Path(folder))
        try:
            (scene.folder / "rules.py").write_text(RULES)
            run = RECIPES[name](scene)
            file = HISTORIES / f"{name}.rollog"
            file.unlink(missing_ok=True)
            archive = [*ROLLOG, "archive", run, "-o", str(file)]
            subprocess.run(archive, cwd=scene.folder, check=True, capture_output=True)
        finally:
            scene.clean()
    with open_reader(file) as log:
        facts, states = folded(log.read())
    write(name, {"rollog": version_of("rollog"), "facts": facts, "states": states})
    print(f"{name}: {facts['entries']} entries, {facts['events']}")


def again(name: str) -> None:
    """Fold a recorded log anew. Refuses when the facts are others: then the fold is wrong, not the record."""
    known = json.loads((HISTORIES / f"{name}.json").read_text())
    with open_reader(HISTORIES / f"{name}.rollog") as log:
        facts, states = folded(log.read())
    if facts != known["facts"]:
        sys.exit(f"{name}: this rollog folds it to other facts; nothing was written. Mend the fold.")
    write(name, known | {"states": states})


def write(name: str, known: Mapping[str, Any]) -> None:
    (HISTORIES / f"{name}.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    wanted = [name for name in sys.argv[1:] if name != "--again"]
    if "--again" in sys.argv:
        for known_name in wanted or sorted(path.stem for path in HISTORIES.glob("*.json")):
            again(known_name)
    else:
        for new_name in wanted or RECIPES:
            record(new_name)
