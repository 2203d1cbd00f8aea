"""The reading verbs as a person types them: on an archive or a run's folder, in every format, with exit codes."""

import csv
import errno
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from builders import Decision, admitted, durable, history, ready, saved, selected, sent, steps, trained
from rollog.events.codec import digest_of
from rollog.events.errors import (
    BlobError,
    CorruptEntry,
    Fenced,
    LogError,
    LogUncertain,
    LostTail,
    MissingEntry,
    ServerRefused,
    ServerUnreachable,
    UnknownEvent,
)
from rollog.events.file_log import write_segment
from rollog.events.log import GENESIS, Entry
from rollog.events.vocabulary import Finish, FinishReason, Note, Stall, Stop, StopReason
from rollog.replay.cli import app
from rollog.replay.errors import BadReference, BrokenHistory, NoSuchMoment, NoSuchRun
from rollog.replay.exit_codes import exit_code_of, mendable
from rollog.replay.options import completed

RUN: list[Decision] = [
    *steps(2),
    *ready(2, weights=2),
    Stop(reason=StopReason.REQUEST, deadline=0.0),
    saved(2),
    durable(2),
    Finish(reason=FinishReason.STOPPED, left=(4, 5)),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with its sealed log."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    sealed_into(folder / "log" / "segments", history(*RUN))
    return folder


def sealed_into(folder: Path, entries: Sequence[Entry]) -> Path:
    folder.mkdir(parents=True)
    return write_segment(folder, "log-1", iter(entries), GENESIS).file


def rollog(*arguments: str | Path, runs: Path | None = None, exit_code: int = 0) -> str:
    """What the command prints; stdout for 0, stderr else."""
    environment = {"ROLLOG_RUNS": str(runs) if runs else "/nonexistent", "TZ": "UTC", "ROLLOG_REDIS_URL": None}
    done = CliRunner().invoke(app, [str(each) for each in arguments], env=environment)
    assert done.exit_code == exit_code, done.output
    return done.stdout if exit_code == 0 else done.stderr


def test_a_run_is_found_by_its_name_by_its_path_and_in_an_archive(archive: Path) -> None:
    by_name = rollog("status", "demo", runs=archive.parent)

    assert by_name.startswith("run demo   @ 25")
    assert rollog("status", archive) == by_name
    assert rollog("status", "--log", archive / "log" / "segments") == by_name
    assert rollog("status", "demo", "--log", next((archive / "log" / "segments").iterdir())) == by_name


def test_a_run_that_is_nowhere_is_a_mistake_of_the_caller_and_says_what_there_is(archive: Path) -> None:
    assert "no run named other. There are: demo" in rollog("status", "other", runs=archive.parent, exit_code=2)
    assert "There are no runs under" in rollog("status", "other", exit_code=2)
    assert "name a run" in rollog("status", exit_code=2)
    assert "no such file" in rollog("status", "--log", "/nowhere", exit_code=2)
    assert "holds the run demo, not other" in rollog("status", "other", "--log", archive, exit_code=2)


def test_a_moment_that_is_not_there_is_a_no_and_a_malformed_one_a_mistake(archive: Path) -> None:
    assert "the log holds 1..25" in rollog("show", f"{archive}@26", exit_code=1)
    assert "names no moment" in rollog("show", f"{archive}@soon", exit_code=2)
    assert "names a range" in rollog("show", f"{archive}@1..2", exit_code=2)
    assert "two moments" in rollog("log", f"{archive}@1", "2", exit_code=2)


def test_the_log_is_shown_as_a_whole_as_a_range_backwards_and_by_what_it_says(archive: Path) -> None:
    assert rollog("log", archive, "--oneline").count("\n") == 25
    assert rollog("log", archive, "step:0..step:1", "--oneline").count("\n") == 8
    assert rollog("log", "--log", archive, "24..", "--oneline", "--reverse").splitlines() == [
        "@25      22:13:45  finished (stopped); prompts 4, 5 unsettled",
        "@24      22:13:44  checkpoint v2 durable: 2-1-1",
    ]
    assert (
        rollog("log", archive, "--type", "commit", "--prompt", "4", "--where", "born=2", "--oneline").count("\n") == 1
    )
    assert "22:13:24   epoch 1\n    prompt 0 attempt 1 sent" in rollog("log", f"{archive}@4")


def test_wrong_questions_to_the_log_are_usage(archive: Path) -> None:
    assert "no event is called 'comit'" in rollog("log", archive, "--type", "comit", exit_code=2)
    assert "write field=value" in rollog("log", archive, "--where", "born", exit_code=2)
    assert "not with --reverse" in rollog("log", archive, "-f", "--reverse", exit_code=2)
    assert "goes with a table or jsonl" in " ".join(rollog("log", archive, "-f", "--json", exit_code=2).split())


def test_following_a_sealed_log_ends_with_it(archive: Path) -> None:
    assert rollog("log", archive, "25", "--oneline", "-f").count("\n") == 1


def test_show_tells_one_entry_its_causes_and_its_difference(archive: Path) -> None:
    shown = rollog("show", f"{archive}@step:0")

    assert shown.startswith("@9   2023-11-14 22:13:29   epoch 1\n    step 0 trained by trainer 1")
    assert "  * @8       22:13:28  step 0 takes prompts 0, 1" in shown
    assert "    prompts 0, 1: selected -> trained" in shown


def test_the_state_is_shown_at_any_moment_and_by_its_parts(archive: Path) -> None:
    assert rollog("state", f"{archive}@step:1", "--path", "version") == "2\n"
    assert yaml.safe_load(rollog("state", archive))["derived"]["counts"]["buffer"] == 2
    assert [group["prompt"] for group in yaml.safe_load(rollog("state", archive, "--path", "buffer"))] == [4, 5]
    assert "has no 'versoin'" in rollog("state", archive, "--path", "versoin", exit_code=1)


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (["status", "RUN"], "rollog.status/1"),
        (["log", "RUN"], "rollog.log/1"),
        (["show", "RUN@9"], "rollog.show/1"),
        (["state", "RUN@9"], "rollog.state/1"),
        (["verify", "RUN"], "rollog.verify/1"),
        (["why", "RUN", "step:1"], "rollog.why/1"),
    ],
)
def test_every_verb_answers_in_every_format(archive: Path, arguments: list[str], schema: str) -> None:
    asked = [each.replace("RUN", str(archive)) for each in arguments]

    answer = json.loads(rollog(*asked, "--json"))
    assert answer["schema"] == schema
    again = yaml.safe_load(rollog(*asked, "-o", "yaml"))
    answer.pop("seconds", None), again.pop("seconds", None)
    assert again == answer
    lines = rollog(*asked, "-o", "jsonl").splitlines()
    assert all(json.loads(line)["schema"].startswith("rollog.") for line in lines)
    assert len(list(csv.reader(rollog(*asked, "-o", "csv").splitlines()))) > 1


