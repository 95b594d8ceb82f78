"""Consumes `in`, and writes each record once to `out`, in transactions with the group's offsets.

    python transformer.py BOOTSTRAP TRANSACTIONAL_ID SEED

A child process that is killed at any time. Some transactions it aborts by itself, after a record that no
reader of committed records may see. It ends when its producer can go on no more; another one is begun then.
"""

from __future__ import annotations

import random
import sys

import confluent_kafka

PATIENCE_S = 60.0
SESSION_MS = 2_000
TRANSACTION_MS = 5_000
NEVER_SEEN = b"aborted"


def transform(bootstrap: str, transactional_id: str, rng: random.Random) -> None:
    """Until an error that a new producer has to begin after."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "transformers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.max.ms": 200,
            "fetch.wait.max.ms": 50,
        }
    )
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            # Otherwise send_offsets_to_transaction may wait forever for a broker that was killed: librdkafka
            # 2.16 still takes it for the group's coordinator (its issue 5511).
            "metadata.recovery.strategy": "none",
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": TRANSACTION_MS,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 200,
        }
    )
    producer.init_transactions(PATIENCE_S)
    consumer.subscribe(["in"])
    print("started", flush=True)
    while True:
        records = [each for each in consumer.consume(rng.randrange(1, 30), 0.1) if each.error() is None]
        if not records:
            continue
        producer.begin_transaction()
        try:
            for record in records:
                producer.produce("out", record.value(), partition=record.partition())
            if rng.random() < 0.2:
                producer.produce("out", NEVER_SEEN, partition=records[-1].partition())
                producer.flush(PATIENCE_S)
                producer.abort_transaction(PATIENCE_S)
                rewind(consumer)
                continue
            after: dict[tuple[str, int], int] = {}
            for record in records:
                after[record.topic(), record.partition()] = record.offset() + 1
            offsets = [confluent_kafka.TopicPartition(*name, offset) for name, offset in after.items()]
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, metadata, PATIENCE_S)
            producer.commit_transaction(PATIENCE_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(PATIENCE_S)
            rewind(consumer)


def rewind(consumer: confluent_kafka.Consumer) -> None:
    """Go back to what was committed."""
    for committed in consumer.committed(consumer.assignment(), PATIENCE_S):
        committed.offset = max(committed.offset, 0)
        consumer.seek(committed)


if __name__ == "__main__":
    where, name, seed = sys.argv[1:]
    try:
        transform(where, name, random.Random(int(seed)))
    except confluent_kafka.KafkaException as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(3)
