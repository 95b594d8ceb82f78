"""Every public method with each argument replaced by invalid values: no raw exception, no misleading error.

Each row of the table is a call with a hole, and which values are welcome in it. All values go through all
holes: what is welcome works, or fails by an error of embedlog's (there is no topic of that name, say); what
is not must fail by one, shortly and without a trace in the log.
"""

from __future__ import annotations

import array
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import embedlog
from embedlog import CommittedOffset, EmbedlogError, FileOffsetStore, Log, Record, TopicPartition
from embedlog.clients.options import ConsumerOptions, ProducerOptions, QueueOptions
from embedlog.config import LogSettings, TopicSettings
from embedlog.mirroring.importing import import_files
from embedlog.store.atomic_append import append_atomically
from embedlog.store.repair import repair_partition
from embedlog.store.verify import verify_log

HUGE = 10**5_000
"""It cannot even be printed: str() of it is a ValueError."""


class Opaque:
    def __repr__(self) -> str:
        raise RuntimeError("not even a repr")


class Nowhere(tzinfo):
    """A time zone that does not know its offset: such a datetime is naive all the same."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    def dst(self, when: datetime | None) -> None:
        return None


class Numbered:
    """A path that is none."""

    def __fspath__(self) -> int:
        return 5


class Single(Mapping[Any, object]):
    """A mapping of one thing, be it hashable or not."""

    def __init__(self, *pair: object) -> None:
        self._pair = pair

    def __getitem__(self, key: object) -> object:
        return self._pair[1]

    def __iter__(self) -> Iterator[object]:
        return iter(self._pair[:1])

    def __len__(self) -> int:
        return 1


def released() -> memoryview:
    view = memoryview(b"released")
    view.release()
    return view


TP = TopicPartition("t", 0)
NAIVE = (datetime.min, datetime.max, datetime(2024, 5, 1), datetime(2024, 5, 1, tzinfo=Nowhere()))
AWARE = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))))


def values() -> list[object]:
    """One of each kind, and what lies just past the ends of each."""
    return [
        *(None, True, False, 0, 1, -1, 200_000, 2**31, 2**63, -(2**63), 10**30, HUGE, -HUGE),
        *(0.0, 1.5, -0.5, math.nan, math.inf, -math.inf, 1 + 2j),
        *("", "t", "0", "1e3", "nobody", "\ud800", "a\0b", "../up", "x" * 40_000),
        *(b"", b"t", bytearray(b"t"), memoryview(b"abcdef")[::2], released(), array.array("i", [1])),
        *([], ["t"], ["t", 0], [None], (), ("t",), ("t", 0, 1), ("t", "0"), {}, {"t": 0}, {"t"}, iter(["t"])),
        *(TP, ("t", 0), ["t", 0], TP._replace(partition="0"), TP._replace(partition=True)),
        *(TP._replace(partition=0.0), TP._replace(partition=-1), TP._replace(partition=9)),
        *(TP._replace(partition=HUGE), TP._replace(topic=None), TP._replace(topic=["t"])),
        *(TopicPartition("nobody", 0), TopicPartition("../up", 0), [TP], [("t", 0)], {TP: 0}),
        *(CommittedOffset(0), CommittedOffset("0"), CommittedOffset(None), CommittedOffset(True)),
        *(CommittedOffset(-1), CommittedOffset(HUGE), CommittedOffset(0, "0"), CommittedOffset(0, HUGE)),
        *(CommittedOffset(0, 0, None), CommittedOffset(0, 0, "\ud800"), CommittedOffset(0, 0, "", "now")),
        *(CommittedOffset(0, 0, "", HUGE), Record(), Record(key="k"), Record(timestamp_ms="now")),
        *(*NAIVE, *AWARE, date(2024, 5, 1), timedelta(1)),
        *(re.compile("t"), re.compile(b"t"), Opaque(), Exception, Numbered(), print),
    ]


class Handles(NamedTuple):
    log: Log
    consumer: embedlog.Consumer
    producer: embedlog.Producer
    store: FileOffsetStore


Welcome = Callable[[object], bool]


def nothing(given: object) -> bool:
    return False


def exactly(*welcome: object) -> Welcome:
    return lambda given: any(given is each for each in welcome)


def either(*kinds: Welcome) -> Welcome:
    return lambda given: any(kind(given) for kind in kinds)


def whole(low: int = 0, high: int | float = math.inf) -> Welcome:
    return lambda given: type(given) is int and low <= given <= high


def time(given: object) -> bool:
    """A span of time."""
    return type(given) in (int, float) and given >= 0  # type: ignore[operator]


def text(given: object) -> bool:
    return isinstance(given, str) and len(given) < 32_768 and "\ud800" not in given


def topic(given: object) -> bool:
    return isinstance(given, str) and given in ("t", "nobody", "0", "1e3")


def encoded(given: object) -> bool:
    """Bytes in one of their dresses; what a memoryview looks at may be gone."""
    try:
        return given is None or (isinstance(given, bytes | bytearray | memoryview) and len(given) >= 0)
    except ValueError:
        return False


def header_name(given: object) -> bool:
    return isinstance(given, str) and "\ud800" not in given


def record(given: object) -> bool:
    return isinstance(given, Record) and encoded(given.key) and whole(-1)(given.timestamp_ms)


def moment(given: object) -> bool:
    return isinstance(given, datetime)


def place(given: object) -> bool:
    return whole()(given) or moment(given)


def partition_name(given: object) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and whole()(given[1])


def partition_names(given: object) -> bool:
    return isinstance(given, list | tuple | dict) and all(map(partition_name, given))


def topics(given: object) -> bool:
    if isinstance(given, list | tuple | dict | set):
        return all(name == "t" for name in given)
    return topic(given) or isinstance(given, re.Pattern | Iterator)


def commit(given: object) -> bool:
    if not isinstance(given, CommittedOffset):
        return False
    offset, epoch, metadata, time, topic_id = given
    return (
        whole(0, 2**63 - 1)(offset)
        and whole(-1, 2**31)(epoch)
        and text(metadata)
        and whole(-1, 2**63)(time)
        and (topic_id == "" or (text(topic_id) and len(topic_id) == 22))
    )


def group(given: object) -> bool:
    return text(given) and given != ""


def file_name(given: object) -> bool:
    return text(given) and "\0" not in str(given) and given != ""


NONE, FLAG = exactly(None), exactly(True, False)
A_PARTITION, AN_OFFSET = whole(0, 1), whole(0, 2**63 - 1)
MAYBE_A_PARTITION, MAYBE_A_TIME = either(NONE, A_PARTITION), either(NONE, whole(-1, 2**63 - 1))
MAYBE_A_CODEC = either(NONE, whole(0, 4))


def empty_union(given: object) -> bool:
    return given == []


def called(given: object) -> bool:
    return given is None or callable(given)


Row = tuple[str, Callable[[Handles, Any], object], Welcome]

APPENDING: list[Row] = [
    ("append topic", lambda on, x: on.log.append(x, b""), topic),
    ("append value", lambda on, x: on.log.append("t", x), encoded),
    ("append key", lambda on, x: on.log.append("t", b"", key=x), encoded),
    ("append header", lambda on, x: on.log.append("t", b"", headers=[x]), nothing),
    ("append header name", lambda on, x: on.log.append("t", b"", headers=[(x, b"")]), header_name),
    ("append header value", lambda on, x: on.log.append("t", b"", headers={"h": x}), encoded),
    ("append time", lambda on, x: on.log.append("t", b"", timestamp_ms=x), MAYBE_A_TIME),
    ("append partition", lambda on, x: on.log.append("t", b"", partition=x), MAYBE_A_PARTITION),
    ("append expected", lambda on, x: on.log.append("t", b"", partition=1, expected_offset=x), NONE),
    ("append_many topic", lambda on, x: on.log.append_many(x, [b""]), topic),
    ("append_many record", lambda on, x: on.log.append_many("t", [b"", x]), either(encoded, record)),
    ("append_many key", lambda on, x: on.log.append_many("t", [(x, b"")]), encoded),
    ("append_many value", lambda on, x: on.log.append_many("t", [(b"", b""), (b"", x)]), encoded),
    ("append_many Record", lambda on, x: on.log.append_many("t", [Record(value=x)]), encoded),
    ("append_many time", lambda on, x: on.log.append_many("t", [Record(timestamp_ms=x)]), MAYBE_A_TIME),
    ("append_many partition", lambda on, x: on.log.append_many("t", [b""], partition=x), MAYBE_A_PARTITION),
    ("append_many codec", lambda on, x: on.log.append_many("t", [b""], compression=x), MAYBE_A_CODEC),
    ("send topic", lambda on, x: on.producer.send(x, b""), topic),
    ("send value", lambda on, x: on.producer.send("t", x).result(), encoded),
    ("send key", lambda on, x: on.producer.send("t", b"", key=x).result(), encoded),
    ("send header", lambda on, x: on.producer.send("t", b"", headers=[("h", b""), x]), nothing),
    ("send time", lambda on, x: on.producer.send("t", b"", timestamp_ms=x), MAYBE_A_TIME),
    ("send partition", lambda on, x: on.producer.send("t", b"", partition=x), MAYBE_A_PARTITION),
    ("close within", lambda on, x: on.log.producer().close(x), either(NONE, time)),
]  # fmt: skip


def within(on: Handles, act: Callable[[embedlog.Transaction], object]) -> None:
    with on.log.transaction("within") as tx:
        act(tx)


TRANSACTIONS: list[Row] = [
    ("transaction id", lambda on, x: on.log.transaction(x), group),
    ("transaction timeout", lambda on, x: on.log.transaction("x", timeout_ms=x), whole(1, 2**31 - 1)),
    ("transaction flush", lambda on, x: on.log.transaction("x", flush=x), FLAG),
    ("abort_transaction", lambda on, x: on.log.abort_transaction(x), exactly("within")),
    ("tx append topic", lambda on, x: within(on, lambda tx: tx.append(x, b"")), topic),
    ("tx append value", lambda on, x: within(on, lambda tx: tx.append("t", x)), encoded),
    (
        "tx append partition",
        lambda on, x: within(on, lambda tx: tx.append("t", b"", partition=x)),
        MAYBE_A_PARTITION,
    ),
    ("tx append_many topic", lambda on, x: within(on, lambda tx: tx.append_many(x, [b""])), topic),
    (
        "tx append_many record",
        lambda on, x: within(on, lambda tx: tx.append_many("t", [b"", x])),
        either(encoded, record),
    ),
    (
        "tx append_many codec",
        lambda on, x: within(on, lambda tx: tx.append_many("t", [b""], compression=x)),
        MAYBE_A_CODEC,
    ),
    ("tx commit_offsets", lambda on, x: within(on, lambda tx: tx.commit_offsets(x)), nothing),
]

READING: list[Row] = [
    ("read topic", lambda on, x: list(on.log.read(x)), topic),
    ("read partition", lambda on, x: list(on.log.read("t", x)), MAYBE_A_PARTITION),
    ("read start", lambda on, x: list(on.log.read("t", 0, start=x)), place),
    ("read end", lambda on, x: list(on.log.read("t", 0, end=x)), either(NONE, place)),
    ("read max_bytes", lambda on, x: list(on.log.read("t", max_bytes=x)), whole(1)),
    ("read follow", lambda on, x: on.log.read("t", follow=x), FLAG),
    ("read isolation", lambda on, x: on.log.read("t", isolation_level=x), nothing),
    ("topic name", lambda on, x: list(on.log.topic(x, str).read()), topic),
    ("topic type", lambda on, x: on.log.topic("t", x), NONE),
    ("topic serializer", lambda on, x: on.log.topic("t", serializer=x), NONE),
    ("topic schema", lambda on, x: on.log.topic("t", serializer="avro", schema=x), empty_union),
    ("topic key type", lambda on, x: on.log.topic("t", key_type=x), NONE),
    ("topic key serializer", lambda on, x: on.log.topic("t", key_serializer=x), NONE),
    ("topic errors", lambda on, x: on.log.topic("t", on_decode_error=x), callable),
    ("read_values partition", lambda on, x: list(on.log.read_values("t", x)), MAYBE_A_PARTITION),
    ("read_values start", lambda on, x: list(on.log.read_values("t", 0, start=x)), place),
    ("read_values end", lambda on, x: list(on.log.read_values("t", 0, end=x)), either(NONE, place)),
    ("read_at topic", lambda on, x: on.log.read_at(x, 0, 0), topic),
    ("read_at partition", lambda on, x: on.log.read_at("t", x, 0), A_PARTITION),
    ("read_at", lambda on, x: on.log.read_at("t", 0, x), whole(0, 1)),
    ("read_arrow columns", lambda on, x: list(on.log.read_arrow("t", columns=x)), NONE),
    ("read_arrow partition", lambda on, x: list(on.log.read_arrow("t", x)), MAYBE_A_PARTITION),
    ("read_arrow start", lambda on, x: list(on.log.read_arrow("t", 0, start=x)), place),
    ("sql", lambda on, x: on.log.sql(x), nothing),
    ("sql schemas", lambda on, x: on.log.sql("SELECT 1", schemas=x), lambda given: given in (None, {})),
    ("sql schema", lambda on, x: on.log.sql("SELECT 1", schemas={"t": x}), nothing),
    ("sql isolation_level", lambda on, x: on.log.sql("SELECT 1", isolation_level=x), nothing),
    ("to_pandas", lambda on, x: on.log.to_pandas(x), topic),
    ("to_polars", lambda on, x: on.log.to_polars(x), topic),
    ("offsets", lambda on, x: on.log.offsets(x), topic),
    ("offsets_before topic", lambda on, x: on.log.offsets_before(x, 0, -1, 5), topic),
    ("offsets_before partition", lambda on, x: on.log.offsets_before("t", x, -1, 5), A_PARTITION),
    ("offsets_before time", lambda on, x: on.log.offsets_before("t", 0, x, 5), whole(-HUGE)),
    ("offsets_before count", lambda on, x: on.log.offsets_before("t", 0, -1, x), whole()),
    ("offset_for_time topic", lambda on, x: on.log.offset_for_time(x, 0, 5), topic),
    ("offset_for_time partition", lambda on, x: on.log.offset_for_time("t", x, 5), A_PARTITION),
    ("offset_for_time", lambda on, x: on.log.offset_for_time("t", 0, x), whole(-HUGE)),
]  # fmt: skip

CONSUMING: list[Row] = [
    ("poll", lambda on, x: (on.consumer.wakeup(), on.consumer.poll(x)), time),
    ("poll count", lambda on, x: on.consumer.poll(0, x), either(NONE, whole(1))),
    ("position", lambda on, x: on.consumer.position(x), partition_name),
    ("committed", lambda on, x: on.consumer.committed(x), partition_name),
    ("seek", lambda on, x: on.consumer.seek(x, 0), partition_name),
    ("seek topic", lambda on, x: on.consumer.seek(x, 0, 0), topic),
    ("seek partition", lambda on, x: on.consumer.seek("t", x, 0), A_PARTITION),
    ("seek offset", lambda on, x: (on.consumer.seek("t", 0, x), on.consumer.poll()), AN_OFFSET),
    ("seek to", lambda on, x: (on.consumer.seek(TP, x), on.consumer.poll()), AN_OFFSET),
    ("seek_to_beginning", lambda on, x: on.consumer.seek_to_beginning(x), partition_name),
    ("seek_to_end", lambda on, x: on.consumer.seek_to_end(TP, x), partition_name),
    ("seek_to_time", lambda on, x: on.consumer.seek_to_time(x), either(moment, whole(-HUGE))),
    ("seek_to_time of", lambda on, x: on.consumer.seek_to_time(0, x), partition_name),
    ("seek_to_committed", lambda on, x: on.consumer.seek_to_committed(x), partition_name),
    ("pause", lambda on, x: on.consumer.pause(x), partition_name),
    ("resume", lambda on, x: on.consumer.resume(x), partition_name),
    ("commit", lambda on, x: on.consumer.commit(x), either(NONE, partition_names)),
    ("commit of", lambda on, x: on.consumer.commit(Single(x, 0)), partition_name),
    ("commit offset", lambda on, x: on.consumer.commit({TP: x}), either(AN_OFFSET, commit)),
    ("assign", lambda on, x: on.log.consumer("t").assign(x), partition_names),
    ("assign one", lambda on, x: on.log.consumer("t").assign([TP, x]), partition_name),
    ("leave", lambda on, x: on.log.consumer("t").close(x), FLAG),
    ("consumer topics", lambda on, x: on.log.consumer(x).close(), topics),
    ("load group", lambda on, x: on.store.load(x, [TP]), group),
    ("load", lambda on, x: on.store.load("g", x), partition_names),
    ("load one", lambda on, x: on.store.load("g", [x]), partition_name),
    ("save group", lambda on, x: on.store.save(x, {TP: CommittedOffset(0)}), group),
    ("save", lambda on, x: on.store.save("g", x), partition_names),
    ("save of", lambda on, x: on.store.save("g", Single(x, CommittedOffset(0))), partition_name),
    ("save offset", lambda on, x: on.store.save("g", {TP: x}), commit),
    ("store path", lambda on, x: FileOffsetStore(x).load("g", []), file_name),
]  # fmt: skip

KEEPING: list[Row] = [
    ("create", lambda on, x: (on.log.create_topic(x), on.log.delete_topic(x)), topic),
    ("create partitions", lambda on, x: on.log.create_topic("t", x, exist_ok=True), whole(1, 100_000)),
    ("create exist_ok", lambda on, x: on.log.create_topic("t", exist_ok=x), FLAG),
    (
        "create replicas",
        lambda on, x: on.log.create_topic("t", exist_ok=True, replication_factor=x),
        either(NONE, whole(1, 1)),
    ),
    ("list internal", lambda on, x: on.log.topics(internal=x), FLAG),
    ("describe", lambda on, x: on.log.describe_topic(x), topic),
    ("alter", lambda on, x: on.log.alter_topic(x), topic),
    ("grow", lambda on, x: on.log.create_partitions(x, 2), topic),
    ("grow to", lambda on, x: on.log.create_partitions("t", x), nothing),
    ("delete", lambda on, x: on.log.delete_topic("nobody" if x == "t" else x), nothing),
    ("reopen topic", lambda on, x: on.log.reopen(x, 0), topic),
    ("reopen", lambda on, x: on.log.reopen("t", x), A_PARTITION),
    ("delete_records topic", lambda on, x: on.log.delete_records(x, 0, 0), topic),
    ("delete_records partition", lambda on, x: on.log.delete_records("t", x, 0), A_PARTITION),
    ("delete_records", lambda on, x: on.log.delete_records("t", 0, x), whole(0, 1)),
    ("compact", lambda on, x: on.log.compact(x), topic),
    ("backup", lambda on, x: on.log.backup(x), file_name),
    ("open", lambda on, x: embedlog.open(x).close(), file_name),
    ("open to read", lambda on, x: embedlog.open(x, "r").close(), file_name),
    ("open mode", lambda on, x: embedlog.open("mode", x).close(), nothing),
    ("open layout", lambda on, x: embedlog.open("layout", layout=x).close(), NONE),
    ("open progress", lambda on, x: embedlog.open("progress", progress=x).close(), called),
    ("open fs", lambda on, x: embedlog.open("fs", fs=x).close(), NONE),
]  # fmt: skip

WHOLE: list[Row] = [
    ("verify", lambda on, x: verify_log(x), file_name),
    ("verify topic", lambda on, x: verify_log(on.log.path, topic=x), either(NONE, topic)),
    ("verify partition", lambda on, x: verify_log(on.log.path, topic="t", partition=x), MAYBE_A_PARTITION),
    ("repair", lambda on, x: repair_partition(x, "t", 0, dry_run=True), file_name),
    ("repair topic", lambda on, x: repair_partition(closed_log(), x, 0, dry_run=True), topic),
    ("repair partition", lambda on, x: repair_partition(closed_log(), "t", x, dry_run=True), exactly(0)),
    ("repair dry_run", lambda on, x: repair_partition(closed_log(), "t", 0, dry_run=x), FLAG),
    ("import", lambda on, x: import_files(x, on.log), nothing),
    ("import topic", lambda on, x: importing(on, topic=x), topic),
    ("import format", lambda on, x: importing(on, format=x), NONE),
    ("import codec", lambda on, x: importing(on, compression=x), MAYBE_A_CODEC),
    ("import on_damage", lambda on, x: importing(on, on_damage=x), nothing),
    ("publish as", lambda on, x: append_atomically(on.log._writer(), x, 0, {}), text),
    ("publish number", lambda on, x: append_atomically(on.log._writer(), "query", x, {}), whole()),
    ("publish", lambda on, x: append_atomically(on.log._writer(), "query", 10**40, x), exactly()),
    ("publish to", lambda on, x: append_atomically(on.log._writer(), "q", 0, Single(x, "none")), nothing),
    ("publish file", lambda on, x: append_atomically(on.log._writer(), "query", 10**40, {TP: x}), nothing),
]  # fmt: skip


def closed_log() -> Path:
    path = Path("closed")
    if not path.exists():
        with embedlog.open(path) as log:
            log.create_topic("t")
    return path


def importing(on: Handles, **options: Any) -> None:
    """Import a segment of Kafka's with a record, and undo it."""
    there = on.log.topics()
    import_files(source(), on.log, **{"topic": "u", **options})
    for name in set(on.log.topics()) - set(there):
        on.log.delete_topic(name)


