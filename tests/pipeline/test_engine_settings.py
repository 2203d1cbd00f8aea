"""How many processes train, and which settings of them cannot go together."""

import pytest

from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError


def plan(**training: object) -> Plan:
    settings = {"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}, "training": training}
    return Plan.from_settings(settings)


def test_copies_of_the_model_are_ranks_by_their_parts() -> None:
    assert plan().training.data_parallel == 1
    assert plan(engine="megatron", ranks=8, tensor_parallel=2).training.data_parallel == 4


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"ranks": 2}, r"training\.ranks=2 .* cannot go with training\.engine=torch, which is one process"),
        ({"tensor_parallel": 2}, r"training\.tensor_parallel=2 cannot go with training\.engine=torch"),
        (
            {"engine": "megatron", "ranks": 3, "tensor_parallel": 2},
            r"training\.ranks=3 is not a multiple of",
        ),
        ({"engine": "megatron", "tensor_parallel": 2}, r"Set ranks to 2 or a multiple of it"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(training: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(**training)


def test_sums_over_ranks_promise_no_bits() -> None:
    settings = {"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}, "determinism": "pinned"}
    with pytest.raises(PlanError, match=r"determinism=pinned cannot go with training\.engine=megatron"):
        Plan.from_settings(settings | {"training": {"engine": "megatron"}})
