"""Why: the make-up of a step, and the life of a loan. Golden answers, as ``rollog why`` prints them."""

from builders import Decision, admitted, committed, selected, sent, trained
from histories_of_loss import GONE, LENT, PAID, PASSED_ON, RUN, STALE, UNPAID, told
from rollog.events.vocabulary import Evict, EvictReason, Exhaust, Repay, Replace, Select, Stamp

# windowed: the step has begun with prompt 0 when the other is evicted and nothing more can come.
LAST: list[Decision] = [
    *[admitted(0, step=None), sent(0, step=None), Exhaust(left=0), committed(0), selected(0, 0, last=False)],
    Evict(prompts=(1,), reason=EvictReason.STALE),
]


def test_a_short_step_counts_what_is_missing() -> None:
    assert (
        told("step:1", *RUN)
        == """
step 1 trained 1 group of 2 wanted, 2 rollouts, 10 tokens, v1 -> v2 (@21)
  1 stamped for step 1: 2
  1 short, because prompt 3 was dropped (infra, 1 attempt)
  staleness of all 1   0: 1
  waited 5.0 s for the last group (prompt 2, gen-1, attempt 2)
  @13     prompts 2, 3 meant for step 1
  @19     prompt 3 given up (infra): no budget left
          step 1 closes one group short: prompt 3
  @20     step 1 takes prompt 2 (chunk 0, the last)
  @21     step 1 trained by trainer 1: 4 rows, 20 tokens, 1.5 s, loss 0.2500
"""
    )


def test_a_step_that_is_not_trained_says_what_it_waits_for() -> None:
    assert (
        told("step:2", *RUN)
        == """
step 2 is not trained yet: 0 groups selected, 1 in flight.
  1 short, because prompt 5 was filtered (equal_rewards)
  @22     prompts 4, 5 meant for step 2
  @25     prompt 5 filtered (equal_rewards)
          step 2 closes one group short: prompt 5
"""
    )


def test_a_step_that_borrowed_tells_from_whom_and_how_stale_its_groups_were() -> None:
    assert (
        told("step:0", *PAID)
        == """
step 0 trained 2 groups, 4 rollouts, 20 tokens, v0 -> v1 (@15)
  1 stamped for step 0: 1
  1 borrowed from step 1, prompt 2, because prompt 0 was dropped (infra, 1 attempt); loan 0, repaid by prompt 4
  staleness of all 2   0: 2
  waited 10.0 s for the last group (prompt 2, gen-0, attempt 1)
  @3      prompts 0, 1 meant for step 0
  @13     prompt 0 given up (infra): timeout after 300 s
          loan 0: prompt 2 moves from step 1 to 0 for 0; prompt 4 owes
          prompt 4 meant for step 1
          prompt 4 attempt 1 sent for step 1, weights v0
  @14     step 0 takes prompts 1, 2 (chunk 0, the last)
  @15     step 0 trained by trainer 1: 4 rows, 20 tokens, 1.5 s, loss 0.2500
  @16     loan 0 repaid by prompt 4
"""
    )


def test_a_step_that_lent_tells_who_repaid() -> None:
    assert (
        told("step:1", *PAID)
        == """
step 1 trained 2 groups, 4 rollouts, 20 tokens, v1 -> v2 (@18)
  1 stamped for step 1: 3
  1 spare, prompt 4 for prompt 2, lent to step 0
  lent to step 0: prompt 2; loan 0, repaid by prompt 4
  staleness of all 2   1: 2
  waited 0.0 s for the last group (prompt 4, gen-0, attempt 1)
  @4      prompts 2, 3 meant for step 1
  @13     loan 0: prompt 2 moves from step 1 to 0 for 0; prompt 4 owes
          prompt 4 meant for step 1
  @16     loan 0 repaid by prompt 4
  @17     step 1 takes prompts 3, 4 (chunk 0, the last)
  @18     step 1 trained by trainer 1: 4 rows, 20 tokens, 1.5 s, loss 0.2500
"""
    )


