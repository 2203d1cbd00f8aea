"""``rollog report``: what came of a run, as one HTML file that needs nothing else: no script, no network, no server.

Rule 1: everything is a view of one model (``report_tables``); beside each plot stand its numbers and the verb that says
        the same.
Rule 2: every text is escaped, and a plot is an image of its own: nothing that a log says can run in the page.
Rule 3: the same log gives the same bytes.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Final

from rollog.events.durable import must_last, write_synced
from rollog.replay import report_plots as plots
from rollog.replay.errors import BadReference
from rollog.replay.report_tables import Point

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 2.2rem; border-top: 1px solid #ddd; padding-top: 1rem; }
img { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #eee; }
code { background: #f4f4f4; padding: 0 .25rem; }
summary { cursor: pointer; color: #0072B2; }
"""
NO_STEP: Final = "No step is trained yet."


def target(file: Path) -> Path:
    """The file that a report is to be written to. Raises ``BadReference`` when none can stand there."""
    try:
        folder, parent = file.is_dir(), file.parent.is_dir()
        special = file.is_symlink() or (file.exists() and not file.is_file())
    except OSError as error:  # a name that is too long
        raise BadReference(f"-o {file}: {error.strerror}. Name another file.") from error
    if folder:
        raise BadReference(f"-o {file} is a folder: name a file in it, such as -o {file / 'report.html'}")
    if special:
        raise BadReference(f"-o {file} is a link or a device, which would be replaced: name a file of its own")
    if not parent:
        raise BadReference(f"-o {file}: there is no folder {file.parent}. Make it, or name a file elsewhere.")
    return file


def write(file: Path, model: Mapping[str, Any]) -> None:
    """Write the page of a model. Raises ``NoMatplotlib`` and ``DiskRefused``; a file that was there is replaced."""
    data = page(model).encode()
    with must_last(f"the report {file}"):
        write_synced(file, data)


def page(model: Mapping[str, Any]) -> str:
    """The whole page."""
    run = model["status"]["run"]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
            "style-src 'unsafe-inline'\">",
            f"<title>{escape(run)}: report</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            *_head(model),
            *_prompts(model),
            *_rewards(model),
            *_staleness(model),
            *_rows(model),
            *_time(model),
            *_tokens(model),
            *_loans(model),
            "</body>\n</html>\n",
        ]
    )


def _head(model: Mapping[str, Any]) -> Iterator[str]:
    status = model["status"]
    rules = status["rules"] or {}
    yield f"<h1>{escape(status['run'])}</h1>"
    yield (
        f"<p>{escape(status['condition'])} at entry {status['offset']:,}, weights v{status['version']:,}, after "
        f"{status['seconds']:,.0f} s; {escape(str(rules.get('sampler', 'no sampler')))} with lookahead "
        f"{rules.get('lookahead', 0)}, {rules.get('prompts_per_step', 0)} x {rules.get('rollouts_per_prompt', 0)} "
        f"rollouts a step.</p>"
    )


def _prompts(model: Mapping[str, Any]) -> Iterator[str]:
    run, rows, covered = model["status"]["run"], model["coverage"]["epochs"], model["coverage"]["coverage"]
    said = "No prompt's turn has come." if covered is None else f"{covered:g}% of the prompts whose turn has come."
    yield from _section("Coverage", f"{said} Every prompt of every epoch is in exactly one column.", "coverage", run)
    if not rows:
        return
    yield _image(plots.epochs(rows), "prompts of every epoch by what became of them")
    yield _table([{name: value for name, value in row.items() if name != "schema"} for row in rows])
    each = model["prompts_per_cell"]
    said = "a prompt" if each == 1 else f"{each:,} prompts and shows the worst of them"
    yield f"<p>A cell is {said}, in the order in which they are handed out; <code>rollog why {escape(run)} "
    yield "prompt:17</code> tells the life of one.</p>"
    yield _image(plots.prompts(model["cells"], each), "one cell a prompt")


def _rewards(model: Mapping[str, Any]) -> Iterator[str]:
    points = model["points"]
    yield from _section("Reward", "The mean over the groups of each step.", "status", model["status"]["run"])
    yield from _over_steps(points, "reward", label="mean reward")
    yield from _numbers(points, "groups", "rollouts", "tokens", "reward", "loss")


