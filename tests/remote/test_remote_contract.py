"""The same API everywhere: each scenario has the same outcome on a directory and over the wire, for threads
and for the tasks of an event loop.

A scenario is a function of an open log; what it returns is compared: records, offsets, and the kinds of the
errors that mistakes raise (`failing`). A scenario of its own takes care that it depends on no clock.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from blocking import Loop, blocking

import embedlog
from embedlog import CommittedOffset, Consumer, EmbedlogError, Log, Record, TopicPartition
from embedlog.cluster import Broker
from embedlog.wire_client.versions import SPOKEN

Scenario = Callable[[Log], object]
SCENARIOS: list[Scenario] = []


def scenario(act: Scenario) -> Scenario:
    SCENARIOS.append(act)
    return act


def failing(act: Callable[[], object]) -> str:
    """The kind of the error that something raises."""
    try:
        found = act()
    except EmbedlogError as error:
        return type(error).__name__
    return f"no error, but {found!r}"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One for all scenarios: each creates its own topics, which are deleted after it."""
    with Broker(offsets_topic_num_partitions=2) as broker:
        yield broker


def at(broker: Broker, **settings: Any) -> Log:
    return embedlog.open(
        f"kafka://{broker.bootstrap_servers}",
        **QUICK | settings,
    )


QUICK: dict[str, Any] = {"heartbeat_interval_ms": 50, "retry_backoff_ms": 5}

NEED_NEWER: list[Scenario] = []


def newer(act: Scenario) -> Scenario:
    """It needs topic ids, zstd, committed leader epochs or static members."""
    NEED_NEWER.append(act)
    return act


# -- topics ------------------------------------------------------------------------------------------------


@scenario
@newer
def topics_are_made_altered_and_deleted(log: Log) -> object:
    made = log.create_topic(
        "t", partitions=3, retention_ms=86_400_000, compression_type="lz4", preallocate=True
    )
    altered = log.alter_topic("t", retention_ms=None, **{"segment.bytes": "2048"})
    grown = log.create_partitions("t", 5)
    names = log.topics()
    again = log.create_topic("t", exist_ok=True)
    copied_once = log.create_topic("one", replication_factor=1, compression_type="none")
    log.delete_topic("t")
    return [
        *(each._replace(topic_id="") for each in (made, altered, grown, again, copied_once)),
        made.topic_id == grown.topic_id,
        len(made.topic_id),
        names,
        log.topics(),
    ]


@scenario
def topics_that_cannot_be(log: Log) -> object:
    log.create_topic("t", 2)
    return [
        failing(lambda: log.create_topic("t")),
        failing(lambda: log.create_topic("../t")),
        failing(lambda: log.create_topic("")),
        failing(lambda: log.create_topic("u", partitions=0)),
        failing(lambda: log.create_topic("u", replication_factor=0)),
        failing(lambda: log.create_topic("u", replication_factor=2)),
        failing(lambda: log.create_topic("u", replication_factor="1")),  # type: ignore[arg-type]
        failing(lambda: log.create_topic("u", partitions="2")),  # type: ignore[arg-type]
        failing(lambda: log.create_topic("u", retention_ms="soon")),
        failing(lambda: log.create_topic("u", retention_ms=-5)),
        failing(lambda: log.create_topic("u", retension_ms=5)),
        failing(lambda: log.create_topic("u", cleanup_policy="burn")),
        failing(lambda: log.alter_topic("t", segment_bytes=1)),
        failing(lambda: log.alter_topic("t", no_such_setting=1)),
        failing(lambda: log.alter_topic("u", retention_ms=5)),
        failing(lambda: log.create_partitions("t", 2)),
        failing(lambda: log.create_partitions("u", 2)),
        failing(lambda: log.delete_topic("u")),
        failing(lambda: log.describe_topic("u")),
        failing(lambda: log.describe_topic("../u")),
        failing(lambda: log.describe_topic(5)),  # type: ignore[arg-type]
        log.topics(),
    ]


# -- appending and reading ---------------------------------------------------------------------------------


@scenario
def records_come_back_as_they_went(log: Log) -> object:
    log.create_topic("t", partitions=2)
    where = [
        log.append("t", b"value", key=b"key", headers={"h": b"1", "n": None}, timestamp_ms=1_000),
        log.append("t", None, key=b"key", timestamp_ms=2_000),
        log.append("t", b"", key=b"other", timestamp_ms=3_000),
        log.append("t", bytearray(b"x"), partition=1, timestamp_ms=4_000),
        log.append("t", memoryview(b"y"), partition=0, timestamp_ms=5_000),
    ]
    return where, list(log.read("t")), list(log.read("t", 1)), list(log.read_values("t", 0))


