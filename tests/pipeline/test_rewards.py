"""Rewards: the functions, the names that settings give them, and the child process that runs them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from children import children
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.environments.reward_child import RewardChild, Sample
from rollog.pipeline.environments.rewards import exact, math_verify, reasoning_gym, resolve, share_of_right_positions
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.errors import DataError, PlanError, RewardFailure
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data, Task

EXACT = "rollog.pipeline.environments.rewards:exact"


def sample(completion: str, row: int = 0, **columns: Any) -> Sample:
    return Sample(row, "the prompt", completion, {"answer": "4", "source": "toy", **columns})


@contextmanager
def child_of(folder: Path, code: str, timeout_s: float = 20) -> Iterator[RewardChild]:
    """A child that runs ``code``, the body of a module with a function ``score``."""
    path = folder / "mine.py"
    path.write_text(dedent(code))
    with RewardChild(f"{path}:score", timeout_s) as child:
        yield child


# --- the functions ----------------------------------------------------------------------------------------------------


def test_exact_is_one_for_the_answer_and_zero_else() -> None:
    assert [exact("p", text, 42) for text in ("42", " 42\n", "4 2", "", "42.0")] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("completion", "share"),
    [("123", 1), (" 1 2 3 ", 1), ("12", 2 / 3), ("1234", 3 / 4), ("321", 1 / 3), ("", 0), ("x123", 0)],
)
def test_too_short_and_too_long_both_cost_a_share(completion: str, share: float) -> None:
    assert share_of_right_positions("p", completion, "123") == pytest.approx(share)


@given(completion=st.text(), answer=st.text())
def test_the_share_is_one_only_for_the_answer(completion: str, answer: str) -> None:
    share = share_of_right_positions("p", completion, answer)
    assert 0 <= share <= 1
    assert (share == 1) == ("".join(completion.split()) == "".join(answer.split()))


def test_a_reasoning_gym_answer_is_scored_by_its_task() -> None:
    data = Data(path="reasoning_gym:chain_sum", task=Task(size=3))
    row = Loader.open(data, seed=0, prompts_per_step=1).row(0)
    right = row["answer"]
    assert reasoning_gym(completion=right, **row) == 1
    assert reasoning_gym(completion=f"Let me see. <answer> {right} </answer> Done.", **row) == 1
    assert 0 < reasoning_gym(completion=f"It is {right}, I think.", **row) < 1
    assert reasoning_gym(completion="<answer>none</answer>", **row) < 0.1


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (r"so it is \boxed{0.5}", 1.0),
        (r"$\frac{2}{4}$", 1.0),
        ("first 3, then 1/2", 1.0),
        (r"\boxed{1/3}", 0.0),
        ("no idea", 0.0),
    ],
)
def test_mathematics_is_compared_by_its_value(completion: str, score: float) -> None:
    assert math_verify("p", completion, r"\frac{1}{2}") == score


def test_an_answer_without_mathematics_is_the_datas_fault() -> None:
    with pytest.raises(ValueError, match="the answer 'red' holds no mathematics"):
        math_verify("p", "red", "red")


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_function_is_found_by_module_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def score(prompt, completion, answer, **row):\n    return 0.5\n")
    assert resolve(EXACT) is exact
    assert resolve(f"{path}:score")("p", "c", "a") == 0.5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("exact", "write it as module:function"),
        (":exact", "write it as module:function"),
        ("no_such_module:f", "no module named no_such_module"),
        ("rollog.pipeline.environments.rewards:exakt", r"has no exakt\. Did you mean exact\?"),
        ("rollog.pipeline.errors:__doc__", "is a str and no function"),
        ("json:dumps", r"cannot be called with a row: .*\(prompt, completion, answer, \*\*row\)"),
        ("nowhere.py:f", r"no file nowhere\.py"),
    ],
)
def test_a_wrong_name_is_refused(spec: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        resolve(spec)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_thing", "its module needs no_such_thing, which is not installed"),
        ("1 / 0", "its module raises ZeroDivisionError: division by zero"),
        ("def f(:", "its module raises SyntaxError"),
        ("def f(prompt, completion): ...", r"cannot be called with a row: .*Give it the signature"),
    ],
)
def test_a_broken_module_is_refused(tmp_path: Path, code: str, says: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(code)
    with pytest.raises(PlanError, match=says):
        resolve(f"{path}:f")


# --- the child --------------------------------------------------------------------------------------------------------


def test_scores_come_in_order_and_fast_enough() -> None:
    group = [sample(text) for text in ("4", "5", " 4 ", "")] * 2
    with RewardChild(EXACT, timeout_s=20) as child:
        began = time.monotonic()
        for _ in range(250):
            assert child.score(group) == [1.0, 0.0, 1.0, 0.0] * 2
        # 2,000 scores; the bound is 1,000 a second on a machine that does other things too.
        assert time.monotonic() - began < 2.0


def test_a_group_larger_than_a_pipe_goes_through() -> None:
    with RewardChild(EXACT, timeout_s=20) as child:
        assert child.score([sample("x" * 1_000_000) for _ in range(20)]) == [0.0] * 20


def test_a_reward_sees_every_column_of_the_row_and_may_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = """
        import os
        def score(prompt, completion, answer, **row):
            print("seen by", "print")
            os.write(1, b"seen by write")
            return len(prompt) + len(completion) + row["level"]
    """
    with child_of(tmp_path, code) as child:
        assert child.score([sample("abc", level=100)]) == [113.0]
    told = capfd.readouterr()
    assert "seen by print" in told.err
    assert "seen by write" in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("return None", "gave None where a finite float is needed"),
        ("return '1.0'", "gave '1.0' where"),
        ("return float('nan')", "gave nan where"),
        ("return float('-inf')", "gave -inf where"),
        ("return 10 ** 400", "raised OverflowError"),
    ],
)
def test_a_raise_or_no_finite_float_is_the_datas_failure(tmp_path: Path, body: str, says: str) -> None:
    code = f"def score(prompt, completion, answer, **row):\n    if completion == 'good': return True\n    {body}\n"
    with child_of(tmp_path, code) as child:
        with pytest.raises(RewardFailure, match=says) as raised:
            child.score([sample("good", row=7), sample("bad", row=7)])
        assert raised.value.kind is FailureKind.DATA
        assert f"{tmp_path / 'mine.py'}:score" in str(raised.value)
        assert "row 7" in str(raised.value)
        assert child.score([sample("good")]) == [1.0]  # the same child goes on


def test_a_missed_deadline_is_the_machinerys_failure_and_the_next_group_is_scored(tmp_path: Path) -> None:
    code = """
        import time
        def score(prompt, completion, answer, **row):
            while completion == "hang":
                pass
            return 1.0
    """
    with child_of(tmp_path, code, timeout_s=0.5) as child:
        hung = only_child()
        with pytest.raises(RewardFailure, match=r"took longer than 0\.5 s while it was scoring row 3") as raised:
            child.score([sample("hang", row=3)])
        assert raised.value.kind is FailureKind.INFRA
        assert not psutil.pid_exists(hung.pid)
        assert child.score([sample("fine")]) == [1.0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("os._exit(9)", r"died \(exit code 9\) while it was scoring row 2"),
        ("os.kill(os.getpid(), 11)", r"died \(signal 11\) while it was scoring row 2"),
    ],
)
def test_a_dead_child_is_the_machinerys_failure(tmp_path: Path, body: str, says: str) -> None:
    code = f"import os\ndef score(prompt, completion, answer, **row):\n    {body}\n"
    with child_of(tmp_path, code) as child:
        with pytest.raises(RewardFailure, match=says) as raised:
            child.score([sample("x", row=2)])
        assert raised.value.kind is FailureKind.INFRA


def test_a_child_killed_between_two_groups_costs_nothing() -> None:
    with RewardChild(EXACT, timeout_s=20) as child:
        assert child.score([sample("4")]) == [1.0]
        victim = only_child()
        os.kill(victim.pid, signal.SIGKILL)
        psutil.wait_procs([victim], timeout=5)
        assert child.score([sample("4")]) == [1.0]


def test_a_reward_that_cannot_be_used_is_refused_at_the_start() -> None:
    with pytest.raises(PlanError, match="no module named no_such_module"):
        RewardChild("no_such_module:f", timeout_s=20).start()
    assert children("reward_process") == []


def test_nothing_of_a_closed_child_is_left(tmp_path: Path) -> None:
    code = """
        import subprocess
        def score(prompt, completion, answer, **row):
            return subprocess.Popen(["sleep", "1000"]).pid
    """
    with child_of(tmp_path, code) as child:
        (grandchild,) = child.score([sample("x")])
        sleeper = psutil.Process(int(grandchild))
        assert sleeper.is_running()
    assert children("reward_process") == []
    _, left = psutil.wait_procs([sleeper], timeout=2)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in left)


def test_the_child_ends_with_its_parent_even_when_it_hangs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(prompt, completion, answer, **row):\n    while True: pass\n")
    script = f"""
        from rollog.pipeline.environments.reward_child import RewardChild, Sample
        child = RewardChild({str(tmp_path / "mine.py") + ":score"!r}, timeout_s=60)
        child.start()
        print("started", flush=True)
        child.score([Sample(0, "p", "c", {{"answer": "a"}})])
    """
    with subprocess.Popen([sys.executable, "-c", dedent(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        (hanging,) = psutil.Process(parent.pid).children()
        parent.kill()
    _, alive = psutil.wait_procs([hanging], timeout=5)
    assert alive == []


def only_child() -> psutil.Process:
    (process,) = children("reward_process")
    return process


# --- one question, one answer -----------------------------------------------------------------------------------------


@dataclass
class Letters:
    """A tokenizer whose tokens are characters; 1 begins a text, 2 ends it."""

    chat_template: str | None = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token > 2 or not skip_special_tokens)

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        said = "".join(f"{message['role']}: {message['content']}\n" for message in conversation)
        return said + "assistant:" * add_generation_prompt


def test_a_plain_prompt_is_encoded_as_it_is() -> None:
    assert SingleTurn(Letters(), chat_template=False).prompt_tokens({"prompt": "ab"}) == [1, 97, 98]


def test_a_chat_goes_through_the_template_once() -> None:
    turn = SingleTurn(Letters("there is one"), chat_template=True, system_prompt="Be short.")
    asked = turn.completion(turn.prompt_tokens({"prompt": "Hi"}))
    assert asked == "system: Be short.\nuser: Hi\nassistant:"
    chat = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    asked = turn.completion(turn.prompt_tokens({"prompt": chat}))
    assert asked == "system: Be short.\nuser: A\nassistant: B\nuser: C\nassistant:"


def test_the_reward_is_asked_with_the_text_and_the_rows_columns() -> None:
    turn = SingleTurn(Letters(), chat_template=False)
    asked = turn.sample(5, {"prompt": "1+1", "answer": "2", "source": "toy", "level": 1}, [50, 2])
    assert asked == Sample(5, "1+1", "2", {"answer": "2", "source": "toy", "level": 1})


def test_a_prompt_that_cannot_be_asked_is_refused() -> None:
    with pytest.raises(PlanError, match="has no chat template"):
        SingleTurn(Letters(), chat_template=True)
    with pytest.raises(DataError, match=r"Set model\.chat_template=true"):
        SingleTurn(Letters(), chat_template=False).prompt_tokens({"prompt": [{"role": "user", "content": "x"}]})
