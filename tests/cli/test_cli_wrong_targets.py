"""Mirrors and loads refuse unsuitable targets at once and create nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_commands import Run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mirror", "--from", "data", "--to", "data", "--once"], "the same log"),
        (["mirror", "--from", "data", "--to", "data/inside", "--once"], "lies in the log"),
        (["mirror", "--from", "nowhere", "--to", "new", "--once"], "nowhere does not exist"),
        (["mirror", "--from", "data", "--to", "new", "--topics", "[", "--once"], "not a regular expression"),
        (["load", "data", "--topic", "clicks", "--to", "data/inside"], "lies in the log"),
        (["load", "data", "--topic", "clicks", "--to", "kafka://h:1"], "a table is a directory"),
        (["load", "data", "--topic", "clicks", "--to", "new", "--schema", " "], "has no columns"),
        (["load", "data", "--topic", "clicks", "--to", "new", "--date-column", "x"], "give the schema, too"),
        (["load", "data", "--topic", "clicks", "--to", "new", "--from-time", "noon"], "an ISO time"),
        (["load", "data", "--topic", "nothing", "--to", "new"], "no topic 'nothing'"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else value,
)
def test_refused(run: Run, log: Path, tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    before = sorted(path.name for path in log.iterdir())
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) <= 2
    assert "Traceback" not in ran.err
    assert sorted(path.name for path in log.iterdir()) == before
    made = tmp_path / "new"
    assert not made.exists() or [path.name for path in made.rglob("*") if path.is_file()] == ["lock"]


def test_an_impossible_location_says_why(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("topics", "create", "file/below", "t")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"{tmp_path / 'file' / 'below'} is a file: a log is a directory\n"
