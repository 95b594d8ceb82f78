"""Cases of the matrix: `Log` and the functions beside it."""

from __future__ import annotations

from typing import Final

import embedlog
from embedlog import (
    Closed,
    TopicNotFound,
)

from .cases import DAY_MS, Desk, case, raising

# -- functions -----------------------------------------------------------------------------------------


@case("embedlog", "open")
def _(desk: Desk) -> None:
    desk.topic(records=1)
    with desk.opened() as log:
        log.create_topic(f"{desk.name}-2")
        assert log.append(f"{desk.name}-2", b"x").offset == 0


@case("embedlog", 'open(mode="r")')
def _(desk: Desk) -> None:
    desk.topic(records=1)
    with desk.open(desk.path, mode="r") as reader:
        assert [record.value for record in reader.read(desk.name)] == [b"0"]


@case("embedlog", "open(shared=True)")
def _(desk: Desk) -> None:
    with desk.opened(shared=True) as log:
        log.create_topic(desk.name, exist_ok=True)
        assert log.append(desk.name, b"x").offset == 0


@case("embedlog", "open(retention_ms=...)")
def _(desk: Desk) -> None:
    """A setting of the log, or a default of its topics."""
    with desk.opened(retention_ms=DAY_MS) as log:
        log.create_topic(desk.name)


@case("embedlog", "scan_polars")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    frame = embedlog.scan_polars(desk.path, desk.name).select("offset").collect()
    assert frame["offset"].to_list() == [0, 1, 2]


# -- of the whole log ------------------------------------------------------------------------------------


@case("Log", "path")
def _(desk: Desk) -> None:
    assert desk.log.path == desk.path


@case("Log", "mode")
def _(desk: Desk) -> None:
    assert desk.log.mode == "rw"


@case("Log", "close")
def _(desk: Desk) -> None:
    with desk.opened() as log:
        log.close()
        with raising(Closed):
            log.append(desk.name, b"x")


@case("Log", "recovery")
def _(desk: Desk) -> None:
    assert desk.log.recovery.clean


@case("Log", "health")
def _(desk: Desk) -> None:
    desk.topic()
    health = desk.log.health()
    assert health.status == "ok" and health.topics > 0


@case("Log", "flush")
def _(desk: Desk) -> None:
    desk.topic(records=1)
    desk.log.flush()


@case("Log", "reopen")
def _(desk: Desk) -> None:
    assert desk.log.reopen(desk.topic(), 0) is None


@case("Log", "backup")
def _(desk: Desk) -> None:
    desk.topic(records=2)
    desk.log.backup(desk.scratch / "copy")
    with embedlog.open(desk.scratch / "copy") as copy:
        assert [record.value for record in copy.read(desk.name)] == [b"0", b"1"]


@case("Log", "compact")
def _(desk: Desk) -> None:
    name = desk.topic(cleanup_policy="compact")
    assert desk.log.compact(name) == 0
    desk.log.alter_topic(name, segment_bytes=1_024)
    for number in range(200):
        desk.log.append(name, b"%d" % number * 20, key=b"k")
    assert desk.log.compact(name) >= 0  # the background may have done it before
    assert len(desk.values()) < 200


# -- topics --------------------------------------------------------------------------------------------


@case("Log", "create_topic")
def _(desk: Desk) -> None:
    made = desk.log.create_topic(desk.name, 2, retention_ms=DAY_MS, compression_type="lz4")
    assert (made.name, made.partitions, len(made.topic_id)) == (desk.name, 2, 22)
    assert made.settings == {"retention_ms": DAY_MS, "compression_type": "lz4"}
    with raising(embedlog.TopicExists):
        desk.log.create_topic(desk.name)
    assert desk.log.create_topic(desk.name, exist_ok=True) == made


@case(
    "Log",
    'create_topic(delete_policy="finished")',
    refusals=[embedlog.UnknownSetting, embedlog.InvalidSetting],
)
def _(desk: Desk) -> None:
    made = desk.log.create_topic(desk.name, delete_policy="finished")
    assert made.settings == {"delete_policy": "finished"}


@case("Log", "create_topic(replication_factor=1)")
def _(desk: Desk) -> None:
    assert desk.log.create_topic(desk.name, replication_factor=1).partitions == 1


@case("Log", 'create_topic(compression_type="none")')
def _(desk: Desk) -> None:
    made = desk.log.create_topic(desk.name, compression_type="none")
    assert made.settings["compression_type"] in ("none", "uncompressed")
    desk.log.append(desk.name, b"v")
    assert desk.values() == [b"v"]


@case("Log", "create_topic(segment_bytes=1_024)", refusals=[embedlog.InvalidSetting])
def _(desk: Desk) -> None:
    assert desk.log.create_topic(desk.name, segment_bytes=1_024).settings == {"segment_bytes": 1_024}


OTHER_SETTINGS: Final[dict[str, object]] = {
    "cleanup_policy": "compact,delete",
    "compression_type": "zstd",
    "delete_retention_ms": 1_000,
    "file_delete_delay_ms": 1_000,
    "flush_messages": 100,
    "flush_ms": 1_000,
    "index_interval_bytes": 2_048,
    "max_compaction_lag_ms": DAY_MS,
    "max_message_bytes": 2_000_000,
    "message_timestamp_after_max_ms": DAY_MS,
    "message_timestamp_before_max_ms": DAY_MS,
    "message_timestamp_type": "LogAppendTime",
    "min_cleanable_dirty_ratio": 0.25,
    "min_compaction_lag_ms": 1_000,
    "preallocate": True,
    "retention_bytes": 10_000_000,
    "retention_ms": DAY_MS,
    "segment_bytes": 2_000_000,
    "segment_ms": DAY_MS,
}


