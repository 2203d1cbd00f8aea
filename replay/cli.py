"""The verbs that read: ``log``, ``show``, ``state``, ``status``, ``coverage``, ``report``, ``verify``, ``why``.

Rule 1: they work on a running run, on one that ended and after a crash, and never disturb any.
Rule 2: data on stdout, messages on stderr; ``-q`` leaves the messages out, ``-v`` says what was opened.
Rule 3: every verb answers in every format from one plain model; the exit code is the answer's yes or no.

``register(app)`` puts them into the command ``rollog``; ``python -m rollog.replay.cli`` has only them. Which source a
prompt is of is known where data sets are read: an app that can tell has ``coverage_by.Sources`` as its ``obj``.
"""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import typer

from rollog.events.codec import event_to_plain
from rollog.events.log import Entry
from rollog.events.redis_reader import RedisReader
from rollog.replay import coverage as coverages
from rollog.replay import options, screens
from rollog.replay import report as reports
from rollog.replay.coverage_by import EPOCH, parse_by
from rollog.replay.exit_codes import NO, mendable
from rollog.replay.lineage import parse_subject, why_screen
from rollog.replay.lineage import why as why_model
from rollog.replay.opening import Source, opened
from rollog.replay.output import Format, finite, json_lines, written, yaml_text
from rollog.replay.paths import at_path
from rollog.replay.plain import derived_to_plain, state_digest, state_to_plain
from rollog.replay.references import Span, resolve_span
from rollog.replay.report_tables import report as report_model
from rollog.replay.selection import Selection
from rollog.replay.status import stalled
from rollog.replay.status import status as status_model
from rollog.replay.timeline import Timeline
from rollog.replay.verification import verify as verify_log
from rollog.replay.wording import entry_words, printable

FOLLOW_BLOCK_S: Final = 1.0


def register(app: typer.Typer) -> None:
    """Put the reading verbs into ``app``."""
    for verb in (log, show, state, status, coverage, report, verify, why):
        app.command()(verb)


