"""A page for a browser to open: `embedlog ui` in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from servers import Started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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
        context.set_default_timeout(180_000)  # the machine may have other things to do
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
