"""Consumer groups of real clients, of one kind and mixed: joining, leaving, dying, restarting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from programs import Program

from embedlog import TopicPartition
from embedlog.cluster import Broker
from embedlog.errors import GroupNotFound
from embedlog.groups.machines.events import GroupState

G = "g"
PARTITIONS = 4
Place = tuple[int, int]  # partition, offset


@pytest.fixture
def broker() -> Iterator[Broker]:
    """With a topic of four partitions; sessions may be short, so that dead members expire soon."""
    with Broker(group_min_session_timeout_ms=100) as broker:
        broker.log.create_topic("t", partitions=PARTITIONS)
        yield broker


def fill(broker: Broker, count: int) -> set[Place]:
    """So many more records for each partition; where all are."""
    for partition in range(PARTITIONS):
        broker.log.append_many("t", [b"x"] * count, partition=partition)
    return {
        (partition, offset)
        for partition, offsets in broker.log.offsets("t").items()
        for offset in range(offsets.log_end_offset)
    }


def confluent(broker: Broker, group: str = G, **settings: Any) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 50,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    consumer.subscribe(["t"])
    return consumer


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


class Reader:
    """A consumer of confluent-kafka in a thread of its own: what it reads it commits."""

    def __init__(self, consumer: confluent_kafka.Consumer, readers: Readers) -> None:
        self.consumer = consumer
        self._readers = readers
        self.partitions: set[int] = set()  # assignment() may be asked for in one thread only
        self._leaving = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def leave(self) -> None:
        self._leaving = True
        self._thread.join()

    def _run(self) -> None:
        try:
            pending: dict[int, int] = {}
            while not self._leaving or pending:
                self._step(pending)
        except BaseException as error:
            self._readers.failures.append(error)
        finally:
            self.consumer.close()

    def _step(self, pending: dict[int, int]) -> None:
        messages = self.consumer.consume(20, 0.02)
        for message in messages:
            assert message.error() is None, message.error()
        places = [(message.partition(), message.offset()) for message in messages]
        self._readers.read(places)
        pending.update({partition: offset + 1 for partition, offset in places})
        self.partitions = {each.partition for each in self.consumer.assignment()}
        for partition in pending.keys() - self.partitions:
            del pending[partition]  # it is another one's by now, who reads on from what was committed
        if pending:
            offsets = [confluent_kafka.TopicPartition("t", *each) for each in pending.items()]
            try:
                self.consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException:  # in the middle of a rebalance: once more
                return
            self._readers.commit(pending)
            pending.clear()


class Readers:
    """Several of them. Nobody may read what one of them has committed."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        self.all: list[Reader] = []
        self.seen: set[Place] = set()
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._broker = broker
        self._settings = settings

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self.all:
            reader.leave()
        assert not self.failures

    def read(self, places: list[Place]) -> None:
        with self._lock:
            for partition, offset in places:
                assert offset >= self.committed[partition]
            self.seen.update(places)

    def commit(self, offsets: dict[int, int]) -> None:
        with self._lock:
            for partition, offset in offsets.items():
                self.committed[partition] = max(self.committed[partition], offset)

    def join(self, **settings: Any) -> None:
        self.all.append(Reader(confluent(self._broker, **self._settings, **settings), self))

    def leave(self) -> None:
        self.all.pop(0).leave()

    def until(self, condition: Callable[[], bool]) -> None:
        wait_for(lambda: bool(self.failures) or condition())
        assert not self.failures

    def share(self) -> bool:
        """Does each partition belong to one of them, and each of them have some?"""
        shares = [reader.partitions for reader in self.all]
        return all(shares) and sorted(p for share in shares for p in share) == list(range(PARTITIONS))

    def are_done(self, everything: set[Place]) -> bool:
        """Has all been read, and committed?"""
        ends = {
            partition: max(o for p, o in everything if p == partition) + 1 for partition in self.committed
        }
        with self._lock:
            return self.seen == everything and self.committed == ends


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.slow
def test_joining_and_leaving_while_consuming(broker: Broker, assignor: str) -> None:
    fill(broker, 50)
    with Readers(broker, partition_assignment_strategy=assignor) as readers:
        for _ in range(3):
            readers.join()
            readers.until(readers.share)
            fill(broker, 50)
        for _ in range(2):
            readers.leave()
            fill(broker, 50)
            readers.until(readers.share)
        everything = fill(broker, 1)
        readers.until(lambda: readers.are_done(everything))
    committed = broker.context.groups.committed_offsets(G)
    assert {name.partition: offset.offset for name, offset in committed.items()} == dict.fromkeys(
        range(PARTITIONS), 301
    )
    assert broker.context.groups.describe_group(G).state is GroupState.EMPTY


