"""A log that has moved: no writer gets in any more, readers go on, and the mark can be taken away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import CorruptCheckpoint, DirectoryLocked, LogMoved, UnsupportedFormat
from embedlog.store import catalog
from embedlog.store.fence import fence, moved, unfence
from embedlog.store.repair import repair_partition
from embedlog.store.verify import verify_log

TO = "kafka://there:9092"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    with embedlog.open(directory) as log:
        log.create_topic("t", partitions=2)
        log.append_many("t", [b"%d" % number for number in range(10)], partition=0)
    return directory


@pytest.mark.parametrize("options", [{}, {"shared": True}], ids=str)
def test_no_writer_gets_in(path: Path, options: dict[str, Any]) -> None:
    fence(path, TO)
    with pytest.raises(LogMoved, match=f"has moved to {TO}: open that.*move --undo") as caught:
        embedlog.open(path, **options)
    assert caught.value.to == TO
    assert caught.value.since_ms > 1_700_000_000_000
    assert str(caught.value.path) == str(path)


def test_readers_go_on(path: Path) -> None:
    with embedlog.open(path, mode="r") as before:
        fence(path, TO)
        assert len(list(before.read("t"))) == 10
        with embedlog.open(path, mode="r") as after:
            assert [record.value for record in after.read("t")] == [b"%d" % number for number in range(10)]
    assert verify_log(path).ok


def test_tools_that_write_are_kept_out(path: Path) -> None:
    fence(path, TO)
    with pytest.raises(LogMoved):
        repair_partition(path, "t", 0)
    with pytest.raises(LogMoved):
        fence(path, "kafka://elsewhere:9092")
    mark = moved(path)
    assert mark is not None
    assert mark.to == TO


def test_a_log_that_is_written_is_not_fenced(path: Path) -> None:
    with embedlog.open(path, shared=True) as log:
        with pytest.raises(DirectoryLocked):
            fence(path, TO)
        log.append("t", b"v")
    assert moved(path) is None


def test_the_mark_is_taken_away(path: Path) -> None:
    fence(path, TO)
    mark = moved(path)
    assert mark is not None
    assert unfence(path) == mark
    assert moved(path) is None
    assert unfence(path) is None
    with embedlog.open(path) as log:
        assert log.append("t", b"v", partition=0).offset == 10


def test_a_journal_of_topics_is_folded_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "JOURNAL_FROM", 0)
    with embedlog.open(path) as log:
        for number in range(5):
            log.create_topic(f"topic{number}")
        with pytest.raises(DirectoryLocked):
            fence(path, TO)
    fence(path, TO)
    assert json.loads((path / "topics.json").read_bytes())["version"] == 3
    with embedlog.open(path, mode="r") as log:
        assert len(log.topics()) == 6
    unfence(path)
    with embedlog.open(path) as log:
        assert len(log.topics()) == 6


def test_records_of_a_killed_writer_are_kept(path: Path) -> None:
    program = (
        "import os, signal, sys, embedlog\n"
        "log = embedlog.open(sys.argv[1])\n"
        "log.append_many('t', [b'more'] * 7, partition=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=120)
    fence(path, TO)
    with embedlog.open(path, mode="r") as log:
        assert len(list(log.read("t"))) == 17


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 4}, UnsupportedFormat),
        ({"moved": {"to": TO}}, CorruptCheckpoint),
        ({"moved": None}, CorruptCheckpoint),
    ],
    ids=["a version of the future", "no time", "no place"],
)
def test_a_damaged_mark_lets_nobody_in(path: Path, changes: dict[str, Any], error: type[Exception]) -> None:
    fence(path, TO)
    file = path / "topics.json"
    document = {**json.loads(file.read_bytes()), **changes}
    document["crc32"] = catalog._crc(document)
    file.write_text(json.dumps(document))
    for mode in ("rw", "r"):
        with pytest.raises(error):
            embedlog.open(path, mode=mode).topics()
