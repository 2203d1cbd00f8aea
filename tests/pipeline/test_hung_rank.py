"""Of several ranks that train together one hangs: the whole trainer is taken for gone, though the others live."""

from rollog.events.vocabulary import Resume
from stage import Stage, small_plan


def test_a_rank_that_hangs_ends_its_generation_and_is_not_counted_in_the_next() -> None:
    stage = Stage(small_plan(flow={"lease_s": 10}))
    stage.controller.log.put_lease("rank:1", stage.state.generation, "rank-1")  # type: ignore[union-attr]

    stage.after(8.0)
    assert stage.events(Resume) == []
    stage.after(8.0)

    (resume,) = stage.events(Resume)
    assert "the lease of rank-1 is" in resume.reason
    stage.after(30.0)
    assert stage.events(Resume) == [resume]
