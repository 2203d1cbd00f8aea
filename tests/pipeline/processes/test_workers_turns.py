"""The example of several turns, as real processes: it learns, everything in it is killed, and it goes on.

Rule 1: when somebody is killed follows from the log (a step, and so many entries more), never from a clock.
Rule 2: one fixed seed draws the moments and the order of the victims; the promise holds at any other moment too.
"""

import random
import shutil
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest
import yaml

from rollog.events.blobs import Blobs
from rollog.events.vocabulary import Commit, Drop, FailureKind, Retry, Train
from rollog.pipeline.rollout_codec import decode
from rollog.pipeline.training.legs_model import write_model

ROOT = Path(__file__).resolve().parents[3]
ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")
STEPS = 40
SEED = 5
VICTIMS = ("gen-0", "rank-0", "controller", "server", "everything")

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


@pytest.fixture
def undisturbed(make_scene, tmp_path_factory):
    made = make_scene(tmp_path_factory.mktemp("undisturbed"))
    yield made
    made.clean()


def the_example(scene) -> None:
    """``examples/turns.yaml``, pinned and with fewer steps."""
    settings = yaml.safe_load((ROOT / "examples" / "turns.yaml").read_text())
    shutil.rmtree(scene.folder / "model")
    write_model(scene.folder / "model", seed=0)
    scene.torch, scene.within_s = True, 900.0
    scene.settings = settings | {"run": "demo", "determinism": "pinned", "checkpoint": {"every_steps": 5}}
    settings["model"]["path"] = "model"
    settings["grpo"]["max_steps"] = STEPS


def test_it_learns_is_killed_and_ends_with_the_same_bits(scene, undisturbed):
    for each in (scene, undisturbed):
        the_example(each)
    undisturbed.start()
    assert undisturbed.controllers[-1].wait() == 0, undisturbed.output
    scene.start()
    kill_each_in_turn(scene, random.Random(SEED))
    while (code := scene.controllers[-1].wait()) == -signal.SIGKILL:
        scene.start()
    assert code == 0, scene.output

    for each in (scene, undisturbed):
        learns(each)
        every_step_has_all_its_rollouts(each)
        the_log_adds_up(each)
    assert scene.trained() == undisturbed.trained(), "skipped 0, repeated 0"
    assert scene.events(Drop) == []
    assert {event.kind for event in scene.events(Retry)} <= {FailureKind.LOST}
    finished = [event.prompt for event in scene.events(Commit)]
    assert len(finished) == len(set(finished)), "nothing that was finished is made again"
    assert groups(scene) == groups(undisturbed), "to the token"
    assert weights(scene.run) == weights(undisturbed.run)


def kill_each_in_turn(scene, chance: random.Random) -> None:
    """Each of them once, in some order, every few steps and somewhere in the middle of one."""
    for number, victim in enumerate(chance.sample(VICTIMS, len(VICTIMS))):
        step = 3 + 6 * number + chance.randrange(3)
        begun = scene.wait_for(lambda state, step=step: state.version >= step)
        further = begun.offset + chance.randrange(12)
        scene.wait_for(lambda state, further=further: state.offset >= further)
        if victim in ("controller", "everything"):
            scene.kill_controller()
        if victim in ("server", "everything"):
            assert scene.kill_server()
        for worker in ("gen-0", "rank-0"):
            if victim in (worker, "everything"):
                scene.kill(worker)
        if victim in ("controller", "everything"):
            scene.start()


def learns(scene) -> None:
    by_prompt = {event.prompt: event.reward_mean for event in scene.events(Commit)}
    steps = scene.trained()
    rewards = [sum(by_prompt[prompt] for prompt in steps[step]) / len(steps[step]) for step in range(STEPS)]
    begins, ends = sum(rewards[:5]) / 5, sum(rewards[-10:]) / 10
    print(f"mean reward {begins:.3f} in the first 5 steps, {ends:.3f} in the last 10 of {STEPS}")
    assert begins <= 0.2
    assert ends >= 0.5


def every_step_has_all_its_rollouts(scene) -> None:
    """And padding fills up each group of 8 rollouts of 3 rows or less to a multiple of Q, with one rank."""
    grpo, training = scene.settings["grpo"], scene.settings["training"]
    assert training["micro_batch"] == training["logprob_batch"]
    commits = {event.prompt: event for event in scene.events(Commit)}
    trained = {event.step: event for event in scene.events(Train)}
    several = 0
    for step, prompts in scene.trained().items():
        made = [commits[prompt] for prompt in prompts]
        assert len(made) == grpo["prompts_per_step"]
        assert {each.rollouts for each in made} == {grpo["rollouts_per_prompt"]}
        assert trained[step].rows == sum(each.rows for each in made)
        assert trained[step].padding == sum(-each.rows % training["micro_batch"] for each in made)
        assert trained[step].tokens == sum(each.tokens for each in made)
        several += sum(max(each.row_counts, default=1) > 1 for each in made)
    assert several > STEPS, "many groups have rollouts of several rows"


def groups(scene) -> dict[int, object]:
    """The rollouts of every finished group that still lies on the disk, which holds the rows that the log tells."""
    longest = scene.settings["compaction"]["max_context_tokens"]
    found: dict[int, object] = {}
    blobs = Blobs(scene.run / "blobs")
    kept = {path.name for path in (scene.run / "blobs").rglob("*") if path.is_file()}
    for event in scene.events(Commit):
        if any(event.blob in name for name in kept):
            group = decode(blobs.get(event.blob))
            assert (group.num_rows, group.row_counts) == (event.rows, event.row_counts)
            assert max(len(row.tokens) for row in group.rows) <= longest
            found[event.prompt] = group.rollouts
    assert found
    return found


def the_log_adds_up(scene) -> None:
    rollouts = STEPS * scene.settings["grpo"]["prompts_per_step"] * scene.settings["grpo"]["rollouts_per_prompt"]
    said = {
        verb: subprocess.run(
            [*ROLLOG, verb, "demo", "-q"], cwd=scene.folder, capture_output=True, text=True, timeout=120, check=False
        )
        for verb in ("verify", "coverage", "report")
    }
    assert {verb: done.returncode for verb, done in said.items()} == dict.fromkeys(said, 0), said
    assert f"{rollouts:,} rollouts in " in said["coverage"].stdout
    assert f"{rollouts:,} rollouts were trained in " in (scene.folder / "report.html").read_text()


def weights(run: Path) -> str:
    """The digest of the final weights."""
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name.split("-")[0]))
    return blake2b((newest / "model" / "model.safetensors").read_bytes()).hexdigest()
