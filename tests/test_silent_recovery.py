"""Ordinary operation writes no log line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from housekeeping import housekeep
from programs import crash

import embedlog


def test_a_crash_and_its_recovery_print_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "0"
    for number in range(1, 5):
        log = embedlog.open(path)
        if "t" not in log.topics():
            log.create_topic("t")
        for _ in range(300):
            log.append("t", b"x" * 100)
        log.flush()
        housekeep(log._writer())
        for _ in range(300):
            log.append("t", b"x" * 100)
        crash(path, tmp_path / str(number))
        log.close()
        path = tmp_path / str(number)
    with embedlog.open(path) as log:
        assert log.recovery.damage == []
        assert [p.indexes_rebuilt for p in log.recovery.partitions] == [0]
        assert sum(1 for _ in log.read("t")) == 4 * 600
    assert caplog.text == ""
