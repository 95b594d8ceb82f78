"""Three brokers of Apache Kafka, one of which is killed or stopped: our consumers go on with the others.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from java_programs import KafkaBroker, apache_kafkas
from kafka_tools import classpath

import embedlog
from embedlog import Consumer, EmbedlogError, Log, TopicPartition

PARTITIONS = 6
EACH = 20
LATE_S = 5.0  # of a poll of 0.3 s on a busy machine; it was a minute
HANGS_S = 120.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaBroker]]:
    path: Path = tmp_path_factory.mktemp("kafkas")
    with apache_kafkas(classpath(path / "classpath", "connect"), path, 3) as brokers:
        yield brokers


def opened(brokers: list[KafkaBroker]) -> Log:
    return embedlog.open("kafka://" + ",".join(f"127.0.0.1:{broker.port}" for broker in brokers))


def leaders(log: Log, topic: str) -> tuple[int, ...]:
    return log.backend.describe_cluster().leaders.get(topic, ())


def until(look: Callable[[], bool], what: object = "") -> None:
    deadline = time.monotonic() + HANGS_S
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def made(brokers: list[KafkaBroker], log: Log, topic: str, replicas: int) -> tuple[int, ...]:
    """The leaders of a new topic's partitions."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{brokers[0].port}"})
    admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])[topic].result(60)
    until(lambda: len(leaders(log, topic)) == PARTITIONS and min(leaders(log, topic)) > 0)
    return leaders(log, topic)


def polled(consumer: Consumer, values: Counter[tuple[int, bytes | None]]) -> None:
    began = time.monotonic()
    records = consumer.poll(300)
    assert time.monotonic() - began < LATE_S
    values.update((record.partition, record.value) for record in records)


def append(log: Log, topic: str, partitions: list[int], word: str) -> Counter[tuple[int, bytes | None]]:
    appended = Counter[tuple[int, bytes | None]]()
    for partition in partitions:
        for number in range(EACH):
            value = f"{word}{number}".encode()
            log.append(topic, value, partition=partition)
            appended[partition, value] += 1
    return appended


@pytest.mark.parametrize("fault", ["stopped", "killed"])
def test_a_dead_leader_delays_only_its_partitions(brokers: list[KafkaBroker], fault: str) -> None:
    victim = brokers[1]  # broker 2
    with opened([victim, brokers[0], brokers[2]]) as log:
        topic = f"single-{fault}"
        led_by = made(brokers, log, topic, 1)
        everything = list(range(PARTITIONS))
        living = [number for number in everything if led_by[number] != 2]
        appended = append(log, topic, everything, "before")
        old, grouped, new = (Counter[tuple[int, bytes | None]]() for _ in range(3))
        with log.consumer(topic) as consumer, log.consumer(topic, group=f"g-{fault}") as member:
            until(lambda: polled(consumer, old) or old == appended)
            until(lambda: polled(member, grouped) or grouped == appended)
            victim.pause() if fault == "stopped" else victim.kill()
            later = append(log, topic, living, "during")
            until(lambda: polled(consumer, old) or old == appended + later, (consumer, old))
            until(lambda: polled(member, grouped) or grouped == appended + later, (member, grouped))
            led = Counter({key: count for key, count in appended.items() if key[0] in living}) + later
            with opened([victim, brokers[0], brokers[2]]) as second, second.consumer(topic) as fresh:
                until(lambda: polled(fresh, new) or new == led, (fresh, new))
                assert any(
                    str(TopicPartition(topic, number)) + " waits: " in repr(fresh) for number in everything
                )
                victim.resume() if fault == "stopped" else victim.start()
                victim.wait()
                until(lambda: min(leaders(log, topic)) > 0)
                last = append(log, topic, everything, "after")
                total = appended + later + last
                for one, values in ((consumer, old), (member, grouped), (fresh, new)):
                    until(lambda one=one, values=values: polled(one, values) or values == total, one)


def test_reading_goes_on_where_leadership_has_moved_to(brokers: list[KafkaBroker]) -> None:
    victim = brokers[1]
    with opened([victim, brokers[0], brokers[2]]) as log:
        made(brokers, log, "replicated", 3)
        everything = list(range(PARTITIONS))
        appended = append(log, "replicated", everything, "before")
        values = Counter[tuple[int, bytes | None]]()
        with log.consumer("replicated", group="moving") as member:
            until(lambda: polled(member, values) or values == appended)
            victim.kill()
            try:
                until(lambda: 2 not in leaders(log, "replicated"))
                appended += append(log, "replicated", everything, "during")
                until(lambda: polled(member, values) or values == appended, (member, values))

                def committed() -> bool:
                    with suppress(EmbedlogError):
                        member.commit()
                        return True
                    polled(member, values)
                    return False

                until(committed)
                assert "moving" in log.groups()  # whatever the dead one coordinated, others do now
                assert log.backend.stored_transactions() == {}
                assert sum(member.lag().values()) == 0 and values == appended
            finally:
                victim.start()
                victim.wait()