def source() -> Path:
    path = Path("source")
    if not path.exists():
        with embedlog.open("from", layout="kafka") as log:
            log.create_topic("t")
            log.append("t", b"there")
        path.mkdir()
        Path("from/t-0/00000000000000000000.log").rename(path / "00000000000000000000.log")
    return path


COUNT = whole(1)
CONSUMER_OPTIONS: dict[str, Welcome] = {
    "auto_offset_reset": nothing,
    "auto_commit": either(NONE, FLAG),
    "auto_commit_interval_ms": COUNT,
    "assignors": nothing,
    "isolation_level": nothing,
    "max_poll_records": COUNT,
    "fetch_max_bytes": COUNT,
    "max_poll_interval_ms": whole(1, 2**31 - 1),
    "client_id": text,
    "group_instance_id": either(NONE, text),
    "offset_store": NONE,
    "stop_at_end": FLAG,
    "on_assigned": called,
    "on_revoked": called,
    "on_lost": called,
    "metadata_refresh_ms": COUNT,
}
PRODUCER_OPTIONS: dict[str, Welcome] = {
    "linger_ms": time,
    "batch_bytes": COUNT,
    "compression": MAYBE_A_CODEC,
    "partitioner": called,
    "encoder": called,
    "key_encoder": called,
    "callback": called,
    "buffer_bytes": COUNT,
    "max_block_ms": time,
    "flush": FLAG,
    "clock": nothing,
}


