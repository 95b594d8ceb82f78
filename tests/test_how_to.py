"""The tutorial and each how-to of the docs run as they stand, and end in what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import DOCUMENTS, programs_of, run_page


@pytest.mark.slow
@pytest.mark.timeout(900)  # Spark on a busy machine
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=programs_of(path.read_text())) for path in DOCUMENTS],
)
def test_how_to(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path.read_text(), tmp_path)
