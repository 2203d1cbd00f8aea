"""What people read, golden: the status screen, log lines, the verdict. Every total is the sum of its parts."""

from datetime import UTC

import pytest

from builders import (
    Decision,
    KeptLog,
    admitted,
    committed,
    diverted,
    dropped,
    durable,
    history,
    opened,
    published,
    ready,
    retried,
    saved,
    selected,
    sent,
    start,
    steps,
    trained,
)
from rollog.events.vocabulary import (
    TAGS,
    Archive,
    Borrow,
    Cancel,
    Configure,
    Drop,
    Event,
    Evict,
    EvictReason,
    Exhaust,
    FailureKind,
    Filter,
    FilterReason,
    Finish,
    FinishReason,
    Fork,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Repay,
    Replace,
    Requeue,
    Resume,
    Role,
    Select,
    Shrink,
    Stall,
    Stamp,
    Stop,
    StopReason,
)
from rollog.replay import screens
from rollog.replay.status import condition, status
from rollog.replay.tally import follow_all
from rollog.replay.timeline import Timeline
from rollog.replay.wording import ordinals, words

RUN: list[Decision] = [
    Join(worker="gen-0", role=Role.GENERATOR),
    Join(worker="rank-0", role=Role.TRAINER),
    durable(0),
    published(0),
    Load(worker="gen-0", version=0, digest="0" * 64),
    *steps(8),
    saved(8),
    durable(8),
    *[admitted(8), sent(16, weights=8), sent(17, weights=8), committed(16, born=8)],
    *[admitted(9), sent(18, weights=8), retried(18), sent(19, weights=8), dropped(19)],
    Late(what="group", prompt=3, attempt=1),
]

STATUS = """\
run demo   @ 75   22:14:35   unfinished   in_order, lookahead 1   2 x 2 rollouts

version     v8   trainer at v8   step 7: reward 0.500 ▁▁▁▁▁▁▁▁   loss 0.2500   train 1.5s   tok 20
prompts     20 handed out = 3 in a place + 17 settled
  places    3 = 0 waiting + 0 reserve + 1 in flight + 1 backing off + 1 buffer + 0 selected
  settled   17 = 16 trained + 1 dropped + 0 filtered + 0 evicted
step 8      ████████░░░░░░░░ 1/2   1 in flight
step 9      ░░░░░░░░░░░░░░░░ 0/1   1 backing off, 1 short
cursor      9   frontier 16 (+1 settled beyond)   durable frontier 16
workers     1 generator v0   1 trainer   newest weights published v8
budgets     skipped 0   infra drops in a row 1   failures of open prompts: infra 1, data 0, lost 0
checkpoint  v8 durable, kept too: v0
attempts    20 sent = 17 finished + 1 failed + 0 lost + 1 given up + 0 cancelled + 1 in flight
tokens      170 generated = 160 trained + 10 held + 0 wasted
waste       stale 0.0% and equal rewards 0.0% of tokens   failed 10.5% and lost 0.0% of attempts   late 1   \
steps trained again 0"""


def screen(*decisions: Decision) -> str:
    return screens.joined(screens.status_screen(status(*follow_all(history(*decisions))), UTC))


def test_the_status_screen_is_golden() -> None:
    assert screen(*RUN) == STATUS


def test_everything_adds_up_at_every_moment() -> None:
    entries = history(*RUN)
    for offset in range(1, len(entries) + 1):
        model = status(*follow_all(entries[:offset]))
        places, settled = sum(model["places"].values()), sum(model["settled"].values())
        attempts, tokens = model["attempts"], model["tokens"]
        assert model["handed_out"] == places + settled
        assert attempts["sent"] == sum(count for name, count in attempts.items() if name != "sent")
        assert tokens["generated"] == tokens["trained"] + tokens["held"] + tokens["wasted"]
        for step in model["steps"]:
            parts = ("selected", "buffer", "in_flight", "backing_off", "waiting")
            assert step["target"] == sum(step[part] for part in parts), f"step {step['step']} at {offset}"


def test_wasted_tokens_are_told_apart_by_why() -> None:
    blob_gone = [*ready(0), retried(0, FailureKind.LOST)]
    _, tally = follow_all(history(*blob_gone))
    assert (tally.tokens_wasted, tally.stale_tokens, tally.filtered_tokens) == (10, 0, 0)

    windowed: list[Decision] = [start(sampler="windowed"), opened()]
    useless = (committed(1), Filter(prompt=1, reason=FilterReason.EQUAL_REWARDS))
    stale = [admitted(0, step=None), sent(0, step=None), committed(0), Evict(prompts=(0,), reason=EvictReason.STALE)]
    _, tally = follow_all(history(*stale, sent(1, step=None), useless, begins=windowed))
    assert (tally.tokens_wasted, tally.stale_tokens, tally.filtered_tokens) == (20, 10, 10)


