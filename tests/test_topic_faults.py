"""Topic changes while a system call fails: every call in turn, reads and closes too."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import UnsyncedFileSystem, open_log, store_of, values
from housekeeping import housekeep
from rounds import first_is_quick

from embedlog import DiskFull, Log, StorageError

CALLS = (
    *("open_read", "open_write", "close", "pread", "pread_into", "pwrite_all", "sync", "sync_dir"),
    *("truncate", "allocate", "rename", "link", "unlink", "make_dir", "remove_dir"),
    *("stat", "size", "free_bytes", "names", "list"),
)


class FailingCall(UnsyncedFileSystem):
    """Fails at the call of a given number, whatever it is. A close that fails has closed all the same."""

    def __init__(self) -> None:
        self.number = -1
        self.errno = 0
        self.failed = ""

    def fail(self, number: int, with_errno: int) -> None:
        self.number, self.errno, self.failed = number, with_errno, ""

    def count(self, name: str) -> None:
        self.number -= 1
        if self.number == -1:
            self.failed = name
            raise OSError(self.errno, os.strerror(self.errno))


def _counted(name: str) -> Callable[..., Any]:
    call = getattr(UnsyncedFileSystem, name)

    def counted(self: FailingCall, *given: Any, **options: Any) -> Any:
        if name == "close":
            call(self, *given)
            return self.count(name)
        self.count(name)
        return call(self, *given, **options)

    return counted


for _name in CALLS:
    setattr(FailingCall, _name, _counted(_name))


def create(log: Log) -> None:
    log.create_topic("t", partitions=2, exist_ok=True)


def grow(log: Log) -> None:
    if log.describe_topic("there").partitions == 1:
        log.create_partitions("there", 2)


def alter(log: Log) -> None:
    log.alter_topic("there", retention_bytes=1 << 30)


def replace(log: Log) -> None:
    """Delete a topic, and make another of its name."""
    if "there" in log.topics():
        log.delete_topic("there")
    log.create_topic("there", partitions=2)


@pytest.mark.parametrize("act", [create, grow, alter, replace])
@pytest.mark.parametrize(
    ("number", "expected"),
    first_is_quick(
        [
            (errno.ENOSPC, DiskFull),
            (errno.EDQUOT, DiskFull),
            (errno.EIO, StorageError),
            (errno.EMFILE, StorageError),
        ]
    ),
)
def test_any_failing_call(
    tmp_path: Path, act: Callable[[Log], None], number: int, expected: type[StorageError]
) -> None:
    raised = 0
    for step in range(1_000):
        path = tmp_path / str(step)
        fs = FailingCall()
        with open_log(path, fs) as log:
            log.create_topic("there")
            log.append("there", b"x")
            assert values(log, "there") == [(0, b"x")]
            fs.fail(step, number)
            try:
                act(log)
            except StorageError as error:
                raised += 1
                # Listing takes no room. A deletion may be all but done, with its directories in the way.
                exempt = fs.failed == "list" or "cannot be renamed yet" in str(error)
                assert exempt or type(error) is expected, (step, fs.failed)
                assert str(path) in str(error.path)
                act(log)  # the same call can be made again
            fs.number = -1  # the next call is the one after: none fails any more
            if act is not replace:
                assert values(log, "there") == [(0, b"x")]
            log.append("there", b"y", partition=0)
            for topic in log.topics():
                log.append(topic, b"z", partition=log.describe_topic(topic).partitions - 1)
            housekeep(store_of(log))
            assert log.health().status == "ok"
        with open_log(path, UnsyncedFileSystem()) as log:
            assert log.recovery.clean
            assert log.recovery.damage == []
            there = [] if act is replace else [(0, b"x")]
            last = log.describe_topic("there").partitions - 1
            assert [value for _, value in values(log, "there", last)][-1] == b"z"
            assert values(log, "there")[: len(there)] == there
        if not fs.failed:
            assert step > 5
            assert raised > 2
            return
    raise AssertionError("no end")
