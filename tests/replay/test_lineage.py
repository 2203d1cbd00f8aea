"""Why: what is asked about, what is not known, workers; and that the lives of all prompts add up."""

from collections import Counter

import pytest

from builders import Decision, history, selected
from histories_of_loss import LENT, PAID, PASSED_ON, RUN, UNPAID, told
from rollog.replay.errors import BadReference, BrokenHistory
from rollog.replay.lineage import parse_subject, why
from rollog.replay.status import status
from rollog.replay.tally import follow_all


def test_a_generator() -> None:
    assert (
        told("worker:gen-0", *RUN)
        == """
gen-0, a generator, is gone: killed. It finished 3 groups, 30 tokens, and sent 1 late result.
  @3      generator gen-0 came
  @5      gen-0 runs v0
  @26     late group, no effect: prompt 3 attempt 1 from gen-0
  @27     generator gen-0 went: killed
"""
    )


def test_a_trainer() -> None:
    assert (
        told("worker:rank-0", *RUN)
        == """
rank-0, a trainer, is there.
  @4      trainer rank-0 came
"""
    )


@pytest.mark.parametrize("subject", ["prompt:9", "step:4", "loan:0", "worker:gen-7"])
def test_what_the_log_does_not_know_is_not_known(subject: str) -> None:
    model = why(parse_subject(subject), history(*RUN))

    assert (model["known"], model["entries"], model["parts"]) == (False, [], [])


@pytest.mark.parametrize("subject", ["prompt:0", "step:0", "loan:0", "worker:gen-0"])
def test_nothing_is_told_of_a_log_that_no_controller_wrote(subject: str) -> None:
    with pytest.raises(BrokenHistory, match="entry 3"):
        why(parse_subject(subject), history(selected(0)))


@pytest.mark.parametrize("text", ["prompt", "prompt:", "prompt:-1", "prompt:x", "worker:", "version:3", "step:²"])
def test_a_subject_of_another_form_is_a_mistake_that_shows_the_forms(text: str) -> None:
    with pytest.raises(BadReference, match="write prompt:17, step:9, loan:3 or worker:gen-0"):
        parse_subject(text)


@pytest.mark.parametrize("run", [RUN, LENT, PAID, PASSED_ON, UNPAID])
def test_the_fates_and_costs_of_all_prompts_add_up_to_the_status(run: list[Decision]) -> None:
    entries = history(*run)
    state, tally = follow_all(entries)
    lives = [why(parse_subject(f"prompt:{prompt}"), entries) for prompt in range(state.handed_out)]
    fates = Counter(life["fate"] for life in lives)
    model = status(state, tally)

    assert fates == Counter({name: n for name, n in (model["places"] | model["settled"]).items() if n})
    assert sum(life["attempts"] for life in lives) == model["attempts"]["sent"]
    assert sum(life["tokens_generated"] for life in lives) == model["tokens"]["generated"]
    assert sum(life["tokens_trained"] for life in lives) == model["tokens"]["trained"]