CRASHING = """
import sys
import confluent_kafka
consumer = confluent_kafka.Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "session.timeout.ms": 1500, "heartbeat.interval.ms": 50,
    "partition.assignment.strategy": sys.argv[2],
})
consumer.subscribe(["t"])
while True:
    message = consumer.poll(1)
    if message is not None:
        assert message.error() is None
        print("read", message.partition(), message.offset(), flush=True)
        try:
            consumer.commit(message, asynchronous=False)
        except confluent_kafka.KafkaException:
            continue
        print("committed", message.partition(), message.offset(), flush=True)
"""


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.slow
def test_a_consumer_that_is_killed_is_replaced(
    broker: Broker, program: Callable[..., Program], assignor: str
) -> None:
    """Committed records are not read again, others are."""
    fill(broker, 200)
    with Readers(broker, partition_assignment_strategy=assignor) as readers:
        readers.join()
        readers.until(readers.share)
        dying = program(CRASHING, broker.bootstrap_servers, assignor)
        readers.until(lambda: len(broker.context.groups.describe_group(G).members) == 2)
        readers.until(lambda: len(readers.all[0].partitions) == PARTITIONS // 2)
        everything = fill(broker, 2_000)
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(dying.line() for _ in range(40)))
        reading.start()
        while reading.is_alive():
            reading.join(1)
            everything = fill(broker, 20)  # where it was out for a while the other has read the rest
        dying.process.kill()
        assert dying.process.stdout is not None
        rest = dying.process.stdout.read()
        lines += rest[: rest.rfind("\n") + 1].splitlines()
        read, committed = (
            {
                (int(partition), int(offset))
                for each, partition, offset in map(str.split, lines)
                if each == what
            }
            for what in ("read", "committed")
        )
        assert committed
        readers.commit({partition: offset + 1 for partition, offset in sorted(committed)})
        # Whether the last one was committed only the broker knows.
        readers.until(lambda: readers.seen | read == everything)
        readers.until(readers.share)


def test_cooperative_members_keep_their_partitions(broker: Broker) -> None:
    fill(broker, 10)
    revoked: list[int] = []
    first = confluent(broker, partition_assignment_strategy="cooperative-sticky")
    first.subscribe(["t"], on_revoke=lambda _, given: revoked.extend(each.partition for each in given))
    with closing(first):
        while len(first.assignment()) < PARTITIONS:
            first.consume(10, 0.02)
        second = confluent(broker, partition_assignment_strategy="cooperative-sticky")
        with closing(second):
            while len(first.assignment()) + len(second.assignment()) != PARTITIONS or not second.assignment():
                first.consume(10, 0.02)
                second.consume(10, 0.02)
            assert len(revoked) == 2  # and the others were never given up
            assert {each.partition for each in second.assignment()} == set(revoked)


def test_a_static_member_restarts_without_a_rebalance(broker: Broker) -> None:
    everything = fill(broker, 10)
    with Readers(broker, session_timeout_ms=60_000) as readers:
        for instance in ("one", "two"):
            readers.join(group_instance_id=instance)
        readers.until(readers.share)
        readers.until(lambda: readers.are_done(everything))
        before = broker.context.groups.describe_group(G)
        assert {m.group_instance_id for m in before.members} == {"one", "two"}
        kept = readers.all[1].partitions
        readers.leave()
        assert len(broker.context.groups.describe_group(G).members) == 2
        readers.join(group_instance_id="one")
        everything = fill(broker, 10)
        readers.until(lambda: readers.are_done(everything))
        after = broker.context.groups.describe_group(G)
        assert (after.generation, after.state) == (before.generation, GroupState.STABLE)
        assert readers.all[0].partitions == kept
        members = {m.group_instance_id: m.member_id for m in before.members}
        assert {m.group_instance_id: m.member_id for m in after.members}["two"] == members["two"]


# -- the other clients ------------------------------------------------------------------------------------


def kafka_python(broker: Broker, group: str = G) -> KafkaConsumer:
    return KafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
    )


def in_thread(
    poll: Callable[[], Iterable[Place]], seen: set[Place], done: threading.Event
) -> threading.Thread:
    def run() -> None:
        while not done.is_set():
            seen.update(poll())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_group_of_aiokafka(broker: Broker) -> None:
    everything = fill(broker, 100)
    seen: list[set[Place]] = [set(), set()]

    async def read(consumer: AIOKafkaConsumer, of: set[Place]) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=50)).values():
                of.update((record.partition, record.offset) for record in records)

    async def run() -> None:
        consumers = [
            AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                group_id=G,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=50,
            )
            for _ in seen
        ]
        for consumer in consumers:
            await consumer.start()
        tasks = [
            asyncio.create_task(read(consumer, of)) for consumer, of in zip(consumers, seen, strict=True)
        ]
        while seen[0] | seen[1] != everything or not all(len(c.assignment()) == 2 for c in consumers):
            await asyncio.sleep(0.01)
        for consumer in consumers:
            await consumer.commit()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in consumers:
            await consumer.stop()

    asyncio.run(run())
    committed = broker.context.groups.committed_offsets(G)
    assert {name.partition: offset.offset for name, offset in committed.items()} == dict.fromkeys(
        range(PARTITIONS), 100
    )
    assert broker.context.groups.describe_group(G).state is GroupState.EMPTY


