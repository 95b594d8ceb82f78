"""The pages that map documents to code name existing modules, tests and examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, DOCUMENTS, ROOT

NAMED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")
MODULES = {str(path.relative_to(ROOT / "embedlog")): path for path in (ROOT / "embedlog").rglob("*.py")}
TESTS = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}


def rows(page: str) -> list[list[str]]:
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    "page",
    [
        "explanation/design-documents.md",
        "reference/glossary.md",
        "explanation/promises.md",
        "explanation/reading-the-source.md",
    ],
)
def test_named_modules_and_tests_exist(page: str) -> None:
    named = NAMED.findall((DOCS / page).read_text())
    assert named
    for name, function in named:
        path = TESTS.get(name) or MODULES.get(name) or ROOT / name
        assert path.exists(), f"{page}: {name}"
        if function:
            assert f"def {function}(" in path.read_text(), f"{page}: {name}::{function}"


@pytest.mark.parametrize("page", sorted({*DOCS.rglob("*.md")} - {*DOCUMENTS}), ids=lambda page: page.name)
def test_modules_named_on_any_page_exist(page: Path) -> None:
    known = {*MODULES, *TESTS, *(path.name for path in MODULES.values())}
    for name, _ in NAMED.findall(page.read_text()):
        assert name in known or (ROOT / name).exists(), name


def test_walks_go_through_modules_that_exist() -> None:
    for walk in (DOCS / "explanation" / "reading-the-source.md").read_text().split("```")[1::2]:
        for name in re.findall(r"[\w/]+\.py", walk):
            assert name in MODULES, name


def test_each_row_names_a_module_or_says_later() -> None:
    for row in rows("explanation/design-documents.md"):
        if row[0] == "the documents":
            continue
        assert len(row) == 3, row
        assert NAMED.search(row[1]) or "**Later**" in row[1] or "**later**" in row[1], row
        if "ater**" not in row[1]:
            assert NAMED.search(row[2]), f"no test: {row[0]}"


def test_every_room_is_on_the_map() -> None:
    """The diagram in reading-the-source.md names each package and each module of the ground floor."""
    page = (DOCS / "explanation" / "reading-the-source.md").read_text()
    diagram = page.split("```")[1]
    words = set(re.findall(r"\w+", diagram)) | {"__init__"}
    house = ROOT / "embedlog"
    rooms = {path.stem for path in house.glob("*.py")} | {
        path.parent.name for path in house.glob("*/__init__.py")
    }
    assert sorted(rooms - words) == []