def test_why_is_answered_at_any_moment_and_what_is_unknown_is_a_no(archive: Path) -> None:
    assert rollog("why", archive, "prompt:0").startswith("prompt 0 (row 100, epoch 0) was trained in step 0")
    assert "selected for step 0, which is not trained" in rollog("why", f"{archive}@step:0~1", "prompt:0")
    assert "prompt 3 (row" in rollog("why", "", "prompt:3", "--log", archive)
    assert rollog("why", archive, "prompt:99", exit_code=1) == ""
    assert "write prompt:17" in rollog("why", archive, "99", exit_code=2)


def test_entries_in_json_carry_their_events_and_their_words(archive: Path) -> None:
    (entry,) = json.loads(rollog("log", archive, "4", "--json"))["entries"]

    assert entry["events"] == [{"type": "dispatch", "prompt": 0, "attempt": 1, "step": 0, "weights": 0}]
    assert (entry["offset"], entry["time"], entry["input"]) == (4, 1_700_000_004.0, None)
    assert entry["text"] == "prompt 0 attempt 1 sent for step 0, weights v0"


def test_a_right_log_is_verified_and_a_broken_one_is_a_no(archive: Path, tmp_path: Path) -> None:
    assert "ok      every prompt in exactly one place: 6 = 2 in a place + 4 settled" in rollog("verify", archive)

    sealed_into(tmp_path / "broken", history(*ready(0), *ready(1), selected(0), selected(1), trained(0)))
    done = CliRunner().invoke(app, ["verify", "--log", str(tmp_path / "broken")])
    assert done.exit_code == 1
    assert "first broken at offset 14; see it with: rollog show demo@14" in done.stdout


