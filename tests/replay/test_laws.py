"""Each law of a State goes red on a State that breaks it, and only that law."""

from collections.abc import Callable

import pytest

from builders import (
    Decision,
    admitted,
    committed,
    dropped,
    durable,
    folded,
    opened,
    ready,
    saved,
    selected,
    sent,
    start,
    steps,
    trained,
)
from rollog.events.vocabulary import (
    Borrow,
    Configure,
    Divert,
    Drop,
    FailureKind,
    Resume,
    Shrink,
    Stamp,
)
from rollog.replay.errors import BrokenInvariant
from rollog.replay.laws import LAWS, check
from rollog.replay.state import Place, State


def broken_laws(state: State) -> dict[str, str]:
    """Law -> how it is broken."""
    found = {law: " / ".join(judge(state)) for law, judge in LAWS.items()}
    return {law: how for law, how in found.items() if how}


@pytest.mark.parametrize("count", range(4))
def test_a_right_history_obeys_every_law(count: int) -> None:
    state = folded(*steps(count), *ready(count, weights=count), *ready(count + 1, weights=count), selected(count))

    assert broken_laws(state) == {}


def test_a_law_that_is_broken_is_raised_with_its_name_and_offset() -> None:
    state = folded(admitted(0))
    state.dropped += 1

    with pytest.raises(
        BrokenInvariant, match="at offset 3: not every prompt in exactly one place: 2 prompts"
    ) as caught:
        check(state)
    assert (caught.value.offset, caught.value.law) == (3, "every prompt in exactly one place")


@pytest.mark.parametrize(
    ("tamper", "how"),
    [
        (lambda state: setattr(state, "handed_out", 3), "3 prompts were handed out, but 2 are in a place"),
        (lambda state: setattr(state, "trained", 1), "and 1 settled"),
        (lambda state: state.places[Place.BUFFER].update({0: None}), "prompt 0 is listed at buffer and is not there"),
        (lambda state: state.places[Place.WAITING].clear(), "a prompt is in two places or in none"),
    ],
)
def test_the_books_of_prompts_must_add_up(tamper: Callable[[State], object], how: str) -> None:
    state = folded(admitted(0))
    tamper(state)

    assert how in broken_laws(state)["every prompt in exactly one place"]


def test_a_trainer_cannot_fall_back_to_steps_whose_selections_are_forgotten() -> None:
    keeps_one = (start(keep_last=1), opened())
    state = folded(*steps(2), saved(2), durable(2), Resume(version=0, checkpoint="", reason="killed"), begins=keeps_one)

    assert broken_laws(state) == {
        "the trainer stands at or below the version": "step 0 must be trained again, and its selections are gone / "
        "step 1 must be trained again, and its selections are gone"
    }


def test_a_step_takes_no_more_groups_than_its_target() -> None:
    state = folded(*ready(0), *ready(1), (Stamp(prompts=(2,), step=0)), selected(0, 0, 1, 2, last=False))

    assert "step 0 took 3 groups, 2 wanted" in broken_laws(state)["no step takes more than its target"]


def test_a_step_is_not_closed_before_the_one_ahead_of_it_is_trained() -> None:
    state = folded(*ready(0), *ready(1), selected(0), selected(1))

    assert broken_laws(state)["no step takes more than its target"] == "step 1 is closed before step 0 is trained"


@pytest.mark.parametrize(
    ("history", "how"),
    [
        (
            [admitted(0), admitted(1), sent(0), Drop(prompt=0, kind=FailureKind.DATA, error="x")],
            "step 0 can never have its 2 groups",
        ),
        ([admitted(0), Shrink(step=0, prompt=0)], "step 0 can never have its 1 groups: 2 are meant for it"),
        ([admitted(0, step=None)], "prompt 0 (waiting) is stamped None"),
        ([admitted(0), Stamp(prompts=(0,), step=1)], "prompt 0 (waiting) is stamped 1"),
        ([Configure(changes={}, cursor=1)], "step 0 can never have its 2 groups: 0 are meant for it"),
    ],
)
def test_every_admitted_step_can_still_have_its_groups(history: list[Decision], how: str) -> None:
    assert how in broken_laws(folded(*history))["no stamped step can be stranded"]


def test_a_drop_with_its_shrink_strands_nobody() -> None:
    assert broken_laws(folded(admitted(0), sent(0), dropped(0))) == {}


@pytest.mark.parametrize(
    ("history", "how"),
    [
        ([*steps(1), admitted(1), sent(2, weights=1), committed(2, born=0)], "ordered with weights 1, made by 0 to 0"),
        ([admitted(0), sent(0), committed(0, born=0, done=1)], "made by 0 to 1 at version 0"),
        ([admitted(0), sent(0), committed(0, born=2, done=1)], "made by 2 to 1"),
        ([admitted(0), sent(0, weights=1)], "prompt 0 is ordered with weights 1 at version 0"),
    ],
)
def test_a_group_is_made_by_weights_that_its_order_allows(history: list[Decision], how: str) -> None:
    assert how in broken_laws(folded(*history))["no group older or newer than its order allows"]


def test_a_loan_is_owed_by_somebody_alive() -> None:
    borrow = (
        Drop(prompt=0, kind=FailureKind.INFRA, error="x"),
        Borrow(loan=0, prompt=2, lender=1, borrower=0, dropped=0, spare=4, nth=1),
        Stamp(prompts=(4,), step=1),
    )
    spares = Divert(prompts=(4, 5), rows=(1, 2))
    lent: list[Decision] = [admitted(0), admitted(1), spares, sent(0), sent(2), committed(2), borrow]

    assert broken_laws(folded(*lent)) == {}
    spare_lost = (Drop(prompt=4, kind=FailureKind.INFRA, error="x"), Shrink(step=1, prompt=4))
    assert broken_laws(folded(*lent, spare_lost)) == {
        "every loan has its debtor": "loan 0 is owed by prompt 4, which does not know of it"
    }


def test_a_debtor_owes_an_open_loan() -> None:
    state = folded(admitted(0))
    state.groups[0].loan = 3

    assert broken_laws(state) == {"every loan has its debtor": "prompt 0 owes loan 3, which is not open"}


def test_exactly_the_prompts_in_flight_have_an_order() -> None:
    state = folded(admitted(0), sent(0))
    order, state.groups[0].order = state.groups[0].order, None
    assert broken_laws(state) == {"an order for each prompt in flight": "prompt 0 is in_flight and its order is None"}

    state.groups[0].order, state.groups[1].order = order, order
    assert set(broken_laws(state)) == {"an order for each prompt in flight"}


def test_selected_groups_wait_for_the_step_at_hand() -> None:
    state = folded(*ready(0), selected(0))
    state.places[Place.SELECTED].pop(1)

    assert "the selections name [0, 1], the places [0]" in broken_laws(state)["no step takes more than its target"]


def test_weights_to_come_are_not_published() -> None:
    state = folded(*ready(0), selected(0), trained(0))
    state.published[5] = state.published[1]

    how = broken_laws(state)["no group older or newer than its order allows"]
    assert how == "weights 5 are published, the version is 1"
