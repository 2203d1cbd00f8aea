"""The prompt that exposes weights that did not change."""

import pytest

from rollog.pipeline.generation.canary import Canary
from rollog.pipeline.generation.engine import EngineLost

OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
def canary() -> Canary:
    return Canary.of(13, 64)


def test_it_fits_into_the_model_with_an_answer_and_knows_its_tokens() -> None:
    assert len(Canary.of(151_936, 40_960).tokens) == 64
    assert len(Canary.of(13, 8).tokens) == 7
    assert set(Canary.of(13, 64).tokens) == set(range(13)), "every token of a small vocabulary is asked"


def test_other_weights_that_sound_the_same_are_the_weights_before(canary: Canary) -> None:
    """Public fault B59: one push of weights is skipped."""
    canary.hear((-1.0, -2.0), 3, OLD)

    with pytest.raises(
        EngineLost, match=r"given version 4 .* did not change \(digest aaaaaaaaaaaa before, bbbbbbbbbbbb"
    ):
        canary.hear((-1.0, -2.0), 4, NEW)


def test_one_bit_of_one_token_is_enough(canary: Canary) -> None:
    canary.hear((-1.0, -2.0), 3, OLD)
    canary.hear((-1.0, -2.0000002), 4, NEW)

    assert canary.heard == ((-1.0, -2.0000002), NEW)


def test_the_same_weights_may_sound_the_same_whatever_their_version(canary: Canary) -> None:
    """A step whose learning rate is 0 makes a version with the bytes of the one before."""
    canary.hear((-1.0,), 3, OLD)
    canary.hear((-1.0,), 4, OLD)

    assert canary.heard == ((-1.0,), OLD)


def test_the_first_load_of_a_process_is_not_judged(canary: Canary) -> None:
    canary.hear((-1.0,), 7, NEW)

    assert canary.heard == ((-1.0,), NEW)