def test_a_damaged_log_is_unreadable(archive: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.segment"
    whole = bytearray(next((archive / "log" / "segments").iterdir()).read_bytes())
    whole[len(whole) // 2] ^= 1
    damaged.write_bytes(whole)

    assert "is damaged" in rollog("verify", "--log", damaged, exit_code=5)


def test_a_log_of_a_newer_rollog_is_unreadable_and_says_what_reads_it(tmp_path: Path) -> None:
    entry = history()[0]
    payload = entry.payload.replace(b"\xa5start\xa1v\x01", b"\xa5start\xa1v\x63")
    assert payload != entry.payload
    newer = replace(entry, payload=payload, digest=digest_of(GENESIS, entry.header, payload))
    with pytest.raises(UnknownEvent):  # it writes the file, then reads it back
        sealed_into(tmp_path / "newer", [newer])

    assert "version 99" in rollog("verify", "--log", tmp_path / "newer", exit_code=5)


def test_a_folder_without_a_log_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "demo" / "log").mkdir(parents=True)

    assert "holds no log" in rollog("status", "demo", runs=tmp_path, exit_code=5)


def test_a_run_whose_server_is_away_says_so_with_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "demo" / "log").mkdir(parents=True)
    (tmp_path / "demo" / "config.yaml").write_text("log: {redis: 'unix:///nowhere/rollog.sock'}\n")

    assert "nowhere" in rollog("status", "demo", runs=tmp_path, exit_code=4)


def test_a_stalled_run_is_a_no(tmp_path: Path) -> None:
    sealed_into(tmp_path / "s", history(admitted(0), sent(0), Stall(what="stall", text="nothing for 900 s")))

    done = CliRunner().invoke(app, ["status", "--log", str(tmp_path / "s")])
    assert (done.exit_code, "   stalled   " in done.stdout) == (1, True)


def test_the_words_of_a_worker_cannot_steer_a_terminal(tmp_path: Path) -> None:
    shouted = Note(what="note", text="\x1b[2J\u202egone")
    sealed_into(tmp_path / "s", history(shouted))

    assert "note: \ufffd[2J\ufffdgone" in rollog("log", "--log", tmp_path / "s", "--oneline")


def test_runs_and_references_are_completed(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOG_RUNS", str(archive.parent))

    assert completed("de") == ["demo"]
    assert completed("demo@s") == ["demo@step:"]
    assert completed("other") == []


def test_messages_go_to_stderr_and_quiet_leaves_them_out(archive: Path) -> None:
    told = CliRunner().invoke(app, ["status", str(archive), "-v"])
    assert "reading" in told.stderr
    assert "reading" not in told.stdout
    assert CliRunner().invoke(app, ["status", str(archive), "-v", "-q"]).stderr == ""


def test_a_reader_that_goes_away_early_is_no_error(archive: Path) -> None:
    command = f"{sys.executable} -m rollog.replay.cli log {archive} -o jsonl | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stderr, len(done.stdout)) == (0, "", 10)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerUnreachable("x"), 4),
        (ServerRefused("x"), 4),
        (LogUncertain("x"), 4),
        (CorruptEntry("x"), 5),
        (UnknownEvent("x"), 5),
        (MissingEntry("x"), 5),
        (LostTail("x"), 5),
        (Fenced("x"), 1),
        (BlobError("x"), 1),
        (LogError("x"), 1),
        (NoSuchMoment("x"), 1),
        (BrokenHistory("x"), 1),
        (NoSuchRun("x"), 2),
        (BadReference("x"), 2),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_errors_of_other_folders_can_join_and_bugs_keep_their_traceback() -> None:
    class Elsewhere(Exception):
        exit_code = 75

    @mendable(Elsewhere)
    def verb(error: Exception) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        verb(Elsewhere("x"))
    assert ended.value.exit_code == 75
    with pytest.raises(ZeroDivisionError):
        verb(ZeroDivisionError())


def test_a_disk_that_refuses_is_one_message_and_other_system_errors_keep_their_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @mendable()
    def verb(error: OSError) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        verb(OSError(errno.ENOSPC, "No space left on device", "a/file"))
    assert ended.value.exit_code == 1
    assert "'a/file': the disk is full: make room, then rollog resume" in capsys.readouterr().err
    with pytest.raises(OSError, match="Bad file descriptor"):
        verb(OSError(errno.EBADF, "Bad file descriptor"))
