"""One broker of three is killed, one stopped: our own clients go on with what the third one leads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import Brokers, cluster
from zookeepers import Znodes, eventually

import embedlog
from embedlog import BrokerUnavailable, Consumer, Log, TopicPartition, aio
from embedlog.backends.remote.brokers import Retry
from embedlog.backends.remote.coordinators import Coordinators
from embedlog.backends.remote.groups import RemoteCoordinator

pytestmark = pytest.mark.jvm

PARTITIONS = 6
EACH = 20
LATE_S = 5.0  # a poll of 0.3 s on a busy machine; it was a minute
SESSION = ("--set", "zookeeper.session.timeout.ms=40000")  # long enough that the dead remain leaders


class Fallen:
    """A cluster of three of which one broker is killed and one stopped, after records in all partitions."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        brokers.create("t", PARTITIONS)
        self.leaders = brokers.leaders("t")
        self.log = self.open()
        self.appended = Counter[int]()
        self.append(range(PARTITIONS))

    @property
    def path(self) -> str:
        # The stopped one comes first: each question that goes to it must not wait.
        return "kafka://" + ",".join(self.brokers[number].address for number in (2, 1, 0))

    def open(self, **settings: int) -> Log:
        return embedlog.open(self.path, **settings)

    def append(self, partitions: list[int] | range) -> None:
        for partition in partitions:
            for _ in range(EACH):
                self.log.append("t", b"%d" % self.appended[partition], partition=partition)
                self.appended[partition] += 1

    @property
    def living(self) -> list[int]:
        return [partition for partition, leader in self.leaders.items() if leader == 0]

    def fall(self) -> None:
        self.brokers[1].kill()
        self.brokers[2].pause()

    def rise(self) -> None:
        self.brokers[2].resume()
        self.brokers[1].start()


@pytest.fixture
def fallen(zookeeper: Znodes, tmp_path: Path) -> Iterator[Fallen]:
    with cluster(tmp_path, zookeeper.connect, 3, *SESSION) as brokers:
        fallen = Fallen(brokers)
        try:
            yield fallen
        finally:
            fallen.log.close()


class Reads:
    """What consumers return of each partition, in order and once."""

    def __init__(self) -> None:
        self.values: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}

    def poll(self, consumer: Consumer) -> None:
        began = time.monotonic()
        records = consumer.poll(300)
        assert time.monotonic() - began < LATE_S
        for record in records:
            self.values[record.partition].append(record.value)

    def until(self, consumer: Consumer, counts: Counter[int], partitions: list[int] | range) -> None:
        """Poll until these partitions are read to their ends."""
        deadline = time.monotonic() + 60
        while any(len(self.values[number]) < counts[number] for number in partitions):
            assert time.monotonic() < deadline, (consumer, self.counts(), counts)
            self.poll(consumer)

    def counts(self) -> dict[int, int]:
        return {number: len(values) for number, values in self.values.items()}

    def check(self, counts: Counter[int]) -> None:
        assert self.values == {number: [b"%d" % i for i in range(counts[number])] for number in self.values}


def test_consumers_read_what_the_living_lead(fallen: Fallen, caplog: pytest.LogCaptureFixture) -> None:
    everything = range(PARTITIONS)
    old, grouped = Reads(), Reads()
    with fallen.log.consumer("t") as consumer, fallen.log.consumer("t", group="g") as member:
        old.until(consumer, fallen.appended, everything)
        grouped.until(member, fallen.appended, everything)
        fallen.fall()
        with caplog.at_level(logging.WARNING):
            fallen.append(fallen.living)
            old.until(consumer, fallen.appended, fallen.living)
            grouped.until(member, fallen.appended, fallen.living)
            while len({message for message in caplog.messages if "waits: " in message}) < 4:
                old.poll(consumer)
        dead = TopicPartition("t", next(number for number in everything if number not in fallen.living))
        assert f"{dead} waits: {dead}: broker" in repr(consumer)
        assert consumer.estimated_lag().keys() == {TopicPartition("t", number) for number in fallen.living}
        new = Reads()
        with fallen.open() as log, log.consumer("t") as later, log.consumer() as assigned:
            new.until(later, fallen.appended, fallen.living)
            assigned.assign([TopicPartition("t", number) for number in everything])
            by_hand = Reads()
            by_hand.until(assigned, fallen.appended, fallen.living)
            fallen.rise()
            fallen.append(everything)
            for reads, one in ((old, consumer), (grouped, member), (new, later), (by_hand, assigned)):
                reads.until(one, fallen.appended, everything)
                reads.check(fallen.appended)  # nothing twice, nothing lost
                assert "waits" not in repr(one)