def many_with(codec: str) -> Scenario:
    def many(log: Log) -> object:
        log.create_topic("t", partitions=3)
        pairs = [(b"key-%d" % (i % 17), b"value-%d" % i * (i % 7)) for i in range(2_000)]
        appended = log.append_many("t", pairs, compression=codec)
        mixed = log.append_many(
            "t",
            [b"a", None, (b"k", None), Record(value=b"r", timestamp_ms=7, headers=(("h", b"v"),))],
            partition=2,
        )
        return (
            [(each.partition, each.offset) for each in appended],
            [each.offset for each in mixed],
            [(r.partition, r.offset, r.key, r.value, r.headers) for r in log.read("t")],
        )

    many.__name__ = f"many_records_with_{codec}"
    return many


SCENARIOS += [many_with(codec) for codec in ("none", "gzip", "snappy", "lz4")]
SCENARIOS.append(newer(many_with("zstd")))


@scenario
def several_batches_to_one_partition(log: Log) -> object:
    log.create_topic("t", max_message_bytes=5_000)
    appended = log.append_many("t", [b"%06d" % i * 100 for i in range(200)])
    values = [record.value for record in log.read("t")]
    return [each.offset for each in appended], len(appended), values


@scenario
def appends_that_cannot_be(log: Log) -> object:
    log.create_topic("t", partitions=2, max_message_bytes=1_000)
    return [
        failing(lambda: log.append("u", b"")),
        failing(lambda: log.append("../u", b"")),
        failing(lambda: log.append("t", "text")),  # type: ignore[arg-type]
        failing(lambda: log.append("t", b"x" * 1_000)),
        failing(lambda: log.append("t", b"", partition=2)),
        failing(lambda: log.append("t", b"", partition=-1)),
        failing(lambda: log.append("t", b"", timestamp_ms=-5)),
        failing(lambda: log.append_many("u", [b""])),
        failing(lambda: log.append_many("t", [b"", b"x" * 1_000])),
        failing(lambda: log.append_many("t", [b""], partition=7)),
        failing(lambda: log.append_many("t", [b""], compression="rar")),
        [edges[:2] for edges in log.offsets("t").values()],
    ]


@scenario
def a_compacted_topic_takes_no_null_keys(log: Log) -> object:
    log.create_topic("t", cleanup_policy="compact")
    return [log.append("t", b"v", key=b"k").offset, [record.value for record in log.read("t")]]


@scenario
def reading_from_here_to_there(log: Log) -> object:
    log.create_topic("t", partitions=2)
    for i in range(20):
        log.append("t", b"%d" % i, partition=i % 2, timestamp_ms=1_000 * i)
    when = datetime.fromtimestamp(10, UTC)
    return [
        list(log.read("t", 0, start=3, end=6)),
        list(log.read("t", start=when)),
        list(log.read("t", 1, end=when)),
        list(log.read("t", 1, start="latest")),
        list(log.read("t", 0, start=10)),
        [log.read_at("t", 0, offset) for offset in (0, 5, 9)],
        failing(lambda: log.read_at("t", 0, 10)),
        failing(lambda: log.read("t", 0, start=11)),
        failing(lambda: log.read("t", start=3)),
        failing(lambda: log.read("t", 2)),
        failing(lambda: log.read("u")),
        failing(lambda: log.read("t", 0, start="middle")),  # type: ignore[arg-type]
        [edges[:2] for edges in log.offsets("t").values()],
        failing(lambda: log.offsets("u")),
    ]


@scenario
def offsets_by_time(log: Log) -> object:
    log.create_topic("t")
    for i in range(10):
        log.append("t", b"", timestamp_ms=1_000 * i)
    found = [log.offset_for_time("t", 0, time_ms) for time_ms in (-5, 0, 1, 4_000, 9_000, 9_001, 10**30)]
    return [
        *(each and each[:2] for each in found),
        log.offsets_before("t", 0, -1, 5),
        log.offsets_before("t", 0, -2, 5),
        failing(lambda: log.offset_for_time("t", 1, 0)),
        failing(lambda: log.offset_for_time("u", 0, 0)),
    ]


@scenario
def records_are_deleted_from_the_beginning(log: Log) -> object:
    log.create_topic("t")
    log.append_many("t", [b"%d" % i for i in range(10)])
    return [
        log.delete_records("t", 0, 4),
        log.delete_records("t", 0, 2),
        failing(lambda: log.delete_records("t", 0, 11)),
        failing(lambda: log.delete_records("t", 1, 0)),
        failing(lambda: log.delete_records("u", 0, 0)),
        failing(lambda: log.read("t", 0, start=3)),
        failing(lambda: log.read_at("t", 0, 3)),
        [record.offset for record in log.read("t")],
    ]


