"""The command line: exit codes, refusals that say what to do, and nothing left behind by a refusal."""

import io
import json
import shutil
import signal

import pytest
import yaml
from typer.testing import CliRunner

from rollog.events import server
from rollog.events.vocabulary import Checkpoint, Commit, Configure, FinishReason, Stop, StopReason
from rollog.pipeline.cli import app
from rollog.pipeline.progress import Progress
from rollog.pipeline.waiting import Wait, WaitFor
from rollog.replay.projector import fold
from rollog.replay.state import Place, State


@pytest.fixture
def rollog(scene, monkeypatch):
    """The command line, in the scene's folder."""

    def run(*words: str):
        (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))
        return CliRunner().invoke(app, words)

    monkeypatch.chdir(scene.folder)
    return run


@pytest.fixture(scope="module")
def ended(tmp_path_factory, make_scene):
    """A run that has ended: two steps of two."""
    made = make_scene(tmp_path_factory.mktemp("ended"))
    made.settings["grpo"]["max_steps"] = 2
    made.start()
    assert made.finish() == 0, made.output
    yield made
    made.clean()


@pytest.fixture
def again(scene, ended):
    """The scene with a copy of that run."""
    shutil.copytree(ended.folder / "runs", scene.folder / "runs")
    scene.settings = ended.settings
    return scene


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "nowhere.yaml"), "no such settings file"),
        (("train", "run.yaml", "grpo.steps=3"), "grpo.steps: unknown setting"),
        (("train", "run.yaml", "seed=x"), "seed"),
        (("train", "run.yaml", "model.path=elsewhere"), "no such folder"),
        (("train", "run.yaml", "data.path=none.jsonl"), "none.jsonl"),
        (("train", "run.yaml", "reward=nowhere:f"), "no module named nowhere"),
        (("train", "run.yaml", "sampler={name: custom, target: 'nowhere:C'}"), "sampler.target=nowhere:C: no module"),
        (("train", "run.yaml", "sampler.name=windowed"), "sampler.lookahead=1 would do nothing"),
        (("resume", "demo"), "no run named demo"),
        (("stop", "demo"), "no run named demo"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(scene, rollog, words, says):
    answer = rollog(*words)

    assert answer.exit_code == 2
    assert says in answer.stderr
    assert not scene.run.exists()


def test_a_dry_run_prints_the_plan_with_what_is_derived_and_writes_nothing(scene, rollog):
    answer = rollog("train", "run.yaml", "--dry-run")

    assert answer.exit_code == 0, answer.stderr
    assert "max_buffered_groups: 8" in answer.stdout
    assert "lookahead: 1" in answer.stdout
    assert not scene.run.exists()


def test_a_run_is_looked_at_stopped_refused_and_resumed_from_the_command_line(scene, rollog):
    scene.pace_s = 0.5
    scene.start()
    scene.wait_for(lambda state: state.version >= 1)

    assert rollog("ps").stdout.split()[:1] == ["demo"]
    broken = scene.folder / "runs" / "broken"
    broken.mkdir()
    for config in ("seed: [", "seed: 1\nsead: 2\n"):
        (broken / "config.yaml").write_text(config)
        listed = rollog("ps", "--json")
        assert "broken is left out" in listed.stderr
        (row,) = json.loads(listed.stdout)["runs"]
        assert row["run"] == "demo"
        assert row["version"] >= 1
        assert "gen-0" in row["workers"]
    again = rollog("train", "run.yaml")
    assert again.exit_code == 2
    assert "rollog resume demo" in again.stderr
    stopped = rollog("stop", "demo", "-v")
    assert stopped.exit_code == 0, stopped.stderr
    assert "finished (stopped)" in stopped.stderr, "-v says what lands"
    assert scene.finish() == 75, scene.output
    assert scene.state().finish is FinishReason.STOPPED
    assert [stop.reason for stop in scene.events(Stop)] == [StopReason.REQUEST]

    assert rollog("ps").stdout == ""
    not_running = rollog("stop", "demo")
    assert not_running.exit_code == 3
    assert "does not run" in not_running.stderr

    other_seed = rollog("resume", "demo", "seed=5")
    assert other_seed.exit_code == 2
    assert "rollog fork" in other_seed.stderr
    dry = rollog("resume", "demo", "grpo.max_steps=9", "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert "grpo.max_steps = 9" in dry.stderr
    assert "lost        nothing" in dry.stderr
    assert not server.is_running(scene.run)
    assert scene.events(Configure) == []


@pytest.mark.parametrize("config", ["seed: [", "", "\x00"])
def test_damaged_settings_are_told_by_their_file_with_the_way_to_write_them_anew(again, rollog, config):
    sound = (again.run / "config.yaml").read_text()
    (again.run / "config.yaml").write_text(config)

    for verb in ("resume", "stop"):
        answer = rollog(verb, "demo")
        assert answer.exit_code == 2
        assert "runs/demo/config.yaml cannot be read" in answer.stderr

    (again.run / "config.yaml").unlink()
    (again.run / "config.yaml").write_text(rollog("state", "demo", "--path", "settings").stdout)
    assert yaml.safe_load((again.run / "config.yaml").read_text()) == yaml.safe_load(sound)


def test_other_rows_under_the_same_path_are_refused(again, rollog):
    (again.folder / "data.jsonl").write_text('{"prompt": "1", "answer": "2"}\n' * 64)

    answer = rollog("resume", "demo", "grpo.max_steps=3")

    assert answer.exit_code == 2
    assert "not those that run demo began with" in answer.stderr
    assert not server.is_running(again.run)


def test_a_run_that_is_complete_is_not_driven_again(again, rollog):
    before = len(again.entries())

    answer = rollog("resume", "demo")

    assert answer.exit_code == 0, answer.stderr
    assert "nothing to do: the run is complete (max_steps). A higher end goes on:  rollog resume demo" in answer.stderr
    assert len(again.entries()) == before


def test_where_the_data_has_no_more_steps_a_resume_advises_a_fork_with_more_epochs(scene, rollog):
    rows = [json.dumps({"prompt": str(row), "answer": str(row + 1)}) for row in range(8)]
    (scene.folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    scene.settings["grpo"]["max_steps"] = None
    scene.start()
    assert scene.finish() == 0, scene.output

    answer = rollog("resume", "demo")

    assert answer.exit_code == 0, answer.stderr
    assert "rollog fork demo NEW data.epochs=2" in answer.stderr
    assert "max_steps=" not in answer.stderr


def test_a_higher_end_goes_on_where_the_run_had_ended_and_sweeps_what_a_death_has_left_half_written(again):
    again.overrides = ["grpo.max_steps=4"]
    halves = [again.run / ".tmp-config", again.run / "mark.json.x.tmp", again.run / "log" / "segments" / "7.tmp"]
    for half in halves:
        half.write_text("half")
    again.start()

    assert again.finish() == 0, again.output
    assert [half for half in halves if half.exists()] == []
    assert [event.changes for event in again.events(Configure)] == [{"grpo.max_steps": 4}]
    assert again.trained() == {step: set(range(4 * step, 4 * step + 4)) for step in range(4)}


def test_a_run_goes_on_under_another_sampler_with_other_workers_deadlines_and_periods(again, rollog):
    changes = {
        "checkpoint.every_steps": 2,
        "failure.max_skipped_prompts": 3,
        "flow.max_buffered_groups": 12,
        "flow.rollout_timeout_s": 300.0,
        "generation.workers": 1,
        "grpo.max_steps": 6,
        "sampler.max_staleness": 2,
        "sampler.name": "windowed",
    }
    again.overrides = [f"{path}={value}" for path, value in changes.items()]
    again.start()

    assert again.finish() == 0, again.output
    (configure,) = again.events(Configure)
    assert configure.changes == changes | {"sampler.freshest_first": False, "sampler.lookahead": None}
    trained = [prompt for prompts in again.trained().values() for prompt in prompts]
    assert len(trained) == len(set(trained)) == 24
    later = again.entries()[configure_offset(again) :]
    # A late word of the first command's gen-1 may still lie in the results: who works is seen by what comes in.
    assert {event.worker for entry in later for event in entry.events if isinstance(event, Commit)} == {"gen-0"}
    assert {4, 6} <= {event.version for event in again.events(Checkpoint)}
    assert "windowed, max_staleness 2" in again.output
    assert rollog("verify", "demo").exit_code == 0
    back = rollog("resume", "demo", "sampler.lookahead=3", "--dry-run")
    assert back.exit_code == 2
    assert "sampler.lookahead=3 would do nothing with sampler.name=windowed" in back.stderr


def configure_offset(scene) -> int:
    return next(e.offset for e in scene.entries() if any(isinstance(event, Configure) for event in e.events))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed=5", "seed was 0 and is now 5"),
        ("grpo.prompts_per_step=2", "grpo.prompts_per_step was 4 and is now 2"),
        ("data.path=other.jsonl", "data.path was 'data.jsonl' and is now 'other.jsonl'"),
        ("model.temperature=0.5", "model.temperature was 1.0 and is now 0.5"),
    ],
)
def test_what_would_make_it_another_run_is_refused_with_the_difference(again, rollog, override, says):
    before = len(again.entries())

    answer = rollog("resume", "demo", override)

    assert answer.exit_code == 2
    assert says in answer.stderr
    assert "`rollog fork`" in answer.stderr
    assert len(again.entries()) == before


def test_a_combination_that_cannot_do_what_it_says_is_warned_about(scene, rollog):
    answer = rollog("train", "run.yaml", "failure.max_skipped_prompts=3", "--dry-run")

    assert answer.exit_code == 0, answer.stderr
    assert "warning: failure.min_step_fraction=0.9 leaves a floor of 4 of 4 groups" in answer.stderr


def test_a_checkpoint_newer_than_the_log_is_refused_with_the_number_of_missing_entries(again, rollog):
    newest = max((again.run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[0]))
    manifest = json.loads((newest / "manifest.json").read_text())
    offset = len(again.entries()) + 5
    manifest["ordered"] |= {"offset": offset, "version": 9}
    forged = newest.with_name(f"9-{offset}-{manifest['ordered']['generation']}")
    newest.rename(forged)
    (forged / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, separators=(",", ":")))

    answer = rollog("resume", "demo", "grpo.max_steps=5")

    assert answer.exit_code == 5
    assert "5 entries are missing" in answer.stderr
    assert not server.is_running(again.run)


