"""The loss against its formula written out token by token."""

import math
from typing import Any

import pytest
import torch

from rollog.pipeline.training.grpo_loss import LossSettings, grpo_loss


def slow_loss(inputs: dict[str, Any], settings: LossSettings) -> float:
    """The formula, one token after another, in Python's numbers."""
    total = 0.0
    for row in range(inputs["new"].shape[0]):
        for t in range(inputs["new"].shape[1]):
            if not inputs["valid"][row, t]:
                continue
            new, old, generator, reference = (
                inputs[name][row, t].item() for name in ("new", "old", "generator", "reference")
            )
            advantage = inputs["advantages"][row].item()
            ratio = math.exp(new - old)
            weight = min(math.exp(old - generator), settings.importance_cap)
            clipped = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
            k3 = math.exp(reference - new) - (reference - new) - 1
            total += -weight * min(ratio * advantage, clipped * advantage) + settings.kl * k3
    return total


def random_inputs(seed: int = 0, rows: int = 6, width: int = 9) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(seed)

    def logs(scale: float = 1.0) -> torch.Tensor:
        return -scale * torch.rand(rows, width, generator=numbers, dtype=torch.float64)

    return {
        "new": logs().requires_grad_(),
        "old": logs(),
        "generator": logs(2.0),
        "reference": logs(),
        "advantages": torch.randn(rows, generator=numbers, dtype=torch.float64),
        "valid": torch.rand(rows, width, generator=numbers) < 0.6,
    }


def one_token(*, new: float = -1, old: float = -1, generator: float = -1, advantage: float = 1) -> dict[str, Any]:
    return {
        "new": torch.tensor([[float(new)]], dtype=torch.float64, requires_grad=True),
        "old": torch.tensor([[float(old)]], dtype=torch.float64),
        "generator": torch.tensor([[float(generator)]], dtype=torch.float64),
        "advantages": torch.tensor([float(advantage)], dtype=torch.float64),
        "valid": torch.tensor([[True]]),
    }


def loss_and_slope(inputs: dict[str, Any], **settings: float) -> tuple[float, float]:
    loss = grpo_loss(**inputs, settings=LossSettings(**settings))
    loss.backward()
    return loss.item(), inputs["new"].grad.item()


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("cap", [1.2, math.inf])
def test_the_loss_is_the_formula_summed_over_valid_tokens(kl: float, cap: float) -> None:
    settings = LossSettings(clip_low=0.1, clip_high=0.3, kl=kl, importance_cap=cap)

    for seed in range(20):
        inputs = random_inputs(seed)
        assert grpo_loss(**inputs, settings=settings).item() == pytest.approx(slow_loss(inputs, settings))


def test_the_gradient_is_that_of_the_formula() -> None:
    inputs, settings = random_inputs(), LossSettings(clip_low=0.1, clip_high=0.3, kl=0.1)
    grpo_loss(**inputs, settings=settings).backward()

    step = 1e-6
    for row in range(inputs["new"].shape[0]):
        for t in range(inputs["new"].shape[1]):
            moved = {name: value.detach().clone() for name, value in inputs.items()}
            moved["new"][row, t] += step
            above = slow_loss(moved, settings)
            moved["new"][row, t] -= 2 * step
            assert inputs["new"].grad[row, t].item() == pytest.approx(
                (above - slow_loss(moved, settings)) / (2 * step), abs=1e-4
            )


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    assert loss_and_slope(one_token(advantage=0.7)) == (pytest.approx(-0.7), pytest.approx(-0.7))


@pytest.mark.parametrize(
    ("new", "advantage", "learns"),
    [(-0.7, 1, False), (-0.8, 1, True), (-1.3, -1, False), (-1.2, -1, True), (-1.5, 1, True), (-0.5, -1, True)],
)
def test_a_token_past_its_clip_is_left_alone(new: float, advantage: float, learns: bool) -> None:
    """ln 1.28 is 0.247 above old, ln 0.8 is 0.223 below; only moves further in the wanted direction are clipped."""
    _, slope = loss_and_slope(one_token(new=new, advantage=advantage), clip_low=0.2, clip_high=0.28)

    assert (slope != 0) is learns


def test_the_generators_distance_is_a_weight_that_is_cut_and_has_no_gradient() -> None:
    assert loss_and_slope(one_token(old=-1, generator=-1.5))[1] == pytest.approx(-math.exp(0.5))
    assert loss_and_slope(one_token(old=-1, generator=-5), importance_cap=2.0)[1] == pytest.approx(-2.0)
    assert loss_and_slope(one_token(old=-1, generator=-0.5), importance_cap=2.0)[1] == pytest.approx(-math.exp(-0.5))


def test_the_divergence_from_a_reference_is_never_negative_and_zero_where_equal() -> None:
    inputs = {**one_token(advantage=0), "reference": torch.tensor([[-1.0]], dtype=torch.float64)}
    assert loss_and_slope(inputs, kl=0.5) == (0, 0)

    for away in (-2.0, -0.5):
        inputs = {**one_token(advantage=0), "reference": torch.tensor([[away]], dtype=torch.float64)}
        assert loss_and_slope(inputs, kl=0.5)[0] > 0


def test_what_is_not_valid_adds_exactly_nothing_even_if_it_is_no_number() -> None:
    inputs = random_inputs()
    plain = grpo_loss(**inputs, settings=LossSettings())
    plain.backward()
    spoilt = {name: value.detach().clone() for name, value in inputs.items()}
    for name in ("new", "old", "generator", "reference"):
        spoilt[name][~inputs["valid"]] = math.nan
    spoilt["new"].requires_grad_()
    loss = grpo_loss(**spoilt, settings=LossSettings())
    loss.backward()

    assert loss.item() == plain.item()
    assert torch.equal(spoilt["new"].grad, inputs["new"].grad)


def test_a_divergence_without_a_reference_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="reference"):
        grpo_loss(**one_token(), settings=LossSettings(kl=0.1))
