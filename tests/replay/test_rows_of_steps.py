"""Rollouts of several rows as a person sees them: counted in rollouts and in rows, with what padding cost."""

from typing import Any

import pytest

from builders import Decision, N, admitted, committed, first_break, history, selected, sent, trained
from histories_of_loss import told
from rollog.replay.screens import status_screen
from rollog.replay.snapshots import decode, encode
from rollog.replay.status import status
from rollog.replay.tally import Tally, follow_all


def step_of(*row_counts: tuple[int, ...]) -> list[Decision]:
    """Step 0 with these groups of two rollouts; N = 2."""
    assert len(row_counts) == N
    made = [
        committed(prompt, rows=sum(counts), row_counts=counts if max(counts) > 1 else ())
        for prompt, counts in enumerate(row_counts)
    ]
    return [admitted(0), *(sent(prompt) for prompt in range(N)), *made, selected(0), trained(0)]


def model_of(*decisions: Decision) -> tuple[dict[str, Any], Tally]:
    state, tally = follow_all(history(*decisions))
    return status(state, tally), tally


def test_rows_per_rollout_are_counted_for_each_trained_step() -> None:
    model, tally = model_of(*step_of((1, 3), (1, 1)))
    (step,) = model["recent"]

    assert (step["rollouts"], step["rows_per_rollout"]) == (4, {"1": 3, "3": 1})
    assert tally.row_counts == {}, "what is trained is forgotten"


def test_the_screen_says_rollouts_rows_and_the_share_of_padding() -> None:
    model, _ = model_of(*step_of((1, 3), (2, 5)))
    model["recent"][-1] |= {"rows": 11, "padding": 1, "tokens": 99}
    (line,) = [line for line in status_screen(model) if line.startswith("  rows ")]

    assert line == (
        "  rows      4 rollouts in 11 rows (1 of 1, 1 of 2, 1 of 3, 1 of 5), 99 valid tokens, 1 padding rows (8.3%)"
    )


def test_nothing_is_said_of_rows_where_every_rollout_has_one() -> None:
    model, _ = model_of(*step_of((1, 1), (1, 1)))

    assert not [line for line in status_screen(model) if line.startswith("  rows ")]


def test_a_step_tells_its_rows() -> None:
    verdict = told("step:0", *step_of((1, 3), (1, 1))).splitlines()[1]

    assert verdict.startswith("step 0 trained 2 groups, 4 rollouts in 6 rows, ")


@pytest.mark.parametrize("counts", [(1, 2), (4,), (3,) * 3])
def test_rows_that_do_not_add_up_break_a_law(counts: tuple[int, ...]) -> None:
    wrong = committed(0, rows=4, row_counts=counts)

    assert first_break(admitted(0), sent(0), wrong) == ("every finished group has all its rollouts", 0)
    assert first_break(admitted(0), sent(0), committed(0, rows=4, row_counts=(1, 3))) is None


def test_a_snapshot_keeps_the_rows_of_open_groups() -> None:
    state, tally = follow_all(history(*step_of((1, 3), (2, 2))[:-2]))
    found = decode(encode(state, tally))

    assert found is not None
    assert found.tally == tally
    assert tally.row_counts == {0: (1, 3), 1: (2, 2)}