@case("Log", "create_topic, with every other setting")
def _(desk: Desk) -> None:
    assert OTHER_SETTINGS.keys() | {"delete_policy"} == set(embedlog.TopicSettings.names())
    assert desk.log.create_topic(desk.name, **OTHER_SETTINGS).settings == OTHER_SETTINGS


@case("Log", "topics")
def _(desk: Desk) -> None:
    desk.topic()
    assert desk.name in desk.log.topics()
    assert "__consumer_offsets" not in desk.log.topics()


@case("Log", "topics(internal=True)")
def _(desk: Desk) -> None:
    desk.topic()
    desk.log.group(desk.name).reset(desk.name, to="earliest")
    assert {desk.name, "__consumer_offsets"} <= set(desk.log.topics(internal=True))


@case("Log", "describe_topic")
def _(desk: Desk) -> None:
    desk.topic(3, retention_ms=DAY_MS)
    description = desk.log.describe_topic(desk.name)
    assert (description.partitions, description.settings) == (3, {"retention_ms": DAY_MS})
    with raising(TopicNotFound):
        desk.log.describe_topic(f"{desk.name}-none")


@case("Log", "alter_topic")
def _(desk: Desk) -> None:
    desk.topic(retention_ms=DAY_MS)
    assert desk.log.alter_topic(desk.name, cleanup_policy="compact", retention_ms=None).settings == {
        "cleanup_policy": "compact"
    }


@case("Log", "create_partitions")
def _(desk: Desk) -> None:
    assert desk.log.create_partitions(desk.topic(), 4).partitions == 4
    assert desk.log.append(desk.name, b"x", partition=3).offset == 0


@case("Log", "delete_topic")
def _(desk: Desk) -> None:
    desk.topic(records=1)
    desk.log.delete_topic(desk.name)
    assert desk.name not in desk.log.topics()


@case("Log", "delete_records")
def _(desk: Desk) -> None:
    desk.topic(records=3)
    assert desk.log.delete_records(desk.name, 0, 2) == 2
    assert desk.values() == [b"2"]


# -- appending -----------------------------------------------------------------------------------------


@case("Log", "append")
def _(desk: Desk) -> None:
    desk.topic(3)
    headers = {"h": b"1"}
    there = desk.log.append(desk.name, b"v", key=b"k", headers=headers, timestamp_ms=5)
    record = desk.log.read_at(desk.name, there.partition, there.offset)
    assert (record.key, record.value, record.headers, record.timestamp_ms) == (b"k", b"v", (("h", b"1"),), 5)
    assert desk.log.append(desk.name, b"w", partition=1).partition == 1


@case("Log", "append(flush=True)")
def _(desk: Desk) -> None:
    assert desk.log.append(desk.topic(), b"v", flush=True).durable


@case("Log", "append(expected_offset=...)")
def _(desk: Desk) -> None:
    assert desk.log.append(desk.topic(), b"v", partition=0, expected_offset=0).offset == 0
    with raising(embedlog.UnexpectedOffset):
        desk.log.append(desk.name, b"v", partition=0, expected_offset=0)
    assert desk.values() == [b"v"]


@case("Log", "append, with flush_messages=1")
def _(desk: Desk) -> str | None:
    durable = desk.log.append(desk.topic(flush_messages=1), b"v").durable
    return None if durable else "it is flushed, but `durable` is False: brokers do not tell"


@case("Log", 'append, with message_timestamp_type="LogAppendTime"')
def _(desk: Desk) -> None:
    desk.topic(message_timestamp_type="LogAppendTime")
    there = desk.log.append(desk.name, b"v", timestamp_ms=5)
    record = desk.log.read_at(desk.name, 0, 0)
    assert there.timestamp_ms == record.timestamp_ms > 5


@case("Log", "append, without a key to a compacted topic", refusals=[embedlog.InvalidArgument])
def _(desk: Desk) -> None:
    desk.log.append(desk.topic(cleanup_policy="compact"), b"v")


@case("Log", "append, of more than max_message_bytes")
def _(desk: Desk) -> None:
    desk.topic(max_message_bytes=1_000)
    with raising(embedlog.RecordTooLarge):
        desk.log.append(desk.name, b"v" * 1_000)
    assert desk.values() == []


@case("Log", "append_many")
def _(desk: Desk) -> None:
    desk.topic(2)
    appended = desk.log.append_many(desk.name, [(b"%d" % key, b"v%d" % key) for key in range(40)])
    assert len(appended) == 40 and set(appended.by_partition) == {0, 1}
    found = {record.key: record.value for record in desk.log.read(desk.name)}
    assert found == {b"%d" % key: b"v%d" % key for key in range(40)}
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        desk.log.append_many(desk.name, [b"x" * 100], compression=codec)
    assert len(desk.values()) == 44


@case("Log", "append_many(flush=True)")
def _(desk: Desk) -> None:
    assert desk.log.append_many(desk.topic(), [b"v"], flush=True).durable


@case("Log", "producer")
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.producer(linger_ms=0, compression="zstd") as producer:
        assert desk.done(producer.send(desk.name, b"v", key=b"k")).offset == 0


@case("Log", "producer(flush=True)")
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.producer(flush=True) as producer:
        assert desk.done(producer.send(desk.name, b"v")).durable


@case("Log", "producer(transactional_id=...)", threads_only=True)
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.producer(transactional_id=desk.name) as producer:
        producer.begin_transaction()
        producer.send(desk.name, b"v")
        producer.commit_transaction()
    desk.committed([b"v"])
