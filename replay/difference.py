"""The difference between two States of one log, in the product's words.

Rule 1: complete: two States with the same digest of everything but their place in the log differ in nothing, and two
        with another differ in at least one line.
Rule 2: prompts that made the same move are one line.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollog.replay.plain import to_plain
from rollog.replay.state import Group, Place, State, Step
from rollog.replay.wording import counted, ordinals

SETTLEMENTS: Final = ("trained", "dropped", "filtered", "evicted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs. ``before`` and ``after`` are plain values, None for what was not there."""

    what: str
    before: Any
    after: Any
    text: str


def difference(before: State, after: State) -> list[Change]:
    """What changed from ``before`` to ``after``; the later State may also be the first argument."""
    return [
        *_scalars(before, after),
        *_settings(before.settings, after.settings),
        *_moves(before, after),
        *_steps(before, after),
        *_tables(before, after),
    ]


_SCALARS: Final[Mapping[str, str]] = {
    "archived": "entries in segments",
    "epoch": "writer epoch",
    "run": "run",
    "dataset": "data set",
    "seed": "seed",
    "num_rows": "rows",
    "version": "version",
    "standing": "the trainer stands at",
    "generation": "trainer generation",
    "resumes_in_vain": "trainers that ended in vain",
    "handed_out": "prompts handed out",
    "slate_step": "batches counted from step",
    "slate_prompt": "batches counted from prompt",
    "cursor": "cursor",
    "exhausted": "data at its end",
    "slots": "orders sent",
    "trained": "trained",
    "dropped": "dropped",
    "filtered": "filtered",
    "evicted": "evicted",
    "lost": "admitted prompts lost to training",
    "commits": "groups finished",
    "skipped": "prompts skipped for data failures",
    "consecutive_drops": "infra drops in a row",
    "stamps_made": "stamps made",
    "loans_made": "loans made",
    "loans_repaid": "loans repaid",
    "loans_forgiven": "loans forgiven",
    "input": "last result answered",
    "finish": "finished",
}


def _scalars(before: State, after: State) -> Iterator[Change]:
    for name, label in _SCALARS.items():
        old, new = to_plain(getattr(before, name)), to_plain(getattr(after, name))
        if old != new:
            shown = ("none" if old in (None, "") else old, "none" if new in (None, "") else new)
            yield Change(what=name, before=old, after=new, text=f"{label}: {shown[0]} -> {shown[1]}")
    if before.stopping != after.stopping:
        stop = after.stopping
        text = "no longer stopping" if stop is None else f"stopping ({stop.reason.value}) {stop.detail}".strip()
        yield Change(what="stopping", before=to_plain(before.stopping), after=to_plain(stop), text=text)


def _settings(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Change]:
    for name in sorted(before.keys() | after.keys()):
        old, new, here = before.get(name), after.get(name), f"{path}{name}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _settings(old, new, f"{here}.")
        elif old != new:
            yield Change(what=f"settings.{here}", before=old, after=new, text=f"setting {here}: {old} -> {new}")


def _moves(before: State, after: State) -> Iterator[Change]:
    moves: dict[tuple[str, str, str], list[int]] = {}
    for prompt in sorted(before.groups.keys() | after.groups.keys()):
        old, new = before.groups.get(prompt), after.groups.get(prompt)
        if old is not None and new is not None and to_plain(old) == to_plain(new):
            continue
        begin = _place(before, after, prompt, old)
        end = _place(after, before, prompt, new)
        moves.setdefault((begin, end, _terms(old, new)), []).append(prompt)
    for (begin, end, terms), prompts in moves.items():
        moved = f"{begin} -> {end}" if begin != end else f"{end}, changed"
        named = "prompt" if len(prompts) == 1 else "prompts"
        yield Change(
            what="prompts",
            before={"place": begin, "prompts": prompts},
            after={"place": end, "prompts": prompts},
            text=f"{named} {ordinals(prompts)}: {moved}{terms}",
        )


def _place(state: State, other: State, prompt: int, group: Group | None) -> str:
    """Its place in words. What is settled has no place; where only one count differs, it is that one."""
    if group is not None:
        return group.place.value.replace("_", " ")
    if prompt >= state.handed_out:
        return "not handed out"
    if other.groups[prompt].place is Place.SELECTED:
        return "trained"
    grown = [name for name in SETTLEMENTS if getattr(state, name) > getattr(other, name)]
    return grown[0] if len(grown) == 1 else "settled"


def _terms(old: Group | None, new: Group | None) -> str:
    if new is None:
        return ""
    terms = []
    if (old.step if old else None) != new.step:
        terms.append(f"for step {new.step}" if new.step is not None else "for no step")
    if new.attempt != (old.attempt if old else 0):
        terms.append(f"attempt {new.attempt}, weights v{new.weights}")
    if new.finished is not None and (old is None or old.finished != new.finished):
        terms.append(f"reward {new.finished.reward_mean:.3f}, weights v{new.finished.born}")
    if new.last_failure is not None and new.place is Place.BACKING_OFF:
        terms.append(f"{new.last_failure.value} failure")
    return f" ({', '.join(terms)})" if terms else ""


def _steps(before: State, after: State) -> Iterator[Change]:
    for number in sorted(before.steps.keys() | after.steps.keys()):
        old, new = before.steps.get(number, Step()), after.steps.get(number, Step())
        if number not in after.steps:
            text = f"step {number}: its selections are no longer kept"
        elif old.shortfall != new.shortfall:
            text = f"step {number}: {counted(new.shortfall, 'group')} short (was {old.shortfall})"
        elif to_plain(old) != to_plain(new):
            closed = ", closed" if new.closed and not old.closed else ""
            text = f"step {number}: {counted(new.taken, 'group')} taken (was {old.taken}){closed}"
        else:
            continue
        yield Change(what=f"steps.{number}", before=to_plain(old), after=to_plain(new), text=text)


_TABLES: Final[Mapping[str, str]] = {
    "loans": "loan",
    "published": "published weights v",
    "saves": "ordered checkpoint v",
    "checkpoints": "durable checkpoint v",
    "workers": "worker ",
}


def _tables(before: State, after: State) -> Iterator[Change]:
    for name, label in _TABLES.items():
        old_table, new_table = getattr(before, name), getattr(after, name)
        for key in sorted(old_table.keys() | new_table.keys()):
            old, new = to_plain(old_table.get(key)), to_plain(new_table.get(key))
            if old == new:
                continue
            verb = "new" if old is None else "no longer kept" if new is None else "changed"
            if name == "workers" and new is None:
                verb = "gone"
            loaded = new["version"] if name == "workers" and new and new["version"] is not None else None
            runs = "" if loaded is None else f", runs v{loaded}"
            yield Change(what=f"{name}.{key}", before=old, after=new, text=f"{label}{key}: {verb}{runs}")
