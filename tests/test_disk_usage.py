"""Disk usage of a log: counted, bounded by max_bytes, and reported by Health."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from faults import FOREVER, FaultyFileSystem, UnsyncedFileSystem, open_log, partition_of, store_of
from housekeeping import housekeep
from programs import may_mount

import embedlog
from embedlog import Log, LogFull, StorageError, TopicPartition
from embedlog.codec import encode_batch
from embedlog.config import LogSettings
from embedlog.files.filesystem import FileSystem
from embedlog.open import log_over
from embedlog.store.atomic_append import append_atomically
from embedlog.store.disk_usage import measure, measure_others
from embedlog.store.store import Store

MIB = 1 << 20
MARGIN = 4 * 4096  # how far below the bound an append stays


def on_disk(path: Path) -> int:
    """As `du` counts: blocks of files and directories. The log's threads may move a file meanwhile."""
    used = 0
    for each in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = each.stat()
            used += status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 4096
    return used


def names(path: Path, suffix: str) -> list[str]:
    return sorted(each.name for each in path.rglob(f"*{suffix}"))


def quiet_log(path: Path, max_bytes: int, fs: FileSystem | None = None, **settings: Any) -> Log:
    """A bounded log in which nothing happens by itself."""
    bounds = LogSettings(max_bytes=max_bytes)
    return log_over(Store(str(path), settings=bounds, topic_settings=settings, fs=fs, background=False))


def check_count(log: Log) -> None:
    """The counter equals a walk once background work rests: it may be replacing a small file."""
    store = store_of(log)
    assert store.disk is not None
    assert any(store.disk.used == measure(store.fs, store.path) for _ in range(1_000)), store.disk.used


