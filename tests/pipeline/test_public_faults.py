"""Public faults of this kind of software: data lost or repeated by a resume, torn checkpoints, a wrong cursor.

Each docstring names the fault by its number and its report. The scenarios are the reports' own, and what is asserted is
the right outcome.
"""

from dataclasses import replace

import pytest

from play import Play
from rollog.events.messages import Chunk, SaveOrder
from rollog.events.vocabulary import Admit, Commit, Configure, Dispatch, Drop, Exhaust, FinishReason, Resume, Train
from rollog.replay.errors import BrokenInvariant
from rollog.replay.invariants import Audit
from rollog.replay.plain import state_digest
from rollog.replay.projector import fold, fold_all
from rollog.replay.snapshots import decode, encode
from rollog.replay.state import Place, State
from stage import Stage, small_plan


def all_die(stage: Stage) -> None:
    """Controller, trainer and generator are gone."""
    stage.kill_generator()
    stage.kill_trainer()
    stage.kill_controller()


def resumed(stage: Stage) -> list[Dispatch]:
    """Resume after everything died; returns the orders that the new controller gave until all leases were judged."""
    offset = stage.state.offset
    stage.resume()
    stage.after(12)
    return stage.events(Dispatch, offset + 1)


def trained(stage: Stage) -> list[int]:
    """The prompts of all trained steps, in ordinal order."""
    return sorted(p for step in stage.events(Train) for p in stage.audit.steps[step.step])


# --- A: a resume loses or repeats data --------------------------------------------------------------------------------


def test_prompts_in_flight_at_a_save_are_dispatched_again_exactly_once() -> None:
    """B01, NVIDIA-NeMo/RL#3594: prompts in flight at save time were in neither the buffer nor the loader."""
    stage = Stage(small_plan(), num_rows=8)
    stage.finish(0, 1)
    all_die(stage)

    assert sorted(order.prompt for order in resumed(stage)) == [2, 3, 4, 5, 6, 7]
    stage.train_steps(2)
    assert trained(stage) == list(range(8))


def test_five_restarts_do_not_bias_training_against_long_rollouts() -> None:
    """B02, NVIDIA-NeMo/RL#3599: only finished groups were kept, so that each resume lost the slow ones."""
    slow = {3, 6, 9, 12}
    stage = Stage(small_plan(), num_rows=16)
    for _ in range(5):
        stage.generator.load()
        stage.generator.take()
        for prompt in sorted(stage.generator.orders.keys() - slow):
            stage.generator.finish(prompt)
        stage.settle()
        all_die(stage)
        stage.resume()
        stage.after(12)
    stage.train_steps(4)

    assert trained(stage) == list(range(16))
    assert stage.steps == {step: tuple(range(4 * step, 4 * step + 4)) for step in range(4)}


def test_a_step_that_is_restored_in_part_gets_its_own_missing_prompt_and_the_next_batch_stays_whole() -> None:
    """B03, NVIDIA-NeMo/RL#3599: the rest of the batch that filled the gap was thrown away."""
    stage = Stage(small_plan())
    stage.train_steps(1)
    stage.finish(4, 5, 6)
    all_die(stage)
    again = resumed(stage)

    assert [order.prompt for order in again if order.step == 1] == [7]
    stage.train_steps(3)
    assert stage.steps[1] == (4, 5, 6, 7)
    assert stage.steps[2] == (8, 9, 10, 11)
    assert stage.steps[3] == (12, 13, 14, 15)


