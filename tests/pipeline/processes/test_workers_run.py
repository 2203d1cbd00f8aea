"""Whole runs of real processes with scripted engines: nothing is skipped, repeated or decided twice, whoever dies."""

import os
import shutil
import signal

import pytest

from rollog.events.vocabulary import (
    Commit,
    Dispatch,
    Drop,
    FinishReason,
    Late,
    Load,
    Resume,
    Retry,
    Stop,
    StopReason,
    Train,
)
from rollog.pipeline.launch.process import PidFile
from rollog.replay.state import Place


def test_a_run_trains_every_admitted_prompt_once_and_leaves_nothing_running(scene):
    scene.start()

    assert scene.finish() == 0, scene.output
    state, trained = scene.state(), scene.trained()
    assert state.finish is FinishReason.MAX_STEPS
    assert trained == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    assert not scene.events(Retry)
    assert not scene.events(Resume)
    for worker in ("gen-0", "gen-1", "rank-0"):
        assert scene.process(worker) is None


def test_a_killed_controller_costs_nothing_but_time(scene):
    for version in (1, 6):
        scene.start()
        scene.wait_for(lambda state, version=version: state.version >= version)
        scene.kill_controller()
    scene.start()

    assert scene.finish() == 0, scene.output
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    assert not scene.events(Retry)  # orders that ran went on, and none was started twice
    assert not scene.events(Resume)  # the trainer lived on
    attempts = [(event.prompt, event.attempt) for event in scene.events(Commit)]
    assert len(attempts) == len(set(attempts))
    assert {attempt for _, attempt in attempts} == {1}
    assert not [event for event in scene.events(Late) if event.what != "leave"]


@pytest.mark.long
def test_whoever_is_killed_a_pinned_run_ends_with_the_same_weights(scene, make_scene, tmp_path_factory):
    undisturbed = make_scene(tmp_path_factory.mktemp("undisturbed"))
    for each in (scene, undisturbed):
        each.settings |= {"determinism": "pinned"}
        each.settings["failure"] = {"min_step_fraction": 1.0}
    try:
        undisturbed.start()
        assert undisturbed.finish() == 0, undisturbed.output

        scene.start()
        scene.wait_for(lambda state: state.version >= 2)
        scene.kill("gen-0")
        scene.wait_for(lambda state: state.version >= 4)
        scene.kill("rank-0")
        scene.wait_for(lambda state: state.version >= 7 and state.standing >= 7)
        scene.kill("rank-0")
        scene.kill("gen-1")
        scene.kill_controller()
        scene.start()
        assert scene.finish() == 0, scene.output

        assert scene.trained() == undisturbed.trained()
        assert scene.chain() == undisturbed.chain()
        assert {event.kind.value for event in scene.events(Retry)} <= {"lost"}
        assert len(scene.events(Resume)) >= 2
    finally:
        undisturbed.clean()


def test_a_stop_drains_saves_and_can_be_resumed(scene):
    scene.start()
    scene.wait_for(lambda state: state.version >= 2)
    scene.controllers[-1].send_signal(signal.SIGINT)

    assert scene.finish() == 75, scene.output
    state = scene.state()
    assert state.finish is FinishReason.STOPPED
    assert state.count(Place.IN_FLIGHT) == 0
    assert state.newest_checkpoint() == state.version
    assert [event.reason for event in scene.events(Stop)] == [StopReason.INTERRUPT]

    scene.start()
    assert scene.finish() == 0, scene.output
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    assert not scene.events(Retry)


def test_a_terminate_leaves_what_runs_for_the_resume(scene):
    scene.start()
    scene.wait_for(lambda state: state.version >= 2)
    scene.controllers[-1].send_signal(signal.SIGTERM)

    assert scene.finish() == 75, scene.output
    left = {group.prompt for group in scene.state().at(Place.IN_FLIGHT)}
    scene.start()
    assert scene.finish() == 0, scene.output
    assert {event.prompt for event in scene.events(Retry)} <= left
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}


def test_the_second_interrupt_ends_at_once_and_nothing_is_lost(scene):
    scene.start()
    scene.wait_for(lambda state: state.version >= 2)
    held = [scene.process(name) for name in ("gen-0", "gen-1")]
    for process in held:
        os.kill(process.pid, signal.SIGSTOP)  # what runs cannot finish now
    scene.wait_for(lambda state: state.count(Place.IN_FLIGHT) > 0)
    scene.controllers[-1].send_signal(signal.SIGINT)
    scene.wait_for(lambda state: state.stopping is not None)
    scene.controllers[-1].send_signal(signal.SIGINT)

    assert scene.finish() == 130, scene.output
    assert [name for name in ("gen-0", "gen-1", "rank-0") if scene.process(name)] == []
    scene.start()
    assert scene.finish() == 75, scene.output  # the stop that was under way goes on
    scene.start()
    assert scene.finish() == 0, scene.output
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}


