"""``rollog simulate``: what it prints, what it refuses, and how it makes a failing history smaller."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rollog.events.codec import seal
from rollog.events.connection import Address, Patience
from rollog.events.log import Outbox
from rollog.events.redis_log import RedisLog
from rollog.events.server import shipped_binary
from rollog.events.vocabulary import Note
from rollog.pipeline.cli import app
from rollog.pipeline.simulation.blocks import Block, play_block, play_blocks
from rollog.pipeline.simulation.histories import History, draw, small_plan
from rollog.pipeline.simulation.shrinking import described, shrink

Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def answered(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_calm_run_trains_every_prompt_and_the_table_adds_up(command: Command) -> None:
    result = command("data.epochs=2", "--rows", 20)

    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[:4] == [
        "epoch  prompts  trained  dropped  filtered  evicted  open  never seen  unaccounted",
        "    0       20       20        0         0        0     0           0            0",
        "    1       20       20        0         0        0     0           0            0",
        "  all       40       40        0         0        0     0           0            0",
    ]
    assert "exhausted after 10 steps" in result.stdout
    assert "every law held at every offset" in result.stdout
    assert "steps/s" in result.stderr


def test_the_same_seed_prints_the_same_and_another_does_not(command: Command) -> None:
    def screen(seed: int) -> str:
        faults = ("--failures", "5%", "--dead-workers", "2%", "--deaths", "1%", "--slow", "0.05")
        return command("--rows", 40, "--seed", seed, *faults).stdout

    assert screen(1) == screen(1) != screen(2)


def test_failures_show_in_the_table(command: Command) -> None:
    budgets = ("failure.max_skipped_prompts=unlimited", "failure.min_step_fraction=0.1", "failure.max_data_attempts=1")

    found = answered(command(*budgets, "failure.filter=equal_rewards", "--data-failures", "20%", "--equal-rewards",
                             "0.2", "--rows", 80, "--json"))  # fmt: skip

    (epoch,) = found["epochs"]
    assert epoch["dropped"] > 0
    assert epoch["filtered"] > 0
    assert epoch["prompts"] == sum(value for name, value in epoch.items() if name not in ("epoch", "prompts"))
    assert epoch["unaccounted"] == 0


def test_a_run_that_stops_by_itself_says_why_and_exits_with_1(command: Command) -> None:
    result = command("--data-failures", "100%", "--rows", 8)

    assert result.exit_code == 1
    assert "stopped by itself: prompt" in result.stdout


def test_the_settings_and_the_data_set_are_those_of_the_plan(command: Command) -> None:
    Path("toy.jsonl").write_text("".join(f'{{"prompt": "{n}", "answer": "{n}"}}\n' for n in range(12)))
    Path("run.yaml").write_text(
        "run: toy\nmodel: {path: none}\ndata: {path: toy.jsonl}\ngrpo: {prompts_per_step: 4, rollouts_per_prompt: 2}\n"
    )

    found = answered(command("run.yaml", "--steps", 2, "--json"))

    assert (found["run"], found["finish"], found["steps"]) == ("toy", "max_steps", 2)
    assert found["epochs"][0]["prompts"] == 12
    assert found["epochs"][0]["trained"] == 8
    assert found["epochs"][0]["never_seen"] + found["epochs"][0]["open"] == 4


def test_a_real_server_gives_the_same_table(command: Command) -> None:
    options = ("--rows", 12, "--failures", "10%", "--seed", 4)

    assert command(*options, "--redis", "embedded").stdout == command(*options).stdout


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Address]:
    """A server that somebody else runs, as it comes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [shipped_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", tmp_path, "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        address = Address.parse(f"redis://127.0.0.1:{port}")
        with closing(address.connect()) as connection:
            Patience(20).insist(lambda: connection.call("PING"))
        yield address
        process.terminate()


def test_a_server_at_an_address_is_left_as_it_was(command: Command, address: Address) -> None:
    with closing(address.connect()) as connection:
        connection.call("SET", "{simulated}:log", "somebody else's")

        result = command("--rows", 8, "--redis", address.url)

        assert result.exit_code == 0, result.stderr
        assert connection.call("KEYS", "*") == [b"{simulated}:log"]


def test_a_server_that_holds_a_log_of_this_name_is_refused(command: Command, address: Address) -> None:
    with closing(RedisLog(address, "simulated-play")) as log:
        pen = log.open("somebody")
        entry = seal(
            offset=1, epoch=pen.epoch, time=0.0, input=None, events=[Note(what="n", text="x")], previous=pen.head.digest
        )
        log.append([(entry, Outbox())])

        result = command("--rows", 8, "--redis", address.url)

        assert result.exit_code == 2
        assert "holds a log of the name simulated-play with 1 entries" in result.stderr
        assert log.head().offset == 1


@pytest.mark.parametrize("wrong", [("--failures", "105%"), ("--failures", "many"), ("--histories", 3, "run.yaml")])
def test_what_makes_no_sense_is_refused(command: Command, wrong: tuple[object, ...]) -> None:
    assert command(*wrong).exit_code == 2


def test_random_histories_are_counted(command: Command) -> None:
    found = answered(command("--histories", 6, "--seed", 20, "--jobs", 1, "--json"))

    assert (found["first"], found["histories"], found["failed"]) == (20, 6, None)
    assert found["steps"] > 0


def test_several_processes_play_the_same_histories() -> None:
    alone = sum(play_blocks(3, 5, jobs=1), Block())

    assert sum(play_blocks(3, 5, jobs=2, size=2), Block()) == alone
    assert alone.histories == 5


def test_the_lowest_seed_that_failed_is_named() -> None:
    blocks = [Block(histories=5), Block(histories=2, failed=7, how="x"), Block(histories=1, failed=9, how="y")]

    assert sum(blocks, Block()) == Block(histories=8, failed=7, how="x")


def test_a_block_ends_at_its_first_failure() -> None:
    def breaks(history: History) -> None:
        raise AssertionError("it skips")

    block = play_block(3, 5, play_one=breaks)

    assert (block.histories, block.failed, block.how) == (1, 3, "AssertionError: it skips")


def test_a_failing_history_shrinks_to_what_it_needs_to_fail() -> None:
    history = replace(draw(8), num_rows=40, plan=small_plan())
    needed = replace(history.script, infra_rate=0.05, uncertain_rate=0.05, generators=3)

    smallest, how = shrink(
        replace(history, script=needed),
        lambda one: "it skips" if one.script.infra_rate and one.num_rows >= 7 else None,
    )

    assert how == "it skips"
    assert smallest.num_rows in (7, 8)
    assert smallest.others == ()
    assert (smallest.script.infra_rate, smallest.script.uncertain_rate, smallest.script.generators) == (0.05, 0, 1)
    assert any("infra_rate=0.05" in line for line in described(smallest))
