"""Histories in which prompts are lost in each way, for what tells why. Built from ``builders``; nothing is asserted."""

from builders import (
    Decision,
    admitted,
    committed,
    digest,
    diverted,
    dropped,
    history,
    opened,
    retried,
    selected,
    sent,
    start,
    steps,
    trained,
)
from rollog.events.vocabulary import (
    Borrow,
    Cancel,
    Drop,
    Evict,
    EvictReason,
    FailureKind,
    Filter,
    FilterReason,
    Join,
    Late,
    Leave,
    Load,
    Repay,
    Replace,
    Requeue,
    Role,
    Shrink,
    Stamp,
)
from rollog.replay.lineage import parse_subject, why, why_screen

# Step 0 is whole; step 1 loses prompt 3 and shrinks; of step 2 one group is filtered, the other still runs.
RUN: list[Decision] = [
    Join(worker="gen-0", role=Role.GENERATOR),
    Join(worker="rank-0", role=Role.TRAINER),
    Load(worker="gen-0", version=0, digest=digest("w0")),
    *steps(1),
    *[admitted(1), sent(2, weights=1), sent(3, weights=1), retried(2), sent(2, 2, weights=1)],
    *[committed(2, 2, born=1, worker="gen-1"), dropped(3), selected(1, 2), trained(1)],
    *[admitted(2), sent(4, weights=2), sent(5, weights=2)],
    (
        committed(5, born=2, reward_std=0.0),
        Filter(prompt=5, reason=FilterReason.EQUAL_REWARDS),
        Shrink(step=2, prompt=5),
    ),
    Late(what="group", prompt=3, attempt=1, worker="gen-0"),
    Leave(worker="gen-0", role=Role.GENERATOR, reason="killed"),
]

# Steps 0 and 1 are admitted, 4 and 5 are spares. Step 0 loses prompt 0, and step 1 lends it prompt 2: 4 owes.
LOST = Drop(prompt=0, kind=FailureKind.INFRA, error="timeout after 300 s")
LENT: list[Decision] = [
    *[admitted(0), admitted(1), diverted(4, 5), *map(sent, range(4)), *map(committed, (1, 2, 3))],
    (
        LOST,
        Borrow(loan=0, prompt=2, lender=1, borrower=0, dropped=0, spare=4, nth=1),
        Stamp(prompts=(4,), step=1),
        sent(4, step=1),
    ),
    *[selected(0, 1, 2), trained(0)],
]
PAID: list[Decision] = [*LENT, (committed(4), Repay(loan=0, prompt=4)), selected(1, 3, 4), trained(1)]
GONE = Drop(prompt=4, kind=FailureKind.DATA, error="the reward raised")
PASSED_ON: list[Decision] = [
    *LENT,
    (GONE, Replace(step=1, dropped=4, spare=5, nth=2), Stamp(prompts=(5,), step=1), sent(5, step=1)),
]
UNPAID: list[Decision] = [*LENT, (GONE, Shrink(step=1, prompt=4, loan=0)), selected(1, 3), trained(1)]

# windowed, nothing may be stale: prompts 2 and 3 are one version too old.
STALE: list[Decision] = [
    *[admitted(0, step=None), admitted(1, step=None), *(sent(prompt, step=None) for prompt in range(4))],
    *[*map(committed, (0, 1, 2)), selected(0, 0, 1), trained(0)],
    (Evict(prompts=(2,), reason=EvictReason.STALE), Cancel(prompt=3, attempt=1, reason="stale"), Requeue(prompts=(3,))),
]


def told(subject: str, *decisions: Decision, sampler: str = "in_order") -> str:
    """What ``rollog why`` prints, after a line break."""
    begins = (start(sampler=sampler, lookahead=int(sampler == "in_order")), opened())
    return "\n" + "\n".join(why_screen(why(parse_subject(subject), history(*decisions, begins=begins)))) + "\n"
