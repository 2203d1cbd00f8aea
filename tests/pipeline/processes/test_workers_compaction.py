"""A run whose rollouts have several turns and several rows, of real processes: it learns, is killed, and goes on."""

import shutil
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest

from rollog.events.blobs import Blobs
from rollog.events.vocabulary import Commit, Drop, FailureKind, Late, Retry, Train
from rollog.pipeline.rollout_codec import decode
from rollog.replay.state import Place

ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")
STEPS, PROMPTS, ROLLOUTS, TURNS = 40, 4, 8, 4

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


@pytest.fixture
def undisturbed(make_scene, tmp_path_factory):
    made = make_scene(tmp_path_factory.mktemp("undisturbed"))
    yield made
    made.clean()


def compacting(scene, model_folder: Path) -> None:
    """The quickstart's model counts on; after two turns its context of 11 tokens is full."""
    shutil.rmtree(scene.folder / "model")
    shutil.copytree(model_folder, scene.folder / "model")
    scene.torch, scene.within_s = True, 900.0
    scene.settings["model"]["max_tokens"] = 2
    scene.settings["data"]["epochs"] = 4
    scene.settings["environment"] = {
        "play": f"{Path(__file__).with_name('counting.py')}:count_on",
        "options": {"turns": TURNS},
    }
    scene.settings["compaction"] = {"enabled": True, "max_context_tokens": 11}
    scene.settings["failure"] = {"on_dropped_prompt": "replace"}
    scene.settings["grpo"] = {"prompts_per_step": PROMPTS, "rollouts_per_prompt": ROLLOUTS, "max_steps": STEPS}
    scene.settings["optimizer"] = {"lr": 2.0e-3, "warmup_steps": 3}
    scene.settings["training"] = {"micro_batch": 6, "logprob_batch": 4}
    scene.settings["checkpoint"] = {"every_steps": 10}
    scene.settings["determinism"] = "pinned"
    scene.settings["generation"]["workers"] = 1
    scene.settings["flow"]["lease_s"] = 10.0


def test_it_learns_is_killed_and_ends_with_the_same_bits(scene, undisturbed, model_folder):
    for each in (scene, undisturbed):
        compacting(each, model_folder)
    undisturbed.start()
    assert undisturbed.controllers[-1].wait() == 0, undisturbed.output
    scene.start()
    kill_each_in_turn(scene)
    while (code := scene.controllers[-1].wait()) == -signal.SIGKILL:
        scene.start()
    assert code == 0, scene.output

    learns(undisturbed)
    for each in (scene, undisturbed):
        every_step_has_all_its_rollouts(each)
        the_log_adds_up(each)
    assert scene.trained() == undisturbed.trained(), "skipped 0, repeated 0"
    assert scene.events(Drop) == []
    assert {event.kind for event in scene.events(Retry)} <= {FailureKind.LOST}
    finished = [event.prompt for event in scene.events(Commit)]
    assert len(finished) == len(set(finished)), "nothing that was finished is made again"
    assert [event for event in scene.events(Late) if event.what == "group"] == []
    assert groups(scene) == groups(undisturbed), "to the token"
    assert weights(scene.run) == weights(undisturbed.run)


def kill_each_in_turn(scene) -> None:
    """The generator in the middle of its groups, the trainer, the controller, and all three together."""
    scene.wait_for(lambda state: state.version >= 3 and state.count(Place.IN_FLIGHT) > 0)
    scene.kill("gen-0")
    scene.wait_for(lambda state: state.version >= 12)
    scene.kill("rank-0")
    scene.wait_for(lambda state: state.version >= 18)
    scene.kill_controller()
    scene.start()
    scene.wait_for(lambda state: state.version >= 25 and state.count(Place.BUFFER) > 0)
    scene.kill_controller()
    for worker in ("gen-0", "rank-0"):
        scene.kill(worker)
    scene.start()


def learns(scene) -> None:
    rewards = [event.reward_mean for event in sorted(scene.events(Commit), key=lambda event: event.prompt)]
    first, last = rewards[: 5 * PROMPTS], rewards[-10 * PROMPTS :]
    begins, ends = sum(first) / len(first), sum(last) / len(last)
    print(f"mean reward {begins:.3f} in the first 5 steps, {ends:.3f} in the last 10 of {STEPS}")
    assert ends > begins + 0.08


def every_step_has_all_its_rollouts(scene) -> None:
    """And padding fills up each group: 8 rollouts of 2 rows or less, Q = lcm(6, 4) = 12."""
    commits = {event.prompt: event for event in scene.events(Commit)}
    steps = scene.trained()
    assert {len(prompts) for prompts in steps.values()} == {PROMPTS}
    trained = {event.step: event for event in scene.events(Train)}
    several = 0
    for step, prompts in steps.items():
        rows = [commits[prompt].rows for prompt in sorted(prompts)]
        assert all(commits[prompt].rollouts == ROLLOUTS for prompt in prompts)
        assert trained[step].rows == sum(rows)
        assert trained[step].padding == sum(-count % 12 for count in rows)
        assert trained[step].tokens == sum(commits[prompt].tokens for prompt in prompts)
        several += sum(count > ROLLOUTS for count in rows)
    assert several > len(steps), "most groups have rollouts of several rows"


def groups(scene) -> dict[int, object]:
    """The rollouts of every finished group as they lie on the disk; each row has marks, and each token one label."""
    found: dict[int, object] = {}
    blobs = Blobs(scene.run / "blobs")
    kept = {path.name for path in (scene.run / "blobs").rglob("*") if path.is_file()}
    for event in scene.events(Commit):
        if any(event.blob in name for name in kept):
            group = decode(blobs.get(event.blob))
            assert (group.num_rows, group.row_counts) == (event.rows, event.row_counts)
            assert max(len(row.tokens) for row in group.rows) <= 11
            found[event.prompt] = group.rollouts
    assert found
    return found


def the_log_adds_up(scene) -> None:
    verify = subprocess.run(
        [*ROLLOG, "verify", "demo"], cwd=scene.folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr
    status = subprocess.run(
        [*ROLLOG, "status", "demo"], cwd=scene.folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert "32 rollouts in " in status.stdout
    assert " padding rows (" in status.stdout


def weights(run: Path) -> str:
    """The digest of the final weights."""
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name.split("-")[0]))
    return blake2b((newest / "model" / "model.safetensors").read_bytes()).hexdigest()
