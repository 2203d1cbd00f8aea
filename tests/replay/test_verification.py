"""``verify``: every law is named, the first break is where it says, and unreadable is not broken."""

from dataclasses import replace

import pytest

from builders import KeptLog, admitted, committed, history, ready, selected, sent, steps, trained
from rollog.events.codec import unseal
from rollog.events.errors import CorruptEntry
from rollog.events.log import GENESIS, Head
from rollog.replay import screens
from rollog.replay.invariants import ALL_LAWS
from rollog.replay.verification import CHAIN, FOLLOWS, LIVE, verify


def test_a_right_log_obeys_every_law() -> None:
    verdict = verify(KeptLog(history(*steps(3), *ready(3, weights=3))))

    assert verdict.holds
    assert verdict.entries == 28
    assert [judged.law for judged in verdict.laws] == [CHAIN, FOLLOWS, *ALL_LAWS, LIVE]
    assert {judged.holds for judged in verdict.laws} == {True}


def test_the_verdict_says_on_what_it_rests() -> None:
    verdict = verify(KeptLog(history(*steps(3), *ready(3, weights=3))))

    details = {judged.law: judged.detail for judged in verdict.laws if judged.detail}
    assert details == {
        "offsets dense, digests chain": "1..28",
        "every prompt in exactly one place": "8 = 2 in a place + 6 settled",
        "every loan repaid, forgiven or open": "0 made = 0 repaid + 0 forgiven + 0 open",
        "each step trained exactly its groups, none twice": "3 steps, 6 groups, 2 a step",
        "staleness within the bound for every selected group": "oldest 0, bound 1",
        "live state equals folded state": "@28",
    }


def test_a_broken_law_is_named_with_its_first_offset_and_the_others_with_how_far_they_held() -> None:
    early = [*ready(0), *ready(1), selected(0), selected(1)]
    verdict = verify(KeptLog(history(*early, trained(0), trained(1))))

    assert (verdict.holds, verdict.first_broken, verdict.entries) == (False, 14, 14)
    broken = [judged for judged in verdict.laws if judged.holds is False]
    assert [judged.law for judged in broken] == ["each step trained exactly its groups, none twice"]
    assert broken[0].detail == "at offset 14: step 1 takes groups while the trainer stands at 0"
    others = {judged.detail for judged in verdict.laws if judged.holds is None}
    assert others == {"holds up to offset 13", "not compared"}


def test_a_history_that_cannot_be_folded_is_broken_and_not_a_crash() -> None:
    verdict = verify(KeptLog(history(admitted(0), committed(0))))

    assert (verdict.first_broken, verdict.holds) == (4, False)
    assert [judged.law for judged in verdict.laws if judged.holds is False] == [FOLLOWS]


def test_books_that_differ_at_the_head_are_broken() -> None:
    class Forgetful(KeptLog):
        def head(self) -> Head:
            return replace(super().head(), digest="f" * 32)

    verdict = verify(Forgetful(history(admitted(0))))
    assert [(judged.law, judged.holds) for judged in verdict.laws if judged.holds is False] == [(LIVE, False)]


def test_damaged_bytes_are_unreadable() -> None:
    class Damaged(KeptLog):
        def read(self, first: int = 1, last: int | None = None):  # type: ignore[no-untyped-def]
            previous = GENESIS
            for entry in self.entries:
                payload = entry.payload if entry.offset < 4 else entry.payload[:-1] + bytes([entry.payload[-1] ^ 1])
                yield unseal(entry.header, payload, entry.digest, previous)
                previous = entry.digest

    with pytest.raises(CorruptEntry):
        verify(Damaged(history(admitted(0), sent(0))))


def test_an_empty_log_breaks_nothing() -> None:
    assert verify(KeptLog([])).holds


def test_the_verdict_is_golden() -> None:
    right = list(screens.verdict_screen(verify(KeptLog(history(*steps(1)))).to_plain(0.26)))
    assert right[:4] == [
        "folded 9 entries in 0.3 s",
        "ok      offsets dense, digests chain: 1..9",
        "ok      every entry follows from those before it",
        "ok      every prompt in exactly one place: 2 = 0 in a place + 2 settled",
    ]
    assert right[-1] == "ok      live state equals folded state: @9"

    wrong = list(screens.verdict_screen(verify(KeptLog(history(admitted(0), committed(0)))).to_plain(0.0)))
    assert wrong[2].startswith("BROKEN  every entry follows from those before it: at offset 4: entry 4 (Commit)")
    assert wrong[3] == "open    every prompt in exactly one place: holds up to offset 3"
    assert wrong[-1] == "first broken at offset 4; see it with: rollog show demo@4"
