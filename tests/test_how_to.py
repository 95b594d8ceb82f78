"""Each how-to of the docs runs as it stands, and ends in what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import ROOT, run_page

PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_how_to(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path.read_text(), tmp_path)
