"""``rollog verify``: fold the whole log and check every law at every offset.

Rule 1: the first break ends the check; the laws that held until then say up to where.
Rule 2: unreadable is not broken: damaged bytes and missing entries are raised as they are (exit code 5).
Rule 3: the audit folds, and beside it the log is folded a second time: at the head both States must be the same and
        stand at the head that the store itself names, which is where the controller's own State stands.
Rule 4: nothing is taken from a snapshot. Those that are there are compared with the fold, unless told to ignore them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollog.events.log import Reader
from rollog.replay import snapshots
from rollog.replay.errors import BrokenHistory, BrokenInvariant
from rollog.replay.invariants import ALL_LAWS, LOANS, ONCE, STALENESS, Audit
from rollog.replay.laws import ONE_PLACE
from rollog.replay.plain import state_digest
from rollog.replay.projector import fold
from rollog.replay.state import State
from rollog.replay.writers import naming_the_writer

SCHEMA: Final = "rollog.verify/1"
LAW_SCHEMA: Final = "rollog.law/1"
CHAIN: Final = "offsets dense, digests chain"
FOLLOWS: Final = "every entry follows from those before it"
LIVE: Final = "live state equals folded state"
SAVED: Final = "saved states equal folded states"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One law. ``holds`` is None where the check ended before the head."""

    law: str
    holds: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a whole log obeys. ``first_broken``: the offset of the first break."""

    run: str
    entries: int
    laws: tuple[Judged, ...]
    first_broken: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every law holds up to the head."""
        return self.first_broken is None

    def to_plain(self, seconds: float) -> dict[str, Any]:
        """For screens and JSON; ``seconds``: how long it took."""
        laws = [
            {"schema": LAW_SCHEMA, "law": each.law, "holds": each.holds, "detail": each.detail} for each in self.laws
        ]
        return {
            "schema": SCHEMA,
            "run": self.run,
            "entries": self.entries,
            "seconds": round(seconds, 3),
            "holds": self.holds,
            "first_broken": self.first_broken,
            "laws": laws,
        }


@dataclass(slots=True)
class _Break:
    offset: int
    law: str
    how: str


@dataclass(slots=True)
class _Check:
    """One pass over a log."""

    audit: Audit = field(default_factory=Audit)
    twin: State = field(default_factory=State)
    saved: Mapping[int, State] = field(default_factory=dict)
    broken: _Break | None = None

    def run(self, log: Reader) -> None:
        head = log.head()
        for entry in naming_the_writer(log.read(1, head.offset)):
            try:
                self.audit.follow(entry)
            except BrokenInvariant as error:
                self.broken = _Break(error.offset, error.law, error.how)
            except BrokenHistory as error:
                self.broken = _Break(entry.offset, FOLLOWS, str(error))
            if self.broken is not None:
                return
            fold(self.twin, entry)
            there = self.saved.get(entry.offset)
            if there is not None and state_digest(there) != state_digest(self.twin):
                how = (
                    f"the snapshot of entry {entry.offset} holds another State: delete it, and say so to the developers"
                )
                self.broken = _Break(entry.offset, SAVED, how)
                return
        try:
            self.audit.finish()
        except BrokenInvariant as error:
            self.broken = _Break(error.offset, error.law, error.how)
            return
        state = self.audit.state
        if (state.offset, state.digest) != (head.offset, head.digest):
            how = f"the store's head is {head.offset} with digest {head.digest}, the last entry has {state.digest}"
            self.broken = _Break(state.offset, LIVE, how)
        elif state_digest(state) != state_digest(self.twin):
            self.broken = _Break(state.offset, LIVE, "two folds of the same entries give different states")


def verify(log: Reader, saved: Path | None = None) -> Verdict:
    """Check the whole log, and the snapshots in the folder ``saved`` against it.

    Raises ``CorruptEntry``, ``UnknownEvent`` or ``MissingEntry`` for what cannot be read.
    """
    found = () if saved is None else snapshots.fitting(saved, log, log.head().offset)
    check = _Check(saved={each.state.offset: each.state for each in found})
    check.run(log)
    audit, broken = check.audit, check.broken
    details = _details(audit) | {SAVED: ", ".join(f"@{offset:,}" for offset in sorted(check.saved))}
    laws = []
    for law in (CHAIN, FOLLOWS, *ALL_LAWS, *([SAVED] if check.saved else []), LIVE):
        if broken is None:
            laws.append(Judged(law=law, holds=True, detail=details.get(law, "")))
        elif law == broken.law:
            laws.append(Judged(law=law, holds=False, detail=f"at offset {broken.offset:,}: {broken.how}"))
        elif law == LIVE:
            laws.append(Judged(law=law, holds=None, detail="not compared"))
        else:
            laws.append(Judged(law=law, holds=None, detail=f"holds up to offset {broken.offset - 1:,}"))
    return Verdict(
        run=audit.state.run,
        entries=audit.entries,
        laws=tuple(laws),
        first_broken=None if broken is None else broken.offset,
    )


def _details(audit: Audit) -> dict[str, str]:
    """The numbers that say what a law was checked on."""
    state, rules = audit.state, audit.state.rules
    loans = (
        f"{state.loans_made} made = {state.loans_repaid} repaid + {state.loans_forgiven} forgiven "
        f"+ {len(state.loans)} open"
    )
    details = {
        CHAIN: f"1..{state.offset:,}",
        ONE_PLACE: f"{state.handed_out:,} = {len(state.groups):,} in a place + {state.settled():,} settled",
        LOANS: loans,
        LIVE: f"@{state.offset:,}",
    }
    if rules is not None:
        trained = f"{state.version:,} steps, {state.trained:,} groups, {rules.prompts_per_step} a step"
        details[ONCE] = trained
        bound = "no bound on age" if rules.sampler in ("ready_first", "custom") else f"bound {rules.lookahead}"
        details[STALENESS] = f"oldest {audit.max_staleness}, {bound}"
    return details
