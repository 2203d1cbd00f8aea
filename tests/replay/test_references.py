"""References to a moment: what can be written, what it names, and what an error says there is."""

from datetime import UTC

import pytest

from builders import KeptLog, durable, history, opened, retrained, saved, steps, whole_step
from rollog.events.vocabulary import Resume
from rollog.replay.errors import BadReference, NoSuchMoment
from rollog.replay.references import (
    Anchor,
    Reference,
    Span,
    Target,
    parse_reference,
    parse_span,
    parse_target,
    resolve,
    resolve_span,
)

RUN = KeptLog(history(*steps(2), saved(2), durable(2, "2-a"), durable(2, "2-b"), *whole_step(2)))
"""Start, Open; steps 0 and 1 are closed at 9 and 16; checkpoint 2 is durable at 18 and again at 19; step 2 at 26.

Entry n is made at 22:13:20 UTC + n seconds."""


def at(text: str, log: KeptLog = RUN) -> int:
    return resolve(parse_reference(text), log, UTC)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("1", 1),
        ("26", 26),
        ("head", 26),
        ("head~0", 26),
        ("head~20", 6),
        ("12~2", 10),
        ("step:0", 9),
        ("step:1", 16),
        ("step:1~1", 15),
        ("step:2", 26),
        ("ckpt:2", 19),
        ("22:13:30", 10),
        ("22:13", 26),
        ("22:13:46", 26),
        ("22:13:30~3", 7),
        ("2023-11-14T22:13:30", 10),
        ("2024-01-01T00:00:00", 26),
    ],
)
def test_a_reference_names_one_entry(text: str, offset: int) -> None:
    assert at(text) == offset


def test_a_step_trained_again_keeps_its_first_entry() -> None:
    fell_back = [*steps(2), Resume(version=0, checkpoint="", reason="killed")]
    log = KeptLog(history(*fell_back, retrained(0, len(history(*fell_back))), opened(2)))

    assert at("step:0", log) == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", r"0 is before the first entry: the log holds 1\.\.26"),
        ("27", r"27 is not written yet: the log holds 1\.\.26"),
        ("head~26", "before the first entry"),
        ("step:3", r"step 3 is not trained in this log: steps 0\.\.2 are"),
        ("ckpt:1", "no checkpoint 1 in this log; checkpoints: 2"),
        ("23:00:00", "23:00:00 is before the first entry"),  # the last one that this log can mean is of the day before
        ("2023-11-14T22:13:20", "the log goes from 2023-11-14 22:13:21 to 2023-11-14 22:13:46"),
    ],
)
def test_a_moment_that_is_not_there_says_what_is(text: str, why: str) -> None:
    with pytest.raises(NoSuchMoment, match=why):
        at(text)


def test_an_empty_log_has_no_moment_and_a_young_one_no_step() -> None:
    with pytest.raises(NoSuchMoment, match="the log is empty"):
        at("head", KeptLog([]))
    with pytest.raises(NoSuchMoment, match="no step is"):
        at("step:0", KeptLog(history()))
    with pytest.raises(NoSuchMoment, match="checkpoints: none"):
        at("ckpt:0", KeptLog(history()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "step:",
        "step:-1",
        "step:9~",
        "head~x",
        "ckpt:a",
        "25:00:00",
        "12:61",
        "412 ",
        "9" * 20,
        "step:9..10",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(BadReference, match=r"412|wall time"):
        parse_reference(text)


def test_a_run_and_its_moment_are_parted_at_the_last_at_sign() -> None:
    assert parse_target("demo") == Target(run="demo")
    assert parse_target("demo@412") == Target(run="demo", at=Reference(anchor=Anchor.OFFSET, text="412", number=412))
    assert parse_target("/data/a@b/demo@head").run == "/data/a@b/demo"
    assert parse_target("step:9") == Target(run="step:9")
    assert parse_target("step:9", run_is_optional=True).run == ""
    assert parse_target("demo@1..4").at == parse_span("1..4")


def test_a_range_has_both_its_ends() -> None:
    assert parse_span("4") == Span(first=parse_reference("4"), last=parse_reference("4"))
    assert resolve_span(parse_span("4..step:0"), RUN) == (4, 9)
    assert resolve_span(parse_span("..3"), RUN) == (1, 3)
    assert resolve_span(parse_span("head~2.."), RUN) == (24, 26)
    assert resolve_span(Span(), RUN) == (1, 26)


def test_a_range_the_wrong_way_round_is_empty_and_says_so() -> None:
    with pytest.raises(NoSuchMoment, match="begins at 9 and ends at 4"):
        resolve_span(parse_span("9..4"), RUN)
