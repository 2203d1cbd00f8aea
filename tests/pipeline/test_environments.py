"""Environments in their process: turns, tools, deadlines, cancelling, and whose fault it is."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from children import children
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.environment_child import Asked, Broken, EnvironmentChild, Played, Said
from rollog.pipeline.environments.multi_turn import blame, resolve
from rollog.pipeline.errors import PlanError
from rollog.pipeline.settings import Environment

Playing = Callable[..., EnvironmentChild]
ROW = {"prompt": "2 + 2", "answer": "4", "source": "test", "number": 7}
WITHIN_S = 60.0

GUESSES = """
async def play(chat, *, prompt, answer, tries=2, **row):
    reply = await chat.ask(prompt)
    for _ in range(tries - 1):
        if reply.text == answer:
            return 1.0
        reply = await chat.ask(f"not {reply.text}, row {row['number']}")
    return reply.text
"""


@pytest.fixture
def playing(tmp_path: Path) -> Iterator[Playing]:
    made: list[EnvironmentChild] = []

    def make(code: str, grace_s: float = 5.0, **terms: Any) -> EnvironmentChild:
        path = tmp_path / "mine.py"
        path.write_text("import asyncio, os, time\n" + code)
        child = EnvironmentChild(Environment(play=f"{path}:play", **terms), grace_s=grace_s)
        made.append(child)
        child.start()
        return child

    yield make
    for child in made:
        child.close()


def hear(child: EnvironmentChild, count: int = 1) -> list[Said]:
    """The next ``count`` things that are said."""
    heard: list[Said] = []
    deadline = time.monotonic() + WITHIN_S
    while len(heard) < count and time.monotonic() < deadline:
        heard += child.hear(0.5)
    return heard


def asks(id: str, content: str, role: str = "user") -> Asked:
    return Asked(id=id, messages=[{"role": role, "content": content}])


def test_a_conversation_of_several_turns_ends_with_a_reward(playing: Playing) -> None:
    child = playing(GUESSES)
    child.begin("a", 3, ROW)
    assert hear(child) == [asks("a", "2 + 2")]
    child.reply("a", "5", False)
    assert hear(child) == [asks("a", "not 5, row 7")]
    child.reply("a", "4", False)

    assert hear(child) == [Played(id="a", score=None, text="4")]


def test_many_conversations_go_on_at_once_and_options_are_handed_over(playing: Playing) -> None:
    child = playing(GUESSES, options={"tries": 3})
    for id in "abc":
        child.begin(id, 3, ROW)
    assert {said.id for said in hear(child, 3)} == {"a", "b", "c"}
    child.reply("b", "4", False)
    child.reply("a", "9", True)

    assert sorted(hear(child, 2), key=lambda said: said.id) == [
        asks("a", "not 9, row 7"),
        Played(id="b", score=1.0, text=None),
    ]


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("raise KeyError('x')", FailureKind.DATA, "raised KeyError: 'x', for row 3 of the data set"),
        ("raise ConnectionResetError('gone')", FailureKind.INFRA, "raised ConnectionResetError: gone"),
        ("raise ValueError('it') from TimeoutError()", FailureKind.INFRA, "raised ValueError: it"),
        ("raise SystemExit(3)", FailureKind.DATA, "raised SystemExit: 3"),
        ("return float('nan')", FailureKind.DATA, "gave nan where a finite float or a text is needed"),
        ("return None", FailureKind.DATA, "gave None where a finite float or a text is needed"),
        ("await chat.ask(5)", FailureKind.DATA, "is neither a text nor a list of messages"),
        ("await chat.ask([])", FailureKind.DATA, "is neither a text nor a list of messages"),
        ("await asyncio.gather(chat.ask('a'), chat.ask('b'))", FailureKind.DATA, "ask one question at a time"),
    ],
)
def test_what_an_environment_does_wrong_is_blamed_on_who_can_mend_it(
    playing: Playing, body: str, kind: FailureKind, says: str
) -> None:
    child = playing(f"async def play(chat, **row):\n    {body}\n")
    child.begin("a", 3, ROW)
    (broken,) = [said for said in hear(child, 2 if "gather" in body else 1) if isinstance(said, Broken)]

    assert (broken.id, broken.kind) == ("a", kind)
    assert says in broken.error


@pytest.mark.parametrize(("status", "kind"), [(500, "infra"), (429, "infra"), (408, "infra"), (404, "data")])
def test_the_status_of_a_server_decides_whose_fault_it_is(status: int, kind: str) -> None:
    error = OSError("answered")
    error.status_code = status  # type: ignore[attr-defined]
    wrapped = ValueError("no reward")
    wrapped.__cause__ = error

    assert blame(error) is blame(wrapped) is FailureKind(kind)


def test_too_many_questions_fail_the_attempt(playing: Playing) -> None:
    child = playing("async def play(chat, **row):\n    while True:\n        await chat.ask('again')\n", max_turns=2)
    child.begin("a", 3, ROW)
    for _ in range(2):
        hear(child)
        child.reply("a", "no", False)

    (broken,) = hear(child)
    assert isinstance(broken, Broken)
    assert "asks more than environment.max_turns=2 times" in broken.error


def test_one_that_awaits_too_long_fails_alone_and_cleans_up(playing: Playing, tmp_path: Path) -> None:
    child = playing(
        f"""
async def play(chat, prompt, **row):
    reply = await chat.ask(prompt)
    try:
        if reply.text == "hang":
            await asyncio.Event().wait()
    finally:
        open({str(tmp_path)!r} + "/cleaned", "a").write(reply.text)
    return 1.0