def test_latest_means_the_end_that_a_dead_leader_had(fallen: Fallen) -> None:
    """A group that begins at the ends while leaders are away reads no old records when they come back."""
    group = next(f"g{number}" for number in range(100) if _coordinator(fallen, f"g{number}") == 0)
    fallen.fall()
    reads = Reads()
    with fallen.log.consumer("t", group=group, auto_offset_reset="latest") as member:
        while not member.assignment() or len(member.estimated_lag()) < len(fallen.living):
            reads.poll(member)
        fallen.rise()
        while len(member.estimated_lag()) < PARTITIONS:
            reads.poll(member)
        before = Counter(fallen.appended)
        fallen.append(range(PARTITIONS))
        reads.until(member, fallen.appended - before, range(PARTITIONS))
    assert reads.values == {
        number: [b"%d" % i for i in range(before[number], fallen.appended[number])] for number in reads.values
    }


def _coordinator(fallen: Fallen, group: str) -> int:
    coordinator = fallen.log.backend.coordinator
    assert isinstance(coordinator, RemoteCoordinator)

    def found(coordinators: Coordinators = coordinator.coordinators) -> tuple[str, int] | None:
        with contextlib.suppress(Retry):  # the first question creates a topic
            return coordinators.find(group, time.monotonic() + 60)
        return None

    address = eventually(found)
    assert address is not None
    return [broker.address for broker in fallen.brokers.all].index(f"{address[0]}:{address[1]}")


def test_reading_on_and_reading_to_the_end(fallen: Fallen) -> None:
    """What follows goes on with the living; what has an end has all of it, or names what it cannot have."""
    fallen.fall()
    values = Reads()
    followed = fallen.log.read("t", follow=True)
    wanted = EACH * len(fallen.living)
    for record in itertools.islice(followed, wanted):
        values.values[record.partition].append(record.value)
    fallen.append(fallen.living)
    for record in itertools.islice(followed, wanted):
        values.values[record.partition].append(record.value)
    assert {number for number, read in values.values.items() if read} == set(fallen.living)
    asyncio.run(_followed_in_tasks(fallen))
    dead = next(number for number in range(PARTITIONS) if number not in fallen.living)
    with fallen.open(default_api_timeout_ms=2_000) as log:
        with pytest.raises(BrokerUnavailable, match=r"t \d"):
            list(log.read("t"))
        with pytest.raises(BrokerUnavailable, match=f"t {dead}"):
            list(log.read("t", dead))
        with log.consumer("t", stop_at_end=True) as consumer:
            reads: list[int] = []
            with pytest.raises(BrokerUnavailable, match=r"t \d"):
                reads.extend(record.partition for record in consumer)
        assert Counter(reads) == dict.fromkeys(fallen.living, fallen.appended[fallen.living[0]])
    fallen.rise()
    fallen.append(range(PARTITIONS))
    for record in itertools.islice(followed, sum(fallen.appended.values()) - 2 * wanted):
        values.values[record.partition].append(record.value)
    values.check(fallen.appended)
    followed.close()


async def _followed_in_tasks(fallen: Fallen) -> None:
    """The same by a task that follows, and by a consumer of tasks."""
    wanted = 2 * EACH * len(fallen.living)
    async with await aio.open(fallen.path) as log:
        count = 0
        async with contextlib.aclosing(log.read("t", follow=True)) as records:
            async for record in records:
                assert record.partition in fallen.living
                count += 1
                if count == wanted:
                    break
        async with log.consumer("t") as consumer:
            while count < 2 * wanted:
                began = time.monotonic()
                count += len(await consumer.poll(300))
                assert time.monotonic() - began < LATE_S