def test_a_step_of_a_sampler_that_stamps_nothing_took_its_groups() -> None:
    assert (
        told("step:0", *STALE, sampler="windowed")
        == """
step 0 trained 2 groups, 4 rollouts, 20 tokens, v0 -> v1 (@13)
  2 taken by windowed, which stamps nothing: 0, 1
  staleness of all 2   0: 2
  waited 9.0 s for the last group (prompt 1, gen-0, attempt 1)
  @12     step 0 takes prompts 0, 1 (chunk 0, the last)
  @13     step 0 trained by trainer 1: 4 rows, 20 tokens, 1.5 s, loss 0.2500
"""
    )


def test_a_step_that_the_data_did_not_fill_says_what_is_missing() -> None:
    taken = [*LAST, Select(step=0, chunk=1, prompts=(), last=True), trained(0)]

    assert (
        told("step:0", *taken, sampler="windowed")
        == """
step 0 trained 1 group of 2 wanted, 2 rollouts, 10 tokens, v0 -> v1 (@10)
  1 taken by windowed, which stamps nothing: 0
  1 missing: the step had begun, and the data was at its end
  staleness of all 1   0: 1
  waited 5.0 s for the last group (prompt 0, gen-0, attempt 1)
  @7      step 0 takes prompt 0 (chunk 0)
  @9      step 0 takes no prompts (chunk 1, the last)
  @10     step 0 trained by trainer 1: 4 rows, 20 tokens, 1.5 s, loss 0.2500
"""
    )


def test_a_loan_that_was_repaid() -> None:
    assert (
        told("loan:0", *PAID)
        == """
loan 0: step 1 lent prompt 2 to step 0, because prompt 0 was dropped (infra, 1 attempt); repaid by prompt 4.
  @13     prompt 0 given up (infra): timeout after 300 s
          loan 0: prompt 2 moves from step 1 to 0 for 0; prompt 4 owes
          prompt 4 attempt 1 sent for step 1, weights v0
  @16     loan 0 repaid by prompt 4
"""
    )


def test_a_loan_that_another_spare_owes_now() -> None:
    assert (
        told("loan:0", *PASSED_ON)
        == """
loan 0: step 1 lent prompt 2 to step 0, because prompt 0 was dropped (infra, 1 attempt); still open, owed by prompt \
5 (in flight).
  @13     prompt 0 given up (infra): timeout after 300 s
          loan 0: prompt 2 moves from step 1 to 0 for 0; prompt 4 owes
          prompt 4 attempt 1 sent for step 1, weights v0
  @16     prompt 4 given up (data): the reward raised
          prompt 5 replaces 4 in step 1 (replacement 2)
          prompt 5 attempt 1 sent for step 1, weights v0
"""
    )


def test_a_loan_that_cannot_be_paid() -> None:
    assert (
        told("loan:0", *UNPAID)
        == """
loan 0: step 1 lent prompt 2 to step 0, because prompt 0 was dropped (infra, 1 attempt); it cannot be paid, step 1 \
closes one group short.
  @13     prompt 0 given up (infra): timeout after 300 s
          loan 0: prompt 2 moves from step 1 to 0 for 0; prompt 4 owes
          prompt 4 attempt 1 sent for step 1, weights v0
  @16     prompt 4 given up (data): the reward raised
          step 1 closes one group short: prompt 4, loan 0 cannot be paid
"""
    )


def test_a_spare_that_stands_in_is_named_by_whom_it_replaces() -> None:
    stands_in = (GONE, Replace(step=1, dropped=4, spare=5, nth=2), Stamp(prompts=(5,), step=1), sent(5, step=1))
    end = [(committed(5), Repay(loan=0, prompt=5)), selected(1, 3, 5), trained(1)]

    assert "staleness 1, the spare that replaced prompt 4." in told("prompt:5", *LENT, stands_in, *end)
    assert "1 spare, prompt 5 for prompt 4, dropped (data, 1 attempt)" in told("step:1", *LENT, stands_in, *end)
    assert "; repaid by prompt 5." in told("loan:0", *LENT, stands_in, *end)
