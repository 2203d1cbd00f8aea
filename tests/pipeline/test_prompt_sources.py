"""The coverage of a run by source: the log says what became of a prompt, the data set says where it came from."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollog.events.codec import seal
from rollog.events.file_log import write_segment
from rollog.events.log import GENESIS, Entry
from rollog.events.vocabulary import Drop, Start
from rollog.pipeline.cli import app
from rollog.pipeline.forking import Terms, fork_entry
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data
from rollog.pipeline.simulate import Script, simulate
from rollog.pipeline.simulation.histories import small_plan
from rollog.replay import cli as reading
from rollog.replay.projector import fold_all

ROWS = 20


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """20 rows of two sources, 5 of them from the second, for two epochs."""
    file = tmp_path / "data.jsonl"
    rows = ({"prompt": str(row), "answer": "", "from": "hard" if row % 4 == 0 else "easy"} for row in range(ROWS))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Data(path=str(file), source="from", epochs=2)


@pytest.fixture
def loader(data: Data) -> Loader:
    return Loader.open(data, seed=0, prompts_per_step=4)


@pytest.fixture
def entries(data: Data, loader: Loader) -> list[Entry]:
    """A run over this data that gives up prompts and stops before the data ends."""
    plan = small_plan(
        data=data.model_dump(),
        grpo={"max_steps": 7},
        failure={"max_skipped_prompts": "unlimited", "max_data_attempts": 1, "min_step_fraction": 0.25},
    )
    outcome = simulate(plan, ROWS, Script(seed=3, data_rate=0.2))
    assert outcome.state.dropped > 0
    return list(naming_the_data(outcome.world.server.log().read(), loader.fingerprint))


def naming_the_data(entries: Iterable[Entry], fingerprint: str) -> Iterator[Entry]:
    """The same entries, of a run that began with these rows."""
    previous = GENESIS
    for each in entries:
        events = tuple(replace(e, dataset=fingerprint) if isinstance(e, Start) else e for e in each.events)
        sealed = seal(
            offset=each.offset, epoch=each.epoch, time=each.time, input=each.input, events=events, previous=previous
        )
        yield sealed
        previous = sealed.digest


@pytest.fixture
def archive(entries: list[Entry], tmp_path: Path) -> str:
    return str(write_segment(tmp_path, "log-1", iter(entries), GENESIS).file)


def rows(archive: str, by: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(app, ["coverage", "--log", archive, "--by", by, "-o", "jsonl"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_prompt_is_in_the_row_of_its_epoch_and_source(archive: str, loader: Loader, entries: list[Entry]) -> None:
    table = rows(archive, "epoch,source")

    assert [(row["epoch"], row["source"], row["prompts"]) for row in table] == [
        (0, "easy", 15), (0, "hard", 5), (1, "easy", 15), (1, "hard", 5),
    ]  # fmt: skip
    dropped = Counter(
        (event.prompt // ROWS, loader.row(loader.row_index(event.prompt))["source"])
        for entry in entries
        for event in entry.events
        if isinstance(event, Drop)
    )
    assert {(row["epoch"], row["source"]): row["dropped"] for row in table if row["dropped"]} == dropped
    assert {row["unaccounted"] for row in table} == {0}


def test_the_rows_by_source_are_those_of_the_epochs_together(archive: str) -> None:
    both, epochs, sources = rows(archive, "epoch,source"), rows(archive, "epoch"), rows(archive, "source")

    assert [row["source"] for row in sources] == ["easy", "hard"]
    for name in ("prompts", "trained", "dropped", "filtered", "evicted", "open", "never_seen", "unaccounted"):
        for key, table in (("epoch", epochs), ("source", sources)):
            for row in table:
                assert row[name] == sum(each[name] for each in both if each[key] == row[key]), name  # type: ignore[misc]


def test_the_screen_sums_over_all_sources(archive: str) -> None:
    screen = CliRunner().invoke(app, ["coverage", "--log", archive, "--by", "source"]).stdout.splitlines()

    assert [line.split()[:2] for line in screen[:4]] == [
        ["source", "prompts"], ["easy", "30"], ["hard", "10"], ["all", "40"],
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["sauce", "epoch,epoch", ""])
def test_a_table_by_something_else_is_refused(archive: str, by: str) -> None:
    refused = CliRunner().invoke(app, ["coverage", "--log", archive, "--by", by])

    assert refused.exit_code == 2
    assert "give epoch, source, or both as epoch,source" in refused.stderr


def test_other_data_than_the_runs_own_is_refused(archive: str, data: Data) -> None:
    Path(data.path).write_text('{"prompt": "1", "answer": "", "from": "easy"}\n')
    refused = CliRunner().invoke(app, ["coverage", "--log", archive, "--by", "source"])

    assert refused.exit_code == 2
    assert "its 1 rows are not those that the run began with" in refused.stderr


def test_a_fork_that_went_on_with_other_data_has_no_sources_of_all_its_prompts(
    entries: list[Entry], tmp_path: Path
) -> None:
    state = fold_all(entries)
    terms = Terms(run="forked", parent="demo", reason="", dataset="other", seed=0, num_rows=40, changes={}, time=9e9)
    entries.append(fork_entry(state, terms, state.checkpoints[max(state.checkpoints)], lambda blob: True))
    archive = str(write_segment(tmp_path, "log-2", iter(entries), GENESIS).file)
    refused = CliRunner().invoke(app, ["coverage", "--log", archive, "--by", "source"])

    assert refused.exit_code == 2
    assert f"entry {len(entries)}: this fork went on with other data" in refused.stderr
    assert sum(row["prompts"] for row in rows(archive, "epoch")) == 2 * ROWS


def test_what_reads_logs_alone_says_who_knows_the_sources(archive: str) -> None:
    refused = CliRunner().invoke(reading.app, ["coverage", "--log", archive, "--by", "source"])

    assert refused.exit_code == 2
    assert "use `rollog coverage`" in refused.stderr