QUEUE_OPTIONS: dict[str, Welcome] = {
    "lock_ms": whole(1, 2**31 - 1),
    "max_deliveries": whole(1, 32_767),
    "backoff_ms": whole(),
    "max_backoff_ms": whole(),
    "ordered_by_key": FLAG,
    "dead_letter_topic": either(NONE, topic),
    "prefetch": whole(1, 10_000),
    "flush": FLAG,
    "accept_linger_ms": whole(0, 2**31 - 1),
    "partitions": whole(1),
}


def with_option(act: Callable[..., object], name: str) -> Callable[[Handles, Any], object]:
    return lambda on, x: act(on, **{name: x})


def consume(on: Handles, **options: Any) -> None:
    with on.log.consumer("t", "another", **options) as consumer:
        consumer.poll(0)


def produce(on: Handles, **options: Any) -> None:
    on.log.producer(**options).close()


def queue(
    on: Handles, topic: Any = "t", act: Callable[[Any], object] = lambda queue: None, **options: Any
) -> None:
    """Do something with a queue that has a job at least."""
    try:
        with on.log.queue(topic, **{"group": "jobs", "dead_letter_topic": None, **options}) as made:
            made.send(b"")
            act(made)
    finally:
        for name in set(on.log.topics()) - {"t"}:
            on.log.delete_topic(name)


