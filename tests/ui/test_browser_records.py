"""Records in a real browser: a fast tail, a search, keys, hostile records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import embedlog
from embedlog import Log

if TYPE_CHECKING:
    from playwright.sync_api import Locator, LocatorAssertions, Page

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>document.title='broken'</script>",
    "<img src=x onerror=\"document.title='broken'\">",
    '"><svg onload="document.title=\'broken\'">',
    "\u202egnp.exe",
    '{"<b>": "</span><script>document.title=\'broken\'</script>", "n": 1e999}',
)


@pytest.fixture
def written(path: Path) -> Iterator[Log]:
    """A log that this process goes on to write while the page shows it."""
    with embedlog.open(path) as log:
        log.create_topic("t", 2)
        for number in range(120):
            log.append(
                "t",
                b'{"user": {"id": %d}}' % number,
                key=b"user-%d" % number,
                partition=number % 2,
                timestamp_ms=1_700_000_000_000 + number,
            )
        yield log


def eventually(what: Locator) -> LocatorAssertions:
    """Expect something of a part of the page; the page's policy forbids functions that are strings."""
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    return expect(what)


def rows(page: Page) -> int:
    return page.locator("tr.record").count()


def test_a_fast_tail(written: Log, serve: Callable[..., str], visit: Callable[..., Page]) -> None:
    """Ten thousand records a second: the page keeps the last few hundred rows and does not fall behind."""
    page = visit(serve(written.path))
    page.goto("/topics/t/records")
    page.keyboard.press("p")
    eventually(page.locator("#status")).to_contain_text("records/s")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.05):
            written.append_many("t", [b"line %d" % each for each in range(number, number + 500)])
            number += 500

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(page.locator("tr.record")).to_have_count(300)
        eventually(page.locator("#status")).to_contain_text("not shown")
    finally:
        stop.set()
        writer.join()
    written.append("t", b"the end", partition=1)
    page.get_by_text("the end").wait_for()
    assert rows(page) == 300
    page.keyboard.press("p")
    assert page.get_by_role("button", name="Follow").is_visible()
    written.append("t", b"while it was paused", partition=1)
    page.keyboard.press("p")
    page.get_by_text("while it was paused").wait_for()


def test_keys_unfold_and_open(written: Log, serve: Callable[..., str], visit: Callable[..., Page]) -> None:
    page = visit(serve(written.path))
    page.goto("/topics/t/records")
    assert rows(page) == 50
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    unfolded = page.locator("tr.unfolded")
    unfolded.get_by_text("118").first.wait_for()
    assert "user-118" in unfolded.inner_text()
    assert unfolded.locator(".json details").count() == 2
    page.keyboard.press("Enter")
    unfolded.wait_for(state="detached")
    page.keyboard.press("k")
    page.keyboard.press("o")
    page.wait_for_url("**/topics/t/record?partition=1&offset=59")
    page.get_by_role("link", name="hex").click()
    page.get_by_text("7b 22 75 73 65 72").wait_for()
    page.get_by_role("link", name="Previous").click()
    page.get_by_text("user-117").wait_for()


def test_search_and_cancel(written: Log, serve: Callable[..., str], visit: Callable[..., Page]) -> None:
    page = visit(serve(written.path))
    page.goto("/topics/t/records")
    page.keyboard.press("/")
    page.keyboard.type("user.id=77")
    page.keyboard.press("Enter")
    page.get_by_text("1 found · 120 of 120 records").wait_for()
    assert rows(page) == 1
    for _ in range(30):  # with the search below it takes seconds
        written.append_many("t", [b'{"user": {"id": -1, "text": "%s"}}' % (b"x" * 200)] * 10_000)
    slow = " OR ".join(f"user.text:absent{number}" for number in range(20))
    page.goto(f"/topics/t/records?search=user.id=77 OR {slow}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("cancelled").wait_for()
    said = page.locator("#status").inner_text()
    page.get_by_role("button", name="Search on").click()
    assert "300,120 of 300,120" not in said
    page.get_by_role("button", name="Search again").wait_for()  # it has looked at the records that were left
    assert rows(page) == 1


@pytest.mark.parametrize("width", [375, 1440])
def test_hostile_records(
    written: Log, serve: Callable[..., str], visit: Callable[..., Page], width: int
) -> None:
    """They are text wherever they appear: in a table, unfolded, followed, found, on their own page."""
    page = visit(serve(written.path), width=width)
    page.goto("/topics/t/records")
    page.keyboard.press("p")
    eventually(page.locator("#status")).to_contain_text("records/s")
    for text in HOSTILE:
        written.append("t", text.encode(), key=text.encode(), headers=[(text, text.encode())], partition=0)
    page.get_by_text("1e999").first.wait_for()
    for _ in HOSTILE:
        page.keyboard.press("j")
        page.keyboard.press("Enter")
    eventually(page.locator(".unfolded .copy")).to_have_count(2 * len(HOSTILE))
    assert "\\u202egnp.exe" in page.locator("#rows").inner_text()
    page.goto("/topics/t/records?search=key:onerror")
    page.get_by_text("1 found").wait_for()
    page.locator("tr.record a").first.click()
    page.get_by_text("its own page").wait_for(state="detached")
    for each in ("img", "svg", "script"):
        assert page.locator(f"main {each}").count() == 0
    assert "broken" not in page.title()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_for_everybody(
    written: Log, serve: Callable[..., str], visit: Callable[..., Page], width: int, theme: str
) -> None:
    """axe-core finds nothing, also in what script has added; nothing is too wide for a telephone."""
    from axe_playwright_python.sync_playwright import Axe

    written.append("t", b"\xff" * 2_000, key=b"k" * 2_000, headers=[("h", b"\x00")], partition=0)
    page = visit(serve(written.path), width=width, theme=theme)
    for where, then in (
        ("/topics/t/records", "j Enter p"),
        ("/topics/t/records?search=user.id<9", ""),
        ('/topics/t/records?search="', ""),
        ("/topics/t/record?partition=0&offset=0", ""),
        ("/topics/t/record?partition=0&offset=60", ""),
    ):
        page.goto(where)
        for key in then.split():
            page.keyboard.press(key)
        if then:
            page.locator(".unfolded .copy").first.wait_for()
        assert [each["id"] for each in Axe().run(page).response["violations"]] == [], where
        assert page.evaluate("document.documentElement.scrollWidth") <= width, where
