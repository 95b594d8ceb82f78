"""Every page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import embedlog

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def test_the_theme_is_kept(path: Path, serve: Callable[..., str], visit: Callable[..., Page]) -> None:
    with embedlog.open(path) as log:
        log.create_topic("clicks")
    page = visit(serve(path))
    page.locator("body").press("t")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"