def with_job(act: Callable[[embedlog.Job, Any], object]) -> Callable[[Handles, Any], object]:
    return lambda on, x: queue(on, act=lambda queue: act(queue.take(), x))


def work(job: embedlog.Job) -> None: ...


def run_worker(on: Handles, *functions: Any, **options: Any) -> None:
    worker = embedlog.worker("t", group="jobs")(work)
    on.log.run_workers(*(functions or (worker,)), **{"background": True, **options}).close()


QUEUES: list[Row] = [
    *((f"queue {name}", with_option(queue, name), fine) for name, fine in QUEUE_OPTIONS.items()),
    ("queue topic", lambda on, x: queue(on, x), topic),
    ("queue group", lambda on, x: queue(on, group=x), group),
    ("queue send", lambda on, x: queue(on, act=lambda queue: queue.send(x)), encoded),
    ("queue send key", lambda on, x: queue(on, act=lambda queue: queue.send(b"", key=x)), encoded),
    ("queue delay", lambda on, x: queue(on, act=lambda q: q.send(b"", delay_ms=x)), either(NONE, whole())),
    ("queue send at", lambda on, x: queue(on, act=lambda q: q.send(b"", at=x)), either(NONE, moment)),
    ("queue take", lambda on, x: queue(on, act=lambda queue: queue.take(x)), time),
    ("release", with_job(lambda job, x: job.release(x)), whole()),
    ("release counted", with_job(lambda job, x: job.release(counted=x)), FLAG),
    ("reject", with_job(lambda job, x: job.reject(x)), lambda given: isinstance(given, str)),
    ("worker topic", lambda on, x: embedlog.worker(x), lambda given: isinstance(given, str)),
    ("worker group", lambda on, x: embedlog.worker("t", group=x), group),
    ("worker concurrency", lambda on, x: embedlog.worker("t", concurrency=x), whole(1, 10_000)),
    ("worker", lambda on, x: embedlog.worker("t")(x), nothing),
    ("run_workers", lambda on, x: on.log.run_workers(x), nothing),
    ("run_workers background", lambda on, x: x is False or run_worker(on, background=x), FLAG),
    ("run_workers concurrency", lambda on, x: run_worker(on, concurrency=x), either(NONE, whole(1, 10_000))),
]  # fmt: skip

