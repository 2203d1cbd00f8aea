"""The drawing with which borrowing was explained in public (NVIDIA-NeMo/RL #3925), with its own numbers.

Step 7 needs 3 groups and loses one prompt; the pool holds 3 spares; step 9 is the furthest that is admitted. Where no
later step has a finished group the spare fills step 7. Where step 9 is finished it lends, and the spare repays it.
docs/borrowing.md shows the same entries.
"""

import re
from pathlib import Path

import pytest

from rollog.events.vocabulary import Borrow, Commit, Dispatch, Divert, Drop, Event, Repay, Replace, Select, Stamp
from rollog.replay.lineage import parse_subject, why, why_screen
from rollog.replay.state import Place
from rollog.replay.wording import words
from stage import Stage, small_plan

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "borrowing.md"

STEP_7, STEP_8, STEP_9 = (24, 25, 26), (27, 28, 29), (30, 31, 32)
POOL = [3, 4, 5]
ERROR = "timeout after 600 s"


def at_step_7() -> Stage:
    """N = 3, K = 2, the trainer at 7: step 7 has two finished groups, and its third is still being answered."""
    plan = small_plan(
        grpo={"prompts_per_step": 3},
        sampler={"lookahead": 2},
        failure={"on_dropped_prompt": "replace", "max_infra_attempts": 1, "max_consecutive_dropped_prompts": 1},
    )
    stage = Stage(plan)
    stage.train_steps(7)
    assert stage.at(Place.RESERVE) == POOL
    assert [stage.state.groups[prompt].step for prompt in (*STEP_7, *STEP_8, *STEP_9)] == [7, 7, 7, 8, 8, 8, 9, 9, 9]
    stage.finish(*STEP_7[:2])
    return stage


def loses_a_prompt(*, step_9_is_finished: bool) -> tuple[Stage, list[str]]:
    """Step 7 loses its third prompt, and all up to step 9 is trained; also what the log says from the loss on."""
    stage = at_step_7()
    if step_9_is_finished:
        stage.finish(*STEP_9)
    lost = stage.state.offset + 1
    stage.fail(STEP_7[2], error=ERROR)
    if not step_9_is_finished:
        stage.finish(POOL[0])  # step 7 waits for the spare
    stage.train()  # step 7 is full
    stage.finish(*STEP_8)
    stage.train()
    if step_9_is_finished:
        stage.finish(POOL[0])  # step 9 waits for it
    else:
        stage.finish(*STEP_9)
    stage.train()
    assert stage.state.version == 10
    return stage, [words(event) for entry in stage.entries(lost) for event in entry.events if is_told(event)]


def is_told(event: Event) -> bool:
    """Whether the event belongs to the story of the drawing."""
    match event:
        case Drop() | Borrow() | Replace() | Repay():
            return True
        case Dispatch(prompt=prompt) | Commit(prompt=prompt) | Stamp(prompts=(prompt,)):
            return prompt == POOL[0]
        case Select(step=step):
            return step in (7, 9)
        case _:
            return False


@pytest.mark.parametrize("step_9_is_finished", [False, True])
def test_the_first_two_moments_are_the_same_and_one_spare_leaves_the_pool(step_9_is_finished: bool) -> None:
    stage, _ = loses_a_prompt(step_9_is_finished=step_9_is_finished)

    assert [drop.prompt for drop in stage.events(Drop)] == [STEP_7[2]]
    assert [divert.prompts for divert in stage.events(Divert)] == [tuple(POOL)], "one whole batch was diverted, once"
    assert stage.at(Place.RESERVE) == POOL[1:]


