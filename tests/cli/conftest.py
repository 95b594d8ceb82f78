"""Fixtures: a log to run commands on, and a runner for commands in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_commands import Run, runner

import embedlog


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in a directory of its own."""
    return runner(capsys, tmp_path, monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with 30 records in topic clicks (3 partitions) and an empty topic; closed."""
    path = tmp_path / "data"
    with embedlog.open(path) as log:
        log.create_topic("clicks", partitions=3, compression_type="zstd")
        log.create_topic("empty")
        for number in range(30):
            log.append(
                "clicks",
                b"value %d" % number,
                key=b"k%d" % number,
                partition=number % 3,
                timestamp_ms=1_700_000_000_000 + number * 1000,
            )
    return path