@scenario
def append_time_is_the_logs(log: Log) -> object:
    log.create_topic("t", message_timestamp_type="LogAppendTime")
    one = log.append("t", b"v", timestamp_ms=5)
    many = log.append_many("t", [b"a", b"b"])
    with log.producer() as producer:
        sent = producer.send("t", b"s", timestamp_ms=5).result()
    told = [one.timestamp_ms, *(each.timestamp_ms for each in many), sent.timestamp_ms]
    read = list(log.read("t"))
    return [
        [each.offset for each in (one, *many, sent)],
        [record.timestamp_ms for record in read] == told,
        min(told) > 10**12,
        [record.timestamp_type for record in read],
    ]


@scenario
def arrow_batches(log: Log) -> object:
    log.create_topic("t", partitions=2)
    log.append_many("t", [(b"k%d" % i, b"v%d" % i) for i in range(100)], compression="lz4")
    batches = log.read_arrow("t", columns=["partition", "offset", "key", "value"])
    return sorted(
        (row["key"], row["value"], row["partition"], row["offset"]) for b in batches for row in b.to_pylist()
    )


@scenario
def reading_follows(log: Log) -> object:
    log.create_topic("t")
    following = log.read("t", 0, follow=True)
    found = []
    for i in range(5):
        log.append_many("t", [b"%d" % (10 * i + j) for j in range(10)])
        found += [next(following).value for _ in range(10)]
    return found


# -- producing ---------------------------------------------------------------------------------------------


@scenario
def a_producer_sends(log: Log) -> object:
    log.create_topic("t", partitions=3)
    called: list[int] = []
    with log.producer(
        linger_ms=1, batch_bytes=500, callback=lambda found, _: called.append(found.offset)
    ) as sends:
        futures = [sends.send("t", b"%d" % i, key=b"k%d" % (i % 5), timestamp_ms=i) for i in range(500)]
        sends.flush()
        done = all(future.done() for future in futures)
    where = [future.result()[:4] for future in futures]
    return [done, where, sorted(called), list(log.read("t")), failing(lambda: sends.send("t", b""))]


@scenario
def sends_that_cannot_be(log: Log) -> object:
    log.create_topic("t", max_message_bytes=1_000)
    with log.producer() as producer:
        return [
            failing(lambda: producer.send("u", b"")),
            failing(lambda: producer.send("t", b"x" * 1_000)),
            failing(lambda: producer.send("t", b"", partition=1)),
            failing(lambda: producer.send("t", 5)),
            failing(lambda: log.producer(lingers=5)),  # type: ignore[call-arg]
        ]


# -- consuming, without a group ----------------------------------------------------------------------------


@scenario
def a_consumer_reads_seeks_and_pauses(log: Log) -> object:
    log.create_topic("t", partitions=2)
    for i in range(40):
        log.append("t", b"%d" % i, partition=i % 2, timestamp_ms=1_000 * i)
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    with log.consumer("t", stop_at_end=True) as consumer:
        everything = sorted(consumer, key=lambda record: record[1:3])
        positions = [consumer.position(each) for each in (zero, one)]
        consumer.seek(zero, 15)
        consumer.pause(one)
        seeked = [record.offset for record in consumer]
        consumer.resume()
        consumer.seek_to_time(36_000)
        late = sorted(record.value or b"" for record in consumer)
        consumer.seek_to_beginning(one)
        lag = consumer.lag()
        consumer.seek(zero, 99)
        return [
            everything,
            positions,
            seeked,
            late,
            lag,
            [record.offset for record in consumer if record.partition == 0],
            failing(lambda: consumer.seek("t", 2, 0)),
            failing(lambda: log.consumer("u")),
        ]


@scenario
def a_consumer_of_a_pattern_sees_new_topics(log: Log) -> object:
    log.create_topic("a-1")
    log.append("a-1", b"1")
    with log.consumer(re.compile("a-.*"), metadata_refresh_ms=1) as consumer:
        found = [record.value for record in consumer.poll(10_000)]
        log.create_topic("a-2")
        log.append("a-2", b"2")
        while len(found) < 2:
            found += [record.value for record in consumer.poll(100)]
        log.delete_topic("a-1")
        while consumer.subscription != ("a-2",):
            found += [record.value for record in consumer.poll(10)]
        return found