def test_with_no_finished_later_group_the_spare_fills_step_7_which_waits_for_it() -> None:
    stage = at_step_7()
    stage.fail(STEP_7[2], error=ERROR)
    assert (stage.state.groups[POOL[0]].step, stage.at(Place.BUFFER)) == (7, [24, 25])
    assert stage.state.step(7).chunks == [], "step 7 cannot close yet"

    stage, told = loses_a_prompt(step_9_is_finished=False)
    assert stage.events(Borrow) == []
    assert {step: stage.steps[step] for step in (7, 8, 9)} == {7: (3, 24, 25), 8: STEP_8, 9: STEP_9}
    assert told == documented("the spare fills step 7")


def test_with_step_9_finished_it_lends_one_group_and_the_spare_repays_it() -> None:
    stage = at_step_7()
    stage.finish(*STEP_9)
    stage.fail(STEP_7[2], error=ERROR)
    assert stage.events(Select)[-1].prompts == (24, 25, 30), "step 7 is full at once, and the borrowed group comes last"
    assert (stage.state.groups[POOL[0]].step, stage.at(Place.BUFFER)) == (9, [31, 32])
    assert [(loan.lender, loan.borrower, loan.spare) for loan in stage.state.loans.values()] == [(9, 7, POOL[0])]

    stage, told = loses_a_prompt(step_9_is_finished=True)
    assert {step: stage.steps[step] for step in (7, 8, 9)} == {7: (24, 25, 30), 8: STEP_8, 9: (3, 31, 32)}
    assert (stage.state.loans, stage.state.loans_repaid) == ({}, 1)
    assert told == documented("step 9 lends")


def test_either_way_the_same_rollouts_are_made_and_only_one_group_has_moved() -> None:
    filled, lent = (loses_a_prompt(step_9_is_finished=finished)[0] for finished in (False, True))

    for kind in (Dispatch, Commit):
        made = [sorted(event.prompt for event in stage.events(kind) if event.prompt < 33) for stage in (filled, lent)]
        assert made[0] == made[1]
    assert filled.state.trained == lent.state.trained == 30
    moved = {
        prompt: (step, other)
        for step in range(10)
        for prompt in filled.steps[step]
        for other in range(10)
        if prompt in lent.steps[other] and step != other
    }
    assert moved == {30: (9, 7), 3: (7, 9)}, "a group of step 9, and the spare that takes its place"


def test_what_a_step_is_given_by_shrink_is_one_group_less() -> None:
    failure = {"max_infra_attempts": 1, "max_consecutive_dropped_prompts": 1, "min_step_fraction": 0.5}
    stage = Stage(small_plan(grpo={"prompts_per_step": 3}, sampler={"lookahead": 2}, failure=failure))
    stage.train_steps(7)
    stage.finish(21, 22)
    stage.fail(23, error=ERROR)
    stage.train()

    assert stage.steps[7] == (21, 22)


@pytest.mark.parametrize("step_9_is_finished", [False, True])
def test_why_explains_the_lost_prompt_and_its_step_as_the_document_shows(step_9_is_finished: bool) -> None:
    stage, _ = loses_a_prompt(step_9_is_finished=step_9_is_finished)
    shown = section("rollog why` says when " + ("step 9 lends" if step_9_is_finished else "the spare fills step 7"))
    (block,) = re.findall(r"^```console\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL)
    asked = re.findall(r"^\$ rollog why RUN (\S+)$", block, re.MULTILINE)

    assert {"prompt:26", "step:7"} <= set(asked)
    answers = [list(why_screen(why(parse_subject(subject), stage.entries()))) for subject in asked]
    told = ["\n".join([f"$ rollog why RUN {subject}", *lines]) for subject, lines in zip(asked, answers, strict=True)]
    assert block.rstrip() == "\n\n".join(told)


def section(title: str) -> str:
    """What the document says under the heading that ends in this."""
    found = re.search(rf"^## [^\n]*{title}\n(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def documented(title: str) -> list[str]:
    """The entries that the document shows under this heading."""
    (block,) = re.findall(r"^```text\n(.*?)^```$", section(f"the log says when {title}"), re.MULTILINE | re.DOTALL)
    return [line.strip() for line in block.splitlines() if line.strip()]
