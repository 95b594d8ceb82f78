"""A browser, and a page for it to open: `embedlog ui` in a process of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from servers import Started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"  # Debian's; Playwright brings its own, which nobody needs here


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of a module: Playwright's event loop ends with it."""
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def serve(start: Callable[..., Started]) -> Callable[..., str]:
    """serve(log, *options) starts `embedlog ui`. Returns the address, with its token."""

    def serve(log: object, *options: object) -> str:
        page = start("-m", "embedlog", "ui", log, "--port", 0, "--json", *options)
        address: str = json.loads(page.find(r"^(\{.*\})$")[0])["address"]
        return address

    return serve


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """visit(address, width=1440, theme="light") opens a page that has let the visitor in.

    Its paths are relative: `page.goto("/topics/t")`. What it logs as an error fails the test at its end.
    """
    contexts = []
    said: list[str] = []

    def visit(address: str, *, width: int = 1440, theme: Any = "light") -> Page:
        context = browser.new_context(
            base_url=address.partition("/?")[0],
            viewport={"width": width, "height": 900},
            color_scheme=theme,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert said == []