OPTIONS: list[Row] = [
    *((f"consumer {name}", with_option(consume, name), fine) for name, fine in CONSUMER_OPTIONS.items()),
    *((f"producer {name}", with_option(produce, name), fine) for name, fine in PRODUCER_OPTIONS.items()),
    ("consumer group", lambda on, x: on.log.consumer("t", group=x).poll(), either(NONE, group)),
]  # fmt: skip


def mirror(on: Handles, given: object, name: str) -> None:
    """Make a mirror with that argument; it is stopped before it runs."""
    options = {"sources": on.log, "target": "mirror", name: given}
    with embedlog.Mirror(**options) as made:
        made.stop()


def run(on: Handles, **options: Any) -> None:
    with embedlog.Mirror(on.log, "mirror") as made:
        made.stop()
        made.run(**options)


def expression(given: object) -> bool:
    return isinstance(given, str) or (isinstance(given, re.Pattern) and isinstance(given.pattern, str))


def reset(on: Handles, topics: object = "t", **options: Any) -> None:
    on.log.group("seen").reset(topics, **{"to": "earliest", "dry_run": True, **options})  # type: ignore[arg-type]


def few_partitions(given: object) -> bool:
    """None of them, or one in an array."""
    return given == array.array("i", [1]) or (isinstance(given, list | tuple | dict) and not given)


