"""What is tried before a worker starts on a node of a cluster, what a run asks of the cluster, and the leash."""

import os
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollog.events import server
from rollog.pipeline.cli import app
from rollog.pipeline.config import Plan
from rollog.pipeline.launch.keeper import PROBE, Job, Unfit, check, kernel
from rollog.pipeline.launch.leash import leashed
from rollog.pipeline.launch.ray import Needs, NoCluster
from rollog.pipeline.machine import version_of
from rollog.pipeline.run_folder import RunFolder

SETTINGS = {"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}}


def plan(**sections: object) -> Plan:
    return Plan.from_settings(SETTINGS | sections)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A worker of a run whose folder is shared and whose server is on another machine."""
    folder = RunFolder.create(plan(), tmp_path)
    (folder.path / PROBE).write_text("nonce")
    return Job(
        name="gen-0",
        number=1,
        command=("python", "-c", ""),
        python="python",
        run=str(folder.path),
        cwd=str(tmp_path),
        environment={},
        probe="nonce",
        rollog=version_of("rollog"),
        kernel=kernel(),
        placement="",
    )


def test_a_node_that_fits_may_start_the_worker(job: Job) -> None:
    embedded = server.start(Path(job.run))
    try:
        check(job)
    finally:
        embedded.shutdown()


def test_a_node_without_the_runs_folder_is_told_to_mount_it(job: Job, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="filesystem that every node mounts") as unfit:
        check(replace(job, run=str(tmp_path / "elsewhere")))
    assert str(tmp_path / "elsewhere") in str(unfit.value)


def test_a_node_with_another_folder_at_the_same_path_is_recognised(job: Job) -> None:
    with pytest.raises(Unfit, match="does not share the run's folder"):
        check(replace(job, probe="another nonce"))


def test_a_node_without_the_folder_of_data_and_model_is_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="in which rollog was started"):
        check(replace(job, cwd=str(tmp_path / "nowhere")))


def test_a_node_with_another_version_is_refused_with_both(job: Job) -> None:
    with pytest.raises(Unfit, match=r"the controller 9\.9\.9") as unfit:
        check(replace(job, rollog="9.9.9"))
    assert version_of("rollog") in str(unfit.value)


def test_an_embedded_server_is_refused_on_another_machine_than_the_controllers(job: Job) -> None:
    with pytest.raises(Unfit, match=r"log\.redis=embedded serves only that one") as unfit:
        check(replace(job, kernel="another boot"))
    assert "ROLLOG_REDIS_URL" in str(unfit.value)


def test_a_run_asks_for_gpus_where_there_are_any() -> None:
    one, two = {"CPU": 1}, {"CPU": 1, "GPU": 1}
    assert Needs.of(plan(), {"CPU": 4.0}) == Needs(generator=one, rank=one, ranks=1)
    assert Needs.of(plan(), {"CPU": 4.0, "GPU": 2.0}) == Needs(generator=two, rank=two, ranks=1)


def test_workers_go_where_places_are_set_aside_for_them() -> None:
    needs = Needs.of(plan(), {"CPU": 4.0, "rollog_generator": 2.0, "rollog_rank": 1.0})

    assert needs.generator == {"CPU": 1, "rollog_generator": 1}
    assert needs.rank == {"CPU": 1, "rollog_rank": 1}


def test_a_cluster_that_could_never_hold_the_run_is_refused_with_the_numbers() -> None:
    with pytest.raises(NoCluster, match="has 1 GPU; a trainer of 1 and one generator need 2"):
        Needs.of(plan(), {"CPU": 8.0, "GPU": 1.0})
    with pytest.raises(NoCluster, match="has 1 CPU; a trainer of 1 and one generator need 2"):
        Needs.of(plan(), {"CPU": 1.0})


def test_a_leashed_process_ends_with_the_process_that_started_it() -> None:
    sleeper = [sys.executable, "-c", "import select, sys; print('up', flush=True); select.select([], [], [], 100)"]
    starts = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([*{leashed(0)[:-1]!r}, str(os.getpid()), *{sleeper!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        handle = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([handle], [], [], 0)[0]
        parent.kill()
        assert select.select([handle], [], [], 20)[0]
        os.close(handle)


def test_a_leash_that_nobody_holds_starts_nothing() -> None:
    done = subprocess.run([*leashed(0), "true"], capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == 1
    assert "process 0 was gone" in done.stderr


def test_where_workers_run_can_be_said_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("run: demo\nmodel: {path: m}\ndata: {path: d.jsonl}\n")

    refused = CliRunner().invoke(app, ["train", "run.yaml", "--launch", "moon", "--dry-run"])

    assert refused.exit_code == 2
    assert "'local' or 'ray'" in refused.output
