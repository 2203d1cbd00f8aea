"""A generator that shows no sign of life is ended, and another one stands in its place; a slow one is left alone."""

from rollog.events.vocabulary import FailureKind, Retry
from rollog.pipeline.mailbox import HUNG_AFTER_LEASES
from stage import Stage, small_plan


def test_a_generator_without_a_sign_of_life_is_ended_and_its_orders_are_given_again() -> None:
    stage = Stage(small_plan(flow={"lease_s": 10}))
    lease = stage.controller.log.put_lease  # type: ignore[union-attr]
    lease("worker:gen-0", 1, "gen-0")
    stage.generator.join()
    stage.settle()
    stage.generator.load()
    stage.generator.take()
    hung = stage.generator
    hung.alive = False  # it refreshes nothing any more, and its process is still there

    stage.after(10.0 * HUNG_AFTER_LEASES - 5.0)
    assert stage.generator is hung, "slow is not dead"
    stage.after(10.0)

    assert stage.generator is not hung
    assert {retry.kind for retry in stage.events(Retry)} == {FailureKind.LOST}
    stage.finish(0, 1, 2, 3)
    stage.train()
    assert stage.state.version == 1
