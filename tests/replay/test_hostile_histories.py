"""Whatever stands in a log, reading it ends in an answer or in an error of ours, never in another exception."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest

from builders import (
    Decision,
    KeptLog,
    committed,
    diverted,
    dropped,
    durable,
    history,
    opened,
    published,
    ready,
    retrained,
    retried,
    saved,
    selected,
    sent,
    start,
    steps,
    trained,
)
from rollog.events.vocabulary import (
    Admit,
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
    Repay,
    Replace,
    Requeue,
    Resume,
    Shrink,
    Stamp,
    Stop,
    StopReason,
)
from rollog.replay import screens
from rollog.replay.errors import ReplayError
from rollog.replay.status import status
from rollog.replay.tally import follow_all
from rollog.replay.timeline import Timeline
from rollog.replay.verification import verify


def events_of(decision: Decision) -> tuple[Event, ...]:
    return decision if isinstance(decision, tuple) else (decision,)


RIGHT: list[Decision] = [
    *steps(2),
    saved(2),
    durable(2),
    *ready(2, weights=2),
    diverted(6, 7),
    Admit(batch=3, prompts=(8, 9), rows=(108, 109)),
]
RIGHT[-1] = (*events_of(RIGHT[-1]), Stamp(prompts=(8, 9), step=3))
RIGHT += [sent(8, step=3, weights=2), retried(8), sent(9, step=3, weights=2), selected(2, 4, last=False)]
"""A right history with a prompt in every place: 4 selected, 5 finished, 6 and 7 spare, 8 backing off, 9 in flight."""

ODD: list[Decision] = [
    *RIGHT,
    trained(2),
    retrained(1, 1),
    published(2),
    (dropped(9)[0], Shrink(step=3, prompt=9)),
    Resume(version=2, checkpoint="2-1-1", reason="killed"),
    Fork(run="b", parent="demo", offset=3, digest="0" * 32, changes={"sampler.lookahead": 2}, reason="x"),
    Configure(changes={"sampler.name": "windowed", "sampler.max_staleness": 1}, cursor=1),
    Configure(changes={"sampler": 3}, cursor=1),
    Stamp(prompts=(5,), step=2),
    (Drop(prompt=9, kind=FailureKind.DATA, error="x"), Replace(step=3, dropped=9, spare=6, nth=1)),
    Borrow(loan=0, prompt=5, lender=2, borrower=1, dropped=0, spare=6, nth=1),
    Repay(loan=0, prompt=5),
    Shrink(step=2, prompt=5, loan=0),
    Filter(prompt=5, reason=FilterReason.RULE),
    Evict(prompts=(5, 8), reason=EvictReason.STALE),
    (Cancel(prompt=9, attempt=1, reason="old"), Requeue(prompts=(9,))),
    Requeue(prompts=(5,)),
    Drop(prompt=5, kind=FailureKind.USER, error="x"),
    Stop(reason=StopReason.FAILED, deadline=0.0, prompt=8),
    Finish(reason=FinishReason.FAILED, left=(4, 5, 6, 7, 8, 9)),
    Exhaust(left=0),
    opened(2),
    committed(9, born=2),
]
"""What comes after it, in any order and with any numbers."""


def odd_history(rng: random.Random) -> list[Decision]:
    """The right history, or its beginning, and then decisions that say other numbers or stand in one entry."""
    decisions = RIGHT[: rng.choice((len(RIGHT), rng.randrange(len(RIGHT))))]
    for _ in range(rng.randint(1, 4)):
        odd = events_of(rng.choice(ODD))
        if rng.random() < 0.2:
            odd = (*odd, *events_of(rng.choice(ODD)))
        decisions.append(odd if rng.random() < 0.5 else tuple(with_other_numbers(event, rng) for event in odd))
    return decisions


def with_other_numbers(event: Event, rng: random.Random) -> Event:
    changes: dict[str, Any] = {}
    for each in fields(event):
        value = getattr(event, each.name)
        if type(value) is int and rng.random() < 0.3:
            changes[each.name] = max(0, value + rng.choice((-1, 1, 2, 40)))
        elif type(value) is tuple and rng.random() < 0.3:
            changes[each.name] = tuple(rng.choices(range(9), k=rng.randrange(4)))
        elif type(value) is bool and rng.random() < 0.3:
            changes[each.name] = not value
    return replace(event, **changes)


def test_the_right_history_is_right() -> None:
    assert verify(KeptLog(history(*RIGHT))).holds


@pytest.mark.parametrize("block", range(4))
def test_an_odd_history_is_a_verdict_and_never_another_exception(block: int) -> None:
    verdicts = []
    for seed in range(block * 150, (block + 1) * 150):
        log = KeptLog(history(*odd_history(random.Random(seed)), begins=[start(), opened()]))
        verdict = verify(log)
        verdicts.append(verdict.holds)
        assert "\n".join(screens.verdict_screen(verdict.to_plain(0.0)))
        try:
            model = status(*follow_all(log.read()))
        except ReplayError:
            assert not verdict.holds, f"seed {seed}: the fold refuses what verify calls right"
        else:
            assert "\n".join(screens.status_screen(model)), f"seed {seed}"
        last = verdict.entries - (not verdict.holds)
        assert list(screens.explained_screen(Timeline(log).explain(last))), f"seed {seed}"
    assert 0 < sum(verdicts) < len(verdicts)