@pytest.mark.parametrize("name", ["in_order", "windowed", "ready_first", "weight_fifo"])
def test_every_sampler_keeps_its_finished_groups_over_a_resume(name: str) -> None:
    """B07, NVIDIA-NeMo/RL#3480: under two samplers the finished batch that the next step needed was thrown away."""
    stage = Stage(small_plan(sampler={"name": name}), num_rows=16)
    ready = [prompt for prompt in stage.at(Place.IN_FLIGHT) if prompt != 3]
    stage.finish(*ready)
    kept = stage.at(Place.BUFFER) + stage.at(Place.SELECTED)
    assert set(kept) >= {0, 1, 2}
    all_die(stage)
    resumed(stage)

    assert stage.at(Place.BUFFER) + stage.at(Place.SELECTED) == kept
    while stage.state.trained < 4:
        stage.finish(*stage.at(Place.IN_FLIGHT))
        stage.train()
    assert [commit.prompt for commit in stage.events(Commit)].count(0) == 1


def test_spares_are_trained_although_the_run_is_resumed_without_replacements() -> None:
    """B08, NVIDIA-NeMo/RL#3665: the reserve was not in the checkpoint, so that each resume lost a batch."""
    replaces = {"on_dropped_prompt": "replace", "reserve_prompts": 4}
    stage = Stage(small_plan(failure=replaces), num_rows=16)
    spares = stage.at(Place.RESERVE)
    assert len(spares) == 4
    all_die(stage)
    stage.resume(small_plan())
    stage.after(12)
    stage.train_steps(4)
    stage.save()

    assert trained(stage) == list(range(16))
    assert set(spares) <= set(trained(stage))
    assert stage.state.finish is FinishReason.EXHAUSTED


@pytest.mark.parametrize("saved", [True, False])
def test_finished_groups_that_are_not_trained_are_trained_next_after_a_resume(saved: bool) -> None:
    """B10, OpenRLHF#1322: samples made and not trained lived only in memory, and the loader went on after them."""
    plan = small_plan(grpo={"prompts_per_step": 2}, checkpoint={"every_steps": 1 if saved else 100})
    stage = Stage(plan, num_rows=8)
    stage.finish(0, 1, 2, 3)
    stage.train()
    if saved:
        stage.save()
    all_die(stage)
    assert resumed(stage) == [], "nobody had begun 4 and 5"
    assert stage.events(Resume)[-1].version == (1 if saved else 0)
    if not saved:
        stage.train()  # step 0 again
    stage.train_steps(1)

    assert stage.steps[1] == (2, 3)
    assert [commit.prompt for commit in stage.events(Commit)].count(2) == 1


def test_a_run_that_was_saved_exactly_at_the_end_of_its_data_trains_nothing_when_it_is_resumed() -> None:
    """B10, OpenRLHF#1322: with no bit for "exhausted" a finished loader began the data again."""
    run = Play(small_plan(), num_rows=8).run()
    steps = len(run.stage.events(Train))
    assert run.stage.new_controller().run() is FinishReason.EXHAUSTED

    assert len(run.stage.events(Train)) == steps == 2
    assert len(run.stage.events(Admit)) == 2


def test_what_was_generated_ahead_of_training_is_neither_made_again_nor_skipped() -> None:
    """B12, huggingface/trl#5863: the resume replayed past batches, then the cursor ran ahead of training."""
    stage = Stage(small_plan(grpo={"prompts_per_step": 1}, sampler={"lookahead": 5}, checkpoint={"every_steps": 11}))
    stage.train_steps(11)
    stage.save()
    stage.finish(*stage.at(Place.IN_FLIGHT))
    assert sorted(commit.prompt for commit in stage.events(Commit)) == list(range(17))
    all_die(stage)

    assert resumed(stage) == [], "neither 0..10 nor 11..16"
    stage.train_steps(6)
    assert trained(stage) == list(range(17))


def test_three_finished_groups_in_the_hand_over_survive_with_the_five_that_run() -> None:
    """B14, verl#4199: the loader's place was saved while queue and running samples were ahead of it."""
    stage = Stage(small_plan(), num_rows=8)
    stage.generator.load()
    stage.generator.take()
    for prompt in (0, 5, 6):
        stage.generator.finish(prompt)  # in the results stream, and no controller has read it
    all_die(stage)

    assert sorted(order.prompt for order in resumed(stage)) == [1, 2, 3, 4, 7]
    assert sorted(commit.prompt for commit in stage.events(Commit)) == [0, 5, 6]
    stage.train_steps(2)
    assert trained(stage) == list(range(8))


