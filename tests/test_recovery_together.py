"""Many partitions recovered together: killed, failing or without power between any two calls, and what they
take meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from faults import (
    FaultyFileSystem,
    PowerCutFileSystem,
    crash,
    in_child,
    open_log,
    partition_of,
    store_of,
    values,
)
from housekeeping import housekeep

from embedlog import recovery
from embedlog.codec import encode_batch
from embedlog.config import LogSettings
from embedlog.errors import EmbedlogError
from embedlog.files.filesystem import FileSystem
from embedlog.log import Log
from embedlog.open import log_over
from embedlog.runtime import parallel
from embedlog.storage import tail_rewrite
from embedlog.store.store import Store

_Records = dict[int, list[tuple[int, bytes | None]]]

WHOLE, PART, TORN, FLUSHED = range(4)
"""Partitions. Before their recovery points lie: nothing; half; all but two segments, with a producer and a
torn tail; everything."""


@pytest.fixture(params=["whole", "split"])
def rewritten(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails are rewritten with what precedes them in their segments, or without, as if that were long."""
    if request.param == "split":
        monkeypatch.setattr(recovery, "_SHORT_START", 0)


def _crashed(path: Path, fs: FileSystem | None = None) -> tuple[_Records, _Records]:
    """Kill a log of these partitions. Returns its records, and those of them that are durable."""
    log = open_log(path, fs, segment_bytes=1024)
    log.create_topic("t", partitions=4)
    for number in (PART, TORN, FLUSHED):
        log.append_many("t", [b"%d" % number * 40] * 5, partition=number)
    housekeep(store_of(log))
    durable = {number: values(log, partition=number) for number in range(4)}
    for number in (WHOLE, PART):
        log.append_many("t", [b"%d" % number * 30] * 7, partition=number)
    for number in range(5):
        partition_of(log, "t", TORN).append(_produced(number))
    records = {number: values(log, partition=number) for number in range(4)}
    crash(log)
    last = max((path / f"t_{TORN}").glob("*.kafka"))
    last.write_bytes(last.read_bytes() + b"torn batch")
    return records, durable


def _produced(number: int) -> bytearray:
    """A batch of a producer."""
    records: list[Any] = [(None, b"x" * 300, (), 1000 + number)]
    return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=number)


def _check(path: Path, records: _Records) -> None:
    with open_log(path, segment_bytes=1024) as log:
        assert log.recovery.damage == []
        assert {number: values(log, partition=number) for number in range(4)} == records
        assert _leftovers(path) == []
        assert [p.read_bytes() for p in path.rglob("*.cut")] == [b"torn batch"]
        assert partition_of(log, "t", TORN).append(_produced(4)).base_offset == 9, "a retry is no duplicate"
        for number, known in records.items():
            assert log.append("t", b"goes on", partition=number).offset == len(known)
    with open_log(path) as log:
        assert log.recovery.clean
        assert {number: len(values(log, partition=number)) for number in range(4)} == {
            number: len(known) + 1 for number, known in records.items()
        }


def _leftovers(path: Path) -> list[str]:
    return [p.name for p in path.rglob("*") if p.suffix in (".recovering", ".tmp")]


def _calls(source: Path, copy: Path) -> int:
    """How many calls a recovery makes."""
    shutil.copytree(source, copy)
    fs = FaultyFileSystem(copy)
    crash(open_log(copy, fs, segment_bytes=1024))
    shutil.rmtree(copy)
    assert len(fs.calls) > 40
    return len(fs.calls)