""",
        timeout_s=3.0,
    )
    for id in "ab":
        child.begin(id, 3, ROW)
    hear(child, 2)
    child.reply("a", "hang", False)
    (broken,) = hear(child)  # meanwhile b waits for the model, which may take its time
    child.reply("b", "go", False)

    assert hear(child) == [Played(id="b", score=1.0, text=None)]
    assert isinstance(broken, Broken)
    assert (broken.id, broken.kind) == ("a", FailureKind.INFRA)
    assert "took longer than environment.timeout_s=3 s over a turn" in broken.error
    assert sorted((tmp_path / "cleaned").read_text()) == sorted("hanggo")


def test_one_that_blocks_is_killed_and_its_siblings_are_lost_through_no_fault_of_theirs(playing: Playing) -> None:
    code = "async def play(chat, prompt, **row):\n    (await chat.ask(prompt)).text and time.sleep(60)\n    return 1\n"
    child = playing(code, timeout_s=3.0, grace_s=1.0)
    for id in "ab":
        child.begin(id, 3, ROW)
    hear(child, 2)
    child.reply("a", "block", False)

    ended = {said.id: said for said in hear(child, 2)}
    assert {id: said.kind for id, said in ended.items() if isinstance(said, Broken)} == {
        "a": FailureKind.INFRA,
        "b": FailureKind.LOST,
    }
    child.begin("c", 3, ROW)  # a new child
    assert hear(child) == [asks("c", "2 + 2")]


def test_one_that_dies_is_replaced(playing: Playing) -> None:
    code = "async def play(chat, prompt, **row):\n    (await chat.ask(prompt)).text and os._exit(7)\n    return 0\n"
    child = playing(code)
    child.begin("a", 3, ROW)
    hear(child)
    child.reply("a", "die", False)
    (broken,) = hear(child)

    assert isinstance(broken, Broken)
    assert (broken.kind, "died (exit code 7)" in broken.error) == (FailureKind.INFRA, True)
    child.begin("b", 3, ROW)
    hear(child)
    child.reply("b", "", False)
    assert hear(child) == [Played(id="b", score=0.0, text=None)]


def test_a_cancelled_conversation_is_cancelled_where_it_awaits_and_says_nothing_more(
    playing: Playing, tmp_path: Path
) -> None:
    child = playing(
        f"""
async def play(chat, prompt, **row):
    try:
        await chat.ask(prompt)
    except asyncio.CancelledError:
        open({str(tmp_path)!r} + "/cancelled", "w").close()
        raise
    return 1.0
"""
    )
    for id in "ab":
        child.begin(id, 3, ROW)
    hear(child, 2)
    child.cancel("a")
    child.reply("a", "too late", False)
    child.reply("b", "go", False)

    assert hear(child) == [Played(id="b", score=1.0, text=None)]
    assert (tmp_path / "cancelled").exists()


def test_tools_are_called_and_a_call_that_cannot_be_made_is_explained(playing: Playing) -> None:
    child = playing(
        """
from rollog.pipeline.environments.tools import ask_with_tools

def add(a, b):
    return str(a + b)

async def later(what):
    await asyncio.to_thread(time.time)
    return what

async def play(chat, prompt, **row):
    reply = await ask_with_tools(chat, prompt, {"add": add, "later": later}, max_calls=3)
    return reply.text
"""
    )
    child.begin("a", 3, ROW)
    said = [hear(child)]
    for reply in (
        '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
        '<tool_call>{"name": "later", "arguments": {"what": "tea"}}</tool_call>',
        "<tool_call>add 3 4</tool_call>",
        '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>',
    ):
        child.reply("a", reply, False)
        said.append(hear(child))
    child.reply("a", "7", False)

    assert said[1] == [asks("a", "7\ntea", "tool")]
    assert "error: no tool call; write" in said[2][0].messages[0]["content"]  # type: ignore[union-attr]
    assert "error: add: missing a required argument: 'b'" in said[3][0].messages[0]["content"]  # type: ignore[union-attr]
    assert hear(child) == [Played(id="a", score=None, text="7")]


def test_what_it_prints_does_not_disturb_the_frames(playing: Playing, capfd: pytest.CaptureFixture[str]) -> None:
    child = playing("async def play(chat, **row):\n    print('hello'); os.write(1, b'raw')\n    return 1.0\n")
    child.begin("a", 3, ROW)

    assert hear(child) == [Played(id="a", score=1.0, text=None)]
    child.close()
    assert "hello" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("code", "options", "says"),
    [
        ("def play(chat, **row): ...", {}, "it is no `async def`"),
        ("async def play(chat): ...", {}, "cannot be called with a row"),
        (
            "async def play(chat, prompt, answer, source, any_other_column): ...",
            {"x": 1},
            "cannot be called with a row",
        ),
        ("play = 3", {}, "it is no `async def`"),
    ],
)
def test_a_function_that_is_no_environment_is_refused(
    tmp_path: Path, code: str, options: dict[str, Any], says: str
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(code)
    with pytest.raises(PlanError, match=f"environment.play={path}:play: {says}"):
        resolve(f"{path}:play", options)


def test_an_unusable_environment_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no file"):
        EnvironmentChild(Environment(play=f"{tmp_path}/none.py:play")).start()


def test_the_child_ends_with_its_user(playing: Playing) -> None:
    child = playing(GUESSES)
    (ours,) = children("environment_process")
    child.close()

    assert not ours.is_running()