@scenario
def positions_outside_the_log(log: Log) -> object:
    log.create_topic("t")
    log.append_many("t", [b"%d" % i for i in range(10)])
    log.delete_records("t", 0, 5)
    tp = TopicPartition("t", 0)
    found: list[object] = []
    for reset in ("earliest", "latest"):
        with log.consumer("t", auto_offset_reset=reset, stop_at_end=True) as consumer:
            consumer.seek(tp, 2)
            found.append([record.offset for record in consumer])
    with log.consumer("t", auto_offset_reset="error") as consumer:
        consumer.seek(tp, 2)
        found.append(failing(consumer.poll))
        consumer.seek(tp, 12)
        found.append(failing(consumer.poll))
        consumer.seek(tp, 9)
        found.append([record.offset for record in consumer.poll(10_000)])
    return found


# -- groups ------------------------------------------------------------------------------------------------


def together(members: Sequence[Consumer], done: Callable[[], bool], took: Callable[[Record], object]) -> None:
    """Have all of them poll in turn, until it is done; and once more, which says that they are done, too."""
    finished = False
    while not finished:
        finished = done()
        for member in members:
            for record in member.poll(10):
                took(record)


def shared(members: Sequence[Consumer], partitions: int) -> bool:
    """Whether each of them has something, and together they have all, each once."""
    owned = [tp for member in members for tp in member.assignment()]
    return len(owned) == len(set(owned)) == partitions and all(member.assignment() for member in members)


@scenario
def a_group_keeps_its_place(log: Log) -> object:
    log.create_topic("t", partitions=2)
    for i in range(100):
        log.append("t", b"%d" % i, partition=i % 2)
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    with log.consumer("t", group="g", auto_commit=False) as consumer:
        first: list[Record] = []
        while len(first) < 40:
            first += consumer.poll(10_000, 40 - len(first))
        nothing = consumer.committed(zero)
        consumer.commit()
        committed = [consumer.committed(each) for each in (zero, one)]
        consumer.commit({zero: CommittedOffset(7, -1, "why")})
        noted = consumer.committed(zero)
        consumer.commit({zero: committed[0]})
        wrong = [
            failing(lambda: consumer.commit({TopicPartition("t", 5): 1})),
            failing(lambda: consumer.commit({zero: -1})),
        ]
    with log.consumer("t", group="g", stop_at_end=True) as consumer:
        rest = list(consumer)
    with log.consumer("t", group="g", stop_at_end=True) as consumer:
        again = list(consumer)
    assert noted is not None
    return [
        sorted(record.value or b"" for record in first + rest) == sorted(b"%d" % i for i in range(100)),
        len(rest),
        again,
        nothing,
        sum(each.offset for each in committed if each is not None),
        noted[:3],
        wrong,
    ]


@scenario
def members_come_and_go(log: Log) -> object:
    log.create_topic("t", partitions=4)
    seen: list[bytes | None] = []

    def take(record: Record) -> None:
        seen.append(record.value)

    for i in range(100):
        log.append("t", b"%d" % i, partition=i % 4)
    revoked: list[int] = []
    one = log.consumer("t", group="g", on_revoked=lambda partitions: revoked.append(len(partitions)))
    together([one], lambda: len(seen) >= 100, take)
    two = log.consumer("t", group="g")
    together([one, two], lambda: shared([one, two], 4), take)
    for i in range(100, 200):
        log.append("t", b"%d" % i, partition=i % 4)
    together([one, two], lambda: len(seen) >= 200, take)
    one.close()
    together([two], lambda: shared([two], 4), take)
    for i in range(200, 300):
        log.append("t", b"%d" % i, partition=i % 4)
    together([two], lambda: len(seen) >= 300, take)
    two.close()
    return [sorted(seen, key=lambda value: int(value or b"0")), revoked]


@scenario
def a_group_with_each_assignor(log: Log) -> object:
    log.create_topic("t", partitions=4)
    found = []
    for assignor in ("range", "roundrobin", "sticky"):
        members = [log.consumer("t", group=f"of-{assignor}", assignors=[assignor]) for _ in range(2)]
        together(members, lambda: shared(members, 4), lambda record: None)  # noqa: B023
        found.append(sorted(len(member.assignment()) for member in members))
        for member in members:
            member.close()
    return found


@scenario
def a_consumer_that_does_not_come_back_loses_its_partitions(log: Log) -> object:
    log.create_topic("t", partitions=2)
    lost: list[int] = []
    one = log.consumer(
        "t", group="g", max_poll_interval_ms=300, on_lost=lambda partitions: lost.append(len(partitions))
    )
    together([one], lambda: shared([one], 2), lambda record: None)
    two = log.consumer("t", group="g")
    together([two], lambda: shared([two], 2), lambda record: None)
    one.poll()
    two.close()
    one.close()
    return lost