# -- counting --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_counter_equals_a_directory_walk(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings: dict[str, Any] = {
        "segment_bytes": chance.choice([16_384, 65_536]),
        "cleanup_policy": chance.choice(["delete", "compact"]),
        "min_cleanable_dirty_ratio": 0.0,
        "preallocate": seed % 3 == 0,
    }
    log = quiet_log(path, 1 << 30, UnsyncedFileSystem(), **settings)
    log.create_topic("t", partitions=2)
    for _ in range(120):
        what = chance.random()
        number = chance.randrange(2)
        if what < 0.6:
            for _ in range(chance.randrange(40)):
                key = b"%d" % chance.randrange(30)
                log.append("t", bytes(chance.randrange(3000)), key=key, partition=number)
        elif what < 0.7:
            for _ in range(40):  # into zeros
                log.append("t", bytes(100), key=b"k", partition=number, flush=True)
        elif what < 0.75:
            log.flush()
        elif what < 0.8 and settings["cleanup_policy"] == "compact":
            log.compact("t")
        elif what < 0.85:
            edges = log.offsets("t")[number]
            log.delete_records("t", number, chance.randint(edges.log_start_offset, edges.log_end_offset))
        elif what < 0.9:
            batch = encode_batch(
                [(None, b"x", (), 0)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
            )
            log.create_topic("other", exist_ok=True)
            partition_of(log, "other").appender.append_copied(batch)
        elif what < 0.95:
            log.create_topic("other", exist_ok=True)
            log.delete_topic("other")
        else:
            log.backup(path.parent / f"backup{chance.random()}")
            log.close()
            log = quiet_log(path, 1 << 30, UnsyncedFileSystem(), **settings)
        log.flush()
        housekeep(store_of(log))
        check_count(log)
    log.close()


def test_a_failed_write_counts_the_bytes_written(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with embedlog.open(path, fs=fs, max_bytes=MIB) as log:
        log.create_topic("t")
        log.append("t", b"1")
        fs.fail("write", errno.ENOSPC, path=".kafka")
        with pytest.raises(embedlog.DiskFull):
            log.append("t", bytes(100_000))
        check_count(log)
        fs.fail("write", errno.ENOSPC, path=".kafka")
        fs.fail("truncate", path=".kafka")
        with pytest.raises(StorageError):
            log.append("t", bytes(100_000))
        check_count(log)
        fs.forget()


def test_staged_files_count(path: Path) -> None:
    with embedlog.open(path, max_bytes=MIB) as log:
        log.create_topic("t")
        batch = bytes(encode_batch([(None, bytes(700_000), (), 0)]))
        (path / "staging").mkdir()
        (path / "staging" / "job.1").write_bytes(batch)
        assert measure_others(store_of(log).fs, str(path)) > 700_000
        with pytest.raises(LogFull):  # for a while they are there twice
            append_atomically(store_of(log), "job", 1, {TopicPartition("t", 0): "job.1"})
        assert log.offsets("t")[0].log_end_offset == 0


# -- the bound -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment_bytes", [65_536, 256 << 10])
@pytest.mark.slow
def test_the_bound_holds_on_the_disk_while_records_come_and_go(path: Path, segment_bytes: int) -> None:
    """4 MB are allowed, and files wait a minute to be unlinked."""
    limit = 4 * MIB
    settings = {"on_full": "drop_oldest", "segment_bytes": segment_bytes, "retention_bytes": MIB}
    with embedlog.open(path, fs=UnsyncedFileSystem(), max_bytes=limit, **settings) as log:
        log.create_topic("t", partitions=2)
        most = 0
        for number in range(3_000):
            log.append("t", bytes(8_000), partition=number % 2)
            if number % 100 == 0:
                housekeep(store_of(log))
                most = max(most, on_disk(path))
                assert most <= limit, number
        assert most > limit - MIB, "what is allowed is used"


def test_files_removed_by_hand_are_noticed(path: Path) -> None:
    with quiet_log(path, MIB) as log:
        log.create_topic("t")
        (path / "t_0" / "00000000000.kafka.cut").write_bytes(bytes(100_000))
        housekeep(store_of(log))
        check_count(log)
        assert log.health().disk_bytes > 100_000
        (path / "t_0" / "00000000000.kafka.cut").unlink()
        housekeep(store_of(log))
        check_count(log)


_CHURN = """
import sys, embedlog
path, limit = sys.argv[1], 10 << 20
settings = dict(on_full="drop_oldest", segment_bytes=1 << 20, preallocate=True)
with embedlog.open(path, max_bytes=limit, **settings) as log:
    log.create_topic("t", partitions=2)
    for number in range(10_000):
        log.append("t", bytes(10_000), partition=number % 2, flush=number % 50 == 0)
    health = log.health()
    assert health.status == "ok", health
    assert 0.8 < health.used_fraction <= 1, health
    end = log.offsets("t")[1]
    assert end.log_end_offset == 5_000 and end.log_start_offset > 4_000
print("done")
"""


def test_a_small_disk_with_a_bound_never_fills_up(tmp_path: Path) -> None:
    """A tmpfs of 40 MB, where namespaces may be made, and 100 MB of records through a log of 10 MB."""
    script, mount = tmp_path / "churn.py", tmp_path / "disk"
    script.write_text(_CHURN)
    mount.mkdir()
    churn = [sys.executable, str(script), str(mount / "log")]
    in_namespace = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        f"mount -t tmpfs -o size=40m tmpfs {mount} && exec {' '.join(churn)}",
    ]
    done = subprocess.run(in_namespace if may_mount() else churn, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_deleted_records_free_room_at_once(path: Path) -> None:
    with embedlog.open(path, max_bytes=MIB, segment_bytes=100_000) as log:
        log.create_topic("t")
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(40_000))
        start = log.delete_records("t", 0, 10)
        assert len(names(path, ".kafka.deleted")) > 2
        log.append("t", bytes(40_000))
        assert names(path, ".deleted") == []
        log.create_topic("other")
        log.append_many("other", [bytes(20_000)] * 3)
        log.delete_topic("other")
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(40_000))
        assert names(path, ".deleted") == names(path, "-delete") == []
        assert [record.offset for record in log.read("t")] == list(
            range(start, log.offsets("t")[0].log_end_offset)
        )
        check_count(log)