def test_a_checkpoint_on_the_border_between_two_epochs_is_followed_by_the_second_epoch() -> None:
    """B17, verl#7401: the resumed loader was exhausted, and the run ended with exit code 0 as if done."""
    stage = Stage(small_plan(data={"epochs": 2}, checkpoint={"every_steps": 4}), num_rows=16)
    stage.train_steps(4)
    stage.save()
    all_die(stage)
    resumed(stage)
    stage.train_steps(4)
    stage.save()

    assert trained(stage) == list(range(32))
    assert stage.state.finish is FinishReason.EXHAUSTED
    assert stage.events(Exhaust) == [Exhaust(left=0)]


@pytest.mark.parametrize("when", ["before dispatch", "during", "after commit", "after train"])
def test_it_is_always_known_what_has_become_of_a_group_whose_worker_died(when: str) -> None:
    """B18, radixark/miles#2254: a group lived only in its worker, and a late result could not be matched."""
    stage = Stage(small_plan(flow={"max_inflight_prompts": 3} if when == "before dispatch" else {}))
    stage.generator.load()
    stage.generator.take()
    orders = dict(stage.generator.orders)
    if when in ("after commit", "after train"):
        stage.finish(3)
    if when == "after train":
        stage.train_steps(1)
    place = {"before dispatch": Place.WAITING, "during": Place.IN_FLIGHT, "after commit": Place.BUFFER}.get(when)
    assert (3 in stage.state.groups and stage.state.groups[3].place) == (place or False)
    ghost = stage.generator
    stage.kill_generator()
    stage.settle()

    if when == "during":
        assert stage.state.groups[3].attempt == 2
        ghost.desk.report(ghost.result(*orders[3], 0))
        stage.settle()
        assert 3 in stage.at(Place.IN_FLIGHT), "the late result of attempt 1 is no answer to attempt 2"
    if when != "after train":
        stage.train_steps(1)
    assert stage.steps[0] == (0, 1, 2, 3)
    assert [commit.prompt for commit in stage.events(Commit)].count(3) == 1


def test_the_first_prompt_that_is_trained_after_a_resume_is_the_one_that_came_next() -> None:
    """B20, allenai/open-instruct PR#1523: the loader's state was read and never applied."""
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(2)
    stage.save()
    all_die(stage)
    resumed(stage)
    stage.train_steps(1)

    assert stage.events(Resume)[-1].version == 2
    assert stage.steps[2][0] == 8


# --- B: torn checkpoints ----------------------------------------------------------------------------------------------


def saving_step_2() -> tuple[Stage, int]:
    """The trainer is asked for the checkpoint of version 2, which the older one of version 0 precedes."""
    stage = Stage(small_plan(checkpoint={"every_steps": 2}, determinism="pinned"))
    stage.train_steps(2)
    order = next(message for message in stage.rank.pull() if isinstance(message, SaveOrder))
    return stage, order.cause.offset


def test_a_checkpoint_whose_record_was_not_written_is_passed_over_for_the_last_complete_one() -> None:
    """B21, RLinf PR#1469: auto-resume took the highest step directory even if half written."""
    stage, offset = saving_step_2()
    stage.rank.save(offset, whole=False)
    all_die(stage)
    resumed(stage)

    assert stage.events(Resume)[-1].version == 0
    stage.train(2)
    stage.train_steps(1)
    assert trained(stage) == sorted([*range(12), *range(8)]), "0 and 1 again, with the same groups"
    assert stage.state.trained == 12


