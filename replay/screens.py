"""What people read: the status screen, log lines, an explained entry, the verdict of ``verify``.

Rule 1: a screen is drawn from the same plain model that ``--json`` prints, so their numbers cannot differ.
Rule 2: a screen shows a total beside its parts.
Rule 3: lines are returned, not printed; colour is added by the command line, if at all.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from rollog.events.log import Entry
from rollog.events.vocabulary import Role
from rollog.replay.status import workers_of
from rollog.replay.timeline import Explained
from rollog.replay.wording import counted, entry_words, words

BAR_CELLS: Final = 16
SPARKS: Final = "▁▂▃▄▅▆▇█"
MAX_CHAIN: Final = 40
"""Entries of a cause chain that a screen shows; --json has all."""


def status_screen(model: dict[str, Any], zone: tzinfo | None = None) -> Iterator[str]:
    """The lines of ``rollog status``, from ``status.status``."""
    if model["offset"] == 0:
        yield "the log is empty: nothing has been decided yet"
        return
    rules, places, settled = model["rules"], model["places"], model["settled"]
    yield (
        f"run {model['run']}   @ {model['offset']:,}   {clock(model['time'], zone)}   {model['condition']}   "
        f"{rules['sampler']}, lookahead {rules['lookahead']}   "
        f"{rules['prompts_per_step']} x {rules['rollouts_per_prompt']} rollouts"
    )
    yield ""
    yield f"version     v{model['version']}   trainer at v{model['standing']}   {_recent(model['recent'])}".rstrip()
    if model["recent"] and (rows := _rows(model["recent"][-1])):
        yield f"  rows      {rows}"
    yield (
        f"prompts     {model['handed_out']:,} handed out = {sum(places.values()):,} in a place + "
        f"{sum(settled.values()):,} settled"
    )
    yield f"  places    {_sum(places)}"
    yield f"  settled   {_sum(settled)}"
    for step in model["steps"]:
        yield _step_line(step)
    yield (
        f"cursor      {model['cursor']}   frontier {model['frontier']:,} "
        f"(+{model['settled_beyond_frontier']:,} settled beyond)   durable frontier {model['durable_frontier']:,}"
    )
    yield f"workers     {_workers(model)}"
    budgets = model["budgets"]
    yield (
        f"budgets     skipped {budgets['skipped']}   infra drops in a row {budgets['consecutive_drops']}   "
        f"failures of open prompts: infra {budgets['infra_failures']}, data {budgets['data_failures']}, "
        f"lost {budgets['lost_attempts']}"
    )
    if model["loans"]["made"]:
        yield f"loans       {_sum(model['loans'], total='made')}"
    yield f"checkpoint  {_checkpoints(model)}"
    yield f"attempts    {_sum(model['attempts'], total='sent')}"
    yield f"tokens      {_tokens(model['tokens'])}"
    yield f"waste       {_waste(model)}"
    if model["stalled"]:
        yield f"stalled     {model['stalled']}"


def _sum(parts: dict[str, int], total: str | None = None) -> str:
    """``12 = 4 waiting + 8 buffer``, total first."""
    whole = parts[total] if total is not None else sum(parts.values())
    shown = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in parts.items() if name != total)
    return f"{whole:,} {'= ' if total is None else total + ' = '}{shown}"


def _step_line(step: dict[str, Any]) -> str:
    ready = step["buffer"] + step["selected"]
    waits = [f"{step[name]} {name.replace('_', ' ')}" for name in ("in_flight", "waiting", "backing_off") if step[name]]
    if step["short"]:
        waits.append(f"{step['short']} short")
    if step["closed"]:
        waits.append("training")
    return f"step {step['step']:<6} {bar(ready, step['target'])} {ready}/{step['target']}   {', '.join(waits)}".rstrip()


def bar(have: int, want: int, cells: int = BAR_CELLS) -> str:
    """A bar of ``cells`` cells; full only when all is there."""
    full = cells if want <= 0 else min(cells, have * cells // want)
    return "█" * full + "░" * (cells - full)


def sparkline(values: list[float]) -> str:
    """One character a value, low to high."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in values)


def _recent(recent: list[dict[str, Any]]) -> str:
    if not recent:
        return ""
    last = recent[-1]
    curve = sparkline([each["reward_mean"] for each in recent])
    return (
        f"step {last['step']}: reward {last['reward_mean']:.3f} {curve}   loss {last['loss']:.4f}   "
        f"train {last['seconds']:.1f}s   tok {last['tokens']:,}"
    )


