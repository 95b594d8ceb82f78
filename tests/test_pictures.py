"""The drawn pictures of the docs come from their scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from documents import DOCS, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import draw_log


def test_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_log, "IMAGES", tmp_path)
    draw_log.main()
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "images").glob("log-*.svg")}


@pytest.mark.slow
def test_the_terminal(tmp_path: Path) -> None:
    """Figures differ, and with them positions; headers and commands do not."""
    subprocess.run([sys.executable, ROOT / "scripts" / "draw_terminal.py", tmp_path], check=True, timeout=200)
    drawn, shown = (
        [
            text.replace("\xa0", " ").split()
            for text in ElementTree.parse(directory / "terminal.svg").getroot().itertext()
            if text.strip() and not any(character.isdigit() for character in text)
        ]
        for directory in (tmp_path, DOCS / "images")
    )
    assert drawn == shown
    assert {"records/s", "lag", "queue", "consumer", "views"} <= {word for words in shown for word in words}
