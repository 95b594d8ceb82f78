"""Every method of a Log, over both layouts where files are named."""

from __future__ import annotations

import inspect
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from housekeeping import housekeep
from programs import crash

import embedlog
from embedlog import Log, OffsetAndTimestamp, PartitionOffsets, Record, RecordMetadata, TopicPartition
from embedlog.clients.consumer import Consumer
from embedlog.clients.options import ConsumerOptions, ProducerOptions, QueueOptions
from embedlog.clients.producer import Producer
from embedlog.clients.queue import Queue
from embedlog.errors import (
    Closed,
    InvalidArgument,
    InvalidSetting,
    OffsetOutOfRange,
    PartitionNotFound,
    ReadOnly,
    TopicExists,
    TopicNotFound,
    UnexpectedOffset,
    UnknownSetting,
)
from embedlog.store.store import Store

pytestmark = pytest.mark.plain


def values(log: Log, topic: str = "t", **where: object) -> list[bytes | None]:
    return [record.value for record in log.read(topic, **where)]  # type: ignore[arg-type]


# -- topics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "segment"), [("classic", "t_1/00000000000.kafka"), ("kafka", "t-1/00000000000000000000.log")]
)
def test_a_topic_is_there_with_its_first_segments(path: Path, layout: str, segment: str) -> None:
    with embedlog.open(path, layout=layout) as log:
        made = log.create_topic("t", partitions=2)
        assert made == log.describe_topic("t")
        assert (made.name, made.partitions, made.settings, made.internal) == ("t", 2, {}, False)
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", made.topic_id)
        assert (path / segment).exists()
    with embedlog.open(path) as again:  # the layout is what is there
        assert again.describe_topic("t") == made


def test_topics_are_listed_without_the_internal_ones(log: Log) -> None:
    log.create_topic("b")
    log.create_topic("a")
    with log.consumer("a", group="g") as consumer:
        log.append("a", b"1")
        assert consumer.poll(60_000)
        consumer.commit()
    assert log.topics() == ["a", "b"]
    assert log.topics(internal=True) == ["__consumer_offsets", "a", "b"]
    assert log.describe_topic("__consumer_offsets").internal


def test_a_topic_that_goes_while_topics_are_listed_is_not_listed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("a")
    monkeypatch.setattr(log.backend, "topics", lambda: ["a", "gone"])
    assert log.topics() == ["a"]


def test_settings_may_be_typed_with_dots(log: Log) -> None:
    made = log.create_topic("t", **{"retention.ms": "86400000", "compression_type": "zstd"})
    assert made.settings == {"retention_ms": 86_400_000, "compression_type": "zstd"}


def test_a_choice_with_two_words_is_kept_in_kafkas(log: Log) -> None:
    """Kafka's brokers refuse the other one."""
    made = log.create_topic("t", compression_type="none")
    assert made.settings == {"compression_type": "uncompressed"}
    assert log.append("t", b"x").offset == 0


@pytest.mark.parametrize("dotted", ["retention.ms", "retention_ms", "retention-ms"])
def test_alter_changes_some_settings_and_none_means_default(log: Log, path: Path, dotted: str) -> None:
    log.create_topic("t", retention_ms=1000, segment_bytes=2048)
    assert log.alter_topic("t", **{dotted: 5000}).settings == {"retention_ms": 5000, "segment_bytes": 2048}
    assert log.alter_topic("t", **{dotted: None}).settings == {"segment_bytes": 2048}
    log.close()
    with embedlog.open(path) as again:
        assert again.describe_topic("t").settings == {"segment_bytes": 2048}


def test_altered_settings_apply_at_once(log: Log) -> None:
    log.create_topic("t")
    log.alter_topic("t", segment_bytes=1024)
    for _ in range(4):
        log.append("t", bytes(600))
    assert log.offsets_before("t", 0, -1, 100) == [4, 3, 2, 1, 0]


def test_an_invalid_setting_changes_nothing(log: Log) -> None:
    log.create_topic("t", retention_ms=1000)
    with pytest.raises(UnknownSetting, match="did you mean 'retention_ms'"):
        log.alter_topic("t", retention_sm=1)
    with pytest.raises(UnknownSetting, match="nonsense"):
        log.alter_topic("t", nonsense=None)
    with pytest.raises(InvalidSetting, match="-1"):
        log.alter_topic("t", retention_ms=-2)
    assert log.describe_topic("t").settings == {"retention_ms": 1000}


