"""The pages of results: written in parts, of one machine, and README's figures are those of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import Contender, Result, Row
from benchmarks.page import Page, figures, rows_of
from benchmarks.table import between_marks

ROOT = Path(__file__).resolve().parent.parent
_EMPTY = """# Figures
<!-- bench-machine:begin -->
<!-- bench-machine:end -->
## Reading
<!-- bench-reading:begin -->
<!-- bench-reading:end -->
## Disk
<!-- bench-disk:begin -->
<!-- bench-disk:end -->
The end.
"""
_FAMILIES = ("reading", "disk")
_CONTENDERS: list[Contender] = []


def _row(title: str) -> Row:
    return Row(title, "records/s", True, _CONTENDERS)


def _results(rate: float) -> list[Result]:
    return [
        Result("embedlog", [rate, rate * 2, rate * 3], [0.5, 0.25]),
        Result("lmdb no sync", [rate, rate, rate], []),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(_EMPTY)
    return tmp_path / "page.md"


def test_a_row_replaces_its_own_and_no_other(path: Path) -> None:
    page = Page(path, _FAMILIES, "one\n", fresh=True)
    page.put("disk", ["d"], _row("d"), _results(7000))
    page.put("reading", ["a", "b (c)"], _row("b (c)"), _results(1000))
    page.put("reading", ["a", "b (c)"], _row("a"), _results(2000))
    Page(path, _FAMILIES, "one\n", fresh=False).put("reading", ["a", "b (c)"], _row("b (c)"), _results(5000))
    text = path.read_text()
    rows = rows_of(between_marks(text, "bench-reading"))
    assert list(rows) == ["a", "b (c)"]
    assert rows["a"][1] == "| embedlog | 4,000 | 2,000 to 6,000 | 0.25 |  |"
    assert rows["b (c)"] == [
        "| **b (c)** (records/s) | | | | |",
        "| embedlog | 10,000 | 5,000 to 15,000 | 0.25 |  |",
        "| lmdb no sync | 5,000 | 5,000 to 5,000 |  | 2.00x |",
    ]
    assert list(rows_of(between_marks(text, "bench-disk"))) == ["d"]
    assert text.startswith("# Figures\n") and text.endswith("The end.\n")


def test_a_row_that_is_gone_leaves_the_page(path: Path) -> None:
    page = Page(path, _FAMILIES, "one\n", fresh=True)
    page.put("reading", ["old"], _row("old"), _results(1000))
    page.put("reading", ["new"], _row("new"), _results(1000))
    assert list(rows_of(path.read_text())) == ["new"]


def test_two_machines_do_not_mix(path: Path) -> None:
    Page(path, _FAMILIES, "one\n", fresh=True).put("reading", ["a"], _row("a"), _results(1000))
    before = path.read_text()
    with pytest.raises(ValueError, match="Run all rows"):
        Page(path, _FAMILIES, "two\n", fresh=False)
    assert path.read_text() == before
    Page(path, _FAMILIES, "two\n", fresh=True)
    assert not rows_of(path.read_text())
    assert between_marks(path.read_text(), "bench-machine") == "two\n"


def test_a_page_without_marks_is_refused(path: Path) -> None:
    path.write_text(_EMPTY.replace("<!-- bench-machine:end -->", ""))
    with pytest.raises(ValueError, match="bench-machine:end"):
        Page(path, _FAMILIES, "one\n", fresh=True)


def test_readme_has_the_figures_of_the_page() -> None:
    page = (ROOT / "docs/explanation/performance.md").read_text()
    assert between_marks((ROOT / "README.md").read_text(), "bench") == figures(page)
    assert figures(page).count("\n") == 15
