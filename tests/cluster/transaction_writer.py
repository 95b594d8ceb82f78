"""One of several clients with transactions over the brokers of a cluster, and a diary; killed at any time.

    python transaction_writer.py BOOTSTRAP DIARY NAME SEED

NAME is its transactional id. It begins with a client library of transactional_clients.py, or with "embedlog";
one that begins with "reader" reads what is committed instead.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from contextlib import closing

import aiokafka.errors
import confluent_kafka
import kafka.errors
from histories import Diary, Outcome
from transactional_clients import CLIENTS, Fenced

import embedlog
from embedlog.errors import EmbedlogError, TransactionAborted

TOPIC, PARTITIONS = "t", 6
TIMEOUT_MS = 10_000

FAILED = (
    confluent_kafka.KafkaException,
    kafka.errors.KafkaError,
    aiokafka.errors.KafkaError,
    EmbedlogError,
    Fenced,
    BufferError,
    AssertionError,  # not everything was flushed
    RuntimeError,  # kafka-python's of a producer that has failed
)


class Undone(Exception):
    """The transaction is aborted on purpose."""


def write_with_client(bootstrap: str, diary: Diary, name: str, dice: random.Random) -> None:
    """With one producer until it fails; then with another one."""
    number = 0
    life = dice.randrange(1 << 30)
    while True:
        with contextlib.suppress(*FAILED):
            producer = CLIENTS[name.rpartition("-")[0]](bootstrap, name, TIMEOUT_MS)
            with closing(producer):
                producer.init()
                while True:
                    diary.begin()
                    producer.begin()
                    for _ in range(dice.randrange(1, 5)):
                        partition = dice.randrange(PARTITIONS)
                        values = [f"{name} {life} {number + n}" for n in range(dice.randrange(1, 4))]
                        number += len(values)
                        diary.sent([(partition, value, None) for value in values])
                        for value in values:
                            producer.send(TOPIC, value.encode(), partition)
                    producer.flush()
                    outcome: Outcome = "aborted"
                    if dice.random() < 0.2:
                        producer.abort()
                    else:
                        diary.ask()
                        producer.commit()
                        outcome = "committed"
                    diary.ended(outcome)


def write(bootstrap: str, diary: Diary, name: str, dice: random.Random) -> None:
    number = 0
    life = dice.randrange(1 << 30)
    while True:
        with (
            embedlog.open(f"kafka://{bootstrap}", delivery_timeout_ms=20_000) as log,
            contextlib.suppress(EmbedlogError),
        ):
            while True:
                diary.begin()
                outcome: Outcome
                try:
                    with log.transaction(name, timeout_ms=TIMEOUT_MS) as tx:
                        for _ in range(dice.randrange(1, 5)):
                            partition = dice.randrange(PARTITIONS)
                            values = [f"{name} {life} {number + n}" for n in range(dice.randrange(1, 4))]
                            number += len(values)
                            diary.sent([(partition, value, None) for value in values])
                            encoded = [value.encode() for value in values]
                            appended = tx.append_many(TOPIC, encoded, partition=partition)
                            places = zip(values, appended, strict=True)
                            diary.sent((partition, value, place.offset) for value, place in places)
                        if dice.random() < 0.2:
                            raise Undone
                        diary.ask()
                    outcome = "committed"
                except (Undone, TransactionAborted):
                    outcome = "aborted"
                diary.ended(outcome)


def stable_offset(log: embedlog.Log, partition: int, offset: int) -> int:
    """The last stable offset. It is told to a fetch from some offset on."""
    return log.backend.fetch(TOPIC, partition, offset, 1, read_committed=True).last_stable_offset


def read(bootstrap: str, diary: Diary, name: str) -> None:
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        with (
            embedlog.open(f"kafka://{bootstrap}", default_api_timeout_ms=5_000) as log,
            contextlib.suppress(EmbedlogError),
        ):
            for partition, start in list(offsets.items()):
                records = list(log.read(TOPIC, partition, start=start, isolation_level="read_committed"))
                diary.read((partition, each.offset, (each.value or b"").decode()) for each in records)
                if records:
                    offsets[partition] = records[-1].offset + 1
                stable = stable_offset(log, partition, offsets[partition])
                diary.mark(f"{name}, the stable offset of {partition}", stable)
        time.sleep(0.05)  # the others need the processors, too


if __name__ == "__main__":
    where, into, who, seed = sys.argv[1:]
    if who.startswith("reader"):
        read(where, Diary(into), who)
    elif who.startswith("embedlog"):
        write(where, Diary(into), who, random.Random(seed))
    else:
        write_with_client(where, Diary(into), who, random.Random(seed))
