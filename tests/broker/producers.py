"""A producer of one of the client libraries, in a child process that also ends their leaks.

    python producers.py CLIENT BOOTSTRAP TOPIC idempotent|plain RECORDS

It sends the numbers from 0 on, slowly. It prints "started" after the first acknowledgement, and at the end
all acknowledged numbers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

PATIENCE_S = 120.0
PAUSE_S = 0.0005


def with_confluent(bootstrap: str, topic: str, idempotent: bool, records: int) -> list[int]:
    import confluent_kafka

    acked = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "linger.ms": 1,
            "batch.num.messages": 20,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": int(PATIENCE_S * 1000),
        }
    )

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        acked.append(int(message.value()))

    producer.produce(topic, b"0", on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    print("started", flush=True)
    for number in range(1, records):
        producer.produce(topic, b"%d" % number, on_delivery=delivered)
        producer.poll(PAUSE_S)
    assert producer.flush(PATIENCE_S) == 0
    return acked


def with_kafka_python(bootstrap: str, topic: str, idempotent: bool, records: int) -> list[int]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=idempotent,
        acks="all",
        retries=2**31 - 1 if idempotent else 1_000,
        linger_ms=1,
        reconnect_backoff_max_ms=200,
        delivery_timeout_ms=int(PATIENCE_S * 1000),
    )
    with closing(producer):
        producer.send(topic, b"0").get(PATIENCE_S)
        print("started", flush=True)
        sent = []
        for number in range(1, records):
            sent.append(producer.send(topic, b"%d" % number))
            time.sleep(PAUSE_S)
        for future in sent:
            future.get(PATIENCE_S)
    return list(range(records))


def with_aiokafka(bootstrap: str, topic: str, idempotent: bool, records: int) -> list[int]:
    from aiokafka import AIOKafkaProducer

    async def produce() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=1,
            request_timeout_ms=int(PATIENCE_S * 1000),
        ) as producer:
            await producer.send_and_wait(topic, b"0")
            print("started", flush=True)
            sent = []
            for number in range(1, records):
                sent.append(await producer.send(topic, b"%d" % number))
                await asyncio.sleep(PAUSE_S)
            for future in sent:
                await future

    asyncio.run(produce())
    return list(range(records))


def with_kcat(bootstrap: str, topic: str, idempotent: bool, records: int) -> list[int]:
    command = [
        "kcat",
        "-P",
        "-E",
        "-b",
        bootstrap,
        "-t",
        topic,
        "-X",
        f"enable.idempotence={idempotent}".lower(),
    ]
    command += ["-X", "message.timeout.ms=120000", "-X", "linger.ms=1", "-X", "acks=all"]
    subprocess.run(command, input=b"0\n", check=True)
    print("started", flush=True)
    kcat = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert kcat.stdin is not None
    for number in range(1, records):
        kcat.stdin.write(b"%d\n" % number)
        kcat.stdin.flush()
        time.sleep(PAUSE_S)
    kcat.stdin.close()
    assert kcat.wait(PATIENCE_S) == 0
    return list(range(records))


def with_embedlog(bootstrap: str, topic: str, idempotent: bool, records: int) -> list[int]:
    """Always idempotent."""
    import embedlog

    patience = int(PATIENCE_S * 1000)
    with embedlog.open(f"kafka://{bootstrap}", delivery_timeout_ms=patience) as log:
        log.create_topic(topic, partitions=3)
        with log.producer(linger_ms=1) as producer:
            producer.send(topic, b"0").result(PATIENCE_S)
            print("started", flush=True)
            sent = []
            for number in range(1, records):
                sent.append(producer.send(topic, b"%d" % number))
                time.sleep(PAUSE_S)
            for future in sent:
                future.result(PATIENCE_S)
    return list(range(records))


CLIENTS: dict[str, Callable[[str, str, bool, int], list[int]]] = {
    "confluent-kafka": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
    "kcat": with_kcat,
    "embedlog": with_embedlog,
}

if __name__ == "__main__":
    client, bootstrap, topic, kind, records = sys.argv[1:]
    print(*CLIENTS[client](bootstrap, topic, kind == "idempotent", int(records)))
