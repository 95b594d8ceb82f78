"""The site of the docs: it builds without a warning, each link leads somewhere, each public name is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from documents import DOCS, ROOT

import embedlog
import embedlog.aio
import embedlog.cluster
import embedlog.spark

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]  # it is built once

ANSI = re.compile(r"\x1b\[[\d;]*m")
HOME = "http://site/"


class Page(HTMLParser):
    """The anchors of a page, what it refers to, and its text outside code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.prose = ""
        self._inside = ""  # an element that holds no prose
        self.feed(text)

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.prose += data

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._inside and tag in ("code", "script", "style"):
            self._inside = tag
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.targets.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the built site."""
    target: Path = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, target / "docs")
    shutil.copy(ROOT / "mkdocs.yml", target)
    for name in ("embedlog", "pytest_embedlog.py"):
        (target / name).symlink_to(ROOT / name)
    built = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=target,
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = ANSI.sub("", built.stdout + built.stderr)
    assert built.returncode == 0, said
    assert "griffe:" not in said, said  # a docstring that its signature contradicts
    return target / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """The pages, by their addresses."""
    return {
        urljoin(HOME, str(path.relative_to(site)).removesuffix("index.html")): Page(path.read_text())
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


def test_each_page_is_there(pages: dict[str, Page]) -> None:
    for path in DOCS.rglob("*.md"):
        name = str(path.relative_to(DOCS).with_suffix("")).removesuffix("README").removesuffix("index")
        assert urljoin(HOME, f"{name}/".lstrip("/").replace("//", "/")) in pages, path


def test_links_and_anchors(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for address, page in pages.items():
        for target in page.targets:
            url = urljoin(address, target)
            if not url.startswith(HOME):
                continue
            parts = urlsplit(url)
            found = pages.get(f"{HOME}{parts.path[1:]}")
            there = found is not None or (site / unquote(parts.path[1:])).is_file()
            anchored = not parts.fragment or found is None or unquote(parts.fragment) in found.anchors
            if not (there and anchored):
                broken.append(f"{address}: {target}")
    assert not broken, "\n".join(broken)


def test_no_markup_is_shown_as_text(pages: dict[str, Page]) -> None:
    for address, page in pages.items():
        assert not re.findall(r".*(?:\]\(|\*\*|```|\|---).*", page.prose), address


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, Page]) -> None:
    for address, page in pages.items():
        scripts = [
            target for target in page.targets if target.endswith((".js", ".css", ".woff2", ".svg", ".png"))
        ]
        assert scripts
        assert all(urljoin(address, target).startswith(HOME) for target in scripts), address


def test_each_public_name_has_its_place(pages: dict[str, Page]) -> None:
    anchors = set().union(*(page.anchors for address, page in pages.items() if "/reference/api/" in address))
    for module in (embedlog, embedlog.aio, embedlog.cluster, embedlog.spark):
        for name in module.__all__:
            wanted = f"{module.__name__}.{name}"
            assert wanted in anchors or f"embedlog.errors.{name}" in anchors or name == "open", wanted


def test_the_search_finds(site: Path) -> None:
    index = json.loads((site / "search.json").read_text())
    assert "dead letter" in json.dumps(index)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def test_no_page_is_wider_than_its_window(site: Path, pages: dict[str, Page], browser: Browser) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser.new_context() as context:
            page = context.new_page()
            too_wide = []
            for address in sorted(pages):
                page.goto(address.replace(HOME, f"http://127.0.0.1:{server.server_port}/"))
                for width in (375, 1440):
                    page.set_viewport_size({"width": width, "height": 900})
                    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                        too_wide.append((address, width))
        server.shutdown()
    assert not too_wide
