"""Who is started, adopted, reported dead and ended, with real processes that do nothing."""

import os
import signal
import sys
import time
from dataclasses import dataclass, field

import pytest

from rollog.events.codec import seal
from rollog.events.log import Outbox
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Configure, Open, Resume, Role, Start
from rollog.pipeline import fleet
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import RunFailed
from rollog.pipeline.launch.local import Crew, LocalLauncher
from rollog.pipeline.launch.process import PidFile
from rollog.pipeline.run_folder import RunFolder
from rollog.replay.projector import fold
from rollog.replay.state import State, Worker

SLEEPER = (sys.executable, "-c", "import select; select.select([], [], [], 100)")
DIES = (sys.executable, "-c", "import sys; sys.exit('no such model: put it there')")
WITHIN_S = 60.0


def plan() -> Plan:
    return Plan.from_settings({"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}})


@dataclass
class Stage:
    """A log in memory, the State of it, and launchers one after the other."""

    folder: RunFolder
    server: MemoryServer = field(default_factory=lambda: MemoryServer(time.monotonic))
    state: State = field(default_factory=State)
    launchers: list[LocalLauncher] = field(default_factory=list)

    def __post_init__(self):
        self.append(Start(run="demo", config=plan().settings(), dataset="d", seed=0, num_rows=64))

    def append(self, *events):
        """A new controller appends one entry."""
        log = self.server.log()
        epoch = log.open(f"nonce {self.server.epoch}").epoch
        entry = seal(
            offset=self.state.offset + 1,
            epoch=epoch,
            time=0.0,
            input=None,
            events=(*events, Open(epoch=epoch, reason="test", rollog="", machine={})),
            previous=self.state.digest,
        )
        log.append([(entry, Outbox())])
        fold(self.state, entry)
        self.log = log

    def launcher(self, *, generators: int = 1, generator=SLEEPER, trainer=SLEEPER, ranks: int = 1) -> LocalLauncher:
        if generators != fleet.size_of(self.state):
            self.append(Configure(changes={"generation.workers": generators}, cursor=self.state.cursor))
        crew = Crew(lease_s=10.0, max_steps=5, generator=generator, trainer=trainer, ranks=ranks)
        self.launchers.append(LocalLauncher(self.log, lambda: "log id", self.folder, crew))
        return self.launchers[-1]

    def pid(self, worker: str) -> int:
        file = PidFile.read(self.folder.logs / f"{worker}.pid")
        assert file is not None
        return file.pid

    def until_gone(self, launcher: LocalLauncher) -> list:
        deadline = time.monotonic() + WITHIN_S
        while not (gone := list(launcher.reconcile(self.state))):
            assert time.monotonic() < deadline
        return gone


@pytest.fixture
def stage(tmp_path):
    made = Stage(RunFolder.create(plan(), tmp_path))
    yield made
    for launcher in made.launchers:
        launcher.close(kill=True)


def again_and_again(launcher: LocalLauncher, state: State) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        launcher.reconcile(state)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_everybody_is_started_once_and_leased_before(stage):
    launcher = stage.launcher(generators=2)

    assert list(launcher.reconcile(stage.state)) == []
    pids = {name: stage.pid(name) for name in ("gen-0", "gen-1", "rank-0")}
    assert list(launcher.reconcile(stage.state)) == []

    assert {name: stage.pid(name) for name in pids} == pids
    leases = stage.log.leases().by_key
    assert {key: lease.worker for key, lease in leases.items()} == {
        "worker:gen-0": "gen-0",
        "worker:gen-1": "gen-1",
        "worker:rank-0": "rank-0",
        "rank:0": "rank-0",
    }
    assert leases["rank:0"].number == stage.state.generation


def test_the_trainer_is_told_where_it_stands_and_which_entry_ordered_it(stage):
    stage.launcher().reconcile(stage.state)

    command = PidFile.read(stage.folder.logs / "rank-0.pid").command
    told = dict(zip(command[len(SLEEPER) :: 2], command[len(SLEEPER) + 1 :: 2], strict=True))
    (entry,) = stage.log.read(1, 1)
    assert told["--generation"] == "1"
    assert told["--version"] == told["--publish-from"] == "0"
    assert told["--checkpoint"] == ""
    assert told["--ordered-digest"] == entry.digest
    assert not any("password" in word for word in command)


def test_a_dead_generator_is_reported_once_and_started_again(stage):
    launcher = stage.launcher()
    launcher.reconcile(stage.state)
    stage.state.workers["gen-0"] = Worker(role=Role.GENERATOR)
    before = stage.pid("gen-0")

    os.kill(before, signal.SIGKILL)
    (gone,) = stage.until_gone(launcher)

    assert (gone.worker, gone.role) == ("gen-0", Role.GENERATOR)
    assert "signal 9" in gone.reason
    assert stage.pid("gen-0") != before
    assert list(launcher.reconcile(stage.state)) == []
    assert stage.log.leases().by_key["worker:gen-0"].number == 2


def test_a_dead_trainer_is_started_again_only_for_a_new_generation(stage):
    launcher = stage.launcher()
    launcher.reconcile(stage.state)
    before = stage.pid("rank-0")
    os.kill(before, signal.SIGKILL)
    (gone,) = stage.until_gone(launcher)
    assert gone.role is Role.TRAINER

    launcher.reconcile(stage.state)
    assert stage.pid("rank-0") == before

    stage.append(Resume(version=0, checkpoint="", reason=gone.reason))
    again = stage.launcher()
    again.reconcile(stage.state)
    assert stage.pid("rank-0") != before
    assert stage.log.leases().by_key["rank:0"].number == 2


def told(stage: Stage, worker: str) -> dict[str, str]:
    """What a trainer's command line says."""
    words = PidFile.read(stage.folder.logs / f"{worker}.pid").command[len(SLEEPER) :]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_the_ranks_of_a_trainer_are_leased_and_started_together_and_meet_at_one_place(stage):
    launcher = stage.launcher(ranks=2)
    launcher.reconcile(stage.state)

    assert [told(stage, f"rank-{rank}")["--rank"] for rank in (0, 1)] == ["0", "1"]
    assert {told(stage, f"rank-{rank}")["--ranks"] for rank in (0, 1)} == {"2"}
    (meeting,) = {told(stage, f"rank-{rank}")["--rendezvous"] for rank in (0, 1)}
    assert meeting == f"file://{stage.folder.logs.resolve()}/rendezvous-{stage.state.generation}"
    leases = stage.log.leases().by_key
    assert {leases[f"rank:{rank}"].number for rank in (0, 1)} == {stage.state.generation}
    pids = [stage.pid("rank-0"), stage.pid("rank-1")]
    assert list(launcher.reconcile(stage.state)) == []
    assert [stage.pid("rank-0"), stage.pid("rank-1")] == pids


@pytest.mark.parametrize("dead", ["rank-0", "rank-1"])
def test_ranks_end_as_one_and_come_back_as_one(stage, dead):
    launcher = stage.launcher(ranks=2)
    launcher.reconcile(stage.state)
    before = {name: stage.pid(name) for name in ("rank-0", "rank-1")}

    os.kill(before[dead], signal.SIGKILL)
    gone = stage.until_gone(launcher)

    assert {worker.worker for worker in gone} == {"rank-0", "rank-1"}
    assert {worker.worker: worker.reason for worker in gone}[dead] == "its process was ended by signal 9"
    assert f"ended with {dead}" in {worker.reason for worker in gone}
    assert not any(alive(pid) for pid in before.values())
    launcher.reconcile(stage.state)
    assert {name: stage.pid(name) for name in before} == before  # not without a new generation

    stage.append(Resume(version=0, checkpoint="", reason="a rank died"))
    again = stage.launcher(ranks=2)
    again.reconcile(stage.state)
    assert all(stage.pid(name) != pid for name, pid in before.items())
    assert stage.log.leases().by_key["rank:1"].number == stage.state.generation
    assert told(stage, "rank-1")["--rendezvous"].endswith(f"rendezvous-{stage.state.generation}")


def test_ranks_that_a_controller_had_started_only_in_part_are_not_completed_but_replaced(stage):
    stage.launcher(ranks=2).reconcile(stage.state)
    rank_1 = stage.folder.logs / "rank-1.pid"
    half = stage.pid("rank-0")
    os.kill(stage.pid("rank-1"), signal.SIGKILL)
    rank_1.unlink()  # as if that controller had died between the two

    later = stage.launcher(ranks=2)
    assert list(later.reconcile(stage.state)) == []
    assert not rank_1.exists()  # its lease runs out, and the generation ends

    stage.append(Resume(version=0, checkpoint="", reason="the lease of rank-1 is 11 s old"))
    later = stage.launcher(ranks=2)
    later.reconcile(stage.state)
    assert stage.pid("rank-0") != half
    assert told(stage, "rank-1")["--generation"] == str(stage.state.generation)


def test_a_generation_whose_lease_is_there_is_never_started_twice(stage):
    stage.log.put_lease("rank:0", stage.state.generation, "rank-0")  # and then that controller died

    stage.launcher().reconcile(stage.state)

    assert PidFile.read(stage.folder.logs / "rank-0.pid") is None


def test_a_later_launcher_adopts_who_lives_and_knows_at_once_who_is_dead(stage):
    first = stage.launcher(generators=2)
    first.reconcile(stage.state)
    pids = {name: stage.pid(name) for name in ("gen-0", "gen-1", "rank-0")}
    os.kill(pids["gen-1"], signal.SIGKILL)
    os.waitid(os.P_PID, pids["gen-1"], os.WEXITED | os.WNOWAIT)

    gone = list(stage.launcher(generators=2).reconcile(stage.state))

    assert [worker.worker for worker in gone] == ["gen-1"]
    assert {name: stage.pid(name) == pid for name, pid in pids.items()} == {
        "gen-0": True,
        "gen-1": False,
        "rank-0": True,
    }


def test_a_long_load_is_not_taken_for_death(stage):
    crew = Crew(lease_s=0.03, max_steps=5, generator=SLEEPER, trainer=SLEEPER)
    launcher = LocalLauncher(stage.log, lambda: "log id", stage.folder, crew)
    stage.launchers.append(launcher)
    launcher.reconcile(stage.state)
    first = {key: lease.refreshed for key, lease in stage.log.leases().by_key.items()}

    time.sleep(0.05)
    launcher.reconcile(stage.state)

    assert all(lease.refreshed > first[key] for key, lease in stage.log.leases().by_key.items())
    stage.state.workers |= {"gen-0": Worker(role=Role.GENERATOR), "rank-0": Worker(role=Role.TRAINER)}
    joined = dict(stage.log.leases().by_key)
    time.sleep(0.05)
    launcher.reconcile(stage.state)
    assert stage.log.leases().by_key == joined  # from now on it speaks for itself


def test_a_process_id_that_belongs_to_somebody_else_is_not_touched(stage):
    stage.launcher().reconcile(stage.state)
    file = stage.folder.logs / "gen-0.pid"
    other = PidFile.read(file)
    file.write_text(f'{{"pid": {os.getpid()}, "number": 1, "command": {list(other.command)!r}}}'.replace("'", '"'))

    stage.launcher().reconcile(stage.state)

    assert alive(os.getpid())
    assert stage.pid("gen-0") != os.getpid()


def test_a_trainer_of_an_older_generation_is_ended(stage):
    stage.launcher().reconcile(stage.state)
    before = stage.pid("rank-0")

    stage.append(Resume(version=0, checkpoint="", reason="it hung"))
    gone = list(stage.launcher().reconcile(stage.state))

    assert gone == []
    assert stage.pid("rank-0") != before
    assert os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL


def test_a_generator_that_is_no_longer_wanted_leaves_by_itself_and_is_not_started_again(stage):
    stage.launcher(generators=2).reconcile(stage.state)
    stage.state.workers["gen-1"] = Worker(role=Role.GENERATOR)
    surplus = stage.pid("gen-1")
    launcher = stage.launcher(generators=1)

    launcher.reconcile(stage.state)
    assert alive(surplus)
    os.kill(surplus, signal.SIGKILL)
    (gone,) = stage.until_gone(launcher)
    launcher.reconcile(stage.state)

    assert gone.worker == "gen-1"
    assert stage.pid("gen-1") == surplus


def test_generators_that_a_fleet_has_more_of_are_started_beside_the_others(stage):
    stage.launcher(generators=1).reconcile(stage.state)
    first = stage.pid("gen-0")

    stage.launcher(generators=3).reconcile(stage.state)

    assert stage.pid("gen-0") == first
    assert all(alive(stage.pid(f"gen-{number}")) for number in range(3))


def test_a_worker_that_dies_three_times_before_it_joins_fails_the_run_with_its_last_words(stage):
    launcher = stage.launcher(generator=DIES)

    with pytest.raises(RunFailed, match="gen-0 ended 3 times") as failed:
        again_and_again(launcher, stage.state)

    assert "no such model: put it there" in str(failed.value)
    assert str(stage.folder.logs / "gen-0.log") in str(failed.value)


def test_closing_ends_everybody_and_waits_for_them(stage):
    launcher = stage.launcher(generators=2)
    launcher.reconcile(stage.state)
    pids = [stage.pid(name) for name in ("gen-0", "gen-1", "rank-0")]

    launcher.close(kill=True)

    assert not any(alive(pid) for pid in pids)


def test_a_used_name_is_refused(stage):
    from rollog.pipeline.run_folder import UsedName

    with pytest.raises(UsedName, match="rollog resume demo"):
        RunFolder.create(plan(), stage.folder.path.parent)


def test_the_folder_of_a_run_is_private(stage):
    assert stage.folder.path.stat().st_mode & 0o777 == 0o700
