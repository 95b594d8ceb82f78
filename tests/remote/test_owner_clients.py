"""The remote backend with a log's owner as its peer: options of appends, maintenance, and retries."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cutter import Cutter
from faults import FOREVER, FaultyFileSystem
from owners import OwnerPort

import embedlog
from embedlog import Log
from embedlog.backends.log_requests import LogCalls
from embedlog.cluster import Broker
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.open import log_over
from embedlog.store.store import Store

T = "t"


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.log.create_topic(T)
    broker.log.create_topic("packed", compression_type="zstd")


@pytest.fixture
def remote(broker: Broker) -> Iterator[Log]:
    with OwnerPort(broker) as port, embedlog.open(port.url) as log:
        yield log


@pytest.mark.parametrize("name", [T, "packed"])
def test_flush_and_expected_offset(broker: Broker, remote: Log, name: str) -> None:
    assert not remote.append(name, b"a").durable
    assert remote.append(name, b"b", flush=True).durable
    assert broker.log.offsets(name)[0].flushed_offset == 2
    assert remote.append(name, b"c", expected_offset=2).offset == 2
    for expected in (0, 2, 4, -5):
        with pytest.raises(embedlog.UnexpectedOffset, match="ends at 3") as caught:
            remote.append(name, b"x", expected_offset=expected, flush=True)
        assert (caught.value.expected, caught.value.actual) == (expected, 3)
    both = remote.append(name, b"d", expected_offset=3, flush=True)
    assert (both.offset, both.durable) == (3, True)
    assert all(each.durable for each in remote.append_many(name, [b"e", b"f"], flush=True))
    assert broker.log.offsets(name)[0].flushed_offset == 6
    assert [record.value for record in broker.log.read(name)] == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_repeated_requests_of_all_kinds(broker: Broker, remote: Log) -> None:
    """A client writes them by templates: by turns with others, at the sizes where lengths take another byte,
    and after refusals."""
    broker.log.create_topic("two", partitions=2)
    broker.log.create_topic("synced", flush_messages=1)
    broker.log.create_topic("stamped", message_timestamp_type="LogAppendTime")
    values = [b"v" * size for size in (0, 40, 56, 57, 58, 59, 60, 400, 16_300, 16_310, 16_320, 70_000)]
    for number, value in enumerate(values):
        assert not remote.append(T, value).durable
        assert remote.append(T, value, flush=True).durable
        assert not remote.append(T, value, expected_offset=3 * number + 2).durable
        for partition in (0, 1):
            sent = remote.append(
                "two", value, key=b"k", partition=partition, timestamp_ms=number, headers={"h": b"x"}
            )
            assert (sent.partition, sent.offset, sent.timestamp_ms) == (partition, number, number)
        assert remote.append("synced", value).durable
        assert remote.append("stamped", value, timestamp_ms=1).timestamp_ms > 1
        with pytest.raises(embedlog.UnexpectedOffset):
            remote.append(T, value, expected_offset=0)
    assert [record.value for record in broker.log.read(T, follow=False)] == [
        v for v in values for _ in range(3)
    ]
    for partition in (0, 1):
        found = list(broker.log.read("two", partition, follow=False))
        assert [(each.key, each.value, each.headers) for each in found] == [
            (b"k", value, (("h", b"x"),)) for value in values
        ]
    broker.log.alter_topic(T, max_message_bytes=1_000)
    with pytest.raises(embedlog.EmbedlogError, match="1,000"):
        remote.append(T, b"v" * 5_000)
    assert remote.append(T, b"fits").offset == 3 * len(values)


def test_a_producer_that_flushes(broker: Broker, remote: Log) -> None:
    with remote.producer(flush=True) as producer:
        sent = [producer.send(T, b"%d" % number) for number in range(100)]
    assert all(each.result().durable for each in sent)
    assert broker.log.offsets(T)[0].flushed_offset == 100


def test_batches_expect_one_after_the_other(broker: Broker, remote: Log) -> None:
    """`Backend.append` of more batches than are in flight."""
    batches = bytearray(
        b"".join(bytes(embedlog.codec.encode_batch([(None, b"x", (), 1)] * 3)) for _ in range(8))
    )
    appended = remote.backend.append(T, 0, batches, expected_offset=0)
    assert (appended.base_offset, appended.last_offset) == (0, 23)
    with pytest.raises(embedlog.UnexpectedOffset):
        remote.backend.append(T, 0, batches, expected_offset=23)


def test_a_lost_response_is_not_taken_for_another_writers_append(broker: Broker) -> None:
    """The retry finds the log's end where its own first try has moved it."""
    with Cutter() as cutter, OwnerPort(broker, advertised_port=cutter.port) as port:
        cutter.broker_port = port.port
        with embedlog.open(f"kafka://127.0.0.1:{cutter.port}", retry_backoff_ms=0) as log:
            for number in range(40):
                done = log.append(T, b"%d" % number, expected_offset=number, flush=bool(number % 3))
                assert done.offset == number
                assert done.durable or not number % 3  # others may be: the log flushes every second
        assert cutter.cuts >= 20
    assert [record.value for record in broker.log.read(T)] == [b"%d" % number for number in range(40)]


