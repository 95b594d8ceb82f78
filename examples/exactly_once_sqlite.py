"""Exactly once: count records per key in sqlite, and commit offset and counts in one transaction.

    python examples/exactly_once_sqlite.py DIR TOPIC counts.sqlite [--follow]

The consumer reads a log that another process may be writing (mode="r"). After a crash at any point the
database holds both the counts of a batch of records and the offset after it, or neither: no record is lost or
counted twice. Stop it however you like, SIGKILL included, and start it again.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterable, Mapping

import embedlog
from embedlog import CommittedOffset, TopicPartition

SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, records INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (
    consumer_group TEXT, topic TEXT, partition INTEGER, next_offset INTEGER, leader_epoch INTEGER,
    PRIMARY KEY (consumer_group, topic, partition)
);
"""
COUNT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET records = records + 1"


class SqliteOffsets:
    """An `embedlog.OffsetStore` that writes in the transaction that is open on the connection."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        rows = self._database.execute(
            "SELECT topic, partition, next_offset, leader_epoch FROM offsets WHERE consumer_group = ?",
            (group,),
        )
        kept = {TopicPartition(topic, number): CommittedOffset(*where) for topic, number, *where in rows}
        return {tp: kept[tp] for tp in partitions if tp in kept}

    def save(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?)",
            [(group, *tp, kept.offset, kept.leader_epoch) for tp, kept in offsets.items()],
        )


def count(
    directory: str,
    topic: str,
    database_path: str,
    *,
    follow: bool = False,
    batch: int = 500,
    progress: bool = False,
) -> int:
    """Count the new records of a topic. Returns how many there were."""
    database = sqlite3.connect(database_path)
    database.executescript(SCHEMA)
    counted = 0
    with (
        embedlog.open(directory, mode="r") as log,
        log.consumer(
            topic, group="counter", offset_store=SqliteOffsets(database), auto_commit=False
        ) as consumer,
    ):
        while True:
            records = consumer.poll(timeout_ms=60_000 if follow else 0, max_records=batch)
            if not records and not follow:
                break
            # One transaction for the counts and, by commit(), the offsets after them.
            with database:
                for record in records:
                    key = (record.key or b"").decode(errors="replace")
                    database.execute(COUNT, (key,))
                consumer.commit()
            counted += len(records)
            if progress:
                print(f"counted {counted}", flush=True)
    database.close()
    return counted


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", help="the log's directory")
    parser.add_argument("topic")
    parser.add_argument("database", help="a sqlite file, created if it does not exist")
    parser.add_argument("--follow", action="store_true", help="keep counting as the topic grows")
    parser.add_argument("--batch", type=int, default=500, help="records per transaction (default 500)")
    parser.add_argument("--progress", action="store_true", help="a line for each transaction")
    given = parser.parse_args()
    counted = count(
        given.directory,
        given.topic,
        given.database,
        follow=given.follow,
        batch=given.batch,
        progress=given.progress,
    )
    database = sqlite3.connect(given.database)
    for key, records in database.execute(
        "SELECT key, records FROM counts ORDER BY records DESC, key LIMIT 20"
    ):
        print(f"{records:>12,}  {key}")
    database.close()
    print(f"{counted:,} new records")


if __name__ == "__main__":
    main()
