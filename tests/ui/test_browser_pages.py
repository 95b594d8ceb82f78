"""Every page in a real browser: nothing for axe-core to find, and nothing too wide for a telephone."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import embedlog
from embedlog import Mirror, Record
from embedlog.cluster import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

PAGES = (
    "/",
    "/?search=none-of-that-name",
    "/topics/clicks",
    "/topics/clicks?range=hour",
    "/topics/clicks/partitions/0",
    "/topics/clicks/records",
    "/topics/clicks/records?partition=0&from=10",
    "/topics/clicks/record?partition=0&offset=3",
    "/groups",
    "/group?name=billing",
    "/group/reset?name=billing&to=earliest",
    "/queues",
    "/queue?topic=jobs&group=default",
    "/transactions",
    "/transactions?topic=jobs",
    "/group?name=billing&topic=clicks&partition=0",
    "/activity",
)
OF_BROKERS = (
    "/",
    "/topics/clicks",
    "/queues",
    "/queue?topic=jobs&group=default",
    "/transactions",
    "/activity",
    "/sql",
)


@pytest.fixture
def filled(path: Path, tmp_path: Path) -> Path:
    """A log with something for every page to show."""
    with embedlog.open(tmp_path / "source") as log:
        log.create_topic("orders")
        log.append_many("orders", [b"1", b"2"])
    with Mirror(f"east={tmp_path / 'source'}", path) as mirror:
        mirror.run(until_caught_up=True)
    with embedlog.open(path) as log:
        log.create_topic("clicks", 2, retention_ms=86_400_000)
        log.create_topic("empty")
        log.create_topic("jobs")
        log.append_many("jobs", [b"1", b"2", b"3"])
        with log.transaction("loader") as transaction:
            transaction.append("jobs", b"4")
        with log.queue("jobs") as queue:
            job = queue.take(10_000)
            job.reject("no such customer")
        for number in range(100):
            log.append("clicks", b'{"user": %d}' % number, key=b"%d" % number)
        with log.consumer("clicks", group="billing") as consumer:
            next(iter(consumer))
            consumer.commit()
    return path


@pytest.fixture
def address(filled: Path, serve: Callable[..., str]) -> str:
    return serve(filled, "--writable", "--table", filled.parent / "no-table")


def found_by_axe(page: Page) -> list[str]:
    """What violates WCAG 2 at level AA, and axe-core's best practices, each with the element."""
    from axe_playwright_python.sync_playwright import Axe

    violations: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{page.url} {each['id']}: {node['html']:.200}" for each in violations for node in each["nodes"]]


@pytest.mark.parametrize("shown", PAGES)
def test_every_page(address: str, visit: Callable[..., Page], shown: str) -> None:
    page = visit(address)
    for width, theme in itertools.product((375, 1440), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.goto(shown)
        assert found_by_axe(page) == [], (width, theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, theme


@pytest.mark.parametrize(("width", "theme"), [(375, "light"), (1440, "dark")])
def test_pages_of_brokers(
    filled: Path, serve: Callable[..., str], visit: Callable[..., Page], width: int, theme: str
) -> None:
    with Broker(filled, port=0) as broker:
        page = visit(serve(f"kafka://{broker.bootstrap_servers}"), width=width, theme=theme)
        for each in OF_BROKERS:
            page.goto(each)
            assert found_by_axe(page) == [], each
            assert page.evaluate("document.documentElement.scrollWidth") <= width, each
        page.close()  # else it asks for news of a broker that has gone, and its console says so


def test_keys(address: str, visit: Callable[..., Page]) -> None:
    page = visit(address)
    page.keyboard.press("/")
    page.keyboard.type("emp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?search=emp*")
    assert page.locator("tbody tr").count() == 1
    page.locator("h1").click()
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.goto("/topics/clicks")  # the theme is kept
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/")


def test_a_range(address: str, visit: Callable[..., Page]) -> None:
    page = visit(address)
    page.get_by_role("link", name="clicks").click()
    page.get_by_role("link", name="day").click()
    page.wait_for_url("**range=day**")
    page.get_by_text("100 records;").wait_for()
    page.get_by_role("textbox", name="to").fill("2001-01-02T00:00")
    page.get_by_role("textbox", name="from").fill("2001-01-01T00:00")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("0 records", exact=True).wait_for()


def test_figures_are_kept_up_to_date(
    path: Path, serve: Callable[..., str], visit: Callable[..., Page]
) -> None:
    with embedlog.open(path) as log:
        log.create_topic("clicks")
        page = visit(serve(path))
        row = page.get_by_role("row").filter(has_text="clicks")
        assert row.locator("td").nth(1).inner_text() == "0"
        log.append_many("clicks", [b"1"] * 1_234)
        row.get_by_text("1,234").wait_for()


PICTURES = {
    "ui-topics": "/",
    "ui-topic": "/topics/clicks",
    "ui-records": "/topics/clicks/records",
    "ui-group": "/group?name=billing",
    "ui-transactions": "/transactions",
    "ui-activity": "/activity",
    "ui-sql": "/sql",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(
    path: Path, serve: Callable[..., str], visit: Callable[..., Page], tmp_path: Path, theme: str
) -> None:
    """The pictures of the documentation, written there if EMBEDLOG_PICTURES=docs/images says so."""
    hour_ms = 3_600_000
    with embedlog.open(tmp_path / "shop") as log:
        log.create_topic("orders", 2)
        log.append_many("orders", [b'{"total": 12}'] * 340, partition=0)
        log.append_many("orders", [b'{"total": 9}'] * 295, partition=1)
    with Mirror(f"eu={tmp_path / 'shop'}", path) as mirror:
        mirror.run(until_caught_up=True)
    with embedlog.open(path) as log:
        for name, partitions, keep_ms, most in (
            ("clicks", 4, 168 * hour_ms, 900),
            ("orders", 2, -1, 120),
            ("payments", 2, -1, 60),
        ):
            log.create_topic(name, partitions, retention_ms=keep_ms)
            for hour in range(48):
                began_ms = 1_790_000_000_000 + hour * hour_ms
                count = int(most * (0.55 + 0.45 * math.sin(hour / 3.8))) + hour % 5 * most // 20
                records = [
                    Record(
                        timestamp_ms=began_ms + number * 1_000,
                        key=b"user-%d" % (number * 7 % 90),
                        value=b'{"page": "/item/%d", "ms": %d}' % (number * 13 % 40, number * 37 % 900),
                    )
                    for number in range(count)
                ]
                log.append_many(name, records)
        with log.consumer("clicks", group="billing") as consumer:
            next(iter(consumer))
            consumer.commit()
        for name in ("billing-1", "loader-1", "loader-2"):
            with log.transaction(name) as transaction:
                transaction.append("payments", b'{"total": 12}', key=b"user-1")
    notes = (path / "mirrors.json").read_text().replace(str(tmp_path / "shop"), "/srv/shop")
    (path / "mirrors.json").write_text(notes)
    page = visit(serve(path), theme=theme)
    page.goto("/group?name=billing")
    page.get_by_role("img", name="records behind of the group").wait_for()  # from the second sample on
    into = Path(os.environ.get("EMBEDLOG_PICTURES", tmp_path))
    for name, where in PICTURES.items():
        page.goto(where)
        if where == "/sql":
            page.get_by_role("button", name="by page").first.click()
            page.keyboard.press("Control+Enter")
            page.get_by_text("20 rows").wait_for()
        page.evaluate("document.querySelector('.where').textContent = './data'")
        page.screenshot(path=into / f"{name}-{theme}.png")
        assert (into / f"{name}-{theme}.png").stat().st_size > 10_000
