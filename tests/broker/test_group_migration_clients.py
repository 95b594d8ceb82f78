"""Real clients of both group protocols in one group, while records keep coming: every record is read."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from programs import Program
from wire import Wire

import embedlog
from embedlog.cluster import Broker
from embedlog.groups.machines.events import GroupState, GroupType
from embedlog.model import TopicPartition
from embedlog.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from embedlog.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from embedlog.wire.apis.describe_groups import DescribeGroupsRequest
from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from embedlog.wire.apis.leave_group import LeaveGroupRequest, MemberIdentity
from embedlog.wire.apis.list_groups import ListGroupsRequest
from embedlog.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from embedlog.wire.apis.sync_group import SyncGroupRequest
from embedlog.wire.consumer_protocol import Subscription, decode_assignment, encode_subscription
from embedlog.wire.error_codes import ErrorCode

G = "g"
PARTITIONS = 6


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Heartbeats are frequent, so that groups converge soon."""
    with Broker(group_consumer_heartbeat_interval_ms=50) as broker:
        while not broker.context.groups.is_loaded:  # until then clients are told to retry
            time.sleep(0.001)
        broker.log.create_topic("t", partitions=PARTITIONS)
        yield broker


class Member:
    """A consumer of any client. `assigned` is what it says that it has."""

    def poll(self) -> list[tuple[int, int]]:
        """Partitions and offsets of records."""
        raise NotImplementedError

    @property
    def assigned(self) -> set[int]:
        raise NotImplementedError

    def close(self) -> list[tuple[int, int]]:
        """Commit, and leave the group. Returns what `poll` has not."""
        raise NotImplementedError


class Confluent(Member):
    """Librdkafka's."""

    def __init__(self, address: str, protocol: str, **settings: Any) -> None:
        classic = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 50} if protocol == "classic" else {}
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": G,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 50,
                "client.id": protocol,
                **classic,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumer.subscribe(["t"])

    def poll(self) -> list[tuple[int, int]]:
        message = self.consumer.poll(0.01)
        if message is None:
            return []
        assert not message.error(), message.error()
        return [(message.partition(), message.offset())]

    @property
    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> list[tuple[int, int]]:
        self.consumer.close()
        return []


class Threaded(Member):
    """Polled by a thread of its own: a call may wait while the group rebalances."""

    def __init__(self, address: str) -> None:
        self.found: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.has: set[int] = set()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(address,))
        self.thread.start()

    def run(self, address: str) -> None:
        """Consume until it is stopping."""
        raise NotImplementedError

    def got(self, assigned: Iterable[Any], found: Mapping[Any, Iterable[Any]]) -> None:
        self.has = {each.partition for each in assigned}
        for records in found.values():
            for record in records:
                self.found.put((record.partition, record.offset))

    def poll(self) -> list[tuple[int, int]]:
        records = []
        with contextlib.suppress(queue.Empty):
            records.append(self.found.get(timeout=0.01))
            while True:
                records.append(self.found.get_nowait())
        return records

    @property
    def assigned(self) -> set[int]:
        return self.has

    def close(self) -> list[tuple[int, int]]:
        self.stopping.set()
        self.thread.join()
        return self.poll()


class KafkaPython(Threaded):
    """kafka-python's, which has the classic protocol only."""

    def run(self, address: str) -> None:
        consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=address,
            group_id=G,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=50,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=50,
        )
        # One that leads a group before it knows the topic assigns nothing, and may not notice (3.0.12).
        consumer.partitions_for_topic("t")
        while not self.stopping.is_set():
            found = consumer.poll(timeout_ms=1_000)  # one that ends within a join loses it (3.0.12)
            self.got(consumer.assignment(), found)
        consumer.close()


class AioKafka(Threaded):
    """aiokafka's, likewise."""

    def run(self, address: str) -> None:
        asyncio.run(self._run(address))

    async def _run(self, address: str) -> None:
        async with aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=address,
            group_id=G,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=50,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=50,
        ) as consumer:
            while not self.stopping.is_set():
                found = await consumer.getmany(timeout_ms=10)
                self.got(consumer.assignment(), found)


class Embedlog(Member):
    """embedlog's own, in the broker's process or over the wire."""

    def __init__(self, log: embedlog.Log, **options: Any) -> None:
        self.consumer = log.consumer("t", group=G, auto_commit_interval_ms=50, **options)

    def poll(self) -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for record in self.consumer.poll(10)]

    @property
    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> list[tuple[int, int]]:
        self.consumer.commit()
        self.consumer.close()
        return []


