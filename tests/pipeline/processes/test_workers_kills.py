"""kill -9 of everything at random moments, again and again: the same prompts in every step, and the same bits.

``ROLLOG_KILL_ROUNDS`` is the number of kills; ``make kill-test ROUNDS=n`` sets it.
"""

import os
import random
import select
import shutil
import signal
from hashlib import blake2b
from pathlib import Path

import pytest

from rollog.events.vocabulary import Commit, Drop, Late, Retry
from rollog.replay.state import State

VICTIMS = ("controller", "generator", "trainer", "server")
ROUNDS = int(os.environ.get("ROLLOG_KILL_ROUNDS", "20"))

pytestmark = [pytest.mark.long, pytest.mark.kill, pytest.mark.timeout(0)]


@pytest.fixture
def undisturbed(make_scene, tmp_path_factory):
    made = make_scene(tmp_path_factory.mktemp("undisturbed"))
    yield made
    made.clean()


def pin(scene, *, steps: int) -> None:
    scene.settings["determinism"] = "pinned"
    scene.settings["failure"] = {"min_step_fraction": 1.0}
    scene.settings["data"]["epochs"] = -(-steps * 4 // 64)
    scene.settings["grpo"]["max_steps"] = steps


def kill_again_and_again(scene, rounds: int, seed: int, pause_s: tuple[float, float]) -> dict[str, int]:
    """Kill somebody after a while, ``rounds`` times or until the run is over; then let it end."""
    chance, killed = random.Random(seed), dict.fromkeys(VICTIMS, 0)
    scene.start()
    for _ in range(2 * rounds):  # a victim may have ended by itself before it is hit
        if sum(killed.values()) == rounds:
            break
        scene.wait_for(lambda state: len(state.workers) == 3 or state.finish is not None)
        select.select([], [], [], chance.uniform(*pause_s))
        if scene.controllers[-1].poll() is not None:
            break
        victim = min(VICTIMS, key=lambda name: killed[name])
        if kill(scene, victim, chance):
            killed[victim] += 1
        if scene.controllers[-1].poll() is not None:
            scene.start()
    while (code := scene.controllers[-1].wait()) == -signal.SIGKILL:
        scene.start()
    assert code == 0, scene.output
    return killed


def kill(scene, victim: str, chance: random.Random) -> bool:
    """Whether there was somebody to kill."""
    match victim:
        case "controller":
            scene.kill_controller()
        case "server":
            return scene.kill_server()
        case _:
            name = "rank-0" if victim == "trainer" else f"gen-{chance.randrange(2)}"
            process = scene.process(name)
            if process is None:
                return False
            process.kill()
            process.close()
    return True


def check(scene, undisturbed) -> State:
    """What every run promises, whoever was killed."""
    assert scene.trained() == undisturbed.trained()
    state = scene.state()
    assert state.version == undisturbed.state().version
    assert scene.events(Drop) == []
    assert {event.kind.value for event in scene.events(Retry)} <= {"lost"}
    assert {(group.infra_failures, group.data_failures) for group in state.groups.values()} <= {(0, 0)}
    # Nothing that had reached the results stream was generated again.
    finished = [event.prompt for event in scene.events(Commit)]
    assert len(finished) == len(set(finished))
    assert [event for event in scene.events(Late) if event.what == "group"] == []
    return state


def test_scripted_workers_end_with_the_same_weights_whoever_is_killed(scene, undisturbed):
    for each in (scene, undisturbed):
        pin(each, steps=40 + 15 * ROUNDS)
        each.settings["flow"]["lease_s"] = 3.0
    undisturbed.start()
    assert undisturbed.controllers[-1].wait() == 0, undisturbed.output

    scene.pace_s = 0.01
    killed = kill_again_and_again(scene, ROUNDS, seed=1, pause_s=(0.0, 1.0))

    check(scene, undisturbed)
    assert scene.chain() == undisturbed.chain()
    assert min(killed.values()) >= ROUNDS // 4, killed


def test_the_torch_engine_ends_with_the_same_bits_whoever_is_killed(scene, undisturbed, model_folder):
    for each in (scene, undisturbed):
        pin(each, steps=150)
        shutil.rmtree(each.folder / "model")
        shutil.copytree(model_folder, each.folder / "model")
        each.settings["model"]["max_tokens"] = 2
        each.settings["reward"] = "rollog.pipeline.training.quickstart_model:successor"
        each.settings["grpo"]["rollouts_per_prompt"] = 4
        each.settings["optimizer"] = {"lr": 5.0e-4}
        each.torch = True
    undisturbed.start()
    assert undisturbed.controllers[-1].wait() == 0, undisturbed.output

    killed = kill_again_and_again(scene, min(ROUNDS, 8), seed=2, pause_s=(0.0, 2.0))

    check(scene, undisturbed)
    assert weights(scene.run) == weights(undisturbed.run)
    assert min(killed.values()) >= min(ROUNDS, 8) // 4, killed


def weights(run: Path) -> str:
    """The digest of the final weights."""
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name.split("-")[0]))
    return blake2b((newest / "model" / "model.safetensors").read_bytes()).hexdigest()
