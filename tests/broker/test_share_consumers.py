"""Share groups with librdkafka's ShareConsumer, and together with the library's queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from programs import Program

import embedlog
from embedlog.cluster import Broker

COUNT = 200


@pytest.fixture
def broker() -> Iterator[Broker]:
    """With a topic of two partitions; heartbeats are frequent."""
    with Broker(group_share_heartbeat_interval_ms=50) as broker:
        while not broker.context.groups.is_loaded:  # until then clients are told to retry
            time.sleep(0.001)
        broker.log.create_topic("t", partitions=2)
        broker.context.group_configs.alter("g", {"share_auto_offset_reset": "earliest"}, 10)
        yield broker


def consumer(broker: Broker, group: str = "g", **settings: Any) -> ShareConsumer:
    found = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    found.subscribe(["t"])
    return found


def poll(consumer: ShareConsumer) -> list[confluent_kafka.Message]:
    found = list(consumer.poll(0.1))
    assert [message.error() for message in found if message.error()] == []
    return found


def commit(*consumers: ShareConsumer) -> None:
    """Acknowledge what the last polls gave: librdkafka's close releases it."""
    for each in consumers:
        assert not any(each.commit_sync(60.0).values())


def is_done(broker: Broker, group: str = "g") -> bool:
    """Whether the group has finished all records."""
    parts = broker.log.backend.share_coordinator.describe_share_group(group, "t").partitions
    return all(part.start_offset == part.end_offset for part in parts)


def test_a_subscription_with_a_name_that_no_topic_can_have(broker: Broker) -> None:
    """A heartbeat's INVALID_TOPIC_EXCEPTION would be fatal to librdkafka."""
    broker.log.append("t", b"x")
    member = consumer(broker)
    member.subscribe(["t", "no such topic!"])
    try:
        while not (found := poll(member)):
            pass
        assert [message.value() for message in found] == [b"x"]
        commit(member)
    finally:
        member.close()


def send(broker: Broker, count: int = COUNT) -> set[bytes]:
    values = [b"%d" % number for number in range(count)]
    broker.log.append_many("t", values[: count // 2], partition=0)
    for value in values[count // 2 :]:
        broker.log.append("t", value, partition=1)
    return set(values)


def test_implicit_acknowledgement(broker: Broker) -> None:
    expected = send(broker)
    with consumer(broker) as one:
        found: list[bytes] = []
        while len(found) < COUNT:
            found += [message.value() for message in poll(one)]
        assert sorted(found) == sorted(expected)
        commit(one)
    assert is_done(broker)


def test_consumers_share_the_records(broker: Broker) -> None:
    with consumer(broker) as one, consumer(broker) as two, consumer(broker) as three:
        expected = send(broker)
        found: Counter[bytes] = Counter()
        while len(found) < COUNT:
            for each in (one, two, three):
                found.update(message.value() for message in poll(each))
        assert found == Counter(expected)  # each once
        commit(one, two, three)
    assert is_done(broker)


def test_explicit_acknowledgement(broker: Broker) -> None:
    send(broker, 4)
    with consumer(broker, share_acknowledgement_mode="explicit") as one:
        said = {b"0": AcknowledgeType.ACCEPT, b"1": AcknowledgeType.RELEASE, b"2": AcknowledgeType.REJECT}
        found: list[bytes] = []
        while len(found) < 5:
            for message in poll(one):
                its_type = (
                    AcknowledgeType.ACCEPT if message.value() in found else said.get(message.value(), 1)
                )
                found.append(message.value())
                one.acknowledge(message, its_type)
            assert not any(one.commit_sync(60.0).values())
        assert sorted(found) == [b"0", b"1", b"1", b"2", b"3"]
        while not is_done(broker):  # the rejected one is archived in the background
            poll(one)


def test_a_consumer_that_ends_gives_back(broker: Broker) -> None:
    send(broker, 10)
    one = consumer(broker, share_acknowledgement_mode="explicit")
    found: list[bytes] = []
    while len(found) < 10:
        for message in poll(one):
            found.append(message.value())
            one.acknowledge(message, AcknowledgeType.RELEASE)
    one.close()
    with consumer(broker) as two:
        again: list[bytes] = []
        while len(again) < 10:
            again += [message.value() for message in poll(two)]
        assert sorted(again) == sorted(found)
        commit(two)
    assert is_done(broker)


def test_a_new_group_begins_with_the_latest(broker: Broker) -> None:
    send(broker, 10)
    with consumer(broker, "l") as one:
        while "l" not in broker.context.queue_groups():
            assert poll(one) == []
        broker.log.append("t", b"new", partition=1)
        found: list[bytes] = []
        while not found:
            found += [message.value() for message in poll(one)]
        assert found == [b"new"]
        commit(one)
    assert is_done(broker, "l")


SERVE = """
import sys
from embedlog.cluster import Broker

settings = {"group_share_heartbeat_interval_ms": 50, "group_share_record_lock_duration_ms": 1_000}
with Broker(sys.argv[1], port=int(sys.argv[2]), **settings) as broker:
    if "t" not in broker.log.topics():
        broker.log.create_topic("t", partitions=2)
        broker.context.group_configs.alter("g", {"share_auto_offset_reset": "earliest"}, 10)
        for number in range(2):
            for _ in range(100):  # a poll gives whole batches
                broker.log.append_many("t", [b""] * 10, partition=number)
    print(broker.port, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_killed_brokers_lose_nothing(tmp_path: Path) -> None:
    """kill -9 of the broker while consumers work: each record is accepted, and what was accepted stays so."""
    served = Program(SERVE, tmp_path / "log", 0)
    port = int(served.line())
    settings = {"max.poll.records": 50, "share.acknowledgement.mode": "explicit"}
    accepted: Counter[tuple[int, int]] = Counter()
    consumers = []
    for _ in range(2):
        each = ShareConsumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", **settings})
        each.subscribe(["t"])
        consumers.append(each)
    kills = [300, 900, 1_500]  # after so many
    while len(accepted) < 2_000:
        for each in consumers:
            found = [message for message in each.poll(0.1) if message.error() is None]
            for message in found:
                each.acknowledge(message)
            if found:
                failed = each.commit_sync(60.0)
                done = {place.partition for place, error in failed.items() if error is None}
                places = [(message.partition(), message.offset()) for message in found]
                accepted.update(place for place in places if place[0] in done)
                assert max(accepted.values(), default=1) == 1  # it was answered: nobody gets it again
        if kills and len(accepted) >= kills[0]:
            kills.pop(0)
            served.kill()
            served = Program(SERVE, tmp_path / "log", port)
            assert int(served.line()) == port
    assert not kills
    for each in consumers:
        each.close()
    served.say()
    served.end()
    with embedlog.open(tmp_path / "log") as log:
        parts = log.backend.share_coordinator.describe_share_group("g", "t").partitions
        assert [part.start_offset for part in parts] == [1_000, 1_000]


def test_together_with_a_queue(broker: Broker) -> None:
    """Each record is done by one of both."""
    expected = send(broker)
    found: Counter[bytes] = Counter()
    with broker.log.queue("t", group="g", prefetch=1) as queue, consumer(broker, max_poll_records=5) as one:
        while len(found) < COUNT:
            job = queue.take(default=None)
            if job is not None:
                assert job.value is not None
                found[job.value] += 1
                job.accept()
            found.update(message.value() for message in poll(one))
        commit(one)
    assert found == Counter(expected)
    assert is_done(broker)
