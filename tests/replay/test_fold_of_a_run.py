"""The fold of entries and of a run's life: Start, Open, Configure, Stop, Finish, Fork, workers and remarks."""

from dataclasses import replace

import pytest

from builders import (
    Decision,
    N,
    admitted,
    durable,
    folded,
    history,
    opened,
    places,
    published,
    retried,
    saved,
    sent,
    settings,
    start,
    steps,
    whole_step,
)
from rollog.events.vocabulary import (
    Configure,
    Exhaust,
    FailureKind,
    Finish,
    FinishReason,
    Fork,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Role,
    Stall,
    Start,
    Stop,
    StopReason,
)
from rollog.replay.errors import BrokenHistory
from rollog.replay.plain import state_to_plain
from rollog.replay.projector import fold, fold_all
from rollog.replay.state import SavedCheckpoint, State, Worker


def test_the_fold_of_an_empty_log_is_a_fresh_state() -> None:
    assert fold_all([]) == State()


def test_an_entry_moves_the_offset_the_digest_and_the_last_input() -> None:
    entries = history(Exhaust(left=0), inputs=["17-0"])

    state = fold_all(entries)

    assert (state.offset, state.digest, state.input) == (3, entries[-1].digest, "17-0")


def test_an_entry_without_an_input_keeps_the_last_one() -> None:
    state = fold_all(history(Exhaust(left=0), inputs=["17-0"]))
    fold(state, replace(history(Exhaust(left=0), Exhaust(left=0))[-1]))

    assert state.input == "17-0"


def test_a_hole_between_offsets_is_refused_with_its_offset() -> None:
    entries = history(Exhaust(left=0), Exhaust(left=0))

    with pytest.raises(BrokenHistory, match=r"entry 4 \(Exhaust\).*follows entry 2"):
        fold_all([*entries[:2], entries[3]])


def test_an_older_writer_epoch_is_refused() -> None:
    late = history(Exhaust(left=0), Exhaust(left=0))[-1]

    with pytest.raises(BrokenHistory, match="writer epoch 1 is older than 2"):
        fold(fold_all(history(opened(2))), late)


def test_a_log_begins_with_start() -> None:
    with pytest.raises(BrokenHistory, match="does not begin with Start"):
        folded(opened(), begins=())


def test_a_log_starts_once() -> None:
    with pytest.raises(BrokenHistory, match="started already"):
        folded(start())


def test_settings_that_the_fold_cannot_do_without_are_named() -> None:
    lacking = Start(run="demo", config={"sampler": {"name": "in_order"}}, dataset="d", seed=0, num_rows=1)

    with pytest.raises(BrokenHistory, match="grpo"):
        folded(begins=[lacking])


def test_start_describes_the_run_and_names_the_first_trainer_generation() -> None:
    state = folded()

    assert (state.run, state.seed, state.num_rows, state.generation) == ("demo", 7, 100, 1)
    assert state.settings == settings()
    assert state.rules is not None
    assert (state.rules.prompts_per_step, state.rules.lookahead, state.rules.sampler) == (N, 1, "in_order")


def test_open_takes_a_higher_epoch_only() -> None:
    assert folded(opened(5)).epoch == 5
    with pytest.raises(BrokenHistory, match="writer epoch 5 does not follow 5"):
        folded(opened(5), opened(5))


def test_open_forgets_attempts_lost_under_the_epoch_before() -> None:
    lost = (admitted(0), sent(0), retried(0, FailureKind.LOST))

    assert folded(*lost).groups[0].lost_attempts == 1
    assert folded(*lost, opened(2)).groups[0].lost_attempts == 0


def test_a_stop_goes_on_over_a_crash_and_ends_with_the_open_after_finish() -> None:
    stop = Stop(reason=StopReason.REQUEST, deadline=9.0)
    finish = Finish(reason=FinishReason.STOPPED, left=())

    assert folded(stop, opened(2)).stopping is not None
    assert folded(stop, opened(2), finish).finish is FinishReason.STOPPED
    again = folded(stop, opened(2), finish, opened(3))
    assert (again.stopping, again.finish) == (None, None)


def failed_run(kind: FailureKind) -> list[Decision]:
    failing = (retried(0, kind, attempt=2), Stop(reason=StopReason.FAILED, deadline=1.0, prompt=0))
    others = [sent(1), retried(1, kind)]
    end = Finish(reason=FinishReason.FAILED, left=(0, 1))
    return [admitted(0), sent(0), retried(0, kind), *others, sent(0, 2), failing, end]


