"""The rules that `make mutate` takes out stand in the code as they are written there."""

from pathlib import Path

from mutate import MUTATIONS, ROOT


def test_each_rule_that_is_taken_out_stands_once_in_its_file() -> None:
    found = {mutation.name: (ROOT / mutation.file).read_text().count(mutation.old) for mutation in MUTATIONS}

    assert found == {mutation.name: 1 for mutation in MUTATIONS}


def test_the_tests_of_each_rule_are_there() -> None:
    named = {tests for mutation in MUTATIONS for tests in mutation.tests}

    assert {tests for tests in named if not Path(ROOT, tests).exists()} == set()


def test_no_two_rules_have_one_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