def test_new_weights_are_never_combined_with_an_older_place_in_the_data() -> None:
    """B26, AReaL recover.py: the checkpoint was overwritten in place, weights first, loader position after."""
    calm = Stage(small_plan(checkpoint={"every_steps": 2}, determinism="pinned"))
    calm.train_steps(4)
    stage, offset = saving_step_2()
    stage.rank.save(offset, whole=False)
    all_die(stage)
    resumed(stage)
    stage.train(2)
    stage.train_steps(2)

    assert stage.state.published[4] == calm.state.published[4]


def test_a_group_that_goes_while_a_state_is_saved_is_either_in_it_or_gone_from_it() -> None:
    """B24, TransferQueue checkpoint.md: deleting a group while the snapshot was taken mixed two moments."""
    plan = small_plan(failure={"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 4, "min_step_fraction": 0.5})
    stage = Stage(plan)
    stage.finish(0, 1)
    stage.fail(2)
    stage.train_steps(3)
    entries = stage.entries()
    assert stage.events(Drop), "a group went"
    state, held = State(), set()
    for number, entry in enumerate(entries, start=1):
        fold(state, entry)
        saved = decode(encode(state))
        assert saved is not None
        held.add(2 in saved.state.groups)
        assert state_digest(fold_all(entries[number:], saved.state)) == state_digest(stage.state)
    assert held == {True, False}


# --- C: buffer and cursor ---------------------------------------------------------------------------------------------


def test_a_buffer_that_holds_step_n_complete_and_nothing_of_the_next_goes_on_past_both() -> None:
    """B28, NVIDIA-NeMo/RL#3066: N was trained at once, the producer jumped to N + 2, and nobody made N + 1."""
    stage = Stage(small_plan())
    stage.train_steps(3)
    stage.finish(12, 13, 14, 15)
    all_die(stage)
    resumed(stage)
    stage.train(3)
    stage.train_steps(3)

    assert [stage.steps[step][0] for step in (3, 4, 5)] == [12, 16, 20]


def test_after_a_resume_the_cursor_is_at_or_past_every_stamp_and_a_log_that_says_otherwise_is_refused() -> None:
    """B30, NVIDIA-NeMo/RL#3925: a cursor behind the buffer drops prompts when they are admitted again."""
    stage = Stage(small_plan(sampler={"lookahead": 7}, grpo={"prompts_per_step": 1}))
    stage.finish(7)
    stage.kill_controller()
    stage.resume()
    assert stage.state.cursor == max(group.step for group in stage.state.groups.values() if group.step is not None) == 7

    stage.kill_controller()
    controller = stage.new_controller()
    controller.changes = [lambda state: (Configure(changes={}, cursor=5),)]
    controller.open("with a cursor that is not the run's")
    with pytest.raises(BrokenInvariant, match="prompt 6"):
        stage.follow()


def test_a_group_whose_rollouts_have_several_rows_is_kept_with_all_of_them() -> None:
    """B31, NVIDIA-NeMo/RL#4200: the restore demanded exactly n rows per group."""
    stage = Stage(small_plan(grpo={"prompts_per_step": 1, "rollouts_per_prompt": 4}))
    stage.generator.load()
    stage.generator.take()
    order, began = stage.generator.orders.pop(0)
    stage.generator.desk.report(replace(stage.generator.result(order, began, began), rows=1 + 3 + 2 + 1), "p:0")
    stage.settle()
    all_die(stage)
    resumed(stage)

    (chunk,) = [message for message in stage.rank.pull() if isinstance(message, Chunk)]
    assert (chunk.prompts, chunk.rollouts, chunk.rows) == ((0,), (4,), (7,))


def test_the_audit_has_seen_every_entry_of_every_case_here() -> None:
    """The cases rely on it: a stage whose log breaks a law fails in its next call."""
    stage = Stage(small_plan())
    stage.train_steps(1)

    assert stage.follow().entries == stage.state.offset
    fresh = Audit()
    for entry in stage.entries():
        fresh.follow(entry)
    assert fresh.state == stage.audit.state