@mendable()
def log(
    run: options.Run = "",
    span: options.SpanArgument = None,
    oneline: options.OneLine = False,
    types: options.Types = None,
    prompt: options.Prompt = None,
    step: options.Step = None,
    where: options.Where = None,
    follow: options.Follow = False,
    reverse: options.Reverse = False,
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """The entries of a run, or of a range A..B of it."""
    format = Format.JSON if json else output
    source = Source(run=run, span=span, log=file, redis=redis)
    wanted = Selection.of(types or (), prompt, step, where or ())
    named = source.range()
    if follow and (reverse or format not in (Format.TABLE, Format.JSONL)):
        raise typer.BadParameter("-f writes as entries come: it goes with a table or jsonl, and not with --reverse")
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        first, last = resolve_span(named or Span(), timeline.log)
        chosen: Iterable[Entry] = (entry for entry in timeline.log.read(first, last) if wanted.takes(entry))
        if reverse:
            chosen = reversed(list(chosen))
        if follow:
            later = _follow(timeline, last + 1)
            chosen = (entry for entries in (chosen, filter(wanted.takes, later)) for entry in entries)
        if format is Format.JSONL:
            lines: Iterable[str] = json_lines(map(entry_to_plain, chosen))
        elif format is Format.TABLE:
            lines = map(printable, _drawn(chosen, oneline))
        else:
            model = {"schema": "rollog.log/1", "entries": [entry_to_plain(entry) for entry in chosen]}
            lines = written(model, format, rows="entries")
        with contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext():
            options.write(lines, paged=format is Format.TABLE and not follow, live=follow)


@mendable()
def show(
    run: options.Run = "",
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """One entry, the earlier entries that it rests on, and the difference it made."""
    source = Source(run=run, log=file, redis=redis)
    moment = source.moment()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        explained = timeline.explain(timeline.offset(moment))
    model = {
        "schema": "rollog.show/1",
        "entry": entry_to_plain(explained.entry),
        "causes": list(explained.causes),
        "chain": [entry_to_plain(entry) for entry in explained.chain],
        "changes": [
            {"what": change.what, "before": change.before, "after": change.after, "text": change.text}
            for change in explained.changes
        ],
    }
    _answer(model, map(printable, screens.explained_screen(explained)), output, json)


@mendable()
def state(
    run: options.Run = "",
    path: options.Path_ = None,
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """The whole State at a moment, or the part of it at --path."""
    source = Source(run=run, log=file, redis=redis)
    moment = source.moment()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        there = timeline.state(timeline.offset(moment))
    whole = {"digest": state_digest(there), **state_to_plain(there), "derived": derived_to_plain(there)}
    found = whole if path is None else at_path(whole, path)
    model: dict[str, Any] = {"schema": "rollog.state/1", "offset": there.offset}
    model |= {"state": found} if path is None else {"path": path, "value": found}
    _answer(model, [yaml_text(found)], output, json)


@mendable()
def status(
    run: options.Run = "",
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """One screen of state that adds up in every direction. Exit 1 if the run is stalled."""
    source = Source(run=run, log=file, redis=redis)
    moment = source.moment()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        empty = timeline.log.head().offset == 0
        model = status_model(*timeline.tallied(0 if empty else timeline.offset(moment)))
    _answer(model, map(printable, screens.status_screen(model)), output, json)
    if stalled(model):
        raise typer.Exit(NO)


@mendable()
def coverage(
    context: typer.Context,
    run: options.Run = "",
    by: options.By = EPOCH,
    fail_under: options.FailUnder = None,
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """What became of the prompts of every epoch and source, and how many rows training them took."""
    keys, sources = parse_by(by), context.obj
    source = Source(run=run, log=file, redis=redis)
    moment = source.moment()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        empty = timeline.log.head().offset == 0
        model = coverages.coverage(() if empty else timeline.log.read(1, timeline.offset(moment)), keys, sources)
    rows = "rows" if "rows" in model else "epochs"
    _answer(model, map(printable, coverages.screen(model)), output, json, rows=rows)
    if fail_under is not None and (model["coverage"] is None or model["coverage"] < fail_under):
        raise typer.Exit(NO)


@mendable()
def report(
    run: options.Run = "",
    to: options.ReportFile = Path("report.html"),
    file: options.LogFile = None,
    redis: options.Redis = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """What came of a run, as one HTML file with plots that needs nothing else."""
    page = reports.target(to)
    source = Source(run=run, log=file, redis=redis)
    moment = source.moment()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        empty = timeline.log.head().offset == 0
        model = report_model(() if empty else timeline.log.read(1, timeline.offset(moment)))
    reports.write(page, model)
    options.write([str(page)])


@mendable()
def verify(
    run: options.Run = "",
    from_scratch: options.FromScratch = False,
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """Fold the whole log and check every law at every offset. Exit 1 if one is broken, 5 if it cannot be read."""
    source = Source(run=run, log=file, redis=redis)
    if source.target().at is not None:
        raise typer.BadParameter("verify checks the whole log: name the run alone")
    begin = time.monotonic()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        verdict = verify_log(timeline.log, None if from_scratch else timeline.snapshots)
    model = verdict.to_plain(time.monotonic() - begin)
    table = options.painted(map(printable, screens.verdict_screen(model)), no_color)
    _answer(model, table, output, json, rows="laws")
    if not verdict.holds:
        raise typer.Exit(NO)


@mendable()
def why(
    run: options.Run,
    subject: options.Subject,
    file: options.LogFile = None,
    redis: options.Redis = None,
    output: options.Output = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_color: options.NoColor = False,
) -> None:
    """What became of a prompt, a step, a loan or a worker, and the entries that say so. Exit 1 if it is unknown."""
    asked = parse_subject(subject)
    source = Source(run=run, log=file, redis=redis)
    moment = source.moment()
    with opened(source) as timeline:
        options.say(f"reading {timeline.log!r}", verbose, quiet)
        model = why_model(asked, timeline.log.read(1, timeline.offset(moment)))
    _answer(model, map(printable, why_screen(model)), output, json)
    if not model["known"]:
        raise typer.Exit(NO)


def entry_to_plain(entry: Entry) -> dict[str, Any]:
    """The entry as JSON knows it. ``time`` in seconds; ``text`` in plain words."""
    return {
        "schema": "rollog.entry/1",
        "offset": entry.offset,
        "epoch": entry.epoch,
        "time": entry.time,
        "input": entry.input,
        "digest": entry.digest,
        "events": [finite(event_to_plain(event)) for event in entry.events],
        "text": entry_words(entry),
    }


def _answer(model: dict[str, Any], table: Iterable[str], output: Format, json: bool, rows: str | None = None) -> None:
    format = Format.JSON if json else output
    options.write(table if format is Format.TABLE else written(model, format, rows=rows))


def _drawn(entries: Iterable[Entry], oneline: bool) -> Iterator[str]:
    for entry in entries:
        if oneline:
            yield screens.oneline(entry)
        else:
            yield from screens.paragraph(entry)


def _follow(timeline: Timeline, first: int) -> Iterator[Entry]:
    """The entries from ``first`` on as they come, until Ctrl-C. A sealed log has no more to come."""
    reader = timeline.log
    while isinstance(reader, RedisReader):
        for entry in reader.read(first):
            yield entry
            first = entry.offset + 1
        reader.wait_beyond(first - 1, FOLLOW_BLOCK_S)


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Read a run's log.")
register(app)

if __name__ == "__main__":
    sys.exit(app())