def test_the_older_of_two_controllers_is_fenced_and_the_newer_one_takes_the_workers_over(scene):
    scene.settings["flow"]["lease_s"] = 20.0
    older = scene.start()
    scene.wait_for(lambda state: state.version >= 2)
    workers = {name: scene.process(name).pid for name in ("gen-0", "gen-1", "rank-0")}
    for name in ("gen-0", "gen-1"):
        os.kill(workers[name], signal.SIGSTOP)  # the run must not end before the second controller comes
    newer = scene.start()
    scene.wait_for(lambda state: state.epoch == 2)
    for name in ("gen-0", "gen-1"):
        os.kill(workers[name], signal.SIGCONT)

    assert older.wait(60) == 1, scene.output
    assert newer.wait(60) == 0, scene.output
    files = {name: PidFile.read(scene.run / "logs" / f"{name}.pid") for name in workers}
    assert {name: file.pid for name, file in files.items()} == workers
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    assert not scene.events(Retry)
    assert not scene.events(Resume)


def test_a_reward_that_raises_stops_the_run_and_names_function_and_row_and_a_person_gives_the_prompt_up(scene):
    (scene.folder / "picky.py").write_text(
        "def picky(prompt, completion, answer, **row):\n"
        "    if row['number'] == 11:\n"
        "        raise KeyError('no such key')\n"
        "    return 1.0\n"
    )
    scene.settings["reward"] = "picky.py:picky"
    scene.settings["failure"] = {"min_step_fraction": 0.5}
    scene.settings["grpo"]["max_steps"] = 16
    scene.start()

    assert scene.finish() == 1, scene.output
    state = scene.state()
    assert state.finish is FinishReason.FAILED
    (stop,) = scene.events(Stop)
    for word in ("picky.py:picky", "KeyError", "row 11", "max_skipped_prompts"):
        assert word in scene.output
    assert state.groups[stop.prompt].row == 11

    scene.overrides = [f"--drop={stop.prompt}"]
    scene.start()
    assert scene.finish() == 0, scene.output
    assert [event.prompt for event in scene.events(Drop)] == [stop.prompt]
    trained = [prompt for prompts in scene.trained().values() for prompt in prompts]
    assert sorted(trained) == [prompt for prompt in range(64) if prompt != stop.prompt]


def test_generators_load_what_is_published_and_never_go_back(scene):
    scene.start()
    assert scene.finish() == 0, scene.output

    for name in ("gen-0", "gen-1"):
        versions = [event.version for event in scene.events(Load) if event.worker == name]
        assert versions == sorted(set(versions))
    for event in scene.events(Commit):
        dispatched = next(order for order in scene.events(Dispatch) if order.prompt == event.prompt)
        assert dispatched.weights <= event.born <= event.done


def test_a_dead_server_is_started_again_and_the_run_goes_on(scene):
    scene.start()
    scene.wait_for(lambda state: state.version >= 3)
    assert scene.kill_server()

    assert scene.finish() == 0, scene.output
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    assert len(scene.events(Train)) == 12


@pytest.mark.long
def test_a_trainer_that_hangs_is_replaced_and_ended(scene):
    scene.settings["flow"]["lease_s"] = 2.0
    scene.start()
    scene.wait_for(lambda state: state.version >= 2 and "rank-0" in state.workers)
    hung = scene.process("rank-0")
    os.kill(hung.pid, signal.SIGSTOP)

    assert scene.finish() == 0, scene.output
    assert not hung.alive()
    (resume,) = scene.events(Resume)
    assert "lease" in resume.reason
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}


def test_a_recorded_selection_that_cannot_be_read_stops_the_run_until_it_is_restored(scene):
    scene.start()
    scene.wait_for(lambda state: state.version >= 1 and "rank-0" in state.workers)
    trainer = scene.process("rank-0")
    os.kill(trainer.pid, signal.SIGSTOP)
    (commit,) = [event for event in scene.events(Commit) if event.prompt == 0]
    blob = scene.run / "blobs" / commit.blob[:2] / commit.blob
    blob.rename(scene.folder / "kept")
    shutil.rmtree(scene.run / "checkpoints")  # so that the first step is trained again
    trainer.kill()

    assert scene.finish() == 1, scene.output
    assert "step 0 cannot be trained: the blob of prompt 0 is unreadable" in scene.output
    assert [name for name in ("gen-0", "gen-1", "rank-0") if scene.process(name)] == []

    (scene.folder / "kept").rename(blob)
    scene.start()
    assert scene.finish() == 0, scene.output
    assert scene.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(12)}
    assert not [event for event in scene.events(Retry) if event.kind.value != "lost"]