@scenario
def a_topic_goes_while_a_group_reads_it(log: Log) -> object:
    log.create_topic("t")
    log.create_topic("u")
    log.append("t", b"t")
    log.append("u", b"u")
    found: list[Record] = []
    with log.consumer(["t", "u"], group="g", metadata_refresh_ms=1) as consumer:
        while len(found) < 2:
            found += consumer.poll(10)
        log.delete_topic("u")
        log.append("t", b"t")
        while len(found) < 3 or consumer.subscription != ("t",) or not shared([consumer], 1):
            found += consumer.poll(10)
    groups = log.backend.coordinator
    assert groups is not None
    groups.commit_offsets("g", {TopicPartition("u", 0): CommittedOffset(1)})
    committed = groups.committed_offsets("g", [TopicPartition("t", 0)])
    return [record[:3] for record in sorted(found)], [each.offset for each in committed.values()]


@scenario
@newer
def commits_from_outside(log: Log) -> object:
    log.create_topic("t", partitions=2)
    log.append_many("t", [b"%d" % i for i in range(10)], partition=0)
    tp = TopicPartition("t", 0)
    groups = log.backend.coordinator
    assert groups is not None
    groups.commit_offsets("g", {tp: CommittedOffset(4, 0, "note")})
    with log.consumer(group="g", stop_at_end=True) as consumer:
        consumer.assign([tp])
        read = [record.offset for record in consumer]
    with log.consumer("t", group="g") as member:
        member.poll()
        together([member], lambda: shared([member], 2), lambda record: None)
        described = groups.describe_group("g")
        outside = failing(lambda: groups.commit_offsets("g", {tp: CommittedOffset(0)}))
        busy = failing(lambda: groups.delete_group("g"))
    known = "g" in groups.list_groups()
    committed = {name: found[:3] for name, found in groups.committed_offsets("g").items()}
    groups.delete_offsets("g", [tp])
    forgotten = groups.committed_offsets("g", [tp])
    groups.delete_group("g")
    return [
        read,
        (described.state, described.protocol_type, described.protocol, len(described.members)),
        outside,
        busy,
        known,
        committed,
        forgotten,
        "g" in groups.list_groups(),
        failing(lambda: groups.describe_group("g")),
        failing(lambda: groups.delete_group("g")),
        failing(lambda: groups.commit_offsets("", {tp: CommittedOffset(0)})),
        failing(lambda: log.consumer("t", group="")),
    ]


def remake(log: Log, records: int) -> None:
    """Delete the topic and make it again, with new records."""
    log.delete_topic("t")
    log.create_topic("t")
    log.append_many("t", [b"new %d" % i for i in range(records)])


@scenario
@newer
def a_topic_made_again_is_read_from_its_start(log: Log) -> object:
    """With more, as many, and fewer records than a live consumer has read of the old one, and by the next
    consumer of its group."""
    found = []
    for group, reset in (("g", "earliest"), ("h", "latest"), (None, "earliest"), (None, "latest")):
        log.create_topic("t")
        consumer = log.consumer("t", group, auto_offset_reset=reset, metadata_refresh_ms=1)
        while not consumer.assignment():
            consumer.poll(10)
        consumer.poll(10)
        log.append_many("t", [b"old"] * 10)
        old: list[Record] = []
        while len(old) < 10:
            old += consumer.poll(10)
        if group:
            consumer.commit()
        for count in (15, 15, 3):
            remake(log, count)
            new: list[Record] = []
            while len(new) < count:
                new += consumer.poll(10)
            if group:
                consumer.commit()
            found.append([record.value for record in new])
        if group:
            groups = log.backend.coordinator
            assert groups is not None
            found.append([each.offset for each in groups.committed_offsets(group).values()])
        remake(log, 2)  # after the last poll: the commit of `close` is of the old one
        consumer.close()
        if group:
            with log.consumer("t", group, stop_at_end=True) as again:
                found.append([record.value for record in again])
        log.delete_topic("t")
    return found


@scenario
@newer
def a_topic_made_again_is_followed_from_its_start(log: Log) -> object:
    log.create_topic("t")
    for _ in range(10):
        log.append("t", b"old")
    following = log.read("t", follow=True)
    old = [next(following).value for _ in range(10)]
    remake(log, 15)
    new = [next(following).value for _ in range(15)]
    return old, new


