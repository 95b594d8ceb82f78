"""Files with secrets or rules: private, replaced whole, and found changed by other processes."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from embedlog.errors import CorruptCheckpoint, StorageError
from embedlog.security.document import Document


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    document = Document(str(tmp_path / "users.json"), 1)
    assert document.read() == {}
    assert list(tmp_path.iterdir()) == []


def test_an_update_is_private_and_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    (tmp_path / "users.json.tmp").write_text("left by a crash")
    (tmp_path / "users.json.tmp").chmod(0o644)
    document = Document(str(path), 1)
    before = document.changes
    document.update(lambda found: {**found, "users": ["alice"]})
    assert document.read() == {"users": ["alice"]}
    assert document.changes > before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"version": 1, "users": ["alice"]}


def test_an_update_that_raises_changes_nothing(tmp_path: Path) -> None:
    document = Document(str(tmp_path / "users.json"), 1)
    document.update(lambda found: {"users": ["alice"]})

    def fails(found: dict[str, Any]) -> dict[str, Any]:
        found["users"].append("bob")
        raise KeyError("carol")

    with pytest.raises(KeyError):
        document.update(fails)
    assert document.read() == {"users": ["alice"]}


def test_other_processes_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    code = f"""
from embedlog.security.document import Document
document = Document({str(path)!r}, 1)
for _ in range(50):
    document.update(lambda found: {{"count": found.get("count", 0) + 1}})
"""
    document = Document(str(path), 1)
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [each.wait() for each in running] == [0, 0, 0]
    while document.read() != {"count": 150}:  # it looks from time to time; pytest-timeout ends a failure
        threading.Event().wait(0.05)
    document.update(lambda found: {"count": found["count"] + 1})
    assert document.read() == {"count": 151}


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"version": 2}', b"\xff\xfe", b'{"users": []}'])
def test_a_damaged_file_is_an_error(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match=r"users\.json"):
        Document(str(path), 1).read()
    with pytest.raises(CorruptCheckpoint):
        Document(str(path), 1).update(lambda found: found)
    assert path.read_bytes() == damaged


def test_a_directory_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "users.json").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        Document(str(tmp_path / "users.json"), 1).read()
