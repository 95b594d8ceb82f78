"""docs/reference/errors.md has each error, with what to do."""

from __future__ import annotations

import re

from documents import DOCS

from embedlog import errors

PAGE = (DOCS / "reference" / "errors.md").read_text()


def test_each_error_has_a_row() -> None:
    rows = [cells.split("|") for cells in re.findall(r"^\| (`[A-Z].*) \|$", PAGE, re.M)]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(set(errors.__all__) - {"EmbedlogError"})


def test_each_row_says_what_to_do() -> None:
    for row in re.findall(r"^\| (`[A-Z].*) \|$", PAGE, re.M):
        names, cause, remedy = (cell.strip() for cell in row.split("|"))
        assert cause
        assert remedy or "base class" in cause, names