@scenario
@newer
def a_topic_made_again_with_fewer_partitions_is_read_from_its_start(log: Log) -> object:
    """By consumers of a name and of a pattern, and by a reader that follows."""
    found = []
    for topics in ("t", re.compile("t")):
        log.create_topic("t", partitions=4)
        for partition in range(4):
            log.append("t", b"old", partition=partition)
        following = log.read("t", follow=True)
        next(following)  # and the next one is of a partition that goes
        with log.consumer(topics, "g") as consumer:
            old: list[Record] = []
            while len(old) < 4:
                old += consumer.poll(10)
            log.delete_topic("t")
            log.create_topic("t", partitions=2)
            for partition in (0, 1, 0):
                log.append("t", b"new", partition=partition)
            new: list[Record] = []
            while len(new) < 3:
                new += consumer.poll(10)
            while len(consumer.assignment()) > 2:
                consumer.poll(10)
        found.append(sorted((record.partition, record.offset, record.value) for record in new))
        found.append(sorted((record.partition, record.offset) for record in islice(following, 3)))
        log.delete_topic("t")
    return found


@scenario
@newer
def an_offset_store_knows_a_topic_by_its_id(log: Log) -> object:
    """One that keeps the id, and one of one's own that does not, for a consumer that lives on."""
    stored: dict[TopicPartition, CommittedOffset] = {}

    class Forgetful:
        def load(
            self, group: str, partitions: Iterable[TopicPartition]
        ) -> dict[TopicPartition, CommittedOffset]:
            return {tp: stored[tp] for tp in partitions if tp in stored}

        def save(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
            stored.update(
                {tp: CommittedOffset(each.offset, each.leader_epoch) for tp, each in offsets.items()}
            )

    found = []
    with tempfile.TemporaryDirectory() as directory:
        store = embedlog.FileOffsetStore(Path(directory) / "offsets")
        for keeps, records in ((store, 15), (store, 3), (Forgetful(), 15)):
            log.create_topic("t")
            log.append_many("t", [b"old"] * 10)
            with log.consumer("t", "g", offset_store=keeps, metadata_refresh_ms=1) as consumer:
                old: list[Record] = []
                while len(old) < 10:
                    old += consumer.poll(10)
                consumer.commit()
                if not isinstance(keeps, Forgetful):
                    consumer.close()
                    remake(log, records)
                    consumer = log.consumer("t", "g", offset_store=keeps)
                else:
                    remake(log, records)
                new: list[Record] = []
                while len(new) < records:
                    new += consumer.poll(10)
                consumer.close()
            found.append([record.value for record in new])
            log.delete_topic("t")
    return found


@scenario
def latest_reads_what_comes_to_a_partition_added_later(log: Log) -> object:
    """By a live member, and again by one that starts after it: where it began was committed at once."""
    log.create_topic("t")
    log.append_many("t", [b"old"] * 3)
    found = []
    for group in ("g", None):
        partitions = log.describe_topic("t").partitions
        consumer = log.consumer(
            "t", group, auto_offset_reset="latest", auto_commit=False, metadata_refresh_ms=1
        )
        while len(consumer.assignment()) < partitions:
            consumer.poll(10)
        consumer.poll(10)
        log.create_partitions("t", partitions + 1)
        log.append_many("t", [b"%d" % i for i in range(5)], partition=partitions)
        records: list[Record] = []
        while len(records) < 5:
            records += consumer.poll(10)
        found.append([record[:3] for record in records])
        consumer.close()
    groups = log.backend.coordinator
    assert groups is not None
    committed = {tp: each.offset for tp, each in groups.committed_offsets("g").items()}
    with log.consumer("t", "g", auto_offset_reset="latest", stop_at_end=True) as again:
        return found, committed, sorted(record[:3] for record in again)


@scenario
def latest_reads_a_partition_that_was_added_while_no_member_ran(log: Log) -> object:
    log.create_topic("t", partitions=2)
    log.append_many("t", [(None, b"old")] * 4)
    with log.consumer("t", "g", auto_offset_reset="latest", stop_at_end=True) as consumer:
        first = list(consumer)
    log.create_partitions("t", 3)
    log.append_many("t", [b"%d" % i for i in range(5)], partition=2)
    log.append("t", b"new", partition=0)
    with log.consumer("t", "g", auto_offset_reset="latest", stop_at_end=True) as consumer:
        return first, sorted((record.partition, record.value) for record in consumer)


@scenario
def latest_reads_a_topic_that_comes_to_match_its_pattern(log: Log) -> object:
    """Seen by the consumer itself, and by one that starts after the topic was created."""
    pattern = re.compile("orders-.*")
    log.create_topic("orders-a")
    log.append_many("orders-a", [b"old"] * 3)
    found = []
    for group, topics in (("g", ("orders-b", "orders-c")), (None, ("orders-d",))):
        with log.consumer(pattern, group, auto_offset_reset="latest", metadata_refresh_ms=1) as consumer:
            while not consumer.assignment():
                consumer.poll(10)
            consumer.poll(10)
            log.create_topic(topics[0])
            log.append_many(topics[0], [b"%d" % i for i in range(5)])
            records: list[Record] = []
            while len(records) < 5:
                records += consumer.poll(10)
            found.append([record[:3] for record in records])
        for topic in topics[1:]:
            log.create_topic(topic)
            log.append(topic, b"while none ran")
    with log.consumer(pattern, "g", auto_offset_reset="latest", stop_at_end=True) as consumer:
        return found, sorted((record.topic, record.offset) for record in consumer)


@scenario
def members_that_start_together_begin_at_the_end(log: Log) -> object:
    """Although one of them commits where its partition begins before the other has looked."""
    log.create_topic("t", partitions=2)
    for partition in range(2):
        log.append_many("t", [b"old"] * 50, partition=partition)
    members = [log.consumer("t", "g", auto_offset_reset="latest", auto_commit=False) for _ in range(2)]
    found: list[Record] = []
    groups = log.backend.coordinator
    assert groups is not None
    together(members, lambda: shared(members, 2) and len(groups.committed_offsets("g")) == 2, found.append)
    positions = sorted(member.position(tp) for member in members for tp in member.assignment())
    for partition in range(2):
        log.append_many("t", [b"new"] * 50, partition=partition)
    together(members, lambda: len(found) >= 100, found.append)
    for member in members:
        member.close()
    return positions, sorted((record.partition, record.offset) for record in found)


@scenario
def a_consumer_begins_a_time_ago(log: Log) -> object:
    log.create_topic("t", partitions=3)
    now_ms = time.time_ns() // 1_000_000
    for hours in (5, 3, 1):
        log.append("t", b"%d" % hours, partition=0, timestamp_ms=now_ms - hours * 3_600_000)
        log.append("t", b"old", partition=1, timestamp_ms=now_ms - 10 * 3_600_000)
    found = []
    for reset in ("by_duration:PT4H", "BY_DURATION:pt2h0.5s", "by_duration:P1D", "by_duration:PT0S"):
        with log.consumer("t", auto_offset_reset=reset, stop_at_end=True) as consumer:
            found.append(sorted(record.value for record in consumer))
    wrong = ("by_duration:", "by_duration:-PT1H", "by_duration:1h", "by_duration:P", "sometime", None, 5)
    return found, [failing(lambda: log.consumer("t", auto_offset_reset=each)) for each in wrong]  # noqa: B023


@scenario
@newer
def a_static_member_comes_back_as_itself(log: Log) -> object:
    log.create_topic("t", partitions=2)
    one = log.consumer("t", group="statics", group_instance_id="one")
    two = log.consumer("t", group="statics", group_instance_id="two")
    together([one, two], lambda: shared([one, two], 2), lambda record: None)
    before = one.assignment()
    one.close()
    again = log.consumer("t", group="statics", group_instance_id="one")
    together([again, two], lambda: shared([again, two], 2), lambda record: None)
    after = again.assignment()
    again.close()
    two.close()
    return before == after


@scenario
@newer
def of_two_consumers_with_one_instance_id_the_newer_has_the_partitions(log: Log) -> object:
    log.create_topic("t", partitions=2)
    lost: list[int] = []
    revoked: list[int] = []
    old = log.consumer(
        "t",
        group="instances",
        group_instance_id="one",
        on_revoked=lambda partitions: revoked.append(len(partitions)),
        on_lost=lambda partitions: lost.append(len(partitions)),
    )
    together([old], lambda: shared([old], 2), lambda record: None)
    new = log.consumer("t", group="instances", group_instance_id="one")
    together([new], lambda: shared([new], 2), lambda record: None)
    while (told := failing(lambda: old.poll(10))) == "no error, but []":
        pass
    log.append_many("t", [b"%d" % i for i in range(200)])
    handled: list[Record] = []
    refused = set()
    while len(handled) < 200:
        handled += new.poll(10)
        refused.add(failing(old.poll))
    refused.add(failing(lambda: next(iter(old))))
    refused.add(failing(lambda: old.commit({TopicPartition("t", 0): CommittedOffset(1)})))
    old.close()
    new.commit()
    groups = log.backend.coordinator
    assert groups is not None
    committed = sum(each.offset for each in groups.committed_offsets("instances").values())
    more = new.poll(50)
    new.close()
    return told, refused, sorted(int(r.value) for r in handled), committed, more, revoked, lost


@scenario
@newer
def a_consumer_that_closes_while_it_joins_leaves_its_group(log: Log) -> object:
    """Although the join has no answer: a member that does not poll holds it up."""
    log.create_topic("t", partitions=2)
    silent, other = log.consumer("t", group="joins"), log.consumer("t", group="joins")
    together([silent, other], lambda: shared([silent, other], 2), lambda record: None)

    def members() -> int:
        return sum(len(each.members) for each in log.describe_groups() if each.group == "joins")

    new = log.consumer("t", group="joins")
    while members() < 3:
        new.poll(0)
    while other.assignment():
        other.poll(0)
    other.poll(0)  # joins again
    other.close()  # has an id
    new.close()  # has none yet, in a directory
    while members() > 1:
        time.sleep(0.001)
    together([silent], lambda: shared([silent], 2), lambda record: None)
    silent.close()
    return members()


@scenario
def a_closed_log_says_so(log: Log) -> object:
    log.create_topic("t")
    producer, consumer = log.producer(), log.consumer("t")
    log.close()
    log.close()
    return [
        failing(lambda: log.append("t", b"")),
        failing(lambda: list(log.read("t"))),
        failing(log.topics),
        failing(lambda: log.create_topic("u")),
        failing(lambda: producer.send("t", b"")),
        failing(lambda: consumer.poll()),
        failing(lambda: log.producer()),
        failing(lambda: log.consumer("t")),
    ]


OLDEST = [act for act in SCENARIOS if act not in NEED_NEWER]


@pytest.mark.parametrize(
    ("act", "versions"),
    [*((act, "newest") for act in SCENARIOS), *((act, "oldest") for act in OLDEST)],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
def test_both_backends_agree(
    act: Scenario, versions: str, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the newest versions of the protocol that both know, and in the oldest that are spoken here."""
    if versions == "oldest":
        oldest = {api: (low, low) for api, (low, _) in SPOKEN.items()}
        monkeypatch.setattr("embedlog.wire_client.connection.SPOKEN", oldest)
    with embedlog.open(tmp_path / "log", offsets_topic_num_partitions=2) as log:
        here = act(log)
    with clean(broker), at(broker) as log:
        there = act(log)
    assert there == here


@pytest.mark.parametrize("act", SCENARIOS, ids=lambda act: act.__name__)
@pytest.mark.slow
def test_tasks_get_what_threads_get(act: Scenario, broker: Broker, tmp_path: Path) -> None:
    """`embedlog.aio` over a directory and over the wire."""
    with embedlog.open(tmp_path / "log", offsets_topic_num_partitions=2) as log:
        here = act(log)
    with contextlib.closing(Loop()) as loop:
        with blocking(loop, tmp_path / "tasks", offsets_topic_num_partitions=2) as tasks:
            assert act(tasks) == here
        with clean(broker), blocking(loop, f"kafka://{broker.bootstrap_servers}", **QUICK) as tasks:
            assert act(tasks) == here


@pytest.mark.parametrize("act", SCENARIOS, ids=lambda act: act.__name__)
@pytest.mark.slow
def test_a_shared_log_is_the_same_for_its_owner_and_a_client(act: Scenario, tmp_path: Path) -> None:
    """The files are read in place; what changes the log goes through the owner's socket."""
    settings = {"offsets_topic_num_partitions": 2}
    with embedlog.open(tmp_path / "log", **settings) as log:
        here = act(log)
    with embedlog.open(tmp_path / "owner", shared=True, **settings) as log:
        assert act(log) == here
    with embedlog.open(tmp_path / "shared", shared=True, **settings) as owner:
        with embedlog.open(tmp_path / "shared", shared=True) as log:
            assert act(log) == here
        assert type(owner.backend) is not type(log.backend)


@pytest.mark.parametrize("act", SCENARIOS, ids=lambda act: act.__name__)
@pytest.mark.slow
def test_tasks_share_a_log_as_threads_do(act: Scenario, tmp_path: Path) -> None:
    """`embedlog.aio` as owner and as client."""
    settings = {"offsets_topic_num_partitions": 2}
    with embedlog.open(tmp_path / "log", **settings) as log:
        here = act(log)
    with contextlib.closing(Loop()) as loop:
        with blocking(loop, tmp_path / "owner", shared=True, **settings) as owner:
            assert act(owner) == here
        with (
            embedlog.open(tmp_path / "shared", shared=True, **settings),
            blocking(loop, tmp_path / "shared", shared=True) as client,
        ):
            assert act(client) == here


@contextlib.contextmanager
def clean(broker: Broker) -> Iterator[None]:
    """Delete all topics and groups afterwards."""
    try:
        yield
    finally:
        for topic in broker.log.topics():
            broker.log.delete_topic(topic)
        groups = broker.log.backend.coordinator
        assert groups is not None
        for group in groups.list_groups():
            # Static members keep their seats, and so may one that joined as its client closed (KIP-394).
            for member in groups.describe_group(group).members:
                groups.leave_group(group, member.member_id, group_instance_id=member.group_instance_id)
            groups.delete_group(group)
