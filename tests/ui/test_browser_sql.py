"""The box for queries in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_browser_pages import found_by_axe

import embedlog

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"
HOSTILE = b'{"<img src=x onerror=alert(1)>": "<script>alert(2)</script>", "city": "Bern", "n": 7}'


@pytest.fixture
def address(path: Path, serve: Callable[..., str]) -> str:
    with embedlog.open(path) as log:
        log.create_topic("cities")
        log.append_many("cities", [HOSTILE] * 1_500)
    return serve(path)


def test_a_query(address: str, visit: Callable[..., Page]) -> None:
    """By keys alone: the box, the query, its rows; then again, from those before."""
    page = visit(address)
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/sql")
    page.keyboard.press("/")
    page.keyboard.type("SELECT city, count(*) AS many FROM cities GROUP BY 1")
    page.keyboard.press("Control+Enter")
    page.get_by_text("1 row ·").wait_for()
    assert page.locator("#rows td").all_inner_texts() == ["Bern", "1500"]
    assert page.locator("#head th").nth(1).evaluate("e => getComputedStyle(e).textAlign") == "right"
    page.locator("#query").fill("SELECT * FROM cities")
    page.keyboard.press("Control+Enter")
    page.get_by_text("the first 1,000 rows ·").wait_for()
    assert page.locator("#rows tr").count() == 1_000
    page.reload()
    page.get_by_text("Earlier queries").click()
    page.get_by_role("button", name="SELECT city, count(*)").click()
    assert "cities" in page.locator("#query").input_value()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_hostile_records(address: str, visit: Callable[..., Page], width: int, theme: str) -> None:
    """They are text; and what is shown is accessible."""
    page = visit(address, width=width, theme=theme)
    page.goto("/sql")
    page.locator("[data-insert]").first.wait_for()
    page.locator("#query").fill("SELECT * FROM cities LIMIT 10")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("10 rows ·").wait_for()
    assert page.locator("main img, main script").count() == 0
    assert page.locator("#rows").get_by_text("<script>alert(2)</script>", exact=True).count() == 10
    page.locator("#wrap").check()
    assert found_by_axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_cancel_and_errors(address: str, visit: Callable[..., Page]) -> None:
    page = visit(address)
    page.goto("/sql")
    page.locator("[data-insert]").first.wait_for()
    page.locator("#query").fill(ENDLESS)
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("cancelled ·").wait_for()
    page.locator("#query").fill("SELECT nothing")
    page.keyboard.press("Control+Enter")
    page.get_by_role("alert").filter(has_text="nothing").wait_for()
    assert page.get_by_role("button", name="Run").is_enabled()


def test_a_download(address: str, visit: Callable[..., Page], tmp_path: Path) -> None:
    page = visit(address)
    page.goto("/sql")
    page.locator("#query").fill("SELECT n FROM cities LIMIT 2")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "query.csv"
    download.value.save_as(tmp_path / "query.csv")
    assert (tmp_path / "query.csv").read_text() == "n\n7\n7\n"


def test_a_download_says_what_was_read_as_null(
    path: Path, serve: Callable[..., str], visit: Callable[..., Page]
) -> None:
    with embedlog.open(path) as log:
        log.create_topic("prices")
        log.append_many("prices", [b'{"p": 1.5}', b'{"p": 1e400}'])
    page = visit(serve(path))
    page.goto("/sql")
    page.locator("#query").fill("SELECT p FROM prices")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert Path(download.value.path()).read_text().splitlines()[0] == "p"
    page.get_by_text("Of the download: prices: 1 value of p does not fit DOUBLE and is NULL").wait_for()
    assert found_by_axe(page) == []
