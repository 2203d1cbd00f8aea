"""Rows by ordinal, from real files and real tasks; and how bad data is named."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.pipeline.errors import DataError
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data, Task

datasets.disable_progress_bars()

ROWS = [{"prompt": f"{n} plus one", "answer": str(n + 1), "level": n % 3} for n in range(10)]


def jsonl(folder: Path, rows: list[dict[str, Any]] = ROWS, name: str = "toy.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path | str, *, seed: int = 0, prompts_per_step: int = 4, **columns: Any) -> Loader:
    return Loader.open(Data(path=str(path), **columns), seed=seed, prompts_per_step=prompts_per_step)


# --- ordinals ---------------------------------------------------------------------------------------------------------


def test_an_epoch_hands_out_every_row_once(tmp_path: Path) -> None:
    loader = load(jsonl(tmp_path), epochs=3)
    for epoch in range(3):
        rows = [loader.row(loader.row_index(epoch * 10 + position)) for position in range(10)]
        assert sorted(row["prompt"] for row in rows) == sorted(row["prompt"] for row in ROWS)


def test_an_ordinal_has_its_row_without_any_state(tmp_path: Path) -> None:
    one, other = load(jsonl(tmp_path), epochs=3), load(jsonl(tmp_path), epochs=3)
    in_order = [one.row_index(ordinal) for ordinal in range(30)]
    assert [other.row_index(ordinal) for ordinal in reversed(range(30))] == in_order[::-1]
    assert [load(jsonl(tmp_path), seed=1).row_index(ordinal) for ordinal in range(10)] != in_order[:10]


@given(rows=st.integers(1, 40), epochs=st.integers(1, 4), n=st.integers(1, 9))
def test_only_whole_batches_are_handed_out(
    tmp_path_factory: pytest.TempPathFactory, rows: int, epochs: int, n: int
) -> None:
    path = jsonl(tmp_path_factory.getbasetemp(), [{"prompt": "x", "answer": 1}] * rows)
    loader = load(path, epochs=epochs, prompts_per_step=n)
    assert loader.left == (epochs * rows) % n
    assert loader.num_prompts % n == 0
    assert loader.num_prompts + loader.left == epochs * rows
    assert loader.remaining(0) == loader.num_prompts
    assert loader.remaining(loader.num_prompts) == 0


# --- rows -------------------------------------------------------------------------------------------------------------


def test_columns_get_the_names_of_the_run_and_others_keep_theirs(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [{"question": "q", "label": 7, "kind": "easy", "level": [1, None]}])
    loader = load(path, prompt="question", answer="label", source="kind")
    assert loader.row(0) == {"prompt": "q", "answer": 7, "source": "easy", "level": [1, None]}


def test_without_a_column_the_source_is_the_files_name_and_the_answer_may_be_missing(tmp_path: Path) -> None:
    loader = load(jsonl(tmp_path, [{"prompt": "q"}]), answer=None)
    assert loader.row(0) == {"prompt": "q", "answer": None, "source": "toy"}


def test_a_prompt_may_be_a_chat(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    assert load(jsonl(tmp_path, [{"prompt": chat, "answer": ""}])).row(0)["prompt"] == chat


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_byte_order_mark_and_the_last_line_break_hold_no_row(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "x", "answer": 1}\r\n{"prompt": "y", "answer": 2}' + end)
    loader = load(path)
    assert [loader.row(index)["prompt"] for index in range(loader.num_rows)] == ["x", "y"]


# --- the fingerprint --------------------------------------------------------------------------------------------------


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    original = load(jsonl(tmp_path)).fingerprint
    assert len(bytes.fromhex(original)) == 32
    shuffled_keys = [dict(reversed(row.items())) for row in ROWS]
    assert load(jsonl(tmp_path, shuffled_keys)).fingerprint == original
    for changed in (
        ROWS[1:],
        ROWS[::-1],
        [*ROWS[:-1], {**ROWS[-1], "answer": "0"}],
        [{**row, "more": 1} for row in ROWS],
    ):
        assert load(jsonl(tmp_path, changed)).fingerprint != original


def test_a_data_set_that_changed_since_the_start_is_refused(tmp_path: Path) -> None:
    recorded = load(jsonl(tmp_path)).fingerprint
    load(jsonl(tmp_path)).check_unchanged(recorded)
    changed = load(jsonl(tmp_path, ROWS[:-1]))
    with pytest.raises(DataError, match=r"toy\.jsonl: its 9 rows are not those that the run began with.*rollog fork"):
        changed.check_unchanged(recorded)


def test_a_folder_has_the_rows_and_the_fingerprint_of_the_same_jsonl(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "toy")
    folder, lines = load(tmp_path / "toy"), load(jsonl(tmp_path))
    assert [folder.row(index) for index in range(10)] == [lines.row(index) for index in range(10)]
    assert folder.fingerprint == lines.fingerprint


def test_a_split_is_chosen_by_name_or_because_it_is_the_only_one(tmp_path: Path) -> None:
    train, test = datasets.Dataset.from_list(ROWS[:6]), datasets.Dataset.from_list(ROWS[6:])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "two")
    datasets.DatasetDict({"train": train}).save_to_disk(tmp_path / "one")
    assert load(tmp_path / "two", split="test").num_rows == 4
    assert load(tmp_path / "one").num_rows == 6
    with pytest.raises(DataError, match=r"no data\.split=None\. Use one of: test, train"):
        load(tmp_path / "two")
    with pytest.raises(DataError, match=r"no data\.split=dev"):
        load(tmp_path / "one", split="dev")


def test_a_reasoning_gym_task_is_a_data_set_that_comes_out_the_same_each_time() -> None:
    task = Task(size=20, seed=3, options={"min_terms": 2, "max_terms": 2})
    loader = load("reasoning_gym:chain_sum", task=task)
    assert loader.num_rows == 20
    row = loader.row(0)
    assert row["source"] == "chain_sum"
    assert row["metadata"]["num_terms"] == 2
    assert load("reasoning_gym:chain_sum", task=task).fingerprint == loader.fingerprint
    assert load("reasoning_gym:chain_sum", task=Task(size=20, seed=4)).fingerprint != loader.fingerprint


# --- bad data: file, line, column, and what to do ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", r"bad\.jsonl: holds no rows"),
        ("\n  \n", r"bad\.jsonl: holds no rows"),
        (
            '{"prompt": "a", "answer": 1}\n{"prompt": oops}\n',
            r"line 2 column 12: not JSON: Expecting value\. ",
        ),
        ('{"prompt": "a", "answer": 1}\n \r\n{"prompt": "b"}\n', r"bad\.jsonl line 2 column 1: a blank line"),
        ('{"prompt": "a", "answer": 1}\n\n', r"bad\.jsonl line 2 column 1: a blank line"),
        ('{"prompt": "a", "answer": NaN}\n', r"bad\.jsonl line 1: not JSON: NaN"),
        ("[1, 2]\n", r"bad\.jsonl line 1: a list where an object"),
        ('{"prompt": "a", "answer": 1}\n{"prompt": "a"}\n', r"bad\.jsonl line 2: no column 'answer'; it has prompt"),
        ('{"prompt": 3, "answer": 1}\n', r"bad\.jsonl line 1 column 'prompt': 3 is no prompt"),
        ('{"prompt": " ", "answer": 1}\n', r"bad\.jsonl line 1 column 'prompt': ' ' is no prompt"),
        ('{"prompt": [{"role": "user"}], "answer": 1}\n', r"bad\.jsonl line 1 column 'prompt'"),
        ('{"prompt": "a", "answer": 1, "completion": 1}\n', r"line 1 column 'completion': .*Rename it"),
        ('{"prompt": "a", "answer": 36893488147419103232}\n', r"line 1 column 'answer': .*Store it as a text"),
        ('{"prompt": "a", "answer": "\\ud800"}\n', r"line 1 column 'answer': .*Store it as a text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=says) as raised:
        load(path)
    assert raised.value.exit_code == 2


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": "\xff"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl line 1: not JSON: .*utf-8"):
        load(path)


def test_a_date_in_a_folder_is_named(tmp_path: Path) -> None:
    dated = datasets.Dataset.from_dict({"prompt": ["a"], "answer": ["b"], "seen": ["2026-01-01"]})
    dated.cast_column("seen", datasets.Value("date32")).save_to_disk(tmp_path / "dated")
    with pytest.raises(DataError, match=r"dated row 0 column 'seen': .*Store it as a text"):
        load(tmp_path / "dated")


def test_an_empty_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"prompt": [], "answer": []}).save_to_disk(tmp_path / "empty")
    with pytest.raises(DataError, match="empty: no rows can be read from it"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match=r"no rows can be read from it: .*save_to_disk"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.jsonl", "no such file or folder"),
        ("data/nowhere.parquet", "no such file or folder"),
        ("./openai/gsm8k", r"no such file or folder.*named org/name"),
        (__file__, r"files named \*\.py cannot be read"),
        ("reasoning_gym:chain_sums", r"no such task\. Did you mean chain_sum"),
    ],
)
def test_what_cannot_be_a_source_is_refused(path: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        load(path)


@pytest.mark.parametrize("options", [{"no_such": 1}, {"min_terms": -3}])
def test_a_tasks_wrong_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"the task refuses data\.task\.options="):
        load("reasoning_gym:chain_sum", task=Task(options=options))