def any_names(given: object) -> bool:
    """A topic that is gone may have offsets."""
    return isinstance(given, str | Iterator) or (
        isinstance(given, list | tuple | dict | set) and all(isinstance(name, str) for name in given)
    )


ADMINISTRATION: list[Row] = [
    ("group", lambda on, x: on.log.group(x).offsets(), group),
    ("reset topics", lambda on, x: reset(on, x), either(NONE, topics)),
    ("reset to", lambda on, x: reset(on, to=x), moment),
    ("reset one to", lambda on, x: reset(on, to=x, partitions=0), either(whole(0, 1), moment)),
    ("reset partitions", lambda on, x: reset(on, partitions=x), either(NONE, A_PARTITION, few_partitions)),
    ("reset dry_run", lambda on, x: reset(on, dry_run=x), FLAG),
    ("delete_offsets", lambda on, x: on.log.group("seen").delete_offsets(x), any_names),
    ("oldest_unread_ms", lambda on, x: on.log.group("seen").oldest_unread_ms(x), NONE),
]  # fmt: skip

MIRRORING: list[Row] = [
    ("mirror sources", lambda on, x: mirror(on, x, "sources"), nothing),
    ("mirror target", lambda on, x: mirror(on, x, "target"), file_name),
    ("mirror topics", lambda on, x: mirror(on, x, "topics"), expression),
    ("mirror exclude", lambda on, x: mirror(on, x, "exclude"), either(NONE, expression)),
    ("mirror start", lambda on, x: mirror(on, x, "start"), nothing),
    ("mirror group", lambda on, x: mirror(on, x, "group"), either(NONE, group)),
    ("mirror refresh_ms", lambda on, x: mirror(on, x, "refresh_ms"), whole(1, 2**31 - 1)),
    ("mirror run until_caught_up", lambda on, x: run(on, until_caught_up=x), FLAG),
    ("mirror run on_status", lambda on, x: run(on, on_status=x), nothing),
]


