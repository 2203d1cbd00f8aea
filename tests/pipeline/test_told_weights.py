"""Which published weights the control stream names to generators."""

import pytest

from rollog.events.messages import NewWeights
from rollog.pipeline.simulation.histories import small_plan
from stage import Stage


def told(stage: Stage) -> list[int]:
    """The versions that a generator finds which reads control from its start."""
    return [notice.version for _, notice in stage.server.control if isinstance(notice, NewWeights)]


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_a_publish_names_all_weights_that_hold_the_newest_last_however_long_the_run(lookahead: int) -> None:
    stage = Stage(small_plan(sampler={"name": "in_order", "lookahead": lookahead}))
    stage.train_steps(6)

    assert told(stage) == list(range(6 - max(lookahead, 1), 7))


def test_the_next_controller_names_the_same_weights() -> None:
    stage = Stage(small_plan(sampler={"name": "in_order", "lookahead": 3}))
    stage.train_steps(6)
    before = told(stage)
    stage.kill_controller()
    stage.resume()

    assert told(stage) == before