@pytest.mark.parametrize(
    ("kind", "counter"), [(FailureKind.INFRA, "infra_failures"), (FailureKind.DATA, "data_failures")]
)
def test_opening_a_failed_run_sets_back_only_the_counter_that_ran_out_of_the_prompt_named(
    kind: FailureKind, counter: str
) -> None:
    before, after = folded(*failed_run(kind)), folded(*failed_run(kind), opened(2))

    assert [getattr(before.groups[prompt], counter) for prompt in (0, 1)] == [2, 1]
    assert [getattr(after.groups[prompt], counter) for prompt in (0, 1)] == [0, 1]


def test_a_pardoned_prompt_keeps_the_count_that_its_seed_is_made_of() -> None:
    assert folded(*failed_run(FailureKind.DATA), opened(2)).groups[0].seed_failures == 2


def test_a_crash_before_finish_pardons_nobody() -> None:
    assert folded(*failed_run(FailureKind.DATA)[:-1], opened(2)).groups[0].data_failures == 2


def test_configure_sets_dotted_paths_and_the_cursor_and_leaves_the_start_entry_alone() -> None:
    entries = history(Configure(changes={"sampler.lookahead": 3}, cursor=4))

    state = fold_all(entries)

    assert state.rules is not None
    assert (state.rules.lookahead, state.cursor) == (3, 4)
    (first,) = entries[0].events
    assert isinstance(first, Start)
    assert first.config["sampler"]["lookahead"] == 1


def test_fork_takes_back_what_runs_and_stands_at_the_checkpoint() -> None:
    fork = Fork(run="other", parent="demo", offset=3, digest="0" * 32, changes={}, reason="try")
    state = folded(*steps(2), saved(2), durable(2), admitted(2), sent(4), fork)

    assert (state.run, state.standing, places(state)) == ("other", 2, {4: "waiting", 5: "waiting"})
    assert state.groups[4].order is None


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_says_why_nothing_is_decided_any_more(reason: FinishReason) -> None:
    assert folded(Finish(reason=reason, left=())).finish is reason


def test_the_newest_two_published_weights_are_kept() -> None:
    assert sorted(folded(*steps(4)).published) == [3, 4]


def test_with_a_wider_window_as_many_published_weights_are_kept() -> None:
    begins = (start(lookahead=3), opened())

    assert sorted(folded(*steps(5), begins=begins).published) == [2, 3, 4, 5]


def test_weights_above_the_version_cannot_be_published() -> None:
    with pytest.raises(BrokenHistory, match="version 1 is above 0"):
        folded(published(1))


def test_the_newest_checkpoints_are_kept_with_the_selections_from_the_oldest_of_them() -> None:
    saves = [each for step in range(4) for each in (*whole_step(step), saved(step + 1), durable(step + 1))]

    state = folded(*saves)

    assert state.checkpoints[4] == SavedCheckpoint(version=4, manifest="4-1-1", digest=durable(4).digest)
    assert (sorted(state.checkpoints), sorted(state.steps), sorted(state.saves)) == ([3, 4], [3], [3, 4])


def test_before_the_first_checkpoint_every_selection_is_kept() -> None:
    assert sorted(folded(*steps(5)).steps) == [0, 1, 2, 3, 4]


def test_workers_come_load_and_go() -> None:
    join = Join(worker="gen-0", role=Role.GENERATOR)
    load = Load(worker="gen-0", version=0, digest="0" * 64)

    assert folded(join).workers == {"gen-0": Worker(role=Role.GENERATOR)}
    assert folded(join, load).workers == {"gen-0": Worker(role=Role.GENERATOR, version=0)}
    assert folded(join, load, Leave(worker="gen-0", role=Role.GENERATOR, reason="done")).workers == {}


@pytest.mark.parametrize(
    "remark",
    [
        Late(what="group", prompt=0, attempt=1, worker="gen-0"),
        Stall(what="stalled", text="nothing for 900 s"),
        Note(what="note", text="hello"),
        Load(worker="nobody", version=0, digest="0" * 64),
        Leave(worker="nobody", role=Role.TRAINER, reason="?"),
    ],
)
def test_remarks_change_nothing_but_the_place_in_the_log(remark: Decision) -> None:
    before, after = state_to_plain(folded(admitted(0))), state_to_plain(folded(admitted(0), remark))

    moved = {name for name in after if before[name] != after[name]}
    assert moved == {"offset", "digest"}
