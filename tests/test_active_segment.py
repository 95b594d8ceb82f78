"""Preallocated zeros after the records: when they are written, that nothing reads them, when they are
removed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from faults import FaultyFileSystem, PowerCutFileSystem, crash, open_log, partition_of, store_of, values
from housekeeping import housekeep

import embedlog
from embedlog.log import Log
from embedlog.store.verify import verify_log

SEGMENT = "t_0/00000000000.kafka"
CLOSE = 16  # durable appends, and the next one finds zeros ahead
STEP = 512 << 10


def append_durably(log: Log, count: int = CLOSE + 1, size: int = 100) -> None:
    for number in range(count):
        assert log.append("t", bytes([number % 256]) * size, flush=True).durable


def length(path: Path, name: str = SEGMENT) -> int:
    return (path / name).stat().st_size


# -- when ----------------------------------------------------------------------------------------------


def test_successive_durable_appends_write_into_zeros(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        append_durably(log, CLOSE)
        records = partition_of(log).size
        assert length(tmp_path) == records
        append_durably(log, 1)
        assert length(tmp_path) == records + STEP
        append_durably(log, 100)
        assert length(tmp_path) == records + STEP, "the same zeros serve until they are used up"
        written = (tmp_path / SEGMENT).read_bytes()
        assert not any(written[partition_of(log).size :])
        append_durably(log, 6, 100_000)
        assert length(tmp_path) > partition_of(log).size > records + STEP, "and then there are new ones"


def test_appends_without_flush_grow_the_file(tmp_path: Path) -> None:
    with open_log(tmp_path, FaultyFileSystem(tmp_path)) as log:
        log.create_topic("t")
        for _ in range(3 * CLOSE):
            log.append("t", b"x" * 100)
            log.flush()
            housekeep(store_of(log))
        assert length(tmp_path) == partition_of(log).size


def test_large_durable_appends_preallocate_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("t")
        for _ in range(3 * CLOSE):
            append_durably(log, 1, 100_000)
            assert length(tmp_path) == partition_of(log).size


def test_zeros_end_at_segment_bytes(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=10_000) as log:
        log.create_topic("t")
        append_durably(log)
        assert length(tmp_path) == 10_000


# -- who sees them -------------------------------------------------------------------------------------


def test_neither_readers_nor_a_backup_nor_verify_see_the_zeros(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.create_topic("t")
    append_durably(log)
    expected = values(log)
    records = partition_of(log).size
    assert length(tmp_path / "log") > records
    with embedlog.open(tmp_path / "log", mode="r") as reader:
        assert values(reader) == expected
        log.append("t", b"written into zeros", flush=True)
        assert values(reader)[-1] == (CLOSE + 1, b"written into zeros")
    expected = values(log)
    assert verify_log(str(tmp_path / "log")).findings == ()
    log.backup(tmp_path / "copy")
    assert length(tmp_path / "copy") == partition_of(log).size
    crash(log)
    with embedlog.open(tmp_path / "log", mode="r") as reader:
        assert values(reader) == expected
    os.unlink(tmp_path / "log" / "writer-state")  # as in a copy of the files
    with embedlog.open(tmp_path / "log", mode="r") as reader:
        assert values(reader) == expected


def test_after_a_crash_only_the_zeros_are_truncated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    append_durably(log)
    expected = values(log)
    records = partition_of(log).size
    zeros = length(tmp_path) - records
    assert zeros > 0
    crash(log)
    with open_log(tmp_path) as again:
        (report,) = again.recovery.partitions
        assert (report.bytes_cut, report.cut_reason, report.cut_path) == (zeros, "zeros", None)
        assert again.recovery.damage == []
        assert values(again) == expected
        assert partition_of(again).size == records
        assert again.append("t", b"goes on", flush=True).offset == CLOSE + 1
    with open_log(tmp_path) as again:
        assert again.recovery.clean and not again.recovery.partitions


def test_a_power_cut_between_zeros_and_records_loses_nothing_durable(tmp_path: Path) -> None:
    fs = PowerCutFileSystem(tmp_path / "log")
    log = open_log(tmp_path / "log", fs)
    log.create_topic("t")
    images = []
    for number in range(CLOSE + 5):
        log.append("t", b"%d" % number, flush=True)
        images.append(fs.image())
        log.append("t", b"not durable %d" % number)
        images.append(fs.image())
    crash(log)
    for number, image in enumerate(images):
        image.write(tmp_path / "after")
        with open_log(tmp_path / "after") as again:
            assert again.recovery.damage == []
            found = [value for _, value in values(again)]
            assert found[::2] == [b"%d" % n for n in range(number // 2 + 1)]


# -- when they go --------------------------------------------------------------------------------------


def test_an_orderly_close_leaves_only_the_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    append_durably(log)
    records = partition_of(log).size
    log.close()
    assert length(tmp_path) == records
    with open_log(tmp_path) as again:
        assert again.recovery.clean and not again.recovery.partitions
        assert len(values(again)) == CLOSE + 1


def test_a_sealed_segment_has_no_zeros_and_is_durable_without_them(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        append_durably(log)
        records = partition_of(log).size
        fs.forget()
        partition_of(log).roll()
        assert [c.operation for c in fs.calls if c.path == SEGMENT] == ["truncate", "sync"]
        assert length(tmp_path) == records


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_parked_partition_keeps_no_zeros_and_closes_clean(tmp_path: Path, preallocate: bool) -> None:
    log = open_log(tmp_path, preallocate=preallocate, segment_bytes=1 << 20)
    log.create_topic("t")
    append_durably(log)
    records = partition_of(log).size
    assert length(tmp_path) > records
    assert partition_of(log).park()
    assert length(tmp_path) == records
    log.close()
    with open_log(tmp_path) as again:
        assert again.recovery.clean and not again.recovery.partitions


def test_zeros_that_parking_left_are_truncated_by_the_next_append(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    append_durably(log)
    fs.fail("truncate", path=SEGMENT)
    assert partition_of(log).park()
    log.append("t", b"x")
    assert length(tmp_path) > partition_of(log).size
    log.close()
    with open_log(tmp_path) as again:
        assert again.recovery.clean and not again.recovery.partitions


# -- no room -------------------------------------------------------------------------------------------


def test_no_room_for_zeros_fails_no_append(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        append_durably(log, CLOSE)
        fs.forget()
        fs.fail("write", errno.ENOSPC, path=SEGMENT)
        append_durably(log, 1)
        assert [c.operation for c in fs.calls if c.path == SEGMENT] == ["write", "truncate", "write", "sync"]
        assert length(tmp_path) == partition_of(log).size
        fs.forget()
        append_durably(log, CLOSE - 1)
        assert fs.count("write", SEGMENT) == CLOSE - 1, "it is not tried again at once"
        assert len(values(log)) == 2 * CLOSE


def test_zeros_that_could_not_be_removed_are_overwritten(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        append_durably(log, CLOSE)
        fs.fail("write", errno.ENOSPC, path=SEGMENT)
        fs.fail("truncate", errno.EIO, path=SEGMENT)
        append_durably(log, 1)
        assert length(tmp_path) > partition_of(log).size
        append_durably(log, CLOSE)
    with open_log(tmp_path) as again:
        assert again.recovery.clean and not again.recovery.partitions
        assert len(values(again)) == 2 * CLOSE + 1


def test_a_disk_that_is_nearly_full_is_not_filled_with_zeros(tmp_path: Path) -> None:
    class NearlyFull(FaultyFileSystem):
        def free_bytes(self, path: str) -> int:
            return 63 << 20

    with open_log(tmp_path, NearlyFull(tmp_path)) as log:
        log.create_topic("t")
        append_durably(log, 3 * CLOSE)
        assert length(tmp_path) == partition_of(log).size


def test_a_failed_append_removes_its_zeros(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        append_durably(log)
        fs.fail("write", errno.ENOSPC, path=SEGMENT)
        with pytest.raises(embedlog.DiskFull):
            log.append("t", b"x" * 100, flush=True)
        assert length(tmp_path) == partition_of(log).size
        assert log.append("t", b"x", flush=True).offset == CLOSE + 1


def test_an_interrupt_while_zeros_are_written_leaves_none(tmp_path: Path) -> None:
    """Ctrl-C after the zeros: no caller was told of them."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    class Interrupted(FaultyFileSystem):
        def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
            super().pwrite_all(fd, data, pos)
            if len(data) == STEP:
                interrupt()

    log = open_log(tmp_path, Interrupted(tmp_path))
    log.create_topic("t")
    append_durably(log, CLOSE)
    with pytest.raises(KeyboardInterrupt):
        log.append("t", b"x", flush=True)
    assert log.append("t", b"y", flush=True).offset == CLOSE
    assert length(tmp_path) == partition_of(log).size
    log.close()
    with open_log(tmp_path) as again:
        assert again.recovery.clean and not again.recovery.partitions
        assert len(values(again)) == CLOSE + 1
