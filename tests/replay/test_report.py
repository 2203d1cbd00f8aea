"""The report of a run: its tables add up, and its page is one file that nothing can run in."""

import base64
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from builders import N, admitted, committed, history, opened, selected, sent, start, trained
from record_history import HISTORIES
from rollog.events.log import Entry
from rollog.events.memory_log import MemoryServer
from rollog.events.reading import open_reader
from rollog.events.vocabulary import Borrow, Start, Train
from rollog.pipeline.simulation.histories import draw, play
from rollog.replay.cli import app
from rollog.replay.fates import Fate
from rollog.replay.lineage import parse_subject, why
from rollog.replay.report import page
from rollog.replay.report_tables import report

LOANS = HISTORIES / "loans-0.1.0.rollog"
VOID = {"meta", "img"}


def recorded(path: Path) -> list[Entry]:
    with open_reader(path) as log:
        return list(log.read())


@pytest.fixture(scope="module")
def loans() -> list[Entry]:
    return recorded(LOANS)


@pytest.fixture(scope="module")
def page_of_loans(loans: list[Entry]) -> str:
    return page(report(loans))


def compacted() -> list[Entry]:
    """A step of two groups of two rollouts, 1 + 3 and 2 + 5 rows; with Q = 4 they have 1 row of padding."""
    made = [committed(prompt, rows=sum(counts), row_counts=counts) for prompt, counts in enumerate([(1, 3), (2, 5)])]
    train, publish = trained(0)
    assert isinstance(train, Train)
    step = (replace(train, rows=11, padding=1), publish)
    begins = (start(data={"epochs": 1}), opened())
    return history(admitted(0), *map(sent, range(N)), *made, selected(0), step, begins=begins)


class Tags(HTMLParser):
    """What a browser would find: every tag with its attributes, and what is open at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def svgs(html: str) -> list[bytes]:
    return [base64.b64decode(data) for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)]


def add_up(entries: list[Entry]) -> None:
    model = report(entries)
    fates = Counter(model["cells"])
    for fate in Fate:
        assert fates[fate] == sum(epoch[fate.name.lower()] for epoch in model["coverage"]["epochs"]), fate


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.rollog")), ids=lambda path: path.stem)
def test_every_prompt_is_one_cell_and_the_cells_add_up_to_the_coverage(path: Path) -> None:
    add_up(recorded(path))


@pytest.mark.parametrize("seed", range(5))
def test_the_cells_of_a_random_history_add_up_in_the_middle_of_it_too(seed: int) -> None:
    servers: list[MemoryServer] = []

    def make(clock: Callable[[], float]) -> MemoryServer:
        servers.append(MemoryServer(clock=clock))
        return servers[-1]

    play(draw(seed), make)
    entries = list(servers[0].log().read())

    add_up(entries)
    add_up(entries[: len(entries) // 2])


def test_the_points_add_up_to_what_was_trained_and_lent(loans: list[Entry]) -> None:
    model = report(loans)
    points, trained = model["points"], model["coverage"]["trained"]

    assert len(points) == trained["steps"]
    for name in ("groups", "rollouts", "rows", "padding", "tokens"):
        assert sum(getattr(point, name) for point in points) == trained[name]
    made = [event for entry in loans for event in entry.events if isinstance(event, Borrow)]
    assert {point.first for point in points if point.borrowed} == {loan.borrower for loan in made}
    assert sum(point.borrowed for point in points) == len(made) == model["status"]["loans"]["made"] > 0
    assert sum(model["staleness"].values()) == model["status"]["tokens"]["trained"]
    assert max(point.oldest for point in points) == max(model["staleness"])


@pytest.mark.parametrize("step", [0, 4, 9])
def test_a_step_waited_as_long_as_why_says(loans: list[Entry], step: int) -> None:
    told = why(parse_subject(f"step:{step}"), loans)

    (point,) = [point for point in report(loans)["points"] if point.first == step]
    assert point.wait_s == pytest.approx(told["waited_s"], abs=1e-3)


def test_every_finished_group_took_some_attempts(loans: list[Entry]) -> None:
    model = report(loans)

    assert sum(model["attempts"].values()) == model["status"]["attempts"]["finished"]
    assert max(model["attempts"]) > 1


def test_a_long_run_has_neighbouring_steps_in_one_point_and_the_worst_of_neighbouring_prompts_in_one_cell(
    loans: list[Entry],
) -> None:
    whole, short = report(loans), report(loans, points=4, cells=10)

    assert len(short["points"]) <= 4
    assert [point.first for point in short["points"][1:]] == [point.last + 1 for point in short["points"][:-1]]
    assert sum(point.rows for point in short["points"]) == sum(point.rows for point in whole["points"])
    each = short["prompts_per_cell"]
    assert len(short["cells"]) <= 10
    assert short["cells"] == [max(whole["cells"][at : at + each]) for at in range(0, len(whole["cells"]), each)]


def test_the_page_of_a_run_with_compaction_shows_its_rows_and_its_padding() -> None:
    html = page(report(compacted()))

    assert "4 rollouts were trained in 11 rows; 1 more rows, 8.3%, were padding" in html
    (bars,) = [svg for svg in svgs(html) if b">rollouts</text>" in svg]
    assert {"1", "2", "3", "5"} <= set(re.findall(r">(\d+)</text>", bars.decode()))


def test_the_page_is_whole_and_asks_for_nothing_outside_of_it(page_of_loans: str) -> None:
    tags = Tags(page_of_loans)

    assert tags.open == []
    assert {"script", "link", "iframe", "object"}.isdisjoint(tag for tag, _ in tags.found)
    assert all(attributes.get("src", "data:").startswith("data:") for _, attributes in tags.found)  # type: ignore[union-attr]
    assert all("href" not in attributes for _, attributes in tags.found)
    assert len(svgs(page_of_loans)) >= 7
    for svg in svgs(page_of_loans):
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_what_a_log_says_is_text_on_the_page(loans: list[Entry]) -> None:
    (start,) = [event for event in loans[0].events if isinstance(event, Start)]
    hostile = replace(start, run="<script>alert(1)</script>&")
    first = replace(loans[0], events=tuple(hostile if event is start else event for event in loans[0].events))

    html = page(report([first, *loans[1:]]))

    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in html


@pytest.mark.parametrize("entries", [0, 3])
def test_a_run_that_has_just_begun_has_a_page(loans: list[Entry], entries: int) -> None:
    assert "No step is trained yet." in page(report(loans[:entries]))


def test_the_verb_writes_the_same_bytes_for_a_moment_and_replaces_the_last_page(
    page_of_loans: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"

    def written(moment: str) -> str:
        done = CliRunner().invoke(app, ["report", moment, "--log", str(LOANS), "-o", str(file)])
        assert (done.exit_code, done.stdout) == (0, f"{file}\n"), done.output
        return file.read_text()

    early, late = written("@step:1"), written("@head")
    assert early != late == page_of_loans
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("", "is a folder: name a file in it"),
        ("none/report.html", "there is no folder"),
        ("link", "is a link or a device"),
        ("pipe", "is a link or a device"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_page_that_cannot_stand_there_is_refused_at_once(tmp_path: Path, to: str, says: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(app, ["report", "--log", str(LOANS), "-o", str(tmp_path / to)])

    assert done.exit_code == 2
    assert says in done.stderr


def test_without_matplotlib_the_verb_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["report", "--log", str(LOANS), "-o", str(tmp_path / "report.html")])

    assert done.exit_code == 2
    assert "pip install 'rollog[analysis]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
