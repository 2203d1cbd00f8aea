"""Every event in plain words: what ``rollog log`` and ``rollog show`` print.

Rule 1: one line an event, the same words everywhere; digests are cut to 8 digits, ordinals to ranges.
Rule 2: the type checker names an event without words.
"""

import re
from collections.abc import Iterable
from typing import Final, assert_never

from rollog.events.log import Entry
from rollog.events.vocabulary import (
    Admit,
    Archive,
    Borrow,
    Cancel,
    Checkpoint,
    Commit,
    Configure,
    Dispatch,
    Divert,
    Drop,
    Event,
    Evict,
    Exhaust,
    Filter,
    Finish,
    Fork,
    Join,
    Late,
    Leave,
    Load,
    Note,
    Open,
    Publish,
    Repay,
    Replace,
    Requeue,
    Resume,
    Retry,
    Save,
    Select,
    Shrink,
    Stall,
    Stamp,
    Start,
    Stop,
    Train,
)

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_DIGEST: Final = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")


def words(event: Event) -> str:
    """The event in plain words, on one line."""
    return _DIGEST.sub(r"\1", " ".join(_words(event).split()))


def _words(event: Event) -> str:
    match event:
        case Start():
            return f"run {event.run} begins: {event.num_rows:,} rows, seed {event.seed}, data {event.dataset[:8]}"
        case Fork():
            changes = _settings(event.changes)
            return f"run {event.run} forked from {event.parent}@{event.offset}, changes {changes}: {event.reason}"
        case Open():
            return f"controller {event.epoch} took the pen: {event.reason}"
        case Configure():
            return f"settings changed: {_settings(event.changes)}; cursor {event.cursor}"
        case Resume():
            loads = event.checkpoint or "the model that the run began with"
            return f"a new trainer stands at v{event.version}, loading {loads}: {event.reason}"
        case Admit():
            return f"batch {event.batch} admitted: {_prompts(event.prompts)}"
        case Divert():
            return f"{_prompts(event.prompts)} put into the reserve"
        case Stamp():
            return f"{_prompts(event.prompts)} meant for step {event.step}"
        case Dispatch():
            step = "" if event.step is None else f" for step {event.step}"
            return f"prompt {event.prompt} attempt {event.attempt} sent{step}, weights v{event.weights}"
        case Retry():
            return f"prompt {event.prompt} attempt {event.attempt} failed ({event.kind.value}): {event.error}"
        case Commit():
            made = f"v{event.born}" if event.born == event.done else f"v{event.born}..v{event.done}"
            return (
                f"prompt {event.prompt} attempt {event.attempt} finished by {event.worker}: {event.rollouts} rollouts, "
                f"{event.tokens:,} tokens, reward {event.reward_mean:.3f}, weights {made}"
            )
        case Late():
            known = {
                "prompt": event.prompt,
                "attempt": event.attempt,
                "step": event.step,
                "of trainer": event.generation,
                "from": event.worker,
            }
            return f"late {event.what}, no effect: " + " ".join(f"{k} {v}" for k, v in known.items() if v is not None)
        case Drop():
            return f"prompt {event.prompt} given up ({event.kind.value}): {event.error}"
        case Filter():
            return f"prompt {event.prompt} filtered ({event.reason.value})"
        case Shrink():
            loan = "" if event.loan is None else f", loan {event.loan} cannot be paid"
            return f"step {event.step} closes one group short: prompt {event.prompt}{loan}"
        case Replace():
            return f"prompt {event.spare} replaces {event.dropped} in step {event.step} (replacement {event.nth})"
        case Borrow():
            return (
                f"loan {event.loan}: prompt {event.prompt} moves from step {event.lender} to {event.borrower} for "
                f"{event.dropped}; prompt {event.spare} owes"
            )
        case Repay():
            return f"loan {event.loan} repaid by prompt {event.prompt}"
        case Evict():
            return f"{_prompts(event.prompts)} evicted ({event.reason.value})"
        case Cancel():
            return f"prompt {event.prompt} attempt {event.attempt} cancelled: {event.reason}"
        case Requeue():
            return f"{_prompts(event.prompts)} waiting again"
        case Select():
            last = ", the last" if event.last else ""
            return f"step {event.step} takes {_prompts(event.prompts)} (chunk {event.chunk}{last})"
        case Train():
            cost = f"{event.rows:,} rows, {event.tokens:,} tokens, {event.seconds:.1f} s"
            return f"step {event.step} trained by trainer {event.generation}: {cost}, loss {event.loss:.4f}"
        case Publish():
            return f"weights v{event.version} published: {event.file}"
        case Load():
            return f"{event.worker} runs v{event.version}"
        case Save():
            return f"checkpoint v{event.version} ordered ({event.reason.value})"
        case Checkpoint():
            return f"checkpoint v{event.version} durable: {event.manifest}"
        case Archive():
            return f"entries {event.first}..{event.last} archived in {event.file}"
        case Join():
            return f"{event.role.value} {event.worker} came"
        case Leave():
            return f"{event.role.value} {event.worker} went: {event.reason}"
        case Exhaust():
            return f"the data is at its end; {event.left} prompts fill no step"
        case Stop():
            prompt = "" if event.prompt is None else f", prompt {event.prompt}"
            return f"stopping ({event.reason.value}{prompt}) {event.detail}"
        case Finish():
            left = f"; {_prompts(event.left)} unsettled" if event.left else "; nothing left"
            return f"finished ({event.reason.value}){left}"
        case Stall() | Note():
            return f"{event.what}: {event.text}"
        case _:
            assert_never(event)


def entry_words(entry: Entry) -> str:
    """The whole entry on one line."""
    return "; ".join(words(event) for event in entry.events) or "(remarks of a newer rollog)"


def printable(line: str) -> str:
    """The line without control characters: an error's text comes from a worker and must not steer a terminal."""
    return "".join(each if each.isprintable() else REPLACEMENT for each in line)


def ordinals(numbers: Iterable[int]) -> str:
    """``4..7, 9`` for 4, 5, 6, 7, 9; ``none`` for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    joins = {0: "{0}", 1: "{0}, {1}"}
    return ", ".join(joins.get(last - first, "{0}..{1}").format(first, last) for first, last in runs) or "none"


def counted(number: int, thing: str) -> str:
    """``1 group``, ``3 groups``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _prompts(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "no prompts"
    return f"prompt {numbers[0]}" if len(numbers) == 1 else f"prompts {ordinals(numbers)}"


def _settings(changes: object) -> str:
    assert hasattr(changes, "items")
    return ", ".join(f"{path}={value}" for path, value in changes.items()) or "nothing"