def _staleness(model: Mapping[str, Any]) -> Iterator[str]:
    ages, points, run = model["staleness"], model["points"], model["status"]["run"]
    about = "How many versions older than its step the oldest weights were that made a group, by tokens trained."
    yield from _section("Staleness", about, "why", f"{run} step:9")
    if ages:
        yield _image(plots.bars(ages, x="versions", y="tokens trained"), "tokens by staleness")
        yield _table([{"staleness": age, "tokens": tokens} for age, tokens in ages.items()])
        yield _image(plots.over_steps(points, "oldest", label="oldest group"), "greatest staleness over steps")
    yield from _numbers(points, "oldest")


def _rows(model: Mapping[str, Any]) -> Iterator[str]:
    trained, points = model["coverage"]["trained"], model["points"]
    about = (
        f"{trained['rollouts']:,} rollouts were trained in {trained['rows']:,} rows; {trained['padding']:,} more rows, "
        f"{100 * trained['padding_share']:.1f}%, were padding, which fills up micro batches."
    )
    yield from _section("Rows and padding", about, "coverage", model["status"]["run"])
    if trained["rows_per_rollout"]:
        yield _image(plots.bars(trained["rows_per_rollout"], x="rows", y="rollouts"), "rollouts by rows")
    yield from _over_steps(points, "padding_share", label="padding, share of rows")
    yield from _numbers(points, "rollouts", "rows", "padding", "padding_share")


def _time(model: Mapping[str, Any]) -> Iterator[str]:
    about = "Seconds that each step waited for its last group, and that the trainer worked on it."
    yield from _section("Time", about, "why", f"{model['status']['run']} step:9")
    yield from _over_steps(model["points"], "wait_s", "train_s", label="seconds")
    yield from _numbers(model["points"], "wait_s", "train_s")


def _tokens(model: Mapping[str, Any]) -> Iterator[str]:
    tokens = model["status"]["tokens"]
    rest = tokens["wasted"] - tokens["stale"] - tokens["equal_rewards"]
    parts = {
        "trained": tokens["trained"],
        "held": tokens["held"],
        "stale": tokens["stale"],
        "equal_rewards": tokens["equal_rewards"],
        "other_waste": rest,
    }
    about = f"What became of {tokens['generated']:,} tokens of finished groups; attempts that failed are not in it."
    yield from _section("Tokens", about, "status", model["status"]["run"])
    yield _image(plots.bars(parts, x="", y="tokens", colour=plots.GREEN), "tokens by what became of them")
    yield _table([{"generated": tokens["generated"], **parts}])
    yield "<p>What became of the attempts, and how many a finished group took:</p>"
    yield _table([model["status"]["attempts"]])
    if model["attempts"]:
        yield _image(plots.bars(model["attempts"], x="attempts", y="groups"), "finished groups by attempts")


def _loans(model: Mapping[str, Any]) -> Iterator[str]:
    loans, points, run = model["status"]["loans"], model["points"], model["status"]["run"]
    about = "Finished groups that a later step lent to an earlier one."
    yield from _section("Loans", about, *(("why", f"{run} loan:0") if loans["made"] else ("status", run)))
    yield _table([loans])
    if loans["made"]:
        yield from _over_steps(points, "borrowed", "lent", label="groups")
        yield from _numbers(points, "borrowed", "lent")


def _section(title: str, about: str, verb: str, words: str) -> Iterator[str]:
    yield f"<h2>{escape(title)}</h2>\n<p>{escape(about)} <code>rollog {escape(verb)} {escape(words)}</code></p>"


def _over_steps(points: Sequence[Point], *names: str, label: str) -> Iterator[str]:
    yield (
        _image(plots.over_steps(points, *names, label=label), f"{label} over steps") if points else f"<p>{NO_STEP}</p>"
    )


def _numbers(points: Sequence[Point], *names: str) -> Iterator[str]:
    """The numbers of a plot over steps, folded away."""
    if points:
        rows = [{name: asdict(point)[name] for name in ("first", "last", *names)} for point in points]
        yield f"<details><summary>numbers</summary>{_table(rows)}</details>"


def _image(svg: bytes, says: str) -> str:
    return f'<img alt="{escape(says)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(_cell(v))}</td>' for v in row.values())}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