def test_steps_trained_again_are_counted_and_drawn_once() -> None:
    again = [*steps(1), Resume(version=0, checkpoint="", reason="killed")]
    generation = len(history(*again))
    _, tally = follow_all(history(*again, trained(0, generation)[0]))

    assert (tally.retrained, [each.step for each in tally.recent], tally.tokens_trained) == (1, [0], 20)


@pytest.mark.parametrize(
    ("decisions", "word"),
    [
        ([], "unfinished"),
        ([Stall(what="stall", text="nothing for 900 s")], "stalled"),
        ([Stall(what="stall", text="x"), admitted(0), sent(0), committed(0)], "unfinished"),
        ([Stop(reason=StopReason.REQUEST, deadline=0.0)], "stopping (request)"),
        ([Finish(reason=FinishReason.STOPPED, left=())], "stopped, resumable"),
        ([Finish(reason=FinishReason.FAILED, left=())], "failed, resumable"),
        ([Finish(reason=FinishReason.MAX_STEPS, left=())], "finished (max_steps)"),
    ],
)
def test_the_condition_of_a_run_is_one_word(decisions: list[Decision], word: str) -> None:
    assert condition(*follow_all(history(*decisions))) == word


def test_a_stalled_run_says_why_and_an_empty_log_that_it_is_empty() -> None:
    assert screen(Stall(what="stall", text="nothing for 900 s")).endswith("stalled     stall: nothing for 900 s")
    empty = screens.joined(screens.status_screen(status(*follow_all([])), UTC))
    assert empty == "the log is empty: nothing has been decided yet"


@pytest.mark.parametrize(
    ("have", "want", "drawn"),
    [
        (0, 16, "░░░░"),
        (3, 16, "░░░░"),
        (4, 16, "█░░░"),
        (15, 16, "███░"),
        (16, 16, "████"),
        (0, 0, "████"),
        (3, 2, "████"),
    ],
)
def test_a_bar_is_full_only_when_all_is_there(have: int, want: int, drawn: str) -> None:
    assert screens.bar(have, want, cells=4) == drawn


def test_a_sparkline_spans_low_to_high() -> None:
    assert screens.sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert screens.sparkline([3.0, 3.0]) == "▁▁"
    assert screens.sparkline([]) == ""


# --- log lines --------------------------------------------------------------------------------------------------------

ZEROS = "0" * 64
WORDS: list[tuple[Event, str]] = [
    (start(), "run demo begins: 100 rows, seed 7, data 726f7773"),
    (
        Fork(run="b", parent="a", offset=3, digest="0" * 32, changes={"seed": 1}, reason="try"),
        "run b forked from a@3, changes seed=1: try",
    ),
    (opened(2, "start"), "controller 2 took the pen: start"),
    (Configure(changes={"sampler.lookahead": 3}, cursor=4), "settings changed: sampler.lookahead=3; cursor 4"),
    (Resume(version=8, checkpoint="8-1-1", reason="killed"), "a new trainer stands at v8, loading 8-1-1: killed"),
    (admitted(0)[0], "batch 0 admitted: prompts 0, 1"),  # type: ignore[index]
    (diverted(4, 5, 6), "prompts 4..6 put into the reserve"),
    (Stamp(prompts=(4,), step=2), "prompt 4 meant for step 2"),
    (sent(5, 2, weights=3), "prompt 5 attempt 2 sent for step 2, weights v3"),
    (retried(5), "prompt 5 attempt 1 failed (infra): timeout after 300 s"),
    (
        committed(5, born=1, done=2),
        "prompt 5 attempt 1 finished by gen-0: 2 rollouts, 10 tokens, reward 0.500, weights v1..v2",
    ),
    (Late(what="group", prompt=3, attempt=1, worker="gen-1"), "late group, no effect: prompt 3 attempt 1 from gen-1"),
    (Drop(prompt=3, kind=FailureKind.DATA, error="two\nlines"), "prompt 3 given up (data): two lines"),
    (Filter(prompt=3, reason=FilterReason.EQUAL_REWARDS), "prompt 3 filtered (equal_rewards)"),
    (Shrink(step=1, prompt=3, loan=2), "step 1 closes one group short: prompt 3, loan 2 cannot be paid"),
    (Replace(step=1, dropped=3, spare=9, nth=1), "prompt 9 replaces 3 in step 1 (replacement 1)"),
    (
        Borrow(loan=3, prompt=37, lender=9, borrower=7, dropped=30, spare=40, nth=1),
        "loan 3: prompt 37 moves from step 9 to 7 for 30; prompt 40 owes",
    ),
    (Repay(loan=3, prompt=40), "loan 3 repaid by prompt 40"),
    (Evict(prompts=(3, 4, 9), reason=EvictReason.STALE), "prompts 3, 4, 9 evicted (stale)"),
    (Cancel(prompt=3, attempt=2, reason="too old"), "prompt 3 attempt 2 cancelled: too old"),
    (Requeue(prompts=(3,)), "prompt 3 waiting again"),
    (selected(2, chunk=1), "step 2 takes prompts 4, 5 (chunk 1, the last)"),
    (trained(2)[0], "step 2 trained by trainer 1: 4 rows, 20 tokens, 1.5 s, loss 0.2500"),
    (published(0), "weights v0 published: 0-77300000"),
    (Load(worker="gen-0", version=3, digest=ZEROS), "gen-0 runs v3"),
    (saved(3), "checkpoint v3 ordered (periodic)"),
    (durable(3), "checkpoint v3 durable: 3-1-1"),
    (Archive(first=1, last=9, file="a.segment", digest=ZEROS), "entries 1..9 archived in a.segment"),
    (Join(worker="gen-0", role=Role.GENERATOR), "generator gen-0 came"),
    (Leave(worker="rank-0", role=Role.TRAINER, reason="killed"), "trainer rank-0 went: killed"),
    (Exhaust(left=3), "the data is at its end; 3 prompts fill no step"),
    (Stop(reason=StopReason.FAILED, deadline=0.0, prompt=3, detail="x"), "stopping (failed, prompt 3) x"),
    (Finish(reason=FinishReason.STOPPED, left=(3, 4, 5)), "finished (stopped); prompts 3..5 unsettled"),
    (Stall(what="stall", text="nothing for 900 s"), "stall: nothing for 900 s"),
    (Note(what="note", text="hello"), "note: hello"),
]


