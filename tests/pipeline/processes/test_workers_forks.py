"""Forks of real runs: they go on from the parent's entry, on weights trained again, and depend on nothing outside."""

import json
import shutil
import subprocess

import pytest

from rollog.events.reading import open_reader
from rollog.events.server import start
from rollog.events.vocabulary import FinishReason, Fork, Resume, Train
from rollog.replay.verification import verify


@pytest.fixture
def rollog(scene):
    """``rollog(*words)``: the command, in the scene's folder."""
    from rollog.pipeline.launch.local import GENERATOR

    def run(*words):
        command = (GENERATOR[0], "-c", "from rollog.pipeline.cli import main; main()", *words)
        return subprocess.run(command, cwd=scene.folder, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture
def the_fork(scene, make_scene):
    """``the_fork(name)``: the scene of a fork of ``scene``; what it leaves is cleaned up."""
    made = []

    def named(name):
        made.append(make_scene(scene.folder, settings={**scene.settings, "run": name}))
        return made[-1]

    yield named
    for each in made:
        if each.run.exists():
            each.clean()


def whole(scene):
    with open_reader(scene.run) as reader:
        return verify(reader)


def trained_at(scene, step):
    """The entry that closed a step."""
    return next(
        entry.offset
        for entry in scene.entries()
        for event in entry.events
        if isinstance(event, Train) and event.step == step
    )


def in_order(steps):
    return {step: set(range(4 * step, 4 * step + 4)) for step in range(steps)}


def test_a_pinned_fork_without_changes_ends_with_the_weights_of_its_parent(scene, the_fork, rollog):
    scene.settings |= {"determinism": "pinned"}
    scene.start()
    assert scene.finish() == 0, scene.output
    at, again = trained_at(scene, 10), the_fork("again")

    too_early = rollog("fork", "demo@step:7", "never", "--reason", "too early")
    assert (too_early.returncode, "The nearest that works are the entries of v10" in too_early.stderr) == (1, True)
    made = rollog("fork", "demo@step:10", "again", "--reason", "the same once more")

    assert made.returncode == 0, made.stderr
    assert "it really starts from v9" in made.stderr
    parent = scene.folder / "elsewhere"
    shutil.move(scene.run, parent)
    assert whole(again).holds
    again.start()
    assert again.finish() == 0, again.output
    assert again.state().finish is FinishReason.MAX_STEPS
    assert again.trained() == in_order(12)
    assert again.chain() == (next((parent / "checkpoints").glob("12-*")) / "chain").read_text()
    assert whole(again).holds
    (fork,) = again.events(Fork)
    assert (fork.parent, fork.offset, fork.reason) == ("demo", at, "the same once more")
    assert [event.version for event in again.events(Resume)] == [9]


@pytest.mark.long
def test_a_fork_of_a_crashed_run_takes_other_data_from_there_and_can_be_forked_again(scene, the_fork, rollog):
    scene.settings["checkpoint"] = {"every_steps": 2}
    scene.start()
    scene.wait_for(lambda state: state.version >= 5 and state.newest_checkpoint() >= 4)
    scene.kill_controller()
    head = scene.state()
    rows = [json.dumps({"prompt": str(row), "answer": str(row)}) for row in range(80)]
    (scene.folder / "other.jsonl").write_text("\n".join(rows))
    moment = f"demo@step:{head.version - 1}"

    changes = ("data.path=other.jsonl", "grpo.prompts_per_step=6", "grpo.max_steps=null")
    made = rollog("fork", moment, "other", *changes, "--reason", "other data")

    assert made.returncode == 0, made.stderr
    other = the_fork("other")
    other.settings |= {
        "data": {"path": "other.jsonl", "epochs": 1},
        "grpo": {"prompts_per_step": 6, "rollouts_per_prompt": 2},
    }
    other.start()
    assert other.finish() == 0, other.output
    state, trained = other.state(), other.trained()
    assert state.finish is FinishReason.EXHAUSTED
    assert (state.num_rows, state.slate_step) == (80, head.version)
    assert {step: prompts for step, prompts in trained.items() if step < head.version} == in_order(head.version)
    own = sorted(prompt for step, prompts in trained.items() if step >= head.version for prompt in prompts)
    assert own == list(range(state.slate_prompt, state.slate_prompt + len(own)))
    assert all(len(trained[step]) == 6 for step in range(head.version, state.version))
    assert 80 - state.handed_out < 6
    assert whole(other).holds

    once_more = rollog("fork", "other", "third", "grpo.max_steps=null", "data.epochs=2", "--reason", "longer")
    assert once_more.returncode == 0, once_more.stderr
    third = the_fork("third")
    third.settings = {**other.settings, "run": "third", "data": {"path": "other.jsonl", "epochs": 2}}
    third.start()
    assert third.finish() == 0, third.output
    assert third.state().version > state.version
    assert [event.run for event in third.events(Fork)] == ["other", "third"]
    assert whole(third).holds


@pytest.mark.long
def test_a_fork_whose_server_was_emptied_is_refused(scene, the_fork, rollog):
    scene.start()
    assert scene.finish() == 0, scene.output
    fork = the_fork("fork")
    assert rollog("fork", "demo", "fork", "grpo.max_steps=14", "--reason", "further").returncode == 0
    fork.start()
    fork.wait_for(lambda state: state.version >= 13)
    assert fork.finish() == 0, fork.output
    shutil.rmtree(fork.run / "log" / "appendonlydir")

    fork.start()

    assert fork.finish() != 0
    assert "acknowledged" in fork.output
    start(fork.run).shutdown()


@pytest.mark.long
def test_the_reading_verbs_cross_the_border_of_a_fork(scene, the_fork, rollog):
    scene.start()
    assert scene.finish() == 0, scene.output
    last = scene.entries()[-1].offset
    the_fork("fork")
    assert rollog("fork", f"demo@{last}", "fork", "sampler.lookahead=2", "--reason", "wider").returncode == 0

    for words in (
        ("log", "fork", "--oneline"),
        ("show", f"fork@{last + 1}"),
        ("state", f"fork@{last - 3}"),
        ("status", "fork"),
        ("verify", "fork"),
    ):
        read = rollog(*words)
        assert read.returncode == 0, (words, read.stderr)
    assert rollog("fork", "demo", "fork", "--reason", "a used name").returncode == 2


@pytest.mark.long
def test_a_run_that_works_is_forked_and_works_on(scene, the_fork, rollog):
    scene.pace_s = 0.5
    scene.start()
    scene.wait_for(lambda state: state.version >= 4)
    made = rollog("fork", "demo", "live", "failure.max_lost_attempts=9", "--reason", "while it runs")
    assert made.returncode == 0, made.stderr
    assert scene.controllers[-1].poll() is None, "the parent runs on"
    assert scene.finish() == 0, scene.output

    live = the_fork("live")
    live.start()
    assert live.finish() == 0, live.output
    for each in (scene, live):
        assert each.trained() == in_order(12)
        assert whole(each).holds
    assert [event.parent for event in live.events(Fork)] == ["demo"]
    assert not scene.events(Fork)