def test_a_description_is_a_copy(log: Log) -> None:
    log.create_topic("t", retention_ms=1000)
    log.describe_topic("t").settings["retention_ms"] = 5
    assert log.describe_topic("t").settings == {"retention_ms": 1000}


def test_topic_settings_override_those_of_open(path: Path) -> None:
    with embedlog.open(path, **{"segment.bytes": 1024, "max_message_bytes": 2000}) as log:
        log.create_topic("t")
        log.create_topic("own", max_message_bytes=3000)
        log.append("own", bytes(2500))
        with pytest.raises(embedlog.RecordTooLarge):
            log.append("t", bytes(2500))
        log.append("t", bytes(900))
        log.append("t", bytes(900))
        assert log.offsets_before("t", 0, -1, 9) == [2, 1, 0]
    with embedlog.open(path) as log:
        log.append("t", bytes(2500))  # what open was given is not kept


def test_a_topic_exists_once(log: Log) -> None:
    log.create_topic("t")
    with pytest.raises(TopicExists, match="'t'"):
        log.create_topic("t", partitions=3)
    assert log.describe_topic("t").partitions == 1


def test_partitions_can_be_added_but_not_removed(log: Log, path: Path) -> None:
    topic_id = log.create_topic("t", partitions=2, retention_ms=7_000_000).topic_id
    log.append("t", b"1", partition=1)
    grown = log.create_partitions("t", 4)
    assert (grown.partitions, grown.topic_id, grown.settings) == (4, topic_id, {"retention_ms": 7_000_000})
    log.append("t", b"3", partition=3)
    assert values(log) == [b"1", b"3"]
    for number in (1, 4):
        with pytest.raises(InvalidArgument, match="larger"):
            log.create_partitions("t", number)
    log.close()
    with embedlog.open(path) as again:
        assert values(again) == [b"1", b"3"]


def test_a_deleted_topic_may_be_created_again(log: Log, path: Path) -> None:
    first = log.create_topic("t", partitions=2)
    log.append("t", b"not flushed")
    log.delete_topic("t")
    assert log.topics() == []
    for act in (lambda: log.append("t", b"x"), lambda: log.read("t"), lambda: log.offsets("t")):
        with pytest.raises(TopicNotFound, match="create_topic"):
            act()
    with pytest.raises(TopicNotFound):
        log.delete_topic("t")
    assert log.create_topic("t").topic_id != first.topic_id
    assert values(log) == []
    log.append("t", b"new")
    log.close()
    with embedlog.open(path) as again:
        assert values(again) == [b"new"]
        assert [entry.name for entry in path.iterdir() if entry.is_dir()] == ["t_0"]


@pytest.mark.parametrize("layout", ["classic", "kafka"])
def test_the_longest_name_can_be_made_filled_and_deleted(path: Path, layout: str) -> None:
    name = "x" * 249
    with embedlog.open(path, layout=layout) as log:
        log.create_topic(name, partitions=12)
        log.append(name, b"1", partition=11)
        assert values(log, name) == [b"1"]
        log.delete_topic(name)
        log.create_topic(name, partitions=12)


def test_files_of_a_deleted_topic_are_removed_later(path: Path) -> None:
    store = Store(str(path), background=False)
    for delay_ms in (0, 3_600_000):
        store.create_topic("t", 1, {"file_delete_delay_ms": delay_ms})
        store.delete_topic("t")
        housekeep(store)
        left = [entry.name for entry in path.iterdir() if entry.is_dir()]
        assert len(left) == bool(delay_ms)
    store.close()
    with embedlog.open(path):
        assert not [entry for entry in path.iterdir() if entry.is_dir()]


# -- records ---------------------------------------------------------------------------------------------


def test_append_and_read_all_fields(log: Log) -> None:
    log.create_topic("t", partitions=2)
    placed = log.append(
        "t", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=5, partition=1, flush=True
    )
    assert placed == RecordMetadata("t", 1, 0, 5, True)
    assert log.append("t", None, partition=1).durable is False
    found = list(log.read("t", 1))
    assert found[0] == Record("t", 1, 0, 5, 0, b"k", b"v", (("h", b"1"), ("n", None)))
    assert (found[1].offset, found[1].value, found[1].key, found[1].headers) == (1, None, None, ())


