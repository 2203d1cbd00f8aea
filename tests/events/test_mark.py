"""The mark outside the server tells what the server has lost."""

from pathlib import Path

import pytest

from rollog.events.errors import LostTail
from rollog.events.log import Head
from rollog.events.mark import Mark, MarkFile, check_mark

MARK = Mark(log_id="id", offset=7, digest="ab" * 16, epoch=2)


def test_a_mark_is_read_as_it_was_kept(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "mark.json")
    assert file.read() is None
    file.keep(MARK)
    assert file.read() == MARK
    assert [path.name for path in tmp_path.iterdir()] == ["mark.json"]


def test_a_damaged_mark_is_not_taken_for_none(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "mark.json")
    for text in ["", "{", "[]", '{"log_id": "x"}', '{"log_id": "x", "offset": "y", "digest": "", "epoch": 1}']:
        file.path.write_text(text)
        with pytest.raises(LostTail, match="damaged"):
            file.read()


def test_a_log_behind_its_mark_is_refused_with_the_number_of_missing_entries() -> None:
    check_mark(MARK, "id", Head(offset=7, digest="ab" * 16), "ab" * 16)
    check_mark(MARK, "id", Head(offset=9, digest="cd" * 16), None)
    with pytest.raises(LostTail, match="3 acknowledged entries are missing"):
        check_mark(MARK, "id", Head(offset=4, digest="cd" * 16), None)
    with pytest.raises(LostTail, match="no log; 7 entries"):
        check_mark(MARK, None, Head(offset=0, digest="0" * 32), None)
    with pytest.raises(LostTail, match="holds the log other"):
        check_mark(MARK, "other", Head(offset=9, digest="cd" * 16), None)
    with pytest.raises(LostTail, match="written anew"):
        check_mark(MARK, "id", Head(offset=9, digest="cd" * 16), "cd" * 16)
