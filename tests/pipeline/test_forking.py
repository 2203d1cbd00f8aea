"""What a fork's first entry says, where its trainer begins, and what is refused with the nearest place that works."""

from pathlib import Path
from typing import Any

import pytest

from rollog.events.blobs import Blobs
from rollog.events.log import Log
from rollog.events.vocabulary import (
    Commit,
    Configure,
    Evict,
    EvictReason,
    Fork,
    Resume,
    Retry,
    Select,
    Stamp,
    Train,
)
from rollog.pipeline.checkpoints import Manifest, Ordered, write
from rollog.pipeline.errors import PlanError
from rollog.pipeline.fork import needed_blobs
from rollog.pipeline.forking import NoFork, Terms, fork_entry, newest_start
from rollog.pipeline.simulate import Script, simulate
from rollog.pipeline.simulation.histories import small_plan
from rollog.pipeline.starting_point import starting_point
from rollog.replay.projector import fold, fold_all
from rollog.replay.state import Place, SavedCheckpoint, State

PLAN = small_plan(checkpoint={"every_steps": 2})


@pytest.fixture(scope="module")
def log() -> Log:
    """A calm run: 20 steps of 4 groups, a checkpoint every 2 steps."""
    return simulate(PLAN, 80, Script(seed=4)).world.server.log()


def after(log: Log, kind: type, number: int) -> State:
    """The State after the ``number``-th entry that holds an event of this kind."""
    found = [entry.offset for entry in log.read() if any(isinstance(event, kind) for event in entry.events)]
    return fold_all(log.read(1, found[number]))


def terms(state: State, **changes: Any) -> Terms:
    return Terms(
        run="new", parent="simulated", reason="try", dataset=state.dataset, seed=changes.get("seed", state.seed),
        num_rows=state.num_rows, changes={path.replace("__", "."): value for path, value in changes.items()},
    )  # fmt: skip


def newest(state: State) -> SavedCheckpoint:
    return state.checkpoints[max(state.checkpoints)]


def exists(digest: str) -> bool:
    return True


def test_without_changes_what_ran_waits_again_and_nothing_is_given_up(log: Log) -> None:
    state = after(log, Commit, 30)
    entry = fork_entry(state, terms(state), newest(state), exists)
    running, forked = state.count(Place.IN_FLIGHT), fold(fold_all(log.read(1, state.offset)), entry)

    assert [type(event) for event in entry.events] == [Fork, Resume]
    assert (entry.offset, entry.epoch) == (state.offset + 1, state.epoch + 1)
    assert running > 0
    assert forked.count(Place.WAITING) == state.count(Place.WAITING) + running
    assert (forked.run, forked.settings["run"]) == ("new", "new")
    assert (forked.version, forked.standing) == (state.version, newest(state).version)
    assert (forked.input, forked.workers, forked.published, forked.archived) == (None, {}, {}, state.offset)
    assert forked.settled() == state.settled()


def test_another_seed_gives_up_what_is_open_and_counts_batches_from_here(log: Log) -> None:
    state = after(log, Train, 5)
    assert not state.step(state.version).chunks
    entry = fork_entry(state, terms(state, seed=9), newest(state), exists)
    forked = fold(fold_all(log.read(1, state.offset)), entry)

    fork, evict, configure, resume = entry.events
    assert isinstance(fork, Fork)
    assert (fork.seed, fork.dataset) == (9, state.dataset)
    assert evict == Evict(prompts=tuple(sorted(state.groups)), reason=EvictReason.FORK)
    assert configure == Configure(changes={"seed": 9}, cursor=state.version - 1)
    assert resume == Resume(version=newest(state).version, checkpoint=newest(state).manifest, reason="fork")
    assert (forked.groups, forked.lost, forked.seed) == ({}, 0, 9)
    assert forked.slate == (state.version, state.handed_out)


def test_another_sampler_is_changed_to_as_on_a_resume(log: Log) -> None:
    state = after(log, Commit, 30)
    changes = {"sampler__name": "ready_first", "sampler__lookahead": None, "sampler__max_staleness": 1}
    entry = fork_entry(state, terms(state, **changes), newest(state), exists)

    assert [type(event) for event in entry.events] == [Fork, Configure, Resume]
    forked = fold(fold_all(log.read(1, state.offset)), entry)
    assert all(group.step is None for group in forked.groups.values() if group.place is not Place.SELECTED)
    back = fork_entry(forked, terms(forked, sampler__name="in_order", sampler__lookahead=1), newest(forked), exists)
    assert Stamp in [type(event) for event in back.events]


