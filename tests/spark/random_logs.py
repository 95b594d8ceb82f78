"""Random logs: codecs, empty partitions, gaps, rolls, truncation, transactions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from faults import UnsyncedFileSystem, open_log, partition_of
from transactions import Transactions, coordinated

from embedlog import Log, Record

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000


def make_log(path: Path, chosen: random.Random) -> list[str]:
    """A closed log with some topics; their names."""
    topics = []
    with open_log(path, UnsyncedFileSystem(), layout=chosen.choice(["classic", "kafka"])) as log:
        for number in range(chosen.randrange(1, 4)):
            topic = f"t{number}"
            topics.append(topic)
            compacted = chosen.random() < 0.3
            settings: dict[str, Any] = {"cleanup_policy": "compact"} if compacted else {}
            if chosen.random() < 0.2:
                settings["message_timestamp_type"] = "LogAppendTime"
            log.create_topic(
                topic,
                partitions=chosen.randrange(1, 5),
                segment_bytes=chosen.choice([1024, 3000, 1 << 20]),
                index_interval_bytes=chosen.choice([0, 100, 1000, 4096]),
                **settings,
            )
            _fill(log, topic, chosen, compacted)
    if chosen.random() < 0.3:
        _lose_tail(path, chosen)
    return topics


def _fill(log: Log, topic: str, chosen: random.Random, compacted: bool) -> None:
    partitions = log.describe_topic(topic).partitions
    for partition in range(partitions):
        if chosen.random() < 0.2:
            continue  # stays empty
        transactions = Transactions(_appending(log, topic, partition))
        for step in range(chosen.randrange(1, 25)):
            if not compacted and chosen.random() < 0.3:
                transactions.step(chosen, step)
                continue
            records = [_record(chosen, compacted) for _ in range(chosen.choice([1, 1, 3, 20]))]
            log.append_many(topic, records, partition=partition, compression=chosen.choice(CODECS))
        if not compacted and chosen.random() < 0.3:
            end = log.offsets(topic)[partition].log_end_offset
            log.delete_records(topic, partition, chosen.randrange(end + 1))
    if compacted:
        log.compact(topic)


def _appending(log: Log, topic: str, partition: int) -> Any:
    return lambda batch: coordinated(partition_of(log, topic, partition), batch).base_offset


def _record(chosen: random.Random, compacted: bool) -> Record:
    key = b"k%d" % chosen.randrange(8)
    return Record(
        key=key if compacted or chosen.random() < 0.7 else None,
        value=None if chosen.random() < 0.2 else chosen.randbytes(chosen.choice([0, 5, 60, 300])),
        timestamp_ms=START_MS + chosen.randrange(-500, 500),
        headers=tuple(
            (chosen.choice(["a", "é", ""]), chosen.choice([None, b"", b"v"]))
            for _ in range(chosen.choice([0, 0, 0, 1, 3]))
        ),
    )


def _lose_tail(path: Path, chosen: random.Random) -> None:
    """As if the machine had crashed, and the end of some segment had never reached the disk."""
    ends = [
        max(d.glob("*.kafka"), default=None) or max(d.glob("*.log"), default=None) for d in path.iterdir()
    ]
    segment = chosen.choice([end for end in ends if end is not None])
    size = segment.stat().st_size
    for leftover in ("clean-shutdown", "recovery-point-offset-checkpoint", "writer-state"):
        (path / leftover).unlink(missing_ok=True)
    with segment.open("r+b") as file:
        file.truncate(chosen.randrange(size + 1))
    open_log(path, UnsyncedFileSystem()).close()