def test_readers_of_unlinked_segments_finish(path: Path) -> None:
    with embedlog.open(path, max_bytes=MIB, on_full="drop_oldest", segment_bytes=100_000) as log:
        log.create_topic("t")
        for _ in range(15):
            log.append("t", bytes(40_000))
        segment, size = partition_of(log).readable_segments()[0]
        with embedlog.open(path, mode="r") as reader, segment.held():
            there, here = reader.read("t", max_bytes=50_000), log.read("t", max_bytes=50_000)
            assert next(there).offset == next(here).offset == 0
            before = segment.pread(size, 0)
            for _ in range(40):
                log.append("t", bytes(40_000))
            assert not os.path.exists(segment.path)
            assert names(path, ".deleted") == []
            assert segment.pread(size, 0) == before
            start = log.offsets("t")[0].log_start_offset
            for records in (there, here):
                with pytest.raises(embedlog.OffsetOutOfRange) as caught:
                    for record in records:
                        assert record.offset < 3
                assert caught.value.log_start_offset == start


def test_many_threads_exceed_the_bound_by_an_append_each_at_most(path: Path) -> None:
    limit, errors = 2 * MIB, []
    with embedlog.open(path, max_bytes=limit, on_full="drop_oldest", segment_bytes=65_536) as log:
        log.create_topic("t", partitions=4)

        def append(number: int) -> None:
            try:
                for _ in range(300):
                    log.append("t", bytes(8_000), partition=number)
                    assert log.health().disk_bytes <= limit + 4 * 12_288
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        check_count(log)


def test_preallocated_room_counts_once_and_is_used(path: Path) -> None:
    limit = 4 * MIB
    with embedlog.open(path, max_bytes=limit, segment_bytes=MIB, preallocate=True) as log:
        log.create_topic("t")
        log.append("t", b"1")
        assert log.health().disk_bytes > MIB
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(40_000))
                assert log.health().disk_bytes <= limit
        assert log.health().bytes > 3 * MIB - 100_000, "three segments are full to their ends"
        log.append("t", b"the last one has room for it") if log.health().bytes % MIB > 100 else None
        check_count(log)


def test_topics_are_created_only_if_there_is_room(path: Path) -> None:
    with embedlog.open(path, max_bytes=MIB) as log:
        with pytest.raises(LogFull, match="max_bytes"):
            log.create_topic("t", partitions=300)
        assert log.topics() == []
        log.create_topic("t", partitions=100)


def test_an_append_that_can_never_fit_does_not_make_a_log_full(path: Path) -> None:
    with embedlog.open(path, max_bytes=MIB) as log:
        log.create_topic("t", max_message_bytes=4 * MIB)
        with pytest.raises(LogFull):
            log.append("t", bytes(2 * MIB))
        assert log.health().status == "ok"
        log.append("t", bytes(40_000))


# -- health ----------------------------------------------------------------------------------------------


def test_health_reports_usage_and_limit(path: Path) -> None:
    with embedlog.open(path, max_bytes=MIB, segment_bytes=100_000) as log:
        log.create_topic("t")
        fractions = []
        with pytest.raises(LogFull):
            while True:
                assert log.health().status == "ok"
                fractions.append(log.health().used_fraction)
                log.append("t", bytes(40_000))
        assert fractions == sorted(fractions)
        assert 0 < fractions[0] < 0.1 < 0.9 < fractions[-1] <= 1
        assert log.health().status == "full"
        assert log.health().disk_bytes == round(log.health().used_fraction * MIB)
        log.delete_records("t", 0, 10)
        log.append("t", b"")
        assert log.health().status == "ok"
    with embedlog.open(path) as log:
        assert (log.health().disk_bytes, log.health().used_fraction) == (-1, 0.0)


def test_a_background_disk_full_shows_in_health(path: Path) -> None:
    fs = FaultyFileSystem(path)
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}
    with open_log(path, fs, **settings) as log:
        log.create_topic("t")
        for number in range(3):
            log.append("t", b"%d" % number, key=b"k")
        partition_of(log).roll()
        fs.fail("write", errno.ENOSPC, path=".cleaned", times=FOREVER)
        housekeep(store_of(log))
        health = log.health()
        assert health.status == "degraded"
        assert any("compaction of t 0" in why and "no room" in why for why in health.failing)
        fs.forget()
        housekeep(store_of(log))
        assert (log.health().status, log.health().failing) == ("ok", [])