class Rolling:
    """The members of the group, and the producer that goes on meanwhile."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
        self.members: list[Member] = []
        self.sent: set[tuple[int, int]] = set()
        self.read: list[tuple[int, int]] = []
        self.count = 0

    def start(self, member: Member) -> Member:
        self.members.append(member)
        return member

    def confluent(self, protocol: str, **settings: Any) -> Member:
        return self.start(Confluent(self.address, protocol, **settings))

    def stop(self, member: Member) -> None:
        self.members.remove(member)
        self.read += member.close()

    def turn(self, *, sends: bool = True) -> None:
        if sends:
            self.count += 1
            self.producer.produce("t", b"x", partition=self.count % PARTITIONS, on_delivery=self._delivered)
        self.producer.poll(0)
        for member in self.members:
            self.read += member.poll()

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.sent.add((partition, offset))

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.turn()

    def until_shared(self) -> None:
        """Until each partition has one member, and each member as many as the others."""
        fair = PARTITIONS // len(self.members)

        def is_so() -> bool:
            counts = [len(member.assigned) for member in self.members]
            everything = set().union(*(member.assigned for member in self.members))
            return min(counts) >= fair and sum(counts) == len(everything) == PARTITIONS

        self.until(is_so)

    def check(self) -> None:
        """Every record that was sent is read."""
        self.producer.flush()
        while not set(self.read) >= self.sent:
            self.turn(sends=False)
        ends = {
            partition: max(at for number, at in self.sent if number == partition)
            for partition, _ in self.sent
        }
        assert self.sent == {(partition, at) for partition, end in ends.items() for at in range(end + 1)}


@pytest.fixture
def rolling(broker: Broker) -> Iterator[Rolling]:
    found = Rolling(f"127.0.0.1:{broker.port}")
    yield found
    for member in list(found.members):
        found.stop(member)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.slow
def test_a_group_rolls_from_one_protocol_to_the_other_and_back(
    broker: Broker, rolling: Rolling, strategy: str
) -> None:
    def start(protocol: str) -> Member:
        classic = {"partition_assignment_strategy": strategy} if protocol == "classic" else {}
        return rolling.confluent(protocol, **classic)

    for _ in range(3):
        start("classic")
    rolling.until_shared()
    for protocol in ("consumer", "classic"):
        for _ in range(3):
            rolling.stop(rolling.members[0])
            start(protocol)
            rolling.until_shared()
        group = broker.context.groups.describe_group(G)
        assert group.type.value == protocol
        rolling.until(lambda: broker.context.groups.describe_group(G).state is GroupState.STABLE)
    rolling.check()


@pytest.mark.parametrize("client", [KafkaPython, AioKafka])
@pytest.mark.parametrize("first", ["classic", "consumer"])
def test_clients_that_have_the_classic_protocol_only(
    broker: Broker, rolling: Rolling, client: Callable[[str], Member], first: str
) -> None:
    def start_classic() -> None:
        rolling.start(client(rolling.address))

    def start_consumer() -> None:
        rolling.confluent("consumer")

    starts = [start_classic, start_consumer]
    for start in starts if first == "classic" else reversed(starts):
        start()
        rolling.until_shared()
    assert broker.context.groups.describe_group(G).type is GroupType.CONSUMER
    another = rolling.start(client(rolling.address))
    rolling.until_shared()
    modern = next(member for member in rolling.members if isinstance(member, Confluent))
    rolling.stop(modern)
    rolling.until_shared()
    assert broker.context.groups.describe_group(G).type is GroupType.CLASSIC
    rolling.stop(another)
    rolling.until_shared()
    rolling.check()


@pytest.mark.parametrize("assignor", ["range", "sticky"])
@pytest.mark.slow
def test_our_own_consumers(broker: Broker, rolling: Rolling, assignor: str) -> None:
    """In the broker's process and over the wire; they have the classic protocol."""
    with embedlog.open(f"kafka://{rolling.address}") as remote:
        rolling.start(Embedlog(broker.log, assignors=[assignor]))
        rolling.until_shared()
        rolling.confluent("consumer")
        rolling.until_shared()
        rolling.start(Embedlog(remote, assignors=[assignor]))
        rolling.until_shared()
        assert broker.context.groups.describe_group(G).type is GroupType.CONSUMER
        rolling.stop(rolling.members[1])
        rolling.until_shared()
        assert broker.context.groups.describe_group(G).type is GroupType.CLASSIC
        rolling.check()
        for member in list(rolling.members):
            rolling.stop(member)


def test_administrators_see_members_of_both(broker: Broker, rolling: Rolling) -> None:
    rolling.confluent("classic")
    rolling.until_shared()
    rolling.confluent("consumer")
    rolling.until_shared()
    with Wire(broker) as wire:
        (listed,) = wire.ask(ListGroupsRequest(), 5).groups
        assert (listed.group_type, listed.protocol_type) == ("consumer", "consumer")
        (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[G]), 1).groups
        assert {member.client_id: member.member_type for member in group.members} == {
            "classic": 0,
            "consumer": 1,
        }
        (old,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[G]), 0).groups
        assert len(old.members) == 2
        (described,) = wire.ask(DescribeGroupsRequest(groups=[G]), 5).groups
        assert (described.error_code, len(described.members)) == (0, 2)


