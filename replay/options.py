"""The options that the reading verbs share, and how their answers reach the terminal."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from rollog.replay.opening import known_runs
from rollog.replay.output import Format


def completed(typed: str) -> list[str]:
    """Runs, and after an @ the beginnings of references, for the shell."""
    run, at, _ = typed.rpartition("@")
    begun = [f"{run}@{form}" for form in ("head", "head~", "step:", "ckpt:")] if at else known_runs()
    return [each for each in begun if each.startswith(typed)]


Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@REF]",
        help="a run, and a moment: 412, head~20, step:9, ckpt:8, 15:04:05",
        autocompletion=completed,
    ),
]
SpanArgument = Annotated[str | None, typer.Argument(metavar="[A..B]", help="a range of moments, both ends included")]
Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="prompt:17, step:9, loan:3 or worker:gen-0", show_default=False)
]
LogFile = Annotated[Path | None, typer.Option("--log", metavar="FILE", help="an archive, instead of a run")]
Redis = Annotated[str | None, typer.Option("--redis", metavar="URL", help="the log's server (ROLLOG_REDIS_URL)")]
Output = Annotated[Format, typer.Option("--output", "-o", help="how the answer is written")]
Json = Annotated[bool, typer.Option("--json", help="the same as -o json")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no messages, only data")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="say what is being read")]
NoColor = Annotated[bool, typer.Option("--no-color", help="no colour (NO_COLOR)")]
OneLine = Annotated[bool, typer.Option("--oneline", help="one line an entry")]
Types = Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="only these events: commit,retry")]
Prompt = Annotated[int | None, typer.Option("--prompt", metavar="ORDINAL", help="only what names this prompt")]
Step = Annotated[int | None, typer.Option("--step", metavar="STEP", help="only what names this step")]
Where = Annotated[list[str] | None, typer.Option("--where", metavar="FIELD=VALUE", help="also !=, <, <=, >, >=")]
ReportFile = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="the page; one that is there is replaced")
]
FromScratch = Annotated[bool, typer.Option("--from-scratch", help="do not look at the saved states")]
By = Annotated[str, typer.Option("--by", metavar="epoch,source", help="what a row of the table stands for")]
FailUnder = Annotated[
    float | None, typer.Option(min=0, max=100, metavar="PERCENT", help="exit 1 when the coverage is below it")
]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="go on with what comes, until Ctrl-C")]
Reverse = Annotated[bool, typer.Option("--reverse", help="newest first")]
Path_ = Annotated[str | None, typer.Option("--path", metavar="PATH", help="a part: buffer, settings.grpo, groups.17")]


def say(message: str, verbose: bool, quiet: bool) -> None:
    """A message for ``-v``; ``-q`` wins."""
    if verbose and not quiet:
        print(message, file=sys.stderr)


def write(lines: Iterable[str], *, paged: bool = False, live: bool = False) -> None:
    """Data to stdout; ``paged``: through the pager when a person looks; ``live``: each line at once."""
    pager = shlex.split(os.environ.get("PAGER", "less -FRX")) if paged and sys.stdout.isatty() else []
    if pager and shutil.which(pager[0]):
        with subprocess.Popen(pager, stdin=subprocess.PIPE, text=True) as process, contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            for line in lines:
                process.stdin.write(f"{line}\n")
        return
    for line in lines:
        print(line, flush=live)


def painted(lines: Iterable[str], no_color: bool) -> Iterator[str]:
    """Verdict lines with their mark in colour when a person looks; the words say the same without it."""
    plain = no_color or "NO_COLOR" in os.environ or not sys.stdout.isatty()
    for line in lines:
        mark = line.split(" ", 1)[0]
        colour = {"ok": typer.colors.GREEN, "BROKEN": typer.colors.RED}.get(mark)
        yield line if plain or colour is None else line.replace(mark, typer.style(mark, fg=colour, bold=True), 1)
