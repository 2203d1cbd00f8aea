"""Generators of a running run come and go: real processes, scripted engines."""

import json
import os
import signal
import subprocess
from contextlib import suppress

import pytest
import yaml

from rollog.events.vocabulary import Commit, Configure, Dispatch, Join, Leave, Load, Retry
from rollog.pipeline.errors import PlanError
from scene import ROLLOG


def rollog(scene, *words):
    return subprocess.run([*ROLLOG, *words], cwd=scene.folder, capture_output=True, text=True, check=False, timeout=200)


def endless(scene):
    """Until it is stopped."""
    scene.pace_s = 0.05
    scene.settings["data"]["epochs"] = 10_000
    del scene.settings["grpo"]["max_steps"]


def in_full(steps):
    return {step: set(range(4 * step, 4 * step + 4)) for step in range(steps)}


@pytest.mark.long
def test_a_fleet_grows_and_shrinks_while_the_run_goes_on_and_nothing_is_generated_twice(scene):
    endless(scene)
    scene.settings["generation"]["workers"] = 1
    scene.start()
    scene.wait_for(lambda state: state.version >= 1)

    grown = rollog(scene, "scale", "demo", "generators=3")
    assert grown.returncode == 0, grown.stderr
    assert "gen-1, gen-2" in grown.stderr
    state = scene.wait_for(lambda state: {"gen-0", "gen-1", "gen-2"} <= state.workers.keys())
    scene.wait_for(lambda later: later.version >= state.version + 2)
    written = yaml.safe_load((scene.run / "config.yaml").read_text())
    assert written["generation"]["workers"] == 3

    shrunk = rollog(scene, "scale", "demo", "generators=1")
    assert shrunk.returncode == 0, shrunk.stderr
    assert "gen-1, gen-2 finish what they hold" in shrunk.stderr
    state = scene.wait_for(lambda state: not {"gen-1", "gen-2"} & state.workers.keys())
    scene.wait_for(lambda later: later.version >= state.version + 2)
    scene.controllers[-1].terminate()
    assert scene.finish() == 75, scene.output

    sizes = [event.changes["generation.workers"] for event in scene.events(Configure)]
    assert sizes == [3, 1]
    assert scene.trained() == in_full(scene.state().version)
    assert not scene.events(Retry)
    left = {event.worker: event.reason for event in scene.events(Leave) if "fleet" in event.reason}
    assert left.keys() == {"gen-1", "gen-2"}
    assert {event.worker for event in scene.events(Commit)} == {"gen-0", "gen-1", "gen-2"}
    assert rollog(scene, "verify", "demo").returncode == 0


@pytest.mark.long
def test_scaling_what_does_not_run_or_to_what_it_is_already_says_so(scene):
    endless(scene)
    scene.start()
    scene.wait_for(lambda state: state.version >= 1)
    same = rollog(scene, "scale", "demo", "generators=2")
    wrong = rollog(scene, "scale", "demo", "ranks=2")
    scene.controllers[-1].terminate()
    assert scene.finish() == 75, scene.output
    over = rollog(scene, "scale", "demo", "generators=4")

    assert (same.returncode, same.stderr.strip()) == (0, "demo has 2 generators already")
    assert wrong.returncode == PlanError.exit_code
    assert "ranks=2" in wrong.stderr
    assert over.returncode == 3


@pytest.mark.long
def test_a_killed_generator_gets_work_again_only_after_it_confirmed_weights_and_then_does(scene):
    """Public fault B64: a restarted shard must not get work before it confirmed its weights, and must then get some."""
    scene.pace_s = 0.05
    scene.settings["generation"]["workers"] = 4
    scene.settings["flow"]["lease_s"] = 2.0
    scene.settings["grpo"]["max_steps"] = 16
    scene.start()
    scene.wait_for(lambda state: len(state.workers) == 5)
    others = [scene.process(name) for name in ("gen-0", "gen-1", "gen-3")]
    for other in others:  # only the one that is killed can go on
        os.kill(other.pid, signal.SIGSTOP)
    killed_at = scene.state().offset
    scene.kill("gen-2")
    scene.wait_for(lambda state: any(
        isinstance(event, Commit) and event.worker == "gen-2" and entry.offset > killed_at
        for entry in scene.entries() for event in entry.events
    ))  # fmt: skip
    for other in others:
        with suppress(ProcessLookupError):  # one that hangs for three leases is replaced
            os.kill(other.pid, signal.SIGCONT)
    assert scene.finish() == 0, scene.output

    events = [event for entry in scene.entries() if entry.offset > killed_at for event in entry.events]
    again = next(at for at, event in enumerate(events) if isinstance(event, Join) and event.worker == "gen-2")
    later = [event for event in events[again:] if getattr(event, "worker", None) == "gen-2"]
    commits = [event for event in later if isinstance(event, Commit)]
    first = next(at for at, event in enumerate(later) if isinstance(event, Commit))
    confirmed = [event.version for event in later[:first] if isinstance(event, Load)]
    wanted = {(event.prompt, event.attempt): event.weights for event in scene.events(Dispatch)}
    assert commits
    assert confirmed
    assert all(commit.born >= wanted[commit.prompt, commit.attempt] for commit in commits)
    assert commits[0].born >= confirmed[0]
    assert {event.kind.value for event in scene.events(Retry)} <= {"lost"}
    assert scene.trained() == in_full(16)


@pytest.mark.long
def test_a_slow_generator_gets_less(scene):
    scene.pace_s = 0.02
    scene.settings["generation"]["workers"] = 2
    scene.settings["flow"] |= {"lease_s": 4.0, "max_inflight_prompts": 4}
    scene.settings["grpo"]["max_steps"] = 16
    scene.environment["SLOW"] = json.dumps({"gen-1": 10.0})
    scene.start()
    assert scene.finish() == 0, scene.output

    shares = [sum(commit.worker == name for commit in scene.events(Commit)) for name in ("gen-0", "gen-1")]
    assert sum(shares) == 64
    assert shares[0] > 2 * shares[1]
    assert not scene.events(Retry)
    assert scene.trained() == in_full(16)