def test_expected_offset_guards_an_append(log: Log) -> None:
    log.create_topic("t")
    log.append("t", b"0", partition=0, expected_offset=0)
    with pytest.raises(UnexpectedOffset) as caught:
        log.append("t", b"x", partition=0, expected_offset=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert values(log) == [b"0"]


def test_append_many_and_offsets(log: Log) -> None:
    log.create_topic("t", partitions=3)
    placed = log.append_many("t", [(b"%d" % (i % 7), b"%d" % i) for i in range(100)], flush=True)
    assert len(placed) == 100
    edges = log.offsets("t")
    assert sorted(edges) == [0, 1, 2]
    assert sum(e.log_end_offset for e in edges.values()) == 100
    assert all(e.flushed_offset == e.log_end_offset and e.log_start_offset == 0 for e in edges.values())
    for meta, i in zip(placed, range(100), strict=True):
        assert next(iter(log.read("t", meta.partition, start=meta.offset))).value == b"%d" % i


def test_flush_makes_durable(log: Log) -> None:
    log.create_topic("t", flush_ms=3_600_000)
    log.append("t", b"1")
    assert log.offsets("t") == {0: PartitionOffsets(0, 1, 0)}
    assert log.health().unflushed_records == 1
    log.flush()
    assert log.offsets("t") == {0: PartitionOffsets(0, 1, 1)}


def test_flush_messages_counts(path: Path) -> None:
    with embedlog.open(path, flush_messages=2, flush_ms=3_600_000) as log:
        log.create_topic("t")
        assert [log.append("t", b"x").durable for _ in range(4)] == [False, True, False, True]


def test_read_from_and_to(log: Log) -> None:
    log.create_topic("t")
    for i in range(10):
        log.append("t", b"%d" % i, timestamp_ms=1000 * i)
    assert values(log, start=7) == [b"7", b"8", b"9"]
    assert values(log, start=2, end=4) == [b"2", b"3"]
    assert values(log, start="latest") == []
    assert values(log, start=datetime.fromtimestamp(8, UTC)) == [b"8", b"9"]
    assert values(log, end=datetime.fromtimestamp(2, UTC)) == [b"0", b"1"]
    with pytest.raises(OffsetOutOfRange):
        log.read("t", start=11)
    with pytest.raises(PartitionNotFound):
        log.read("t", 1)


def test_offset_for_time(log: Log) -> None:
    log.create_topic("t", segment_bytes=1024)
    for i in range(10):
        log.append("t", bytes(500), timestamp_ms=1000 * (i + 1))
    assert log.offset_for_time("t", 0, 4500) == OffsetAndTimestamp(4, 5000, 0)
    assert log.offset_for_time("t", 0, -5) == OffsetAndTimestamp(0, 1000, 0)
    assert log.offset_for_time("t", 0, 10_001) is None


def test_offsets_before(log: Log, path: Path) -> None:
    log.create_topic("t", segment_bytes=1024)
    for _ in range(4):
        log.append("t", bytes(600))
    assert log.offsets_before("t", 0, -1, 2) == [4, 3]
    assert log.offsets_before("t", 0, -2, 5) == [0]
    assert log.offsets_before("t", 0, 0, 5) == []
    assert log.offsets_before("t", 0, -1, 0) == []


def test_delete_records_moves_the_start_for_good(log: Log, path: Path) -> None:
    log.create_topic("t", segment_bytes=1024)
    for i in range(6):
        log.append("t", b"%d" % i + bytes(600))
    assert log.delete_records("t", 0, 3) == 3
    assert log.delete_records("t", 0, 1) == 3
    assert [v[:1] for v in values(log) if v] == [b"3", b"4", b"5"]
    with pytest.raises(OffsetOutOfRange, match="earliest"):
        log.read("t", start=2)
    with pytest.raises(OffsetOutOfRange):
        log.delete_records("t", 0, 7)
    log.close()
    with embedlog.open(path) as again:
        assert again.offsets("t")[0] == PartitionOffsets(3, 6, 6)
        assert again.delete_records("t", 0, 6) == 6
        assert values(again) == []


def test_compact_keeps_the_last_of_each_key(log: Log) -> None:
    log.create_topic("t", cleanup_policy="compact", segment_bytes=1024)
    for i in range(40):
        log.append("t", b"%d" % i + bytes(100), key=b"%d" % (i % 3))
    assert log.compact("t") > 0
    latest = {record.key: record.value for record in log.read("t")}
    assert {k: v and v.rstrip(b"\0") for k, v in latest.items()} == {b"0": b"39", b"1": b"37", b"2": b"38"}
    assert log.offsets("t")[0].log_end_offset == 40


def test_backup_is_a_log(log: Log, tmp_path: Path) -> None:
    log.create_topic("t", partitions=2, segment_bytes=1024)
    for i in range(9):
        log.append("t", b"%d" % i + bytes(400), partition=i % 2)
    with log.consumer("t", group="g", stop_at_end=True) as consumer:
        assert len(list(consumer)) == 9
    log.backup(tmp_path / "copy")
    log.append("t", b"later")
    for mode in ("r", "rw"):
        with embedlog.open(tmp_path / "copy", mode=mode) as copy:
            assert len(list(copy.read("t"))) == 9
    with (
        embedlog.open(tmp_path / "copy") as copy,
        copy.consumer("t", group="g", stop_at_end=True) as again,
    ):
        assert list(again) == []
    with pytest.raises(embedlog.EmbedlogError):
        log.backup(tmp_path / "copy")


# -- the whole -------------------------------------------------------------------------------------------


def test_health_and_repr(log: Log, path: Path) -> None:
    log.create_topic("a", partitions=2)
    log.append("a", b"x" * 100)
    health = log.health()
    assert (health.status, health.mode, health.topics, health.partitions) == ("ok", "rw", 1, 2)
    assert health.path == str(path) == log.path
    assert 100 < health.bytes < 300
    assert health.free_disk_bytes > 0
    assert (health.refusing, health.damage) == ({}, [])
    assert repr(log) == f"<embedlog.Log '{path}': 1 topic, 2 partitions, {health.bytes} bytes, mode 'rw', ok>"
    log.close()
    assert repr(log) == f"<embedlog.Log '{path}': closed>"


def test_recovery_reports_after_a_crash_and_is_clean_after_a_close(path: Path, tmp_path: Path) -> None:
    with embedlog.open(path) as log:
        assert log.recovery.clean
        log.create_topic("t")
        log.append("t", b"1")
        crash(path, tmp_path / "crashed")
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert log.recovery.partitions == []
    with embedlog.open(tmp_path / "crashed") as log:
        assert not log.recovery.clean
        assert [(p.topic, p.log_end_offset) for p in log.recovery.partitions] == [("t", 1)]
        assert (log.recovery.bytes_cut, log.recovery.damage) == (0, [])


def test_reopening_a_healthy_partition_does_nothing(log: Log) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    assert log.reopen("t", 0) is None
    log.append("t", b"2")
    assert values(log) == [b"1", b"2"]


def test_a_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with embedlog.open("log") as log:
        monkeypatch.chdir(tmp_path / "elsewhere")
        log.create_topic("t")
        log.append("t", b"1")
    assert (tmp_path / "log" / "t_0").is_dir()


def test_close_twice_and_use_after_close(log: Log) -> None:
    log.create_topic("t", segment_bytes=1024)
    log.append("t", b"1")
    reading = log.read("t", follow=True)
    assert next(reading).value == b"1"
    producer = log.producer()
    consumer = log.consumer("t", group="g")
    assert consumer.poll(60_000)
    log.close()
    log.close()
    for use in (
        lambda: log.create_topic("u"),
        log.topics,
        lambda: log.describe_topic("t"),
        lambda: log.alter_topic("t", retention_ms=5),
        lambda: log.create_partitions("t", 9),
        lambda: log.delete_topic("t"),
        lambda: log.append("t", b"x"),
        lambda: log.append_many("t", [b"x"]),
        log.producer,
        lambda: log.read("t"),
        lambda: log.consumer("t"),
        lambda: log.consumer(group="g"),
        lambda: log.offsets("t"),
        lambda: log.offsets_before("t", 0, -1, 1),
        lambda: log.offset_for_time("t", 0, 0),
        log.flush,
        lambda: log.reopen("t", 0),
        lambda: log.delete_records("t", 0, 0),
        lambda: log.compact("t"),
        lambda: log.backup(log.path + "-copy"),
        log.health,
        lambda: next(reading),
        lambda: producer.send("t", b"x"),
        lambda: consumer.poll(0),
        consumer.commit,
    ):
        with pytest.raises(Closed):
            use()
    producer.close()
    consumer.close()
    assert not os.path.exists(log.path + "-copy")


def test_close_continues_after_a_failing_part(log: Log, path: Path) -> None:
    def refuse(partitions: object) -> None:
        raise RuntimeError("no")

    log.create_topic("t")
    consumer = log.consumer("t", group="g", on_revoked=refuse)
    log.append("t", b"1")
    assert consumer.poll(60_000)
    with pytest.raises(RuntimeError):
        log.close()
    with embedlog.open(path) as again:  # the lock is free
        assert again.recovery.clean


def test_a_reader_refuses_changes(log: Log, path: Path) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    with embedlog.open(path, mode="r") as reader:
        assert (reader.mode, log.mode) == ("r", "rw")
        for use in (
            lambda: reader.create_topic("u"),
            lambda: reader.alter_topic("t", retention_ms=5),
            lambda: reader.create_partitions("t", 9),
            lambda: reader.delete_topic("t"),
            lambda: reader.append("t", b"x"),
            lambda: reader.append_many("t", [b"x"]),
            reader.producer,
            reader.flush,
            lambda: reader.reopen("t", 0),
            lambda: reader.delete_records("t", 0, 0),
            lambda: reader.compact("t"),
            lambda: reader.backup(reader.path + "-copy"),
            lambda: reader.recovery,
        ):
            with pytest.raises(ReadOnly):
                use()
        with pytest.raises(embedlog.GroupError, match="FileOffsetStore"):
            reader.consumer("t", group="g")
        assert values(reader) == [b"1"]
        assert reader.offsets("t")[0].log_end_offset == 1
        assert reader.describe_topic("t") == log.describe_topic("t")
        assert reader.offset_for_time("t", 0, 0) == log.offset_for_time("t", 0, 0)
        assert reader.offsets_before("t", 0, -1, 9) == [1, 0]
        assert reader.health().status == "ok"
        assert "mode 'r'" in repr(reader)
    with pytest.raises(Closed):
        reader.read("t")
    with pytest.raises(Closed):
        reader.health()


def test_a_log_may_be_used_by_several_handles_one_after_the_other(path: Path) -> None:
    for i in range(5):
        with embedlog.open(path) as log:
            if not i:
                log.create_topic("t")
            log.append("t", b"%d" % i)
    with embedlog.open(path, mode="r") as log:
        assert values(log) == [b"0", b"1", b"2", b"3", b"4"]
        assert TopicPartition("t", 0) not in log.health().refusing


def test_a_topic_inherits_nothing_from_an_earlier_one_of_its_name(path: Path, tmp_path: Path) -> None:
    """Neither its log start nor its recovery point nor how far it was compacted, crash or no crash."""
    with embedlog.open(path, segment_bytes=1024, cleanup_policy=["compact", "delete"]) as log:
        for _ in range(3):
            log.create_topic("t")
            for i in range(10):
                log.append("t", bytes(600), key=b"%d" % i)
            log.delete_records("t", 0, 7)
            log.compact("t")
            log.flush()
            log.close()  # writes every checkpoint
            log = embedlog.open(path, segment_bytes=1024, cleanup_policy="compact,delete")
            log.delete_topic("t")
        log.create_topic("t")
        log.append("t", b"new", key=b"k", flush=True)
        crash(path, tmp_path / "crashed")
        log.close()
    for where in (path, tmp_path / "crashed"):
        with embedlog.open(where) as again:
            assert again.offsets("t") == {0: PartitionOffsets(0, 1, 1)}
            assert values(again) == [b"new"]
            assert again.health().status == "ok"
            assert "t 0" not in (where / "cleaner-offset-checkpoint").read_text()


@pytest.mark.parametrize(
    ("options", "client"),
    [(ProducerOptions, Producer), (ConsumerOptions, Consumer), (QueueOptions, Queue)],
)
def test_the_typed_options_are_those_of_the_clients(options: type, client: type) -> None:
    parameters = inspect.signature(client).parameters.values()
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert list(options.__annotations__) == keywords


def test_an_unknown_option_names_the_nearest(log: Log) -> None:
    log.create_topic("t")
    with pytest.raises(embedlog.UnknownSetting, match="did you mean 'linger_ms'"):
        log.producer(linger=5)
    with pytest.raises(embedlog.UnknownSetting, match="did you mean 'auto_commit'"):
        log.consumer("t", auto_comit=True)


def test_exist_ok_accepts_an_existing_topic(log: Log) -> None:
    made = log.create_topic("t", partitions=2, compression_type="zstd")
    assert log.create_topic("t", partitions=5, exist_ok=True) == made
    with pytest.raises(embedlog.TopicExists, match="exist_ok"):
        log.create_topic("t")


def test_callbacks_must_be_callable(log: Log) -> None:
    log.create_topic("t")
    with pytest.raises(embedlog.InvalidType, match="callback must be callable, not str"):
        log.producer(callback="print")
    with pytest.raises(embedlog.InvalidType, match="on_revoked must be callable, not int"):
        log.consumer("t", on_revoked=1)