def test_a_prompt_that_is_settled_cannot_be_given_up(again, rollog):
    answer = rollog("resume", "demo", "--drop", "3")

    assert answer.exit_code == 2
    assert "prompt 3 cannot be dropped: it is settled. `rollog why demo prompt:3`" in answer.stderr


def test_a_signal_that_wants_the_machine_back_shortens_a_drain(scene):
    scene.pace_s = 1.0
    scene.settings["flow"]["lease_s"] = 10.0
    scene.start()
    scene.wait_for(lambda state: len(state.workers) == 3 and any(state.places["in_flight"]))
    scene.controllers[-1].send_signal(signal.SIGINT)
    scene.wait_for(lambda state: state.stopping is not None)
    scene.controllers[-1].send_signal(signal.SIGTERM)

    assert scene.finish() == 75, scene.output
    assert [stop.reason for stop in scene.events(Stop)] == [StopReason.INTERRUPT, StopReason.TERMINATE]


def test_progress_in_a_file_is_one_line_a_step_and_what_happened_between(ended):
    written = io.StringIO()
    progress = Progress.on(written, max_steps=2)
    state = State()
    for entry in ended.entries():
        fold(state, entry)
        progress.entry(state, entry)

    lines = written.getvalue().splitlines()
    assert [line.split("  ")[:2] for line in lines if line.startswith("step")] == [
        ["step 1/2", "v1"],
        ["step 2/2", "v2"],
    ]
    assert [line for line in lines if line.startswith("checkpoint v2 saved (offset ")]
    assert len(lines) == 2 + len(ended.events(Checkpoint))


def test_progress_on_a_terminal_adds_up(ended):
    class Recorded:
        drawn: tuple[str, ...] = ()

        def draw(self, lines):
            self.drawn = tuple(lines)

        def say(self, line): ...

        def close(self): ...

    screen, state = Recorded(), State()
    progress = Progress(screen, max_steps=2)
    for entry in ended.entries():
        fold(state, entry)
        progress.entry(state, entry)
        progress.waiting(state, Wait(why=WaitFor.RESULTS))
        in_flight = state.count(Place.IN_FLIGHT)
        assert f"inflight {in_flight} " in screen.drawn[2]
        assert f"@ {state.offset:,}" in screen.drawn[3]

    assert screen.drawn[0].startswith("step 2/2  v2  reward ")
    assert "frontier 8 (+0 settled beyond)" in screen.drawn[2]
    assert "failed 0.0%" in screen.drawn[3]
