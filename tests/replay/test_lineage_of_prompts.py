"""Why: the life of a prompt. Golden answers, as ``rollog why`` prints them."""

from builders import admitted, retrained, retried, sent, steps
from histories_of_loss import PAID, PASSED_ON, RUN, STALE, told
from rollog.events.vocabulary import Exhaust, Finish, FinishReason, Resume, Stop, StopReason

STOPPED = """
prompt 0 (row 100, epoch 0) is not trained yet: backing off for step 0 after attempt 1. \
The run has ended (failed).
  @3      admitted in batch 0
          meant for step 0
  @4      attempt 1 sent, weights v0
  @6      attempt 1 failed (infra): timeout after 300 s
          stopped the run: no budget
  @7      not settled when the run ended (failed)
  cost    1 attempt, 0 tokens generated, 0 trained
"""


def test_a_trained_prompt_tells_what_was_tried_and_what_it_cost() -> None:
    assert (
        told("prompt:2", *RUN)
        == """
prompt 2 (row 102, epoch 0) was trained in step 1, staleness 0.
  @13     admitted in batch 1
          meant for step 1
  @14     attempt 1 sent, weights v1
  @16     attempt 1 failed (infra): timeout after 300 s
  @17     attempt 2 sent, weights v1
  @18     committed by gen-1: 2 rollouts, 10 tokens, reward 0.500, weights v1
  @20     selected for step 1, staleness 0
  @21     trained in step 1
  cost    2 attempts, 10 tokens generated, 10 trained
"""
    )


def test_a_dropped_prompt_says_that_its_step_shrinks() -> None:
    assert (
        told("prompt:3", *RUN)
        == """
prompt 3 (row 103, epoch 0) was never trained: dropped (infra, 1 attempt). Step 1 closes one group short.
  @13     admitted in batch 1
          meant for step 1
  @15     attempt 1 sent, weights v1
  @19     given up (infra): no budget left
          step 1 closes one group short
  @26     late group, no effect
  cost    1 attempt, 0 tokens generated, 0 trained
"""
    )


def test_a_filtered_prompt_says_why_and_what_was_wasted() -> None:
    assert (
        told("prompt:5", *RUN)
        == """
prompt 5 (row 105, epoch 0) was never trained: filtered (equal_rewards). Step 2 closes one group short.
  @22     admitted in batch 2
          meant for step 2
  @24     attempt 1 sent, weights v2
  @25     committed by gen-0: 2 rollouts, 10 tokens, reward 0.500, weights v2
          filtered (equal_rewards)
          step 2 closes one group short
  cost    1 attempt, 10 tokens generated, 0 trained
"""
    )


def test_a_prompt_that_still_runs_says_where_it_is() -> None:
    assert (
        told("prompt:4", *RUN)
        == """
prompt 4 (row 104, epoch 0) is not trained yet: in flight for step 2, attempt 1, weights v2.
  @22     admitted in batch 2
          meant for step 2
  @23     attempt 1 sent, weights v2
  cost    1 attempt, 0 tokens generated, 0 trained
"""
    )


def test_a_prompt_that_was_never_handed_out_has_no_entries() -> None:
    assert (
        told("prompt:9", *RUN)
        == """
prompt 9 was never handed out: the run has handed out 6 prompts, from 0 on.
"""
    )


def test_a_dropped_prompt_says_who_lends_in_its_place() -> None:
    assert (
        told("prompt:0", *PAID)
        == """
prompt 0 (row 100, epoch 0) was never trained: dropped (infra, 1 attempt). Step 1 lent prompt 2 to step 0 in its \
place (loan 0).
  @3      admitted in batch 0
          meant for step 0
  @6      attempt 1 sent, weights v0
  @13     given up (infra): timeout after 300 s
          step 1 lends prompt 2 in its place: loan 0
  cost    1 attempt, 0 tokens generated, 0 trained
"""
    )


