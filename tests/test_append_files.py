"""More active partitions than descriptors: which files are closed, when, and that nothing is lost."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program

import embedlog
from embedlog import Log
from embedlog.errors import PartitionFailed
from embedlog.files.filesystem import FileSystem

pytestmark = pytest.mark.plain

NEVER_MS = 3_600_000
PARTITIONS = 100
MOST = 48


class Watched(FileSystem):
    """Knows which segments are open for writing, and which of them have bytes that were not synced."""

    def __init__(self) -> None:
        self.writing: dict[int, str] = {}
        self.unsynced: set[int] = set()
        self.reading: set[int] = set()
        self.most = 0
        self.syncs = 0
        self.closed_unsynced: list[str] = []
        self.failing = ""  # a directory whose files cannot be synced

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        fd = super().open_write(path, create=create, truncate=truncate)
        if path.endswith(".kafka"):
            self.writing[fd] = path
        return self._opened(fd)

    def open_read(self, path: str) -> int:
        fd = super().open_read(path)
        if path.endswith(".kafka"):
            self.reading.add(fd)
        return self._opened(fd)

    def _opened(self, fd: int) -> int:
        self.most = max(self.most, len(self.writing) + len(self.reading))
        return fd

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        super().pwrite_all(fd, data, pos)
        if fd in self.writing:
            self.unsynced.add(fd)

    def sync(self, fd: int) -> None:
        if self.failing and self.failing in self.writing.get(fd, ""):
            raise OSError(5, "the disk is broken")
        super().sync(fd)
        self.syncs += fd in self.writing
        self.unsynced.discard(fd)

    def close(self, fd: int) -> None:
        if fd in self.unsynced:
            self.closed_unsynced.append(self.writing[fd])
        self.unsynced.discard(fd)
        self.writing.pop(fd, None)
        self.reading.discard(fd)
        super().close(fd)


def opened(path: Path, fs: Watched) -> Log:
    log = embedlog.open(path, fs=fs, max_open_files=MOST, flush_ms=NEVER_MS)
    log.create_topic("t", partitions=PARTITIONS, exist_ok=True)
    fs.most = 0
    return log


def test_files_are_synced_before_they_are_closed(path: Path) -> None:
    fs, expected = Watched(), [0] * PARTITIONS
    numbers = random.Random(7)
    with opened(path, fs) as log:
        for _ in range(2_000):
            partition = numbers.randrange(PARTITIONS)
            log.append("t", b"%d" % expected[partition], partition=partition)
            expected[partition] += 1
        assert fs.closed_unsynced == []
        assert fs.most <= MOST + 1
        for partition, count in enumerate(expected):
            values = [record.value for record in log.read("t", partition)]
            assert values == [b"%d" % number for number in range(count)]
        assert fs.most <= MOST + 1
    assert fs.closed_unsynced == []
    assert fs.writing == {} == dict.fromkeys(fs.reading)


def test_flushed_files_are_closed_first(path: Path) -> None:
    fs = Watched()
    with opened(path, fs) as log:
        for partition in range(40):
            log.append("t", b"x", partition=partition)
        log.flush()
        for partition in range(5):
            log.append("t", b"y", partition=partition)
        fs.syncs = 0
        for partition in range(40, 50):
            log.append("t", b"z", partition=partition)
        assert fs.syncs == 0
        assert len(fs.unsynced) == 15


def test_a_file_that_cannot_be_synced_fails_its_partition(path: Path) -> None:
    fs = Watched()
    with opened(path, fs) as log:
        fs.failing = "t_0" + os.sep
        for partition in range(PARTITIONS):
            log.append("t", b"x", partition=partition)
        with pytest.raises(PartitionFailed):
            log.append("t", b"y", partition=0)
        fs.failing = ""
        assert log.reopen("t", 0) is not None
        assert log.append("t", b"y", partition=0).offset == 0


def test_an_append_that_opens_a_closed_file_is_flushed_in_time(path: Path) -> None:
    with embedlog.open(path, max_open_files=MOST, flush_ms=20) as log:
        log.create_topic("t", partitions=PARTITIONS)
        for _ in range(2):
            for partition in range(PARTITIONS):
                log.append("t", b"x", partition=partition)
            while log.health().unflushed_records:  # forever, if the flush cycle was not told
                pass
        assert {offsets.flushed_offset for offsets in log.offsets("t").values()} == {2}


LIMITED = """
import os, resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with embedlog.open(sys.argv[1]) as first, embedlog.open(sys.argv[2]) as second:
    for log in (first, second):
        log.create_topic("t", partitions=200)
    for log in (first, second, first):
        for partition in range(200):
            log.append("t", b"x", partition=partition)
    assert len(os.listdir("/dev/fd")) <= 250
    with embedlog.open(sys.argv[1], mode="r") as reader:
        assert sum(1 for _ in reader.read("t")) == 400
        assert len(os.listdir("/dev/fd")) <= 256 - 24, "some are left for what is open for a moment"
"""


def test_the_logs_of_a_process_share_its_descriptors(program: Callable[..., Program], tmp_path: Path) -> None:
    program(LIMITED, tmp_path / "first", tmp_path / "second").end()


def test_only_serve_raises_the_limit(program: Callable[..., Program], path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = f"""
import resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
embedlog.open(sys.argv[1]).close()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, {hard})
from embedlog.cli.serve import raise_open_files
raise_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == ({hard}, {hard})
"""
    program(code, path).end()
