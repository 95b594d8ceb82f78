"""Kafka clients for Python, and embedlog's own, each with the same broker (`embedlog serve`) over loopback.

One topic of one partition. CPU is that of the client and the broker together, per record. Joining the group,
and the first record, are not timed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import aiokafka
import confluent_kafka

import embedlog

from .broker import serving
from .measure import Contender, Prepare, Row, Sample, Work, cpu_seconds
from .stores import TOPIC

_GROUP = "benchmark"
_AT_ONCE = 1000

Restart: TypeAlias = Callable[[], None]  # restarts the clock: what came before is not timed
Action: TypeAlias = Callable[[str, int, Restart], None]  # bootstrap servers, number of records


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    return [
        *(_producing(size, 5, int(20_000_000 * scale) // size) for size in (100, 1024)),
        _producing(100, 0, int(200_000 * scale)),
        *(_consuming(size, int(20_000_000 * scale) // size) for size in (100, 1024)),
    ]


def _producing(size: int, linger_ms: int, records: int) -> Row:
    value = bytes(size)

    def with_embedlog(bootstrap: str, count: int, _: Restart) -> None:
        with embedlog.open(f"kafka://{bootstrap}") as log, log.producer(linger_ms=linger_ms) as producer:
            for _ in range(count):
                producer.send(TOPIC, value)

    def with_confluent(bootstrap: str, count: int, _: Restart) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": linger_ms})
        for _ in range(count):
            while True:
                try:
                    producer.produce(TOPIC, value)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    async def aio(bootstrap: str, count: int) -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=linger_ms) as producer:
            for done in range(0, count, _AT_ONCE):
                sent = [await producer.send(TOPIC, value) for _ in range(min(_AT_ONCE, count - done))]
                await asyncio.gather(*sent)

    def with_aiokafka(bootstrap: str, count: int, _: Restart) -> None:
        asyncio.run(aio(bootstrap, count))

    return Row(
        f"produce {size:,} B to embedlog serve, linger_ms={linger_ms}",
        "records/s",
        True,
        [
            Contender("embedlog's producer", _measured(with_embedlog, records)),
            Contender("confluent-kafka", _measured(with_confluent, records)),
            Contender("aiokafka", _measured(with_aiokafka, records)),
        ],
    )


def _consuming(size: int, records: int) -> Row:
    return Row(
        f"consume {size:,} B from embedlog serve, of a group",
        "records/s",
        True,
        [
            Contender("embedlog's consumer", _measured(_with_embedlog, records, size)),
            Contender("confluent-kafka", _measured(_with_confluent, records, size)),
            Contender("aiokafka", _measured(_with_aiokafka, records, size)),
        ],
    )


def _with_embedlog(bootstrap: str, count: int, restart: Restart) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log, log.consumer(TOPIC, _GROUP) as consumer:
        next(iter(consumer))
        restart()
        for _ in islice(consumer, count - 1):
            pass


def _with_confluent(bootstrap: str, count: int, restart: Restart) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": _GROUP, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    while not consumer.consume(1, 1.0):
        pass
    restart()
    left = count - 1
    while left:
        left -= len(consumer.consume(min(left, _AT_ONCE), 1.0))
    consumer.close()


def _with_aiokafka(bootstrap: str, count: int, restart: Restart) -> None:
    async def consume() -> None:
        async with aiokafka.AIOKafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, group_id=_GROUP, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.getone()
            restart()
            left = count - 1
            while left:
                records = await consumer.getmany(timeout_ms=1000, max_records=min(left, _AT_ONCE))
                left -= sum(map(len, records.values()))

    asyncio.run(consume())


def _measured(action: Action, records: int, filled_with: int = 0) -> Prepare:
    """With a broker of its own, whose topic holds the records if `filled_with` is their size."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with serving("broker", where) as served:
            bootstrap = f"127.0.0.1:{served.port}"
            with embedlog.open(f"kafka://{bootstrap}") as log:
                log.create_topic(TOPIC, exist_ok=True)
                if filled_with:
                    for done in range(0, records, _AT_ONCE):
                        log.append_many(TOPIC, [bytes(filled_with)] * min(_AT_ONCE, records - done))
            started = cpu_s = 0.0

            def both_cpus() -> float:
                return time.process_time() + cpu_seconds(served.pid)

            def restart() -> None:
                nonlocal started, cpu_s
                started, cpu_s = time.perf_counter(), both_cpus()

            def work() -> Sample:
                restart()
                action(bootstrap, records, restart)
                return Sample(
                    records / (time.perf_counter() - started), (both_cpus() - cpu_s) / records * 1e6
                )

            yield work

    return prepare