def test_a_lent_prompt_names_the_step_that_lent_it_and_who_repaid() -> None:
    assert (
        told("prompt:2", *PAID)
        == """
prompt 2 (row 102, epoch 0) was trained in step 0, staleness 0, lent by step 1 in place of prompt 0 (loan 0).
  @4      admitted in batch 1
          meant for step 1
  @8      attempt 1 sent, weights v0
  @11     committed by gen-0: 2 rollouts, 10 tokens, reward 0.500, weights v0
  @13     lent by step 1 to step 0, in place of prompt 0: loan 0, prompt 4 owes
  @14     selected for step 0, staleness 0
  @15     trained in step 0
  @16     loan 0 repaid by prompt 4
  cost    1 attempt, 10 tokens generated, 10 trained
"""
    )


def test_a_spare_says_what_it_owed() -> None:
    assert (
        told("prompt:4", *PAID)
        == """
prompt 4 (row 104, epoch 0) was trained in step 1, staleness 1, the spare that owed loan 0.
  @5      put into the reserve, as a spare
  @13     owes loan 0: step 1 lent prompt 2 to step 0
          meant for step 1
          attempt 1 sent, weights v0
  @16     committed by gen-0: 2 rollouts, 10 tokens, reward 0.500, weights v0
          repays loan 0
  @17     selected for step 1, staleness 1
  @18     trained in step 1
  cost    1 attempt, 10 tokens generated, 10 trained
"""
    )


def test_a_spare_that_replaces_a_debtor_owes_in_its_place() -> None:
    assert (
        told("prompt:4", *PASSED_ON)
        == """
prompt 4 (row 104, epoch 0) was never trained: dropped (data, 1 attempt). Prompt 5 replaced it in step 1 and owes \
loan 0.
  @5      put into the reserve, as a spare
  @13     owes loan 0: step 1 lent prompt 2 to step 0
          meant for step 1
          attempt 1 sent, weights v0
  @16     given up (data): the reward raised
          prompt 5 replaces it in step 1 and owes loan 0
  cost    1 attempt, 0 tokens generated, 0 trained
"""
    )


def test_an_evicted_prompt_says_how_much_too_old_it_was() -> None:
    assert (
        told("prompt:2", *STALE, sampler="windowed")
        == """
prompt 2 (row 102, epoch 0) was never trained: evicted, stale.
  @4      admitted in batch 1 (windowed: no stamp)
  @7      attempt 1 sent, weights v0
  @11     committed by gen-0: 2 rollouts, 10 tokens, reward 0.500, weights v0
  @14     evicted (stale): trainer at v1, staleness 1 > 0
  cost    1 attempt, 10 tokens generated, 0 trained
"""
    )


def test_a_requeued_prompt_waits_again() -> None:
    assert (
        told("prompt:3", *STALE, sampler="windowed")
        == """
prompt 3 (row 103, epoch 0) is not trained yet: waiting to be sent.
  @4      admitted in batch 1 (windowed: no stamp)
  @8      attempt 1 sent, weights v0
  @14     attempt 1 cancelled: stale
          waits again, for another attempt
  cost    1 attempt, 0 tokens generated, 0 trained
"""
    )


def test_what_is_trained_again_was_trained_once() -> None:
    again = (Resume(version=0, checkpoint="", reason="killed"), retrained(0, 10))

    assert told("prompt:0", *steps(1), *again).endswith(
        "  @9      trained in step 0\n  @11     trained again in step 0\n"
        "  cost    1 attempt, 10 tokens generated, 10 trained\n"
    )
    assert "v0 -> v1 (@9)" in told("step:0", *steps(1), *again)


def test_a_prompt_that_stopped_the_run_says_so_and_that_the_run_has_ended() -> None:
    stop = (retried(0), Stop(reason=StopReason.FAILED, deadline=0.0, prompt=0, detail="no budget"))
    end = Finish(reason=FinishReason.FAILED, left=(0, 1))

    assert told("prompt:0", admitted(0), sent(0), sent(1), stop, end) == STOPPED


def test_prompts_at_the_end_of_the_data_fill_no_step() -> None:
    asked = [told(f"prompt:{prompt}", *steps(1), Exhaust(left=1)) for prompt in (2, 3)]

    assert asked == [
        "\nprompt 2 was never handed out: the last 1 prompt of the data fill no step.\n",
        "\nprompt 3 was never handed out: the run has handed out 2 prompts, from 0 on.\n",
    ]
