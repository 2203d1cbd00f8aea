"""Which entries are shown, and how an answer is written."""

import json

import pytest

from builders import admitted, committed, diverted, history, retried, selected, sent
from rollog.events.log import Entry
from rollog.events.vocabulary import Borrow, FailureKind
from rollog.replay.errors import BadReference, NoSuchMoment
from rollog.replay.output import Format, csv_lines, finite, written
from rollog.replay.paths import at_path
from rollog.replay.selection import Selection

RUN = history(
    admitted(0),  # 3
    sent(0),
    sent(1),
    retried(1, FailureKind.LOST),  # 6
    committed(0, reward_mean=0.75),  # 7
    diverted(2, 3),
    selected(0, 0, last=False),  # 9
)


def shown(entries: list[Entry] = RUN, **asked: object) -> list[int]:
    selection = Selection.of(**asked)  # type: ignore[arg-type]
    return [entry.offset for entry in entries if selection.takes(entry)]


def test_nothing_asked_for_shows_everything() -> None:
    assert shown() == list(range(1, 10))


@pytest.mark.parametrize(
    ("types", "offsets"),
    [
        (["commit"], [7]),
        (["Stamp"], [3]),
        (["dispatch,retry"], [4, 5, 6]),
        (["commit", "select"], [7, 9]),
        (["drop"], []),
    ],
)
def test_types_are_wire_tags(types: list[str], offsets: list[int]) -> None:
    assert shown(types=types) == offsets


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadReference, match=r"'comit'; there are: start, fork"):
        Selection.of(types=["comit"])


def test_a_condition_on_a_field_that_no_event_has_is_refused() -> None:
    with pytest.raises(BadReference, match=r"no event or entry has a field 'wurker'; did you mean worker\?"):
        Selection.of(where=["wurker=x"])
    with pytest.raises(BadReference, match=r"field 'zzz'; there are: .*, offset, .*, type, "):
        Selection.of(where=["zzz.quux>3"])


def test_a_prompt_is_found_wherever_an_event_names_it() -> None:
    assert shown(prompt=0) == [3, 4, 7, 9]
    assert shown(prompt=3) == [8]


def test_a_step_is_found_as_stamp_order_selection_lender_and_borrower() -> None:
    borrow = Borrow(loan=0, prompt=2, lender=9, borrower=7, dropped=0, spare=4, nth=1)

    assert shown(step=0) == [3, 4, 5, 9]
    assert shown(history(borrow), step=9) == [3]
    assert shown(history(borrow), step=7) == [3]


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        (["attempt=1"], [4, 5, 6, 7]),
        (["attempt=1.0"], [4, 5, 6, 7]),
        (["reward_mean>0.7"], [7]),
        (["reward_mean>0.75"], []),
        (["reward_mean>=0.75", "tokens<=10"], [7]),
        (["kind=lost"], [6]),
        (["kind!=lost"], []),
        (["type!=commit", "prompt=0"], [4]),
        (["prompts=1"], [3]),
        (["offset>7"], [8, 9]),
        (["last=false"], [9]),
        (["chunk<1"], [9]),
        (["input=null", "offset<2"], [1]),
        (["config.sampler.name=in_order"], [1]),
        (["nth=1"], []),
        (["worker>1"], []),
        (["error = timeout after 300 s"], [6]),
    ],
)
def test_conditions_compare_and_evaluate_nothing(where: list[str], offsets: list[int]) -> None:
    assert shown(where=where) == offsets


def test_one_event_must_fit_everything() -> None:
    assert shown(types=["admit"], where=["batch=0"]) == [3]
    assert shown(types=["stamp"], where=["batch=0"]) == []


@pytest.mark.parametrize("text", ["", "attempt", "=1", "__import__('os')=1", "a b=1", "attempt~1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(BadReference, match="write field=value"):
        Selection.of(where=[text])


# --- formats ----------------------------------------------------------------------------------------------------------

MODEL = {
    "schema": "x/1",
    "rows": [{"schema": "row/1", "a": 1, "b": [1, 2]}, {"schema": "row/1", "a": None, "c": 'x,"'}],
}


def test_json_is_one_object_and_jsonl_one_a_row() -> None:
    assert json.loads("\n".join(written(MODEL, Format.JSON))) == MODEL
    assert [json.loads(line) for line in written(MODEL, Format.JSONL, rows="rows")] == MODEL["rows"]
    assert [json.loads(line) for line in written(MODEL, Format.JSONL)] == [MODEL]


def test_csv_has_a_header_of_all_columns_and_quotes() -> None:
    assert list(written(MODEL, Format.CSV, rows="rows")) == [
        "schema,a,b,c",
        'row/1,1,"[1, 2]",',
        'row/1,,,"x,"""',
    ]
    assert list(written({"a": {"b": 1, "c": []}, "d": {}}, Format.CSV)) == ["path,value", "a.b,1", "a.c,[]", "d,{}"]
    assert list(csv_lines([])) == [""]


def test_yaml_keeps_the_order() -> None:
    assert list(written({"b": 1, "a": [True, None]}, Format.YAML)) == ["b: 1\na:\n- true\n- null"]


def test_numbers_that_json_does_not_know_are_null() -> None:
    assert finite({"loss": float("nan"), "all": (1.5, float("inf"))}) == {"loss": None, "all": [1.5, None]}


def test_a_table_is_drawn_elsewhere() -> None:
    with pytest.raises(ValueError, match="drawn by the verb"):
        list(written(MODEL, Format.TABLE))


# --- paths ------------------------------------------------------------------------------------------------------------

PLAIN = {
    "version": 3,
    "groups": {"7": {"prompt": 7, "step": 1}},
    "places": {"buffer": [7], "reserve": []},
    "settings": {"grpo": {"n": 2}},
    "list": [5, 6],
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 3),
        ("groups.7.step", 1),
        ("settings.grpo", {"n": 2}),
        ("list.1", 6),
        ("places.buffer", [7]),
        ("buffer", [{"prompt": 7, "step": 1}]),
        ("buffer.0.prompt", 7),
        ("reserve", []),
    ],
)
def test_a_path_walks_into_the_state_and_a_place_gives_its_groups(path: str, value: object) -> None:
    assert at_path(PLAIN, path) == value


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("versoin", "the state has no 'versoin'; it has version, groups"),
        ("groups.8", "groups has no '8'; it has 7"),
        ("list.2", "list has no '2'; it has items 0..1"),
        ("version.x", "version has no 'x'; it has no parts"),
        ("", "the state has no ''"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_is_there(path: str, why: str) -> None:
    if path:
        with pytest.raises(NoSuchMoment, match=why):
            at_path(PLAIN, path)
    else:
        assert at_path(PLAIN, path) == PLAIN