@pytest.fixture(scope="module")
def handles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handles]:
    """A log of one topic with two partitions and a record in each, and its clients."""
    path = tmp_path_factory.mktemp("arguments")
    with embedlog.open(path / "log", offsets_topic_num_partitions=1) as log:
        log.create_topic("t", partitions=2)
        for number in range(2):
            log.append("t", b"there", partition=number)
        log.group("seen").reset("t", to="earliest")
        consumer = log.consumer("t", "g")
        consumer.poll(0)
        yield Handles(log, consumer, log.producer(linger_ms=0), FileOffsetStore(path / "offsets"))


@pytest.fixture
def on(handles: Handles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handles:
    """The same, with an empty directory to be in: relative paths are among the values."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return handles


def refused(act: Callable[[], object]) -> bool:
    """Whether it raises an error of embedlog's; any other exception comes through."""
    try:
        act()
    except EmbedlogError as error:
        assert len(str(error)) < 600 or "x" * 40_000 in str(error)  # a path that the system refused
        return True
    return False


@pytest.mark.parametrize(
    ("call", "welcome"),
    [
        pytest.param(*row[1:], id=row[0])
        for row in (
            *(*APPENDING, *READING, *CONSUMING, *KEEPING, *WHOLE, *OPTIONS),
            *(*QUEUES, *ADMINISTRATION, *MIRRORING, *TRANSACTIONS),
        )
    ],
)
def test_each_value_in_each_place(
    on: Handles, call: Callable[[Handles, Any], object], welcome: Welcome
) -> None:
    settings = on.log.describe_topic("t")
    for number, value in enumerate(values()):
        said_no = refused(lambda value=value: call(on, value))  # type: ignore[misc]
        assert said_no or welcome(value), f"number {number}, {type(value).__name__}, was let through"
    assert on.log.describe_topic("t") == settings
    assert on.log.health().status == "ok"
    assert [record.value for record in on.log.read("t", end=1, partition=1)] == [b"there"]


@pytest.mark.parametrize(
    "kind",
    [
        *(
            Log,
            embedlog.Consumer,
            embedlog.Producer,
            embedlog.ConsumerGroup,
            FileOffsetStore,
            embedlog.Mirror,
        ),
        *(embedlog.Queue, embedlog.Job, embedlog.Workers, embedlog.Transaction),
    ],
)
def test_every_method_is_in_the_table(kind: type) -> None:
    table = Path(__file__).read_text()
    for name, method in inspect.getmembers(kind):
        if (
            inspect.isfunction(method)
            and not name.startswith("_")
            and len(inspect.signature(method).parameters) > 1
        ):
            assert f".{name}(" in table, name


def test_every_option_is_in_the_table() -> None:
    assert CONSUMER_OPTIONS.keys() == ConsumerOptions.__annotations__.keys()
    assert PRODUCER_OPTIONS.keys() == ProducerOptions.__annotations__.keys()
    assert QUEUE_OPTIONS.keys() == QueueOptions.__annotations__.keys()


@pytest.mark.parametrize("name", [*LogSettings.names(), *TopicSettings.names()])
def test_each_value_in_each_setting(on: Handles, name: str) -> None:
    kind = LogSettings if name in LogSettings.names() else TopicSettings
    default = getattr(kind(), name)
    numeric = isinstance(default, int | float)
    for number, value in enumerate(values()):
        if numeric and isinstance(value, int | float | str) and value not in (math.inf, HUGE, -HUGE):
            continue  # most of them could be meant; what is out of bounds is in test_bad_input
        if name == "cleanup_policy" and isinstance(value, str | list | tuple) and not value:
            continue  # Kafka's empty list: nothing is deleted or compacted
        acts: list[Callable[[], object]] = [lambda value=value: embedlog.open("other", **{name: value})]
        if kind is TopicSettings:
            acts.append(lambda value=value: on.log.create_topic("u", **{name: value}))
            if value is not None:
                acts.append(lambda value=value: on.log.alter_topic("t", **{name: value}))
        for act in acts:
            assert refused(act), f"number {number}, {type(value).__name__}, was let through"
    assert not Path("other").exists()
    assert on.log.topics() == ["t"]
    assert on.log.describe_topic("t").settings == {}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda on: on.consumer.seek("t0", 5), r"\(topic, partition, offset\) or \(TopicPartition, offset\)"),
        (lambda on: on.consumer.pause("t0"), r'TopicPartition\("topic", 0\), not as str \(\'t0\'\)'),
        (lambda on: on.consumer.assign(TP), r'several TopicPartition\("topic", 0\)'),
        (lambda on: on.consumer.seek_to_end(("t", 1), ("t", 9)), "t 9 is not assigned .* it has t 0, t 1"),
        (lambda on: on.log.append("t", b"", partition=1, expected_offset="0"), "expected_offset must be int"),
        (lambda on: on.log.append("t", released()), "value cannot be read: .* released"),
        (lambda on: on.log.append(b"x" * 10**6, b""), r"topic must be str, not bytes \(b'x{80}'\.\.\.\)"),
        (lambda on: on.log.producer(flush="no"), "flush must be True or False, not str"),
        (lambda on: on.log.consumer("t", "g2", assignors="range"), r'a list of names .*\["range"\]'),
        (lambda on: on.log.consumer("t", "g2", offset_store={}), "the methods load and save"),
        (lambda on: on.log.producer(clock=lambda: 1.5), r"clock\(\) must be int, not float"),
        (lambda on: on.log.backup("a\0b"), "destination must name a file or directory"),
        (lambda on: embedlog.open("\ud800"), r"path '\\ud800' cannot be written in utf-8"),
        (lambda on: on.log.create_topic("u", max_message_bytes=10**5000), "not a number of 16,610 bits"),
    ],
)
def test_error_messages(on: Handles, call: Callable[[Handles], object], says: str) -> None:
    with pytest.raises(EmbedlogError, match=says):
        call(on)


