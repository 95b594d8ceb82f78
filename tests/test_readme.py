"""The code of the README, and of two pages, runs as it stands, and prints what its comments say."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
PRINTED = re.compile(r"print\(.*\)\s+# (.+)$")


def blocks(text: str) -> list[str]:
    return [match[1] for match in BLOCK.finditer(text)]


def run(block: str, namespace: dict[str, object]) -> None:
    """Execute a block; each `print(...)  # text` must have printed that text."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "README.md", "exec"), namespace)
    stated = [match[1] for line in block.splitlines() if (match := PRINTED.search(line))]
    assert out.getvalue().splitlines() == stated


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names: dict[str, object] = {"__name__": "__main__"}
    yield names
    log = names.get("log")
    if isinstance(log, embedlog.Log):
        log.close()


def test_the_first_sight(namespace: dict[str, object]) -> None:
    run(blocks(README.split("## Two commands")[0])[0], namespace)


def test_the_tour(namespace: dict[str, object]) -> None:
    tour = blocks(README.split("## Five minutes")[1].split("## On the command line")[0])
    assert len(tour) >= 8
    for block in tour:
        run(block, namespace)


def test_the_page_on_old_clients(namespace: dict[str, object]) -> None:
    found = blocks((ROOT / "docs" / "old-clients.md").read_text())
    assert len(found) == 2
    for block in found:
        run(block, namespace)


def test_the_page_on_promoting(namespace: dict[str, object]) -> None:
    (block,) = blocks((ROOT / "docs" / "promoting.md").read_text())
    run(block, namespace)


def test_no_block_is_left_out() -> None:
    assert len(blocks(README)) == 1 + len(
        blocks(README.split("## Five minutes")[1].split("## On the command line")[0])
    )


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