def test_clients_of_every_kind_in_one_group(broker: Broker) -> None:
    """An embedded consumer among them."""
    seen: set[Place] = set()
    done = threading.Event()

    def of_kafka_python() -> list[Place]:
        return [(r.partition, r.offset) for records in other.poll(100).values() for r in records]

    def of_confluent() -> list[Place]:
        return [(m.partition(), m.offset()) for m in librdkafka.consume(10, 0.05)]

    def embedded() -> list[Place]:
        return [(record.partition, record.offset) for record in own.poll(50)]

    with (
        closing(kafka_python(broker)) as other,
        closing(confluent(broker)) as librdkafka,
        broker.log.consumer("t", group=G) as own,
    ):
        threads = [in_thread(poll, seen, done) for poll in (of_kafka_python, of_confluent, embedded)]

        def settled() -> bool:
            try:
                group = broker.context.groups.describe_group(G)
            except GroupNotFound:
                return False
            return len(group.members) == 3 and group.state is GroupState.STABLE

        wait_for(settled)
        everything = fill(broker, 20)
        wait_for(lambda: seen == everything)
        group = broker.context.groups.describe_group(G)
        assert {member.client_host for member in group.members} > {"/127.0.0.1"}
        done.set()
        for thread in threads:
            thread.join()


# -- restarts ---------------------------------------------------------------------------------------------


def test_a_group_continues_after_a_restart(path: Path) -> None:
    """The same consumers: they find the broker again, and go on from what was committed."""
    with ExitStack() as stack:
        with Broker(path) as broker:
            broker.log.create_topic("t", partitions=PARTITIONS)
            port = broker.port
            readers = stack.enter_context(Readers(broker, reconnect_backoff_max_ms=100))
            everything = fill(broker, 50)
            for _ in range(2):
                readers.join()
            readers.until(readers.share)
            readers.until(lambda: readers.are_done(everything))
            generation = broker.context.groups.describe_group(G).generation
        broker = stack.enter_context(Broker(path, port=port))
        stack.callback(readers.__exit__)  # while there is a member to leave
        more = fill(broker, 50)
        readers.until(lambda: readers.are_done(more))
        assert broker.context.groups.describe_group(G).generation == generation  # no member had to join


SERVING = """
import sys
from embedlog.cluster import Broker
with Broker(sys.argv[1]) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def test_commits_survive_a_killed_broker(path: Path, program: Callable[..., Program]) -> None:
    serving = program(SERVING, path)
    settings = {"bootstrap.servers": serving.line(), "group.id": G}
    admin = AdminClient(settings)
    admin.create_topics([confluent_kafka.admin.NewTopic("t", PARTITIONS, 1)])["t"].result()
    consumer = confluent_kafka.Consumer(settings)
    with closing(consumer):
        for offset in range(20):
            consumer.commit(
                offsets=[confluent_kafka.TopicPartition("t", p, offset + p) for p in range(PARTITIONS)],
                asynchronous=False,
            )
        serving.kill()
    with Broker(path) as broker:
        found = broker.context.groups.committed_offsets(G)
        assert {name: committed.offset for name, committed in found.items()} == {
            TopicPartition("t", p): 19 + p for p in range(PARTITIONS)
        }


# -- administrators ---------------------------------------------------------------------------------------


def test_groups_as_confluents_admin_client_sees_them(broker: Broker) -> None:
    everything = fill(broker, 10)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with Readers(broker, client_id="reader") as readers:
        readers.join()
        readers.until(lambda: readers.are_done(everything))
        (listed,) = admin.list_consumer_groups().result().valid
        assert (listed.group_id, listed.state.name, listed.is_simple_consumer_group) == (G, "STABLE", False)
        described = admin.describe_consumer_groups([G])[G].result()
        (member,) = described.members
        assert (member.client_id, member.host) == ("reader", "/127.0.0.1")
        assert len(member.assignment.topic_partitions) == PARTITIONS
        assert described.coordinator.port == broker.port
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([G])[G].result()
        assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    of_group = confluent_kafka.ConsumerGroupTopicPartitions
    found = admin.list_consumer_group_offsets([of_group(G)])[G].result().topic_partitions
    assert sorted((each.partition, each.offset) for each in found) == [(p, 10) for p in range(PARTITIONS)]
    back = of_group(G, [confluent_kafka.TopicPartition("t", 1, 3)])
    admin.alter_consumer_group_offsets([back])[G].result()
    assert broker.context.groups.committed_offsets(G)[TopicPartition("t", 1)].offset == 3
    admin.delete_consumer_groups([G])[G].result()
    assert admin.list_consumer_groups().result().valid == []
    assert broker.context.groups.committed_offsets(G) == {}
    with pytest.raises(KafkaException) as missing:
        admin.delete_consumer_groups(["nobody"])["nobody"].result()
    assert missing.value.args[0].name() == "GROUP_ID_NOT_FOUND"
