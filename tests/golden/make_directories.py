"""Makes golden directories: log directories written by an old version, for later versions to open.

16cf1d8.tar.gz was made by this script with the code of that commit, once:

    git worktree add --detach SOURCE 16cf1d8
    PYTHONPATH=SOURCE python make_directories.py 16cf1d8.tar.gz

For each layout the archive has LAYOUT/KIND/, a log directory, and LAYOUT/KIND.json, its contents as the
version that wrote it finds them in a copy, after recovery. tests/test_yesterday.py opens them.

Never regenerate an archive. A later format gets an archive of its own, named after its commit, and a copy of
this script if it does not run with that commit's code.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import embedlog
from embedlog import CommittedOffset, Log, Record, TopicPartition
from embedlog.codec import encode_batch, encode_control_batch
from embedlog.files.filesystem import FileSystem
from embedlog.store.atomic_append import append_atomically

T = 1_700_000_000_000
NEVER_MS = 3_600_000
SMALL = {"segment_bytes": 1024, "index_interval_bytes": 128}


def opened(path: str, layout: str, **settings: Any) -> Log:
    return embedlog.open(path, layout=layout, offsets_topic_num_partitions=4, **settings)


def rows(count: int, first: int = 0) -> list[Record]:
    """Records of every shape: null and empty keys and values, bytes that are no text, headers."""
    shapes: list[tuple[bytes | None, bytes | None]] = [
        (b"user-1", b"a value"),
        (None, b"no key"),
        (b"user-2", None),
        (b"", b""),
        (b"\xff\x00", b"\xfe" * 40),
    ]
    return [
        Record(
            key=shapes[number % 5][0],
            value=shapes[number % 5][1],
            headers=(("n", b"%d" % number), ("none", None)) if number % 3 == 0 else (),
            timestamp_ms=T + number * 1000,
        )
        for number in range(first, first + count)
    ]


def batch(producer_id: int, sequence: int, *values: bytes, transactional: bool = False) -> bytearray:
    return encode_batch(
        [(b"k", value, (), T + sequence) for value in values],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )


# -- the kinds -----------------------------------------------------------------------------------------------


def closed(path: str, layout: str) -> None:
    """Closed. Every codec and timestamp type, segments, a moved log start, leader epochs, producer state."""
    with opened(path, layout) as log:
        log.create_topic("clicks", partitions=2, **SMALL)
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd") * 3):
            log.append_many("clicks", rows(6, number * 6), partition=number % 2, compression=codec)
        log.create_topic("settled", retention_bytes=1 << 40, compression_type="zstd", flush_messages=10)
        log.append_many("settled", rows(4), partition=0)
        log.create_topic("trimmed", **SMALL)
        for number in range(20):
            log.append_many("trimmed", rows(4, number * 4), partition=0)
        log.delete_records("trimmed", 0, 50)
        log.create_topic("stamped", message_timestamp_type="LogAppendTime")
        log.append_many("stamped", rows(3), partition=0)
        log.create_topic("grown")
        log.append_many("grown", rows(2), partition=0)
        log.create_partitions("grown", 3)
        log.append_many("grown", rows(2), partition=2)
        log.create_topic("idempotent", **SMALL)
        for number in range(20):
            log.backend.append("idempotent", 0, batch(7 + number % 2, number // 2 * 2, b"a" * 40, b"b" * 40))
        log.create_topic("empty", partitions=2)
        with log.producer() as producer:
            for number in range(10):
                producer.send("settled", b"sent %d" % number, timestamp_ms=T + number)
    again(path, layout, "killed_between")
    with opened(path, layout) as log:
        log.append_many("clicks", rows(3, 200), partition=0)


def killed_between(path: str, layout: str) -> None:
    log = opened(path, layout, flush_ms=NEVER_MS)
    log.append_many("clicks", rows(3, 100), partition=0)
    die()


def killed(path: str, layout: str) -> None:
    """kill -9: unflushed tails, a torn batch, preallocated zeros, a topic being deleted."""
    again(path, layout, "being_killed")
    name = ("torn_0/00000000000.kafka", "torn-0/00000000000000000000.log")[layout == "kafka"]
    with open(os.path.join(path, name), "ab") as file:
        file.write(encode_batch([(None, b"half of a batch", (), T)] * 5, base_offset=7)[:100])


def being_killed(path: str, layout: str) -> None:
    log = opened(path, layout, flush_ms=NEVER_MS)
    for topic, settings in {"rolled": SMALL, "torn": {}, "young": {}, "durable": {}, "gone": {}}.items():
        log.create_topic(topic, **settings)
    for number in range(12):
        log.append_many("rolled", rows(6, number * 6), partition=0)
        if number == 6:
            log.flush()
    log.append_many("torn", rows(7), partition=0)
    log.append_many("gone", rows(7), partition=0)
    for number in range(30):
        log.append("durable", b"durable %d" % number, timestamp_ms=T + number, flush=True)
    log.append("durable", b"not flushed", timestamp_ms=T)
    log.delete_topic("gone")
    log.append("young", b"never flushed", timestamp_ms=T)
    die()


def compacted(path: str, layout: str) -> None:
    """Closed. Compacted topics with tombstones and gaps, then records that were not compacted yet."""
    with opened(path, layout) as log:
        for topic, policy in (("users", "compact"), ("both", "compact,delete")):
            log.create_topic(topic, cleanup_policy=policy, min_cleanable_dirty_ratio=0.9, **SMALL)
            change_users(log, topic, 15)
            log.compact(topic)
            change_users(log, topic, 5)


def change_users(log: Log, topic: str, rounds: int) -> None:
    for number in range(rounds):
        changes = [
            Record(key=b"user-%d" % n, value=b"%d %d" % (number, n) * 8, timestamp_ms=T + number)
            for n in range(5)
        ]
        gone = Record(key=b"gone-%d" % number, timestamp_ms=T + number)
        log.append_many(topic, [*changes, gone._replace(value=b"x"), gone], partition=0)


class Dying(FileSystem):
    """Kills the process before a chosen system call."""

    def __init__(self, dies: Callable[[str, str], bool]) -> None:
        self.dies = dies

    def rename(self, source: str, destination: str) -> None:
        if self.dies("rename", destination):
            die()
        super().rename(source, destination)

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        if self.dies("write", os.readlink(f"/proc/self/fd/{fd}")):
            die()
        super().pwrite_all(fd, data, pos)


def killed_compacting(path: str, layout: str) -> None:
    """kill -9 in a segment swap: one old segment is renamed away, the others are not."""
    with opened(path, layout) as log:
        log.create_topic("users", cleanup_policy="compact", min_cleanable_dirty_ratio=0.9, **SMALL)
        change_users(log, "users", 15)
    again(path, layout, "compact_and_die")


def compact_and_die(path: str, layout: str) -> None:
    left = [2]

    def dies(call: str, name: str) -> bool:
        left[0] -= call == "rename" and name.endswith(".deleted")
        return not left[0]

    opened(path, layout, fs=Dying(dies)).compact("users")


def killed_publishing(path: str, layout: str) -> None:
    """kill -9 in a publication: appended to one of its two partitions."""
    with opened(path, layout) as log:
        log.create_topic("t", partitions=2)
        for partition in range(2):
            log.append_many("t", rows(2), partition=partition)
        store = log._writer()
        append_atomically(store, "done", 3, {TopicPartition("t", 0): stage(log, "done", b"done")})
    again(path, layout, "publish_and_die")


def stage(log: Log, name: str, *values: bytes) -> str:
    directory = os.path.join(log.path, "staging")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name), "wb") as file:
        file.write(encode_batch([(None, value, (), T) for value in values]))
    return name


def publish_and_die(path: str, layout: str) -> None:
    writes = [0]

    def dies(call: str, name: str) -> bool:
        writes[0] += call == "write" and os.path.basename(name).startswith("0000")
        return writes[0] == 2

    log = opened(path, layout, fs=Dying(dies))
    staged = {TopicPartition("t", n): stage(log, f"job.{n}", b"a%d" % n, b"b%d" % n) for n in range(2)}
    append_atomically(log._writer(), "query", 5, staged)


def groups(path: str, layout: str) -> None:
    """Closed. Groups with and without generations, metadata, deleted offsets, a deleted group."""
    with opened(path, layout) as log:
        use_groups(log)


def killed_groups(path: str, layout: str) -> None:
    """The same, then kill -9 while a group has a member."""
    again(path, layout, "use_groups_and_die")


def use_groups_and_die(path: str, layout: str) -> None:
    log = opened(path, layout, flush_ms=NEVER_MS)
    use_groups(log)
    consumer = log.consumer("clicks", group="living", auto_offset_reset="earliest")
    while not consumer.poll(1000):
        pass
    consumer.commit()
    die()


def use_groups(log: Log) -> None:
    log.create_topic("clicks", partitions=3)
    log.create_topic("orders")
    for partition in range(3):
        log.append_many("clicks", rows(5), partition=partition)
    log.append_many("orders", rows(5), partition=0)
    for group in ("billing", "report", "deleted"):
        with log.consumer(["clicks", "orders"], group=group, stop_at_end=True) as consumer:
            assert len(list(consumer)) == 20
    coordinator = log.backend.coordinator
    assert coordinator is not None
    coordinator.commit_offsets("by hand", {TopicPartition("clicks", 1): CommittedOffset(2, 0, "half of it")})
    coordinator.commit_offsets("by hand", {TopicPartition("clicks", 1): CommittedOffset(3, 0, "a bit more")})
    coordinator.commit_offsets("by hand", {TopicPartition("orders", 0): CommittedOffset(5)})
    coordinator.delete_offsets("report", [TopicPartition("orders", 0)])
    coordinator.delete_group("deleted")


def transactions(path: str, layout: str) -> None:
    """Closed. Committed, aborted and open transactions in several segments."""
    with opened(path, layout) as log:
        use_transactions(log)


def killed_transactions(path: str, layout: str) -> None:
    """The same, then kill -9: only the unflushed tail says how some transactions ended."""
    again(path, layout, "use_transactions_and_die")


def use_transactions_and_die(path: str, layout: str) -> None:
    log = opened(path, layout, flush_ms=NEVER_MS)
    use_transactions(log)
    die()


def use_transactions(log: Log) -> None:
    log.create_topic("t", **SMALL)

    def send(producer: int, sequence: int, *values: bytes) -> None:
        log.backend.append("t", 0, batch(producer, sequence, *values, transactional=True))

    def end(producer: int, *, commit: bool) -> None:
        marker = encode_control_batch(
            commit=commit, producer_id=producer, producer_epoch=0, timestamp_ms=T + producer
        )
        log.backend.append("t", 0, marker)

    for number in range(12):
        send(1, number * 2, b"kept %d" % number, b"kept too")
        send(2, number, b"taken back %d" % number)
        log.append_many("t", rows(1, number), partition=0)
        end(2, commit=number % 4 == 3)
        end(1, commit=True)
        if number == 6:
            log.flush()
    send(3, 0, b"open")
    log.append_many("t", rows(2, 50), partition=0)


def mirror_source(path: str, layout: str) -> None:
    """Closed. The source of the mirror; it gets more records once they are copied."""
    with opened(path, layout) as log:
        log.create_topic("clicks", partitions=2, **SMALL)
        for number in range(8):
            log.append_many("clicks", rows(6, number * 6), partition=number % 2, compression="zstd")


def mirror(path: str, layout: str) -> None:
    """Closed. A mirror's target, which lacks the last records of its source."""
    source = os.path.join(os.path.dirname(path), "mirror_source")
    with opened(path, layout) as log, embedlog.Mirror(source, log) as copying:
        copying.run(until_caught_up=True)
    with opened(source, layout) as log:
        log.append_many("clicks", rows(4, 100), partition=1)