SERVE = """
import sys
from embedlog.cluster import Broker

with Broker(sys.argv[1], port=int(sys.argv[2]), group_consumer_heartbeat_interval_ms=50) as broker:
    if "t" not in broker.log.topics():
        broker.log.create_topic("t", partitions=6)
    print(broker.port, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_mixed_group_outlives_its_broker(tmp_path: Path) -> None:
    """kill -9 of the broker while the group has members of both, and just after the change back."""
    served = Program(SERVE, tmp_path / "log", 0)
    port = int(served.line())
    rolling = Rolling(f"127.0.0.1:{port}")
    try:
        rolling.confluent("classic")
        rolling.confluent("consumer")
        rolling.until_shared()
        for _ in range(2):
            served.kill()
            served = Program(SERVE, tmp_path / "log", port)
            assert int(served.line()) == port
            before = len(rolling.sent)
            rolling.until(lambda before=before: len(rolling.sent) > before + 50)  # type: ignore[misc]
            rolling.until_shared()
            if len(rolling.members) == 2:
                rolling.stop(rolling.members[1])
        rolling.check()
    finally:
        for member in list(rolling.members):
            rolling.stop(member)
    served.say()
    served.end()


def join(wire: Wire, metadata: bytes, version: int = 9, **fields: Any) -> Any:
    """A join of the classic protocol."""
    said: dict[str, Any] = {
        "group_id": G,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=metadata)],
        "group_instance_id": "i",
    }
    return wire.ask(JoinGroupRequest(**(said | fields)), version)


def consumer_heartbeat(wire: Wire, epoch: int = 0) -> Any:
    """A join, or a full heartbeat without partitions, of the consumer protocol."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=G,
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return wire.ask(request, 1)


SAID = encode_subscription(Subscription(("t",)))


@pytest.mark.parametrize("version", [2, 5, 9])
def test_what_members_of_the_classic_protocol_are_answered(broker: Broker, version: int) -> None:
    with Wire(broker) as wire:
        consumer_heartbeat(wire)
        instance = "i" if version >= 5 else None
        joined = join(wire, SAID, version, group_instance_id=instance)
        assert (joined.error_code, joined.leader, joined.members) == (0, "", [])
        assert (joined.protocol_name, joined.generation_id) == ("range", 2)
        who: dict[str, Any] = {"group_id": G, "member_id": joined.member_id, "generation_id": 2}
        synced = wire.ask(SyncGroupRequest(**who, assignments=[]), 2)
        assert (synced.error_code, decode_assignment(synced.assignment).partitions) == (0, ())
        assert consumer_heartbeat(wire, 1).member_epoch == 2  # it has released half of its partitions
        assert wire.ask(HeartbeatRequest(**who), 2).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        stale = wire.ask(HeartbeatRequest(**(who | {"generation_id": 1})), 2)
        assert stale.error_code == ErrorCode.ILLEGAL_GENERATION
        for epoch, code in ((2, 0), (1, ErrorCode.ILLEGAL_GENERATION)):
            asked = OffsetFetchRequestGroup(
                group_id=G, member_id=joined.member_id, member_epoch=epoch, topics=None
            )
            (fetched,) = wire.ask(OffsetFetchRequest(groups=[asked]), 9).groups
            assert fetched.error_code == code
        leaving = [
            MemberIdentity(member_id="nobody", group_instance_id=None),
            MemberIdentity(member_id="" if instance else joined.member_id, group_instance_id=instance),
        ]
        left = wire.ask(LeaveGroupRequest(group_id=G, members=leaving), 3)
        assert [each.error_code for each in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID, 0]
        assert len(broker.context.groups.describe_group(G).members) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\xff\xff" + SAID[2:],
        b"\0\1\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\1" + encode_subscription(Subscription(("t",)), version=0)[2:] + b"\x7f\xff\xff\xff",
    ],
)
def test_subscriptions_that_cannot_be_read(broker: Broker, metadata: bytes) -> None:
    """A classic group takes them, and stays classic; a group of the consumer protocol does not."""
    with Wire(broker) as wire:
        joined = join(wire, metadata)
        assert joined.error_code == 0
        refused = consumer_heartbeat(wire)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert broker.context.groups.describe_group(G).type is GroupType.CLASSIC
        leaving = [MemberIdentity(member_id=joined.member_id, group_instance_id="i")]
        wire.ask(LeaveGroupRequest(group_id=G, members=leaving), 3)
        assert consumer_heartbeat(wire).error_code == 0
        assert join(wire, metadata).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert len(broker.context.groups.describe_group(G).members) == 1


def test_large_subscriptions(broker: Broker) -> None:
    """Ten thousand topics that there are not, and as many partitions that nobody has."""
    names = tuple(f"topic-{number}" for number in range(10_000))
    owned = tuple(TopicPartition("t", number - 5_000) for number in range(10_000))
    with Wire(broker) as wire:
        consumer_heartbeat(wire)
        joined = join(wire, encode_subscription(Subscription((*names, "t"), owned_partitions=owned)))
        assert joined.error_code == 0
        assert consumer_heartbeat(wire, 1).error_code == 0