@pytest.mark.parametrize(("event", "text"), WORDS, ids=lambda value: type(value).__name__)
def test_an_event_in_plain_words(event: Event, text: str) -> None:
    assert words(event) == text


def test_every_event_has_golden_words() -> None:
    assert {type(event) for event, _ in WORDS} == {kind for kind, _ in TAGS.values()}


def test_ordinals_are_ranges() -> None:
    assert ordinals([9, 4, 5, 6, 1, 2]) == "1, 2, 4..6, 9"
    assert ordinals([]) == "none"


def test_an_empty_last_selection_is_told() -> None:
    assert words(Select(step=2, chunk=1, prompts=(), last=True)) == "step 2 takes no prompts (chunk 1, the last)"


def test_entries_of_the_log_as_lines_and_as_paragraphs() -> None:
    entry = history(admitted(0), inputs=["17-0"])[-1]

    assert (
        screens.oneline(entry, UTC)
        == "@3       22:13:23  batch 0 admitted: prompts 0, 1; prompts 0, 1 meant for step 0"
    )
    assert list(screens.paragraph(entry, UTC)) == [
        "@3   2023-11-14 22:13:23   epoch 1   answers 17-0",
        "    batch 0 admitted: prompts 0, 1",
        "    prompts 0, 1 meant for step 0",
    ]


def test_an_explained_entry_marks_its_direct_causes() -> None:
    explained = Timeline(KeptLog(history(admitted(0), sent(0), committed(0)))).explain(5)

    assert list(screens.explained_screen(explained, UTC)) == [
        "@5   2023-11-14 22:13:25   epoch 1",
        "    prompt 0 attempt 1 finished by gen-0: 2 rollouts, 10 tokens, reward 0.500, weights v0",
        "",
        "rests on",
        "    @3       22:13:23  batch 0 admitted: prompts 0, 1; prompts 0, 1 meant for step 0",
        "  * @4       22:13:24  prompt 0 attempt 1 sent for step 0, weights v0",
        "",
        "made this difference",
        "    groups finished: 0 -> 1",
        "    prompt 0: in flight -> buffer (reward 0.500, weights v0)",
    ]


def test_a_long_chain_is_cut_on_the_screen_only() -> None:
    many = [decision for attempt in range(1, 31) for decision in (sent(0, attempt), retried(0, attempt=attempt))]
    explained = Timeline(KeptLog(history(admitted(0), *many))).explain(2 + 1 + 60)

    lines = list(screens.explained_screen(explained, UTC))
    assert len(explained.chain) == 60
    assert "    (20 earlier ones are not shown: --json has all)" in lines
    assert sum(line.startswith(("  * @", "    @")) for line in lines) == screens.MAX_CHAIN