@pytest.mark.slow
@pytest.mark.usefixtures("rewritten")
def test_killed_before_any_call_recovery_starts_again_and_ends_the_same(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    records, _ = _crashed(source)
    for number in range(_calls(source, copy)):
        shutil.copytree(source, copy)

        def recover(before_call: int = number) -> None:
            fs = FaultyFileSystem(copy)
            fs.exit_before = before_call
            open_log(copy, fs, segment_bytes=1024)

        assert in_child(recover) == 77
        _check(copy, records)
        shutil.rmtree(copy)


class _FailsOnce(FaultyFileSystem):
    """Fails one call, by its number, and counts open files."""

    def __init__(self, root: Path, number: int) -> None:
        super().__init__(root)
        self._number = number
        self.writing: set[int] = set()

    def _note(self, operation: str, path: str) -> None:
        super()._note(operation, path)
        if len(self.calls) == self._number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        fd = super().open_write(path, create=create, truncate=truncate)
        self.writing.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.writing.discard(fd)


@pytest.mark.slow
@pytest.mark.usefixtures("rewritten")
def test_after_any_failed_call_nothing_is_left_and_the_next_open_recovers(tmp_path: Path) -> None:
    """A disk without room gets back what the other partitions' recoveries have taken."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    records, _ = _crashed(source)
    refused = 0
    for number in range(_calls(source, copy)):
        shutil.copytree(source, copy)
        fs = _FailsOnce(copy, number)
        try:
            crash(open_log(copy, fs, segment_bytes=1024))
        except EmbedlogError:
            refused += 1
            assert not [*copy.rglob("*.recovering")]
        assert fs.writing == set()
        _check(copy, records)
        shutil.rmtree(copy)
    assert refused > 10


@pytest.mark.usefixtures("rewritten")
def test_a_power_cut_before_any_call_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    path, copy = tmp_path / "log", tmp_path / "copy"
    path.mkdir()
    fs = PowerCutFileSystem(path)
    records, durable = _crashed(path, fs)
    images = []
    note = fs._note

    def noting(operation: str, called: str) -> None:
        note(operation, called)
        images.extend((fs.image(), fs.lost_data()))

    fs._note = noting  # type: ignore[method-assign]
    log = open_log(path, fs, segment_bytes=1024)
    assert {number: values(log, partition=number) for number in range(4)} == records
    del fs._note
    assert len(images) > 80
    seen = set()
    for image in images:
        key = tuple(sorted(image.files.items()))
        if key in seen:
            continue
        seen.add(key)
        image.write(copy)
        with open_log(copy, segment_bytes=1024) as again:
            assert again.recovery.damage == []
            for number in range(4):
                found = values(again, partition=number)
                assert found == records[number][: len(found)]
                assert len(found) >= len(durable[number])
    fs.image().write(copy)  # all is durable now
    with open_log(copy, segment_bytes=1024) as again:
        assert {number: values(again, partition=number) for number in range(4)} == records
    crash(log)


# -- what it takes ---------------------------------------------------------------------------------------


class _Counts(FaultyFileSystem):
    """Counts incomplete copies, and those of them that are open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.copies = self.most_copies = self.most_open = 0
        self._open: set[int] = set()

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        fd = super().open_write(path, create=create, truncate=truncate)
        if path.endswith(".recovering"):
            self._open.add(fd)
            self.copies += 1
            self.most_copies = max(self.most_copies, self.copies)
            self.most_open = max(self.most_open, len(self._open))
        return fd

    def close(self, fd: int) -> None:
        self._open.discard(fd)
        super().close(fd)

    def rename(self, source: str, destination: str) -> None:
        super().rename(source, destination)
        self.copies -= source.endswith(".recovering")


def _many(path: Path) -> None:
    log = open_log(path)
    log.create_topic("t", partitions=60)
    for number in range(60):
        log.append("t", b"%d" % number, partition=number)
    crash(log)


def _open(path: Path, fs: FileSystem, **settings: Any) -> Log:
    return log_over(Store(str(path), fs=fs, background=False, settings=LogSettings(**settings)))


def test_descriptors_and_room_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, settings, most_bytes, copies, opened in (
        ("unbounded", {}, 1 << 30, 60, 60),
        ("descriptors", {"max_open_files": 32}, 1 << 30, 60, 16),
        ("room", {}, 1, 8, 8),
    ):
        path = tmp_path / name
        _many(path)
        fs = _Counts(path)
        monkeypatch.setattr(parallel, "_MOST_BYTES", most_bytes)
        with _open(path, fs, **settings) as log:
            assert [record.value for record in log.read("t")] == [b"%d" % number for number in range(60)]
            assert len(log.recovery.partitions) == 60
        assert (fs.most_copies, fs.most_open) == (copies, opened)


@pytest.mark.usefixtures("rewritten")
def test_long_tails_are_read_and_copied_by_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    records, _ = _crashed(source)
    shutil.copytree(source, copy)
    reports = []
    for path in (source, copy):
        log = open_log(path, segment_bytes=1024)
        reports.append([str(p).replace(str(path), "") for p in log.recovery.partitions])
        assert {number: values(log, partition=number) for number in range(4)} == records
        crash(log)
        monkeypatch.setattr(recovery, "_SHORT", 0)
        monkeypatch.setattr(tail_rewrite, "_CHUNK", 100)
    assert reports[0] == reports[1]
    files = [{p.name: p.read_bytes() for p in path.rglob("*.kafka")} for path in (source, copy)]
    assert files[0] == files[1]


def test_a_segment_that_becomes_shorter_is_not_copied_as_if_whole(tmp_path: Path) -> None:
    records, _ = _crashed(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    segment = tmp_path / f"t_{WHOLE}" / "00000000000.kafka"
    data = segment.read_bytes()
    fs.at("create", lambda: os.truncate(segment, 0), path=".recovering")
    with pytest.raises(EmbedlogError, match="shorter"):
        open_log(tmp_path, fs, segment_bytes=1024)
    assert _leftovers(tmp_path) == []
    segment.write_bytes(data)
    _check(tmp_path, records)
