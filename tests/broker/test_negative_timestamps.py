"""Records without a time, or from before 1970, and headers that are wrong about it: retention keeps them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from faults import open_log, partition_of, store_of
from housekeeping import housekeep
from wire import Wire

import embedlog
from embedlog import Log, Mirror, TopicPartition
from embedlog.cluster import Broker
from embedlog.codec import crc32c, encode_batch, filter_batch, read_header, scan
from embedlog.codec.message_set import encode_message_set
from embedlog.mirroring.importing import import_files
from embedlog.store.atomic_append import append_atomically

Row = tuple[bytes, bytes, tuple[()], int]

HOUR_MS = 3_600_000
MAX_TIMESTAMP_POS = 35
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NO_TIME = [(b"k", b"v%d" % i, (), -1) for i in range(3)]
OLD = [(b"k", b"v%d" % i, (), time_ms) for i, time_ms in enumerate((-9_000, -5_000, -7_000))]
VALUES = [b"v0", b"v1", b"v2"]


def resealed(batch: bytearray, said_ms: int) -> bytearray:
    """The batch with another largest timestamp in its header, and a CRC that agrees."""
    struct.pack_into(">q", batch, MAX_TIMESTAMP_POS, said_ms)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def lying(rows: list[Row], said_ms: int, codec: int = 0) -> bytearray:
    """A batch whose header says another largest timestamp than its records have."""
    return resealed(encode_batch(rows, compression=codec), said_ms)


def largest_in_headers(log: Log, topic: str = "t") -> list[int]:
    with open(partition_of(log, topic).segments()[0].path, "rb") as file:
        return [header.max_timestamp_ms for header in scan(file.read()).headers]


def survives(log: Log, topic: str = "t") -> bool:
    """Do all values outlive a retention check? And is the segment deleted once its file is old?"""
    store = store_of(log)
    housekeep(store)
    kept = [record.value for record in log.read(topic)]
    path = partition_of(log, topic).segments()[0].path
    modified_s = (store.clock_ms() - 2 * HOUR_MS) / 1000
    os.utime(path, (modified_s, modified_s))
    housekeep(store)
    assert list(log.read(topic)) == [], "the file's time counts"
    return kept == VALUES


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "log", retention_ms=HOUR_MS) as log:
        log.create_topic("t")
        yield log


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [NO_TIME, OLD], ids=["none", "before 1970"])
def test_confluents_producer(broker: Broker, codec: str, rows: list[Row]) -> None:
    """It writes 0 into the header if no time is above 0."""
    broker.log.create_topic("t", retention_ms=HOUR_MS)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
    )
    for key, value, _, time_ms in rows:
        producer.produce("t", value, key, timestamp=time_ms)
    assert producer.flush(60) == 0
    assert max(largest_in_headers(broker.log)) == max(row[3] for row in rows)
    assert survives(broker.log)


@pytest.mark.parametrize("version", [0, 2, 3, 9, 11])
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_magic_and_codec(broker: Broker, wire: Wire, version: int, codec: int) -> None:
    broker.log.create_topic("t", retention_ms=HOUR_MS)
    if version < 3:
        records = bytes(encode_message_set(NO_TIME, min(version, 1), codec if codec < 4 else 0))
    else:
        version = max(version, 7) if codec == 4 else version
        records = bytes(lying(NO_TIME, 0, codec))
    assert wire.produce("t", records, version=version).error_code == 0
    assert set(largest_in_headers(broker.log)) == {-1}
    assert survives(broker.log)


@pytest.mark.parametrize("said_ms", [-(1 << 63), -1, 0, 1, 6, 8, (1 << 63) - 1])
@pytest.mark.parametrize("codec", [0, 4])
def test_no_header_is_believed(broker: Broker, wire: Wire, said_ms: int, codec: int) -> None:
    broker.log.create_topic("t")
    rows = [(b"k", b"v", (), time_ms) for time_ms in (5, 7, -6)]
    assert wire.produce("t", bytes(lying(rows, said_ms, codec))).error_code == 0
    assert largest_in_headers(broker.log) == [7]


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("rows", [NO_TIME, OLD], ids=["none", "before 1970"])
def test_a_directory_that_holds_such_a_batch(tmp_path: Path, rows: list[Row], codec: int) -> None:
    """As earlier versions appended it."""
    with open_log(tmp_path / "log", retention_ms=HOUR_MS) as log:
        log.create_topic("t")
        partition_of(log, "t").append(lying(rows, 0, codec))
        log.append("t", b"of another segment", partition=0)
        partition_of(log, "t").roll()
    with open_log(tmp_path / "log", retention_ms=HOUR_MS) as log:
        housekeep(store_of(log))
        assert [record.value for record in log.read("t")] == [*VALUES, b"of another segment"]
    with open_log(tmp_path / "other", retention_ms=HOUR_MS) as log:
        log.create_topic("t")
        partition_of(log, "t").append(lying(rows, 0, codec))
    with open_log(tmp_path / "other", retention_ms=HOUR_MS) as log:
        assert log.offset_for_time("t", 0, 0) is None
        assert survives(log)


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_mirrored(tmp_path: Path, log: Log, codec: int) -> None:
    with open_log(tmp_path / "source") as source:
        source.create_topic("t", retention_ms=HOUR_MS)
        partition_of(source, "t").append(lying(OLD, 0, codec))
        with Mirror([source], log) as mirror:
            mirror.run(until_caught_up=True)
    assert largest_in_headers(log) == [-5_000]
    assert survives(log)


@pytest.mark.parametrize("said_ms", [0, -1, 10**15])
@pytest.mark.parametrize("codec", [0, 4])
def test_imported_batches(tmp_path: Path, log: Log, said_ms: int, codec: int) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(lying(OLD, said_ms, codec))
    import_files(tmp_path / "t-0", log)
    assert largest_in_headers(log) == [-5_000]
    assert import_files(tmp_path / "t-0", log).records == 0, "it is the same batch still"
    assert survives(log)


def test_imported_batches_that_compaction_has_thinned(tmp_path: Path, log: Log) -> None:
    batch = lying(OLD, 0, 4)
    thinned = filter_batch(batch, read_header(batch), [True, False, True])
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(thinned)
    import_files(tmp_path / "t-0", log)
    assert largest_in_headers(log) == [-7_000]


@pytest.mark.parametrize("magic", [0, 1])
def test_imported_messages(tmp_path: Path, log: Log, magic: int) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(encode_message_set(NO_TIME, magic, 1))
    import_files(tmp_path / "t-0", log)
    assert set(largest_in_headers(log)) == {-1}
    assert survives(log)


def test_staged_batches(log: Log) -> None:
    store = store_of(log)
    os.makedirs(os.path.join(store.path, "staging"), exist_ok=True)
    with open(os.path.join(store.path, "staging", "set.0"), "wb") as file:
        file.write(lying(OLD, 0) + lying([(None, b"v", (), 7_000)], 5_000, 4))
    assert append_atomically(store, "query", 0, {TopicPartition("t", 0): "set.0"})
    assert largest_in_headers(log) == [-5_000, 7_000]


def test_a_batch_that_cannot_be_opened_is_mirrored_as_it_is(tmp_path: Path, log: Log) -> None:
    sent = lying(OLD, 0, 4)
    struct.pack_into(">h", sent, 21, 1)  # zstd's bytes, said to be gzip's
    partition_of(log, "t").appender.append_copied(resealed(sent, 0))
    assert largest_in_headers(log) == [0]


def test_drop_oldest_does_not_begin_with_them(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", max_bytes=400_000, on_full="drop_oldest", segment_bytes=40_960) as log:
        log.create_topic("timeless")
        log.create_topic("dated")
        partition_of(log, "timeless").append(lying(NO_TIME, 0))
        partition_of(log, "timeless").roll()
        for _ in range(20):
            log.append("dated", bytes(30_000), timestamp_ms=1_000_000)
        assert [record.value for record in log.read("timeless")] == VALUES
        assert partition_of(log, "dated").offsets().log_start_offset > 0


def test_compaction_waits_for_them(tmp_path: Path) -> None:
    """min_compaction_lag_ms counts from the file's time; max_compaction_lag_ms does not begin in 1970."""
    with embedlog.open(
        tmp_path / "log",
        cleanup_policy="compact",
        min_compaction_lag_ms=HOUR_MS,
        min_cleanable_dirty_ratio=0.0,
        segment_bytes=1024,
    ) as log:
        log.create_topic("t")
        partition_of(log, "t").append(lying(NO_TIME, 0))
        partition_of(log, "t").roll()
        log.compact("t")
        assert [record.value for record in log.read("t")] == VALUES
        log.alter_topic("t", min_compaction_lag_ms=0)
        log.compact("t")
        assert [record.value for record in log.read("t")] == [b"v2"]
