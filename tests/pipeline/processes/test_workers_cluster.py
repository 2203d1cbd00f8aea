"""A run on a Ray cluster of three nodes on this machine: scripted workers, everything else is the real thing.

The trainer works on the head, each of the two generators on a node of its own.
"""

import importlib.util
import json
import os
import signal

import pytest

from ray_nodes import RayNodes, parent_of
from rollog.events.vocabulary import Commit, Dispatch, Join, Leave, Load, Resume, Retry
from rollog.pipeline.launch.process import PidFile
from scene import TESTS

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed; make test-long installs it"
    ),
]
GENERATORS = ("gen-0", "gen-1")


@pytest.fixture(scope="module")
def nodes():
    made = RayNodes(3, {"PYTHONPATH": str(TESTS), "PACE_S": "0.05"})
    yield made
    made.close()


@pytest.fixture
def cluster_scene(scene, nodes):
    """A run without an end on the cluster."""
    scene.within_s = 200.0
    scene.environment |= {"RAY_ADDRESS": nodes.address}
    scene.settings |= {"launch": "ray"}
    scene.settings["data"]["epochs"] = 10_000
    scene.settings["flow"] |= {"lease_s": 8.0, "worker_orphan_s": 120.0}
    del scene.settings["grpo"]["max_steps"]
    return scene


def everybody(state):
    return {*GENERATORS, "rank-0"} <= state.workers.keys()


def file_of(scene, worker):
    file = PidFile.read(scene.run / "logs" / f"{worker}.pid")
    assert file is not None
    return file


def raylet_of(scene, worker):
    """The node that a worker is on: raylet, keeper, worker."""
    return parent_of(parent_of(file_of(scene, worker).pid))


def steps_more(scene, steps):
    version = scene.state().version
    scene.wait_for(lambda state: state.version >= version + steps)


def ends_whole(scene):
    """Stopped and judged: every step trained its own prompts, none twice, none left out."""
    scene.controllers[-1].terminate()
    assert scene.finish() == 75, scene.output
    state, trained = scene.state(), scene.trained()
    assert state.version == len(trained)
    assert trained == {step: set(range(4 * step, 4 * step + 4)) for step in range(state.version)}
    assert {event.kind.value for event in scene.events(Retry)} <= {"lost"}
    committed = [(event.prompt, event.attempt) for event in scene.events(Commit)]
    assert len(committed) == len(set(committed))


def test_a_node_dies_with_its_generator_and_the_run_goes_on_with_nothing_skipped_or_repeated(cluster_scene, nodes):
    """Public fault B64, on a cluster: the generator gets a node that joins, confirms its weights, then gets work."""
    scene = cluster_scene
    scene.start()
    scene.wait_for(everybody)
    places = {worker: raylet_of(scene, worker) for worker in (*GENERATORS, "rank-0")}
    assert set(places.values()) == set(nodes.raylets)
    lost = "gen-1"

    nodes.kill(places[lost])
    scene.wait_for(lambda state: lost not in state.workers)
    steps_more(scene, 3)
    before = scene.state().offset
    nodes.add()
    scene.wait_for(everybody)
    scene.wait_for(lambda state: any(event.worker == lost for event in later(scene, before, Commit)))

    ends_whole(scene)
    (confirmed, *_) = [event.version for event in later(scene, before, Load) if event.worker == lost]
    (first, *_) = [event for event in later(scene, before, Commit) if event.worker == lost]
    wanted = {(event.prompt, event.attempt): event.weights for event in scene.events(Dispatch)}
    assert first.born >= confirmed >= 1
    assert first.born >= wanted[first.prompt, first.attempt]


def later(scene, offset, kind):
    return [
        event for entry in scene.entries() if entry.offset > offset for event in entry.events if isinstance(event, kind)
    ]


def test_workers_outlive_the_controller_that_made_them_and_one_that_dies_is_made_again_under_a_new_name(cluster_scene):
    """Public fault B62: the owner of a named actor dies; nobody may wait for a name that will never answer again."""
    scene = cluster_scene
    scene.start()
    scene.wait_for(everybody)
    steps_more(scene, 1)
    files = {worker: file_of(scene, worker) for worker in (*GENERATORS, "rank-0")}
    scene.kill_controller()
    scene.start()
    scene.wait_for(lambda state: state.epoch == 2)
    steps_more(scene, 2)
    assert {worker: file_of(scene, worker) for worker in files} == files
    assert not scene.events(Retry)
    assert not scene.events(Resume)

    for worker in ("gen-0", "rank-0"):  # the keepers, and with them what they keep
        os.kill(parent_of(files[worker].pid), signal.SIGKILL)
    scene.wait_for(lambda state: file_of(scene, "gen-0").number == 2 and state.generation > 1 and everybody(state))
    steps_more(scene, 2)

    ends_whole(scene)
    reasons = {event.worker: event.reason for event in scene.events(Leave) if "stopped" not in event.reason}
    assert reasons.keys() == {"gen-0", "rank-0"}
    assert len(scene.events(Resume)) == 1
    assert file_of(scene, "gen-1") == files["gen-1"]


def test_an_answer_of_an_actor_that_is_lost_changes_nothing(cluster_scene):
    """Public fault B66: a call to an actor ran and its answer was lost: whether it ran is unknown. It is asked again,
    and nothing is started or committed twice. The first two answers of actors to this controller are lost."""
    scene = cluster_scene
    lost = {"num_failures": 2, "req_failure_prob": 0, "resp_failure_prob": 100}
    scene.environment["RAY_testing_rpc_failure"] = json.dumps({"CoreWorkerService.grpc_client.PushTask": lost})
    scene.start()
    scene.wait_for(everybody)
    for number in (1, 2):
        os.kill(file_of(scene, "gen-0").pid, signal.SIGKILL)
        scene.wait_for(
            lambda state, number=number: (
                file_of(scene, "gen-0").number == number + 1
                and len([event for event in scene.events(Join) if event.worker == "gen-0"]) == number + 1
            )
        )
    steps_more(scene, 2)

    ends_whole(scene)
    left = [event.reason for event in scene.events(Leave) if event.worker == "gen-0" and "stopped" not in event.reason]
    assert left == ["its process was ended by signal 9"] * 2
    assert file_of(scene, "gen-0").number == 3
    assert not scene.events(Resume)