@pytest.mark.parametrize(
    "zone", [None, Nowhere(), UTC, timezone(timedelta(hours=23)), timezone(-timedelta(hours=23))]
)
def test_the_ends_of_the_calendar_bound_all_timestamps(log: Log, zone: tzinfo | None) -> None:
    first, last = datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)
    log.create_topic("t")
    log.append_many("t", [b"1", b"2"])
    assert [record.value for record in log.read("t", start=first, end=last)] == [b"1", b"2"]
    assert list(log.read("t", start=last)) == []
    assert list(log.read("t", end=first)) == []
    with log.consumer("t") as consumer:
        for when, offset in ((last, 2), (first, 0)):
            consumer.seek_to_time(when)
            assert consumer.position(TP) == offset


def test_an_endless_poll_ends_at_wakeup(log: Log) -> None:
    log.create_topic("t")
    with log.consumer("t") as consumer:
        threading.Timer(0.05, consumer.wakeup).start()
        assert consumer.poll(math.inf) == []


class Forgetful:
    """An offset store that answers whatever it was made with."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def load(self, group: str, partitions: object) -> Any:
        return self._answer

    def save(self, group: str, offsets: object) -> None:
        pass


@pytest.mark.parametrize("answer", [None, [], {TP: 5}, {TP: CommittedOffset("5")}, {TP: CommittedOffset(-1)}])
def test_a_user_stores_answers_are_checked(log: Log, answer: object) -> None:
    log.create_topic("t")
    with log.consumer("t", "g", offset_store=Forgetful(answer), auto_commit=False) as consumer:
        for act in (consumer.poll, lambda: consumer.committed(TP)):
            with pytest.raises(EmbedlogError, match=r"CommittedOffset|cannot be committed|a commit for t 0"):
                act()


class Assigning:
    """An assignor that assigns whatever it was made with."""

    name = "mine"

    def __init__(self, answer: Callable[[str], object]) -> None:
        self._answer = answer

    def assign(self, partitions: Mapping[str, int], subscriptions: Mapping[str, object]) -> Any:
        return self._answer(next(iter(subscriptions)))


@pytest.mark.parametrize(
    "answer",
    [
        lambda member: None,
        lambda member: [TP],
        lambda member: {"somebody else": [TP]},
        lambda member: {member: None},
        lambda member: {member: "t0"},
        lambda member: {member: TP},
        lambda member: {member: [("t", "0")]},
    ],
)
def test_a_user_assignors_answers_are_checked(log: Log, answer: Callable[[str], object]) -> None:
    log.create_topic("t")
    log.append("t", b"there")
    with (
        log.consumer("t", "g", assignors=[Assigning(answer)]) as consumer,
        pytest.raises(EmbedlogError, match=r"the assignor 'mine' (must return|gave)"),
    ):
        consumer.poll(60_000)
    with log.consumer("t", "g") as consumer:  # no member waits for the failed one
        assert consumer.poll(60_000)


def test_a_relative_path_without_a_working_directory(on: Handles, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for call in (embedlog.open, on.log.backup, FileOffsetStore):
        with pytest.raises(embedlog.DirectoryError, match="give an absolute one"):
            call("relative")
    embedlog.open(tmp_path / "absolute").close()


def test_a_backup_inside_the_log_is_refused(on: Handles, tmp_path: Path) -> None:
    """It would be taken for a partition: a topic of that name, made later, would find it in its way."""
    path = Path(on.log.path)
    (tmp_path / "link").symlink_to(path)
    for inside in (path, path / "u_0", path / "t_0" / "copy", tmp_path / "link" / "copy"):
        with pytest.raises(embedlog.DirectoryError, match="lies in the log"):
            on.log.backup(inside)
    assert not (path / "u_0").exists()


def test_a_delete_policy_whose_module_fails_to_import(
    on: Handles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unparsable.py").write_text("def policy(:\n")
    (tmp_path / "exploding.py").write_text("raise RuntimeError('not today')\n")
    for policy, says in (("unparsable:policy", "invalid syntax|expected"), ("exploding:policy", "not today")):
        with pytest.raises(embedlog.InvalidSetting, match=f"cannot be loaded: .*({says})"):
            on.log.alter_topic("t", delete_policy=policy)
