"""message_timestamp_before_max_ms and message_timestamp_after_max_ms (KIP-937), and what they keep out."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from faults import partition_of, store_of
from housekeeping import housekeep
from kafka import KafkaProducer
from kafka.errors import InvalidTimestampError
from wire import Wire

import embedlog
from embedlog import InvalidArgument, InvalidSetting, InvalidTimestamp
from embedlog.cluster import Broker
from embedlog.codec import encode_batch
from embedlog.codec.message_set import encode_message_set
from embedlog.units import iso
from embedlog.wire.error_codes import ErrorCode

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rows(*times: int) -> list[tuple[None, bytes, tuple[()], int]]:
    return [(None, b"v%d" % i, (), time_ms) for i, time_ms in enumerate(times)]


# -- over the wire -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [0, 1, 4])
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("sequenced", [False, True])
def test_an_hour_ahead_is_kafkas_default(
    broker: Broker, wire: Wire, compression: int, policy: str, sequenced: bool
) -> None:
    broker.log.create_topic("t", cleanup_policy=policy)
    now = now_ms()
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0} if sequenced else {}
    times = [now, now + HOUR_MS - MINUTE_MS, -1, 0, now * 1000, now + HOUR_MS + MINUTE_MS, now]
    keyed = [(b"k", *row[1:]) for row in rows(*times)]
    part = wire.produce("t", bytes(encode_batch(keyed, compression=compression, **producer)))
    assert part.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in part.record_errors] == [4, 5]
    assert str(now * 1000) in part.record_errors[0].batch_index_error_message
    assert "2 of 7 records" in part.error_message
    assert broker.log.offsets("t")[0].log_end_offset == 0
    good = bytes(encode_batch(keyed[:4], compression=compression, **producer))
    assert wire.produce("t", good).error_code == 0


@pytest.mark.parametrize("version", [0, 2])
def test_messages_of_old_clients(broker: Broker, wire: Wire, version: int) -> None:
    broker.log.create_topic("t")
    messages = encode_message_set(rows(now_ms() + DAY_MS), min(version, 1), 0)
    part = wire.produce("t", messages, version=version)
    assert part.error_code == (ErrorCode.INVALID_TIMESTAMP if version else 0), "magic 0 has no times"


def test_records_that_are_too_old(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("t", message_timestamp_before_max_ms=DAY_MS)
    now = now_ms()
    part = wire.produce("t", bytes(encode_batch(rows(now, now - 2 * DAY_MS, -1, now - HOUR_MS, 0))))
    assert part.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in part.record_errors] == [1, 4]
    assert wire.produce("t", bytes(encode_batch(rows(now, -1, now - HOUR_MS)))).error_code == 0


def test_append_time_has_no_limits(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("t", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    assert wire.produce("t", bytes(encode_batch(rows(0, now_ms() * 1000)))).error_code == 0


def test_confluents_producer_fails_the_batch(broker: Broker) -> None:
    broker.log.create_topic("t")
    told: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 100})
    for value, time_ms in ((b"good", now_ms()), (b"nanoseconds", time.time_ns())):
        producer.produce(
            "t",
            value,
            timestamp=time_ms,
            on_delivery=lambda error, message: told.update({message.value(): error and error.code()}),
        )
    assert producer.flush(60) == 0
    assert told == {
        b"good": KafkaError.INVALID_TIMESTAMP,
        b"nanoseconds": KafkaError.INVALID_TIMESTAMP,
    }


def test_kafka_pythons_producer(broker: Broker) -> None:
    broker.log.create_topic("t")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    with pytest.raises(InvalidTimestampError):
        producer.send("t", b"v", timestamp_ms=now_ms() * 1000).get(60)
    producer.close()


def test_our_own_client(broker: Broker) -> None:
    broker.log.create_topic("t")
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        with pytest.raises(InvalidTimestamp, match="out of range"):
            log.append("t", b"v", timestamp_ms=now_ms() * 1000)
        assert log.append("t", b"v").offset == 0


def test_the_settings_over_the_wire(broker: Broker) -> None:
    broker.log.create_topic("t")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def described(kind: ResourceType, name: str) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        return {
            key: entry.value for key, entry in admin.describe_configs([resource])[resource].result(60).items()
        }

    assert described(ResourceType.TOPIC, "t")["message.timestamp.after.max.ms"] == str(HOUR_MS)
    assert described(ResourceType.TOPIC, "t")["message.timestamp.before.max.ms"] == str(2**63 - 1)
    assert described(ResourceType.BROKER, str(broker.address.node_id))[
        "log.message.timestamp.after.max.ms"
    ] == str(HOUR_MS)
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.alter_topic("t", **{"message.timestamp.after.max.ms": 2**63 - 1})
        with pytest.raises(InvalidSetting):
            log.alter_topic("t", **{"message.timestamp.after.max.ms": -1})
    assert store_of(broker.log).topic_settings("t").message_timestamp_after_max_ms == 2**63 - 1
    broker.log.append("t", b"v", timestamp_ms=now_ms() * 1000)


def test_a_brokers_own_default() -> None:
    with Broker(log_message_timestamp_after_max_ms=DAY_MS) as broker, Wire(broker) as wire:
        broker.log.create_topic("t")
        assert wire.produce("t", bytes(encode_batch(rows(now_ms() + 2 * HOUR_MS)))).error_code == 0
        part = wire.produce("t", bytes(encode_batch(rows(now_ms() + 2 * DAY_MS))))
        assert part.error_code == ErrorCode.INVALID_TIMESTAMP


# -- the library ---------------------------------------------------------------------------------------


def test_off_in_a_directory_by_default(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        log.append("t", b"v", timestamp_ms=2**62)
        log.append("t", b"v", timestamp_ms=0)


@pytest.mark.parametrize("wrong_ms", [2 * HOUR_MS, -2 * DAY_MS])
@pytest.mark.parametrize("flush", [False, True])
def test_every_append(tmp_path: Path, wrong_ms: int, flush: bool) -> None:
    """Of a log of this process: a single record, several, a producer's, a transaction's."""
    with embedlog.open(tmp_path / "log") as log:
        limits = {"message_timestamp_after_max_ms": HOUR_MS, "message_timestamp_before_max_ms": DAY_MS}
        log.create_topic("t", **limits)
        log.append("t", b"opens the file")
        now = now_ms()
        wrong, good = (
            embedlog.Record(b"v", timestamp_ms=now + wrong_ms),
            embedlog.Record(b"v", timestamp_ms=now),
        )
        with pytest.raises(InvalidTimestamp) as single:
            log.append("t", b"v", timestamp_ms=now + wrong_ms, flush=flush)
        assert single.value.records == [(0, now + wrong_ms)]
        with pytest.raises(InvalidTimestamp) as several:
            log.append_many("t", [good, wrong, good], flush=flush)
        assert several.value.records == [(1, now + wrong_ms)]
        with log.producer(flush=flush) as producer:
            sent = producer.send("t", b"v", timestamp_ms=now + wrong_ms)
            with pytest.raises(InvalidTimestamp):
                sent.result(60)
        with pytest.raises(InvalidTimestamp), log.transaction("id") as tx:
            tx.append("t", b"v", timestamp_ms=now + wrong_ms)
        assert log.offsets("t")[0].log_end_offset == 2, (
            "the record, and the marker of the aborted transaction"
        )
        assert log.append("t", b"v", timestamp_ms=now, flush=flush).offset == 2
        assert len(log.append_many("t", [good, good], flush=flush)) == 2
        log.alter_topic("t", **dict.fromkeys(limits))
        assert log.append("t", b"v", timestamp_ms=now + wrong_ms, flush=flush).offset == 5


@pytest.mark.parametrize(
    ("limits", "wrong_ms", "bound"),
    [
        ({"message_timestamp_after_max_ms": HOUR_MS}, 2 * HOUR_MS, "latest"),
        ({"message_timestamp_before_max_ms": DAY_MS}, -2 * DAY_MS, "earliest"),
    ],
)
def test_the_error_has_the_one_bound_that_there_is(
    tmp_path: Path, limits: Any, wrong_ms: int, bound: str
) -> None:
    ((setting, limit_ms),) = limits.items()
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", **limits)
        before_ms = now_ms()
        time_ms = before_ms + wrong_ms
        with pytest.raises(InvalidTimestamp) as refused:
            log.append("t", b"v", timestamp_ms=time_ms)
        after_ms = now_ms()
    shift_ms = limit_ms if bound == "latest" else -limit_ms
    assert str(refused.value) in [
        "t 0: the timestamps of 1 of 1 records are out of range; "
        f"record 0 has {iso(time_ms)} ({time_ms} ms) "
        f"(the {bound} is {iso(allowed_ms)} ({allowed_ms} ms): {setting}); nothing was appended"
        for allowed_ms in range(before_ms + shift_ms, after_ms + shift_ms + 1)
    ]


def test_invalid_limits(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log, pytest.raises(InvalidSetting):
        log.create_topic("t", message_timestamp_after_max_ms=-1)
    assert issubclass(InvalidTimestamp, InvalidArgument)


# -- health --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_health_names_what_blocks_retention(tmp_path: Path, sealed: bool) -> None:
    with embedlog.open(tmp_path / "log", retention_ms=DAY_MS) as log:
        log.create_topic("clicks", partitions=2)
        log.append("clicks", b"v", partition=0)
        log.append("clicks", b"v", partition=1, timestamp_ms=now_ms() + HOUR_MS // 2)
        assert log.health().status == "ok", "clocks differ"
        log.append("clicks", b"v", partition=1, timestamp_ms=4_102_444_800_000)
        if sealed:
            partition_of(log, "clicks", 1).roll()
        health = log.health()
        assert health.status == "degraded"
        (line,) = health.failing
        assert "clicks 1" in line
        assert "2100-01-01" in line
        assert "2100-01-02" in line
        log.append("clicks", b"v", partition=1, timestamp_ms=now_ms() * 1000)  # microseconds
        assert log.health().status == "degraded"
        log.delete_records("clicks", 1, log.offsets("clicks")[1].log_end_offset)
        housekeep(store_of(log))
        assert log.health().status == "ok"


def test_without_retention_by_time_nothing_is_blocked(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("kept")
        log.create_topic("by_size", retention_bytes=1)
        log.create_topic("by_file", retention_ms=DAY_MS, delete_policy="modification_time")
        log.create_topic("compacted", retention_ms=DAY_MS, cleanup_policy="compact")
        for topic in log.topics():
            log.append(topic, b"v", key=b"k", timestamp_ms=2**62)
        assert log.health().status == "ok"


def test_the_brokers_health_page(tmp_path: Path) -> None:
    with Broker(tmp_path / "log", metrics_port=0, retention_ms=DAY_MS) as broker:
        broker.log.create_topic("t", message_timestamp_after_max_ms=2**63 - 1)
        broker.log.append("t", b"v", timestamp_ms=now_ms() * 1000)
        url = f"http://127.0.0.1:{broker.metrics_port}/health"
        with urllib.request.urlopen(url) as response:
            found = json.load(response)
        assert (found["status"], response.status) == ("degraded", 200)
        assert "t 0" in found["background"][0]