def test_a_group_whose_blob_is_gone_is_made_again_unless_it_is_selected(log: Log) -> None:
    state = after(log, Commit, 30)
    gone = next(group for group in state.at(Place.BUFFER) if group.finished)
    assert gone.finished is not None
    blob = gone.finished.blob
    entry = fork_entry(state, terms(state), newest(state), lambda digest: digest != blob)

    assert [event.prompt for event in entry.events if isinstance(event, Retry)] == [gone.prompt]
    forked = fold(fold_all(log.read(1, state.offset)), entry)
    assert forked.groups[gone.prompt].place is Place.BACKING_OFF
    assert forked.groups[gone.prompt].lost_attempts == 0


def test_inside_a_step_no_other_kind_of_group_can_begin(log: Log) -> None:
    state = after(log, Select, 5)
    before = state.step(state.version).chunks[0].cause.offset - 1
    for changes in ({"seed": 9}, {"grpo__prompts_per_step": 2}, {"grpo__rollouts_per_prompt": 4}):
        with pytest.raises(NoFork, match=f"Fork at @{before}"):
            fork_entry(state, terms(state, **changes), newest(state), exists)

    earlier = fold_all(log.read(1, before))
    assert fork_entry(earlier, terms(earlier, seed=9), newest(earlier), exists)


def test_another_model_is_another_run(log: Log) -> None:
    state = after(log, Commit, 3)
    with pytest.raises(PlanError, match="Start a new run"):
        fork_entry(state, terms(state, model__path="other"), None, exists)


def test_only_pinned_needs_older_weights_and_makes_them_again(log: Log) -> None:
    state = after(log, Train, 5)
    pinned = terms(state, determinism="pinned", sampler__lookahead=2)
    assert (newest_start(state, terms(state)), newest_start(state, pinned)) == (state.version, state.version - 2)

    forked = fold(fold_all(log.read(1, state.offset)), fork_entry(state, pinned, newest(state), exists))
    assert forked.unpublished() == [state.version - 2, state.version - 1]
    assert forked.publish_from == state.version - 2
    assert (state.unpublished(), state.publish_from) == ([], state.version)


# --- where the trainer begins -----------------------------------------------------------------------------------------


class Disk:
    """A folder of checkpoints and of the blobs that a log names."""

    def __init__(self, path: Path, log: Log) -> None:
        self.checkpoints, self.blobs, self.log = path / "checkpoints", Blobs(path / "blobs"), log
        self.lost: set[str] = set()

    def save(self, version: int, log_id: str = "history") -> Manifest:
        state = next(
            state for offset in range(1, self.log.head().offset)
            if version in (state := fold_all(self.log.read(1, offset))).saves
        )  # fmt: skip
        cause = state.saves[version]
        ordered = Ordered(
            log=log_id, offset=cause.offset, digest=cause.digest, epoch=cause.epoch, version=version,
            generation=state.generation,
        )  # fmt: skip
        return write(self.checkpoints, ordered, lambda folder: (folder / "w").write_bytes(b"weights"))

    def start(self, state: State) -> Any:
        return starting_point(
            state, state.version, self.log, "history", self.checkpoints, lambda digest: digest not in self.lost
        )


@pytest.fixture
def disk(tmp_path: Path, log: Log) -> Disk:
    return Disk(tmp_path, log)


def test_the_newest_whole_checkpoint_at_or_before_the_entry_is_taken(disk: Disk) -> None:
    state = after(disk.log, Select, 7)
    disk.save(4)
    disk.save(6)
    disk.save(8)

    start = disk.start(state)

    assert (start.version, [other.version for other in start.others]) == (6, [4])
    (start.manifest.folder / "w").write_bytes(b"WEIGHTS")
    assert disk.start(state).version == 4


def test_a_checkpoint_above_which_a_blob_is_gone_is_no_start(disk: Disk) -> None:
    state = after(disk.log, Select, 7)
    disk.save(6)
    disk.lost = {member.finished.blob for member in state.steps[6].members()}

    with pytest.raises(NoFork, match=r"step 6 lacks the blob .* nearest entry that works is @\d+ \(v6\)"):
        disk.start(state)

    ordered = fold_all(disk.log.read(1, state.saves[6].offset))
    assert disk.start(ordered).version == 6
    assert not disk.lost & set(needed_blobs(ordered)) or disk.start(ordered)


def test_the_first_model_serves_while_every_step_is_recorded_and_another_log_never(disk: Disk) -> None:
    early, late = after(disk.log, Select, 1), after(disk.log, Select, 7)
    disk.save(4, log_id="another")

    assert (disk.start(early).version, disk.start(early).checkpoint) == (0, None)
    with pytest.raises(NoFork, match="fork at @1"):
        disk.start(late)