def _rows(step: dict[str, Any]) -> str:
    """How many rows the step's rollouts had, and what padding cost; nothing to say when each had one."""
    rows, padding, counts = step["rows"], step["padding"], step["rows_per_rollout"]
    if rows <= step["rollouts"]:
        return ""
    spread = ", ".join(f"{rollouts:,} of {number}" for number, rollouts in counts.items())
    return (
        f"{step['rollouts']:,} rollouts in {rows:,} rows ({spread or 'not told'}), {step['tokens']:,} valid tokens, "
        f"{padding:,} padding rows ({_share(padding, rows + padding)})"
    )


def _workers(model: dict[str, Any]) -> str:
    generators, trainers = workers_of(model, Role.GENERATOR), workers_of(model, Role.TRAINER)
    run = " ".join("v?" if version is None else f"v{version}" for _, version in generators)
    newest = f"v{max(model['published'])}" if model["published"] else "none"
    return (
        f"{counted(len(generators), 'generator')} {run}".rstrip()
        + f"   {counted(len(trainers), 'trainer')}   newest weights published {newest}"
    )


def _checkpoints(model: dict[str, Any]) -> str:
    saved = list(model["checkpoints"])
    newest = f"v{saved[-1]} durable" if saved else "none durable"
    older = f", kept too: v{', v'.join(saved[:-1])}" if len(saved) > 1 else ""
    ordered = ", ".join(f"v{version}" for version in model["checkpoints_ordered"])
    return newest + older + (f"   ordered: {ordered}" if ordered else "")


def _tokens(tokens: dict[str, int]) -> str:
    parts = {name: tokens[name] for name in ("generated", "trained", "held", "wasted")}
    return _sum(parts, total="generated")


def _waste(model: dict[str, Any]) -> str:
    tokens, attempts = model["tokens"], model["attempts"]
    ended = attempts["sent"] - attempts["in_flight"]
    failed = attempts["failed"] + attempts["given_up"]
    return (
        f"stale {_share(tokens['stale'], tokens['generated'])} and equal rewards "
        f"{_share(tokens['equal_rewards'], tokens['generated'])} of tokens   failed {_share(failed, ended)} and lost "
        f"{_share(attempts['lost'], ended)} of attempts   late {model['late_results']}   "
        f"steps trained again {model['steps_trained_again']}"
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def oneline(entry: Entry, zone: tzinfo | None = None) -> str:
    """One entry of ``rollog log --oneline``."""
    return f"@{entry.offset:<7,} {clock(entry.time, zone)}  {entry_words(entry)}"


def paragraph(entry: Entry, zone: tzinfo | None = None) -> Iterator[str]:
    """One entry of ``rollog log``: a head line, then a line an event."""
    answers = "" if entry.input is None else f"   answers {entry.input}"
    yield f"@{entry.offset:,}   {clock(entry.time, zone, date=True)}   epoch {entry.epoch}{answers}"
    for event in entry.events:
        yield f"    {words(event)}"


def explained_screen(explained: Explained, zone: tzinfo | None = None) -> Iterator[str]:
    """The lines of ``rollog show``."""
    yield from paragraph(explained.entry, zone)
    yield ""
    yield "rests on" if explained.chain else "rests on nothing earlier"
    direct = set(explained.causes)
    chain = explained.chain
    if len(chain) > MAX_CHAIN:
        yield f"    ({len(chain) - MAX_CHAIN:,} earlier ones are not shown: --json has all)"
        chain = chain[-MAX_CHAIN:]
    for entry in chain:
        yield f"  {'*' if entry.offset in direct else ' '} {oneline(entry, zone)}"
    yield ""
    yield "made this difference" if explained.changes else "made no difference to the state"
    for change in explained.changes:
        yield f"    {change.text}"


def verdict_screen(model: dict[str, Any]) -> Iterator[str]:
    """The lines of ``rollog verify``, from ``verification.Verdict.to_plain``."""
    yield f"folded {model['entries']:,} entries in {model['seconds']:.1f} s"
    for law in model["laws"]:
        mark = {True: "ok     ", False: "BROKEN ", None: "open   "}[law["holds"]]
        yield f"{mark} {law['law']}" + (f": {law['detail']}" if law["detail"] else "")
    if model["first_broken"] is not None:
        offset = model["first_broken"]
        yield f"first broken at offset {offset:,}; see it with: rollog show {model['run']}@{offset}"


def clock(seconds: float, zone: tzinfo | None = None, *, date: bool = False) -> str:
    """Wall time of day, in the machine's zone unless another is given."""
    at = datetime.fromtimestamp(seconds, tz=UTC).astimezone(zone)
    return f"{at:%Y-%m-%d %H:%M:%S}" if date else f"{at:%H:%M:%S}"


def joined(lines: Iterable[str]) -> str:
    """The lines as one text."""
    return "\n".join(lines)