def test_racing_clients_each_get_their_offset_once(broker: Broker) -> None:
    won: list[int] = []

    def race() -> None:
        with embedlog.open(port.url) as log:
            end = 0
            while end < 60:
                try:
                    won.append(log.append(T, b"x", expected_offset=end).offset)
                    end += 1
                except embedlog.UnexpectedOffset as error:
                    end = error.actual

    with OwnerPort(broker) as port:
        racers = [threading.Thread(target=race) for _ in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
    assert sorted(won) == list(range(len(won)))
    assert broker.log.offsets(T)[0].log_end_offset == len(won)


def test_maintenance(broker: Broker, remote: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.append_many(T, [b"a", b"b"])
    assert broker.log.offsets(T)[0].flushed_offset == 0
    remote.flush()
    assert broker.log.offsets(T)[0].flushed_offset == 2
    health = remote.health()
    assert (health.status, health.topics, health.unflushed_records) == ("ok", 2, 0)
    assert health.path == broker.log.path
    assert remote.recovery == broker.log.recovery
    assert remote.reopen(T, 0) is None
    monkeypatch.chdir(tmp_path)
    remote.backup("copy")
    with embedlog.open(tmp_path / "copy", mode="r") as copy:
        assert [record.value for record in copy.read(T)] == [b"a", b"b"]
    remote.alter_topic(T, cleanup_policy="compact")
    assert remote.compact(T) == broker.log.compact(T)
    with pytest.raises(embedlog.InvalidArgument, match="not compacted"):
        remote.compact("packed")
    with pytest.raises(embedlog.UnsupportedByBackend, match="another process owns"):
        remote._writer()
    assert isinstance(remote.backend.maintenance, LogCalls)


def test_a_disk_that_fails(tmp_path: Path) -> None:
    """The owner's own errors, at once: Kafka's code for them would be retried for two minutes."""
    fs = FaultyFileSystem(tmp_path / "log")
    with log_over(Store(str(tmp_path / "log"), fs=fs)) as log, Broker(log) as broker:
        log.create_topic(T)
        with OwnerPort(broker) as port, embedlog.open(port.url) as remote:
            full = fs.fail("write", errno.ENOSPC, path=".kafka", times=FOREVER)
            with pytest.raises(embedlog.DiskFull):
                remote.append(T, b"a")
            full.times = 0
            full = fs.fail("write", errno.ENOSPC, times=FOREVER)
            for change in (
                lambda: remote.create_topic("new"),
                lambda: remote.alter_topic(T, flush_messages=7),
                lambda: remote.create_partitions(T, 2),
                lambda: remote.delete_topic(T),
            ):
                with pytest.raises(embedlog.DiskFull, match="could not be saved"):
                    change()
            with embedlog.open(port.url) as another, pytest.raises(embedlog.DiskFull, match="producer id"):
                port.context.producer_ids.drop()
                another.append(T, b"a")
            full.times = 0
            coordinator, commit = remote.backend.coordinator, {TopicPartition(T, 0): CommittedOffset(0)}
            assert coordinator is not None
            coordinator.commit_offsets("g", commit)
            full = fs.fail("write", errno.ENOSPC, path="__consumer_offsets", times=FOREVER)
            with pytest.raises(embedlog.DiskFull):
                coordinator.commit_offsets("g", commit)
            full.times = 0
            assert remote.append(T, b"b").offset == 0
            fs.fail("sync", path=".kafka")
            with pytest.raises(embedlog.FlushFailed):
                remote.append(T, b"c", flush=True)
            with pytest.raises(embedlog.PartitionFailed):
                remote.append(T, b"d")
            with pytest.raises(embedlog.FlushFailed):
                remote.flush()
            assert list(remote.health().refusing) == [TopicPartition(T, 0)]
            assert remote.reopen(T, 0) is not None
            assert remote.append(T, b"e", flush=True).durable
            assert log.offsets(T)[0].flushed_offset == log.offsets(T)[0].log_end_offset


def test_a_backup_whose_owner_ends_is_not_repeated(broker: Broker, tmp_path: Path) -> None:
    with Cutter(api=10_000) as cutter, OwnerPort(broker, advertised_port=cutter.port) as port:
        cutter.broker_port = port.port
        with embedlog.open(f"kafka://127.0.0.1:{cutter.port}", retry_backoff_ms=0) as log:
            log.flush()
            with pytest.raises(embedlog.StorageError, match=r"remove .*copy and repeat"):
                log.backup(tmp_path / "copy")
            log.flush()
            log.flush()  # this one is repeated
        assert cutter.cuts == 2
