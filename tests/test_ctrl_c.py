"""Ctrl-C in the middle of everything: what was acknowledged stays, what was stopped happened or did not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from ctrl_c import strike
from faults import UnsyncedFileSystem, crash, open_log, partition_of

import embedlog
from embedlog import Log
from embedlog.verify import verify_log


class Told:
    """What a log was given, and what of it it has acknowledged."""

    def __init__(self) -> None:
        self.given: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}

    def value(self, size: int = 20) -> bytes:
        value = (b"%d " % len(self.given)).ljust(size, b".")
        self.given.add(value)
        return value

    def append(self, log: Log, size: int = 20, **options: bool) -> None:
        value = self.value(size)
        self.acknowledged[log.append("t", value, **options).offset] = value

    def append_many(self, log: Log, count: int, **options: str) -> None:
        values = [self.value() for _ in range(count)]
        for value, where in zip(values, log.append_many("t", values, **options), strict=True):
            self.acknowledged[where.offset] = value

    def check(self, log: Log) -> None:
        """The log holds what it acknowledged, and nothing that it was not given, nor anything twice."""
        found = {record.offset: record.value for record in log.read("t")}
        assert list(found) == list(range(len(found)))
        assert self.acknowledged.items() <= found.items()
        assert set(found.values()) <= self.given
        assert len(set(found.values())) == len(found)
        for offset, value in found.items():  # by the index
            assert next(log.read("t", 0, start=offset, max_bytes=64)).value == value


APPENDS: dict[str, Callable[[Told, Log], None]] = {
    "one": lambda told, log: told.append(log),
    "many": lambda told, log: told.append_many(log, 7, compression="zstd"),
    "durable": lambda told, log: told.append(log, flush=True),
    "rolling": lambda told, log: told.append(log, 1000),
}


@pytest.mark.parametrize("then", ["goes on", "opens it again", "dies"])
@pytest.mark.parametrize("kind", APPENDS)
def test_an_append_that_ctrl_c_stops_has_happened_or_not(path: Path, kind: str, then: str) -> None:
    fs, told = UnsyncedFileSystem(), Told()
    settings = {"segment_bytes": 1024 if kind == "rolling" else 1 << 20, "index_interval_bytes": 1}
    log = open_log(path, fs, **settings)
    log.create_topic("t")
    told.append(log)
    for point in itertools.count():
        told.append(log, 30 * (point % 7))
        if not strike(point, lambda log=log: APPENDS[kind](told, log)):
            break
        if then != "goes on" and point % 4 == 0:
            log.close() if then == "opens it again" else crash(log)
            log = open_log(path, fs, **settings)
            assert not log.recovery.damage
        try:
            told.append(log)
        except embedlog.StorageError as error:
            assert "half-way" in str(error)
            assert kind == "rolling", "nothing else cannot be undone"
            log.reopen("t", 0)
    assert point > 20
    told.check(log)
    log.close()
    assert verify_log(path).ok
    with open_log(path, fs) as log:
        assert log.recovery.clean
        told.check(log)


def test_what_cannot_be_taken_back_waits_for_a_reopen(path: Path) -> None:
    """A second Ctrl-C, while the append that the first one stopped is undone."""

    class Interrupting(UnsyncedFileSystem):
        armed = False

        def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
            super().pwrite_all(fd, data, pos)
            if self.armed:
                raise KeyboardInterrupt

        def truncate(self, fd: int, size: int) -> None:
            if self.armed:
                raise KeyboardInterrupt
            super().truncate(fd, size)

    fs, told = Interrupting(), Told()
    log = open_log(path, fs)
    log.create_topic("t")
    told.append(log)
    fs.armed = True
    with pytest.raises(KeyboardInterrupt):
        told.append(log, 100)
    fs.armed = False
    assert not partition_of(log).roll(), "nothing is sealed that may be torn"
    with pytest.raises(embedlog.StorageError, match="half-way"):
        told.append(log)
    log.reopen("t", 0)
    told.append(log)
    told.check(log)
    log.close()
    assert verify_log(path).ok