KINDS = (
    closed,
    killed,
    compacted,
    killed_compacting,
    killed_publishing,
    groups,
    killed_groups,
    transactions,
    killed_transactions,
    mirror_source,
    mirror,
)


# -- processes -----------------------------------------------------------------------------------------------


def again(path: str, layout: str, function: str) -> None:
    """Run a function of the script in a process that kills itself."""
    module = os.path.basename(sys.argv[0]).removesuffix(".py")
    code = f"import {module}; {module}.{function}({path!r}, {layout!r})"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{os.path.dirname(__file__)}:{os.environ['PYTHONPATH']}"},
    )
    assert ended.returncode == -signal.SIGKILL, (function, ended.returncode)
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(path, "embedlog.sock"))  # which no copy has


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- what is in them -----------------------------------------------------------------------------------------


def as_json(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def described(path: str) -> dict[str, Any]:
    with embedlog.open(path) as log:
        coordinator = log.backend.coordinator
        assert coordinator is not None
        return {
            "clean": log.recovery.clean,
            "cut_bytes": log.recovery.bytes_cut,
            "topics": {name: topic(log, name) for name in log.topics()},
            "groups": {
                group: {
                    "generation": coordinator.describe_group(group).generation,
                    "offsets": [
                        [*name, *each[:3]] for name, each in coordinator.committed_offsets(group).items()
                    ],
                }
                for group in coordinator.list_groups()
            },
        }


def topic(log: Log, name: str) -> dict[str, Any]:
    description = log.describe_topic(name)
    numbers = range(description.partitions)
    return {
        "topic_id": description.topic_id,
        "settings": description.settings,
        "partitions": [
            {
                "edges": log.offsets(name)[number][:2],
                "records": [
                    record(each) for each in log.read(name, number, isolation_level="read_uncommitted")
                ],
                "committed": [
                    each.offset for each in log.read(name, number, isolation_level="read_committed")
                ],
            }
            for number in numbers
        ],
    }


def record(each: Record) -> list[Any]:
    """offset, timestamp, timestamp type, key, value, headers."""
    return [
        each.offset,
        each.timestamp_ms,
        each.timestamp_type,
        as_json(each.key),
        as_json(each.value),
        [[name, as_json(value)] for name, value in each.headers],
    ]


def main(archive: str, kinds: Sequence[Callable[[str, str], None]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        for layout in ("classic", "kafka"):
            os.mkdir(os.path.join(root, layout))
            for kind in kinds:
                kind(os.path.join(root, layout, kind.__name__), layout)
            for kind in kinds:
                path = os.path.join(root, layout, kind.__name__)
                copy = os.path.join(root, "copy")
                shutil.copytree(path, copy)
                with open(f"{path}.json", "w") as file:
                    json.dump(described(copy), file, separators=(",", ":"))
                shutil.rmtree(copy)
        with tarfile.open(archive, "w:gz") as packed:
            for layout in ("classic", "kafka"):
                packed.add(os.path.join(root, layout), layout, filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(sys.argv[1], KINDS)
