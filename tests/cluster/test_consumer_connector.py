"""The documents' high-level consumer, with a real ZooKeeper and real brokers in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from registered_brokers import Cluster
from zookeepers import Znodes, eventually

from embedlog import Record, TopicPartition, errors
from embedlog.cluster.classic import ConsumerConnector, MessageStream, SimpleConsumer
from embedlog.cluster.zookeeper import contents, paths

Connect = Callable[..., ConsumerConnector]
G = "g"


@pytest.fixture
def cluster(zookeeper: Znodes) -> Iterator[Cluster]:
    """Two brokers in this process, registered in ZooKeeper."""
    with Cluster(zookeeper.connect, 2) as cluster:
        yield cluster


@pytest.fixture
def connect(zookeeper: Znodes, cluster: Cluster) -> Iterator[Connect]:
    """Makes connectors of one group, which are shut down at the end."""
    made: list[ConsumerConnector] = []

    def connect(group: str = G, **settings: Any) -> ConsumerConnector:
        given = {"auto_offset_reset": "smallest", "rebalance_backoff_ms": 500, **settings}
        made.append(ConsumerConnector(zookeeper.connect, group, **given))
        return made[-1]

    yield connect
    for connector in made:
        connector.shutdown()


def streams(connector: ConsumerConnector, topic: str = "t", count: int = 1) -> list[MessageStream]:
    return connector.create_message_streams({topic: count})[topic]


def take(stream: MessageStream, count: int) -> list[Record]:
    return [next(stream) for _ in range(count)]


def owners(cluster: Cluster, topic: str = "t", group: str = G) -> dict[int, str]:
    """The owners according to the registry."""
    found = {}
    for child in cluster.zookeeper.children(paths.owners(group, topic)) or []:
        node = cluster.zookeeper.get(paths.owner(group, topic, int(child)))
        if node is not None:
            found[int(child)] = contents.decode_owner(node.data)[0]
    return found


def stored(cluster: Cluster, partition: int = 0, topic: str = "t", group: str = G) -> int | None:
    node = cluster.zookeeper.get(paths.offset(group, topic, partition))
    return None if node is None else contents.decode_number(node.data)


# -- one consumer ------------------------------------------------------------------------------------------


def test_one_stream_carries_all_partitions_of_all_brokers_in_order(
    cluster: Cluster, connect: Connect
) -> None:
    cluster.create_topic("t", [0, 1, 0, 1])
    for partition in range(4):
        values = [b"%d" % i for i in range(50)]
        cluster.append("t", partition, values, leader=partition % 2)
    (stream,) = streams(connect())
    found = take(stream, 200)
    for partition in range(4):
        mine = [record for record in found if record.partition == partition]
        assert [record.offset for record in mine] == list(range(50))
        assert [record.value for record in mine] == [b"%d" % i for i in range(50)]
        assert {record.topic for record in mine} == {"t"}


def test_its_registration_follows_the_documents(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0, 1, 0])
    connector = connect(consumer_id="me")
    streams(connector, count=2)
    assert cluster.zookeeper.children(paths.consumers(G)) == [connector.consumer_id]
    assert connector.consumer_id.startswith("me:")
    node = cluster.zookeeper.get(paths.consumer(G, connector.consumer_id))
    assert node is not None and node.owner  # ephemeral
    subscription = contents.Subscription.decode(node.data)
    assert (subscription.topics, subscription.pattern) == ({"t": 2}, "static")
    found = {}
    for partition in range(3):
        node = cluster.zookeeper.get(paths.owner(G, "t", partition))
        assert node is not None and node.owner
        found[partition] = node.data.decode()
    # 0 and 2 are broker 0's, and stand before 1; the first stream takes the remainder.
    first, second = f"{connector.consumer_id}-0", f"{connector.consumer_id}-1"
    assert found == {0: first, 2: first, 1: second}
    assert connector.owned() == {
        TopicPartition("t", 0): 0,
        TopicPartition("t", 2): 0,
        TopicPartition("t", 1): 1,
    }
    connector.shutdown()
    assert cluster.zookeeper.children(paths.consumers(G)) == []
    assert owners(cluster) == {}


def test_each_stream_has_partitions_of_its_own(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0, 0])
    first, second = streams(connect(), count=2)
    for partition in range(2):
        cluster.append("t", partition, [b"a", b"b"])
    assert [(record.partition, record.offset) for record in take(first, 2)] == [(0, 0), (0, 1)]
    assert [(record.partition, record.offset) for record in take(second, 2)] == [(1, 0), (1, 1)]


def test_it_resumes_at_the_groups_offsets(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"%d" % i for i in range(10)])
    with connect() as connector:
        (stream,) = streams(connector)
        assert [record.offset for record in take(stream, 4)] == [0, 1, 2, 3]
    assert stored(cluster) == 4  # this thread got 3 and shut down: it has done with it
    (stream,) = streams(connect())
    assert next(stream).offset == 4


def test_records_in_progress_are_not_committed(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"%d" % i for i in range(10)])
    connector = connect(rebalance_handover_ms=0)
    (stream,) = streams(connector)
    worker = threading.Thread(target=take, args=(stream, 3))
    worker.start()
    worker.join()
    connector.commit_offsets()
    assert stored(cluster) == 2  # the worker never came back with record 2
    connector.shutdown()
    assert stored(cluster) == 2
    (stream,) = streams(connect())
    assert next(stream).offset == 2


def test_a_commit_covers_the_committing_threads_current_record(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a", b"b", b"c"])
    connector = connect(auto_commit_enable=False)
    (stream,) = streams(connector)
    take(stream, 2)
    assert stored(cluster) is None
    connector.commit_offsets()
    assert stored(cluster) == 2
    take(stream, 1)
    connector.shutdown()  # without auto_commit_enable only the application commits
    assert stored(cluster) == 2


def test_offsets_are_auto_committed(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a", b"b", b"c"])
    (stream,) = streams(connect(auto_commit_interval_ms=10))
    take(stream, 3)
    eventually(lambda: stored(cluster) == 2)


def test_it_starts_at_the_end_by_default(cluster: Cluster, connect: Connect) -> None:
    """And where it began is stored at once: who takes over skips nothing."""
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a", b"b"])
    (stream,) = streams(connect(auto_offset_reset="largest"))
    eventually(lambda: stored(cluster) == 2)
    cluster.append("t", 0, [b"c"])
    assert next(stream).offset == 2


def test_without_a_reset_it_fails(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    (stream,) = streams(connect(auto_offset_reset="error", consumer_timeout_ms=100))
    with pytest.raises(errors.OffsetOutOfRange, match="no offset"):
        next(stream)
    with pytest.raises(errors.ConsumerTimeout):
        next(stream)


@pytest.mark.parametrize(("reset", "expected"), [("smallest", 0), ("largest", 3)])
def test_an_offset_outside_the_log_is_reset(
    cluster: Cluster, connect: Connect, reset: str, expected: int
) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a", b"b", b"c"])
    cluster.zookeeper.write(paths.offset(G, "t", 0), contents.encode_number(99))
    connector = connect(auto_offset_reset=reset)
    (stream,) = streams(connector)
    if reset == "largest":
        # It is at the end before more comes: a fetch that waits there has been there twice.
        eventually(lambda: connector._member._claims[TopicPartition("t", 0)].fetch_offset == 3)  # type: ignore[union-attr]
        cluster.append("t", 0, [b"d"])
    assert next(stream).offset == expected


def test_a_stream_times_out_and_continues(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    (stream,) = streams(connect(consumer_timeout_ms=1))
    with pytest.raises(errors.ConsumerTimeout, match="1 ms"):
        next(stream)
    cluster.append("t", 0, [b"a"])

    def came() -> bool:
        try:
            return next(stream).value == b"a"
        except errors.ConsumerTimeout:
            return False

    eventually(came)


def test_decoders(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    rows = [Record(key=b"k", value=b"1"), Record(key=None, value=b"x"), Record(key=b"k", value=None)]
    cluster.broker(0).log.append_many("t", rows)
    connector = connect()
    (stream,) = connector.create_message_streams({"t": 1}, key_decoder=bytes.decode, value_decoder=int)["t"]
    assert next(stream)[5:7] == ("k", 1)
    with pytest.raises(ValueError, match="invalid literal"):
        next(stream)
    assert next(stream)[5:7] == ("k", None)


def test_a_streams_buffer_is_bounded(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    for _ in range(20):
        cluster.append("t", 0, [b"x" * 1000] * 5)
    connector = connect(fetch_message_max_bytes=5000, queued_max_message_chunks=2)
    (stream,) = streams(connector)
    eventually(lambda: not stream.has_room())
    assert sum(len(chunk.records) for chunk in stream._chunks) < 20
    assert [record.offset for record in take(stream, 100)] == list(range(100))


def test_an_iteration_ends_when_the_connector_is_shut_down(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    connector = connect()
    (stream,) = streams(connector)
    cluster.append("t", 0, [b"a", b"b"])
    found: list[Record] = []
    worker = threading.Thread(target=lambda: found.extend(stream))
    worker.start()
    eventually(lambda: len(found) == 1 or len(found) == 2)
    connector.shutdown()
    worker.join()
    assert [record.offset for record in found] == list(range(len(found)))
    assert stored(cluster) == len(found)
    assert list(stream) == []
    with pytest.raises(errors.Closed):
        connector.commit_offsets()


def test_a_message_larger_than_a_fetch_is_delivered(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a", b"x" * 100_000, b"b"])
    (stream,) = streams(connect(fetch_message_max_bytes=1000))
    assert [len(record.value or b"") for record in take(stream, 3)] == [1, 100_000, 1]


# -- several consumers -------------------------------------------------------------------------------------


def test_a_second_consumer_takes_half_and_returns_it(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0, 1, 0, 1])
    first = connect()
    (stream,) = streams(first)
    for partition in range(4):
        cluster.append("t", partition, [b"a", b"b"], leader=partition % 2)
    assert len({(record.partition, record.offset) for record in take(stream, 8)}) == 8
    first.commit_offsets()  # nothing is in hand
    second = connect()
    (other,) = streams(second)
    assert len(first.owned()) == len(second.owned()) == 2
    # Runs of one broker: each is connected to one.
    assert {name.partition % 2 for name in second.owned()} in ({0}, {1})
    for partition in range(4):
        cluster.append("t", partition, [b"c"], leader=partition % 2)
    found = [*take(stream, 2), *take(other, 2)]
    assert [(record.offset, record.value) for record in found] == [(2, b"c")] * 4  # nothing came twice
    assert {record.partition for record in found} == {0, 1, 2, 3}
    second.shutdown()
    eventually(lambda: len(first.owned()) == 4)
    assert set(owners(cluster).values()) == {first.consumer_id}


def test_a_current_record_is_finished_before_its_partition_is_released(
    cluster: Cluster, connect: Connect
) -> None:
    cluster.create_topic("t", [0, 0])
    cluster.append("t", 0, [b"a"])
    first = connect(consumer_id="b", rebalance_handover_ms=60_000)
    (stream,) = streams(first)
    assert next(stream)[1:3] == (0, 0)
    second = connect(consumer_id="a", rebalance_max_retries=1000)  # sorted first: partition 0 will be its
    joining = threading.Thread(target=streams, args=(second,))
    joining.start()
    assert first._member is not None
    claim = first._member._claims[TopicPartition("t", 0)]
    eventually(lambda: not claim.alive)
    assert owners(cluster) == {0: first.consumer_id, 1: first.consumer_id}
    cluster.append("t", 0, [b"b"])
    cluster.append("t", 1, [b"c"])
    assert next(stream)[1:3] == (1, 0)  # this thread comes back: what it had of partition 0 is consumed
    joining.join()
    assert owners(cluster) == {0: second.consumer_id, 1: first.consumer_id}
    assert stored(cluster, 0) == 1


def test_surplus_consumers_get_no_partitions(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    several = [connect() for _ in range(3)]
    for each in several:
        streams(each)
    eventually(lambda: sorted(len(each.owned()) for each in several) == [0, 0, 1])
    assert len(owners(cluster)) == 1
    next(each for each in several if each.owned()).shutdown()
    eventually(lambda: sorted(len(each.owned()) for each in several) == [0, 0, 1] and owners(cluster))


def test_groups_are_independent(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a"])
    for group in ("one", "two"):
        (stream,) = streams(connect(group))
        assert next(stream).value == b"a"


def test_the_owner_that_keeps_a_partition_too_long_is_named(cluster: Cluster, connect: Connect) -> None:
    """Somebody else's owner node, which never goes: a group's former member of another make, say."""
    cluster.create_topic("t", [0])
    path = paths.owner(G, "t", 0)
    assert cluster.zookeeper.create(path, contents.encode_owner("stranger", 0), ephemeral=True)
    connector = connect(rebalance_max_retries=1, rebalance_backoff_ms=10)
    with pytest.raises(errors.RebalanceFailed, match="could not claim all"):
        streams(connector)
    assert owners(cluster) == {0: "stranger"}
    assert cluster.zookeeper.children(paths.consumers(G)) == []
    with pytest.raises(errors.Closed):
        streams(connector)
    later = connect(rebalance_max_retries=1000, rebalance_backoff_ms=60_000)
    joining = threading.Thread(target=streams, args=(later,))
    joining.start()
    eventually(lambda: cluster.zookeeper.children(paths.consumers(G)))
    cluster.zookeeper.delete(path)  # the watch tells, long before the backoff
    joining.join()
    assert owners(cluster) == {0: later.consumer_id}


# -- topics and brokers come and go ------------------------------------------------------------------------


def test_a_white_list_includes_new_topics(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("clicks.a", [0])
    cluster.create_topic("other", [0])
    connector = connect()
    (stream,) = connector.create_message_streams_by_filter(whitelist=r"clicks\..*")
    cluster.append("clicks.a", 0, [b"a"])
    cluster.append("other", 0, [b"x"])
    assert next(stream).topic == "clicks.a"
    cluster.create_topic("clicks.b", [1])
    cluster.append("clicks.b", 0, [b"b"], leader=1)
    assert next(stream)[:3] == ("clicks.b", 0, 0)
    node = cluster.zookeeper.get(paths.consumer(G, connector.consumer_id))
    assert node is not None
    subscription = contents.Subscription.decode(node.data)
    assert (subscription.topics, subscription.pattern) == ({r"clicks\..*": 1}, "white_list")


def test_a_black_list_reads_the_others(cluster: Cluster, connect: Connect) -> None:
    for topic in ("a", "b", "c", "__consumer_offsets"):
        if topic.startswith("_"):
            data = contents.TopicAssignment({0: [0]}).encode()
            assert cluster.zookeeper.create(paths.topic(topic), data)
        else:
            cluster.create_topic(topic, [0])
    first, second = connect(), connect()
    first.create_message_streams_by_filter(2, blacklist="a,c")
    assert set(first.owned()) == {TopicPartition("b", 0)}
    second.create_message_streams_by_filter(blacklist="nothing")
    eventually(lambda: {*first.owned(), *second.owned()} == {TopicPartition(each, 0) for each in "abc"})


def test_a_topic_may_appear_later_and_grow(cluster: Cluster, connect: Connect) -> None:
    connector = connect()
    (stream,) = streams(connector)
    assert connector.owned() == {}
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"a"])
    assert next(stream).offset == 0
    for broker in (0, 1):
        cluster.broker(broker).log.create_partitions("t", 2)
    cluster.lead("t", 1, 1)
    cluster.zookeeper.write(paths.topic("t"), contents.TopicAssignment({0: [0], 1: [1]}).encode())
    cluster.append("t", 1, [b"b"], leader=1)
    assert next(stream)[1:3] == (1, 0)


def test_a_partition_is_consumed_from_its_new_leader(cluster: Cluster, connect: Connect) -> None:
    """Broker 0 goes; broker 1 has the same topic, and leads from then on."""
    cluster.create_topic("t", [0])
    cluster.append("t", 0, [b"old"])
    cluster.append("t", 0, [b"old", b"new"], leader=1)
    (stream,) = streams(connect())
    assert next(stream).value == b"old"
    cluster.stop(0)
    cluster.lead("t", 0, 1)
    assert next(stream).value == b"new"


def test_a_broker_with_a_new_address_is_found(cluster: Cluster, connect: Connect) -> None:
    """The same id at another address: what the id is for."""
    cluster.create_topic("t", [1])
    (stream,) = streams(connect())
    cluster.append("t", 0, [b"a"], leader=1)
    assert next(stream).value == b"a"
    cluster.append("t", 0, [b"a", b"b"], leader=0)  # the copy of its directory, so to speak
    cluster.stop(1)
    cluster.brokers[1], cluster.brokers[0] = cluster.brokers[0], None
    cluster.register(1)
    assert next(stream).value == b"b"


# -- where offsets are kept --------------------------------------------------------------------------------


def in_kafka(cluster: Cluster, topic: str = "t") -> int | None:
    with SimpleConsumer("127.0.0.1", cluster.broker(0).port) as consumer:
        found = consumer.fetch_offsets(G, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        return None if found is None else found.offset


@pytest.fixture
def one_broker(zookeeper: Znodes) -> Iterator[Cluster]:
    """One broker: it coordinates all groups."""
    with Cluster(zookeeper.connect, 1) as cluster:
        yield cluster


def test_offsets_in_kafka(one_broker: Cluster, zookeeper: Znodes) -> None:
    one_broker.create_topic("t", [0])
    one_broker.append("t", 0, [b"%d" % i for i in range(9)])
    for expected in (0, 3, 6):
        with ConsumerConnector(
            zookeeper.connect, G, auto_offset_reset="smallest", offsets_storage="kafka"
        ) as connector:
            (stream,) = streams(connector)
            assert [record.offset for record in take(stream, 3)] == [expected, expected + 1, expected + 2]
        assert in_kafka(one_broker) == expected + 3
    assert stored(one_broker) is None


def test_dual_commit_uses_the_larger_offset(one_broker: Cluster, zookeeper: Znodes) -> None:
    one_broker.create_topic("t", [0])
    one_broker.append("t", 0, [b"%d" % i for i in range(20)])

    def run(**settings: Any) -> int:
        with ConsumerConnector(zookeeper.connect, G, auto_offset_reset="smallest", **settings) as connector:
            (stream,) = streams(connector)
            return next(stream).offset

    assert run(offsets_storage="zookeeper") == 0
    assert (stored(one_broker), in_kafka(one_broker)) == (1, None)
    assert run(offsets_storage="kafka", dual_commit_enabled=True) == 1
    assert (stored(one_broker), in_kafka(one_broker)) == (2, 2)
    assert run(offsets_storage="zookeeper") == 2
    assert (stored(one_broker), in_kafka(one_broker)) == (3, 2)
    assert run(offsets_storage="zookeeper", dual_commit_enabled=True) == 3
    assert run(offsets_storage="kafka") == 4
    assert (stored(one_broker), in_kafka(one_broker)) == (4, 5)
    assert run(offsets_storage="zookeeper", dual_commit_enabled=True) == 5
    assert (stored(one_broker), in_kafka(one_broker)) == (6, 6)


# -- bad arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (errors.InvalidType, lambda c: c.create_message_streams(["t"])),
        (errors.InvalidArgument, lambda c: c.create_message_streams({})),
        (errors.InvalidArgument, lambda c: c.create_message_streams({"t": 0})),
        (errors.InvalidType, lambda c: c.create_message_streams({"t": "1"})),
        (errors.InvalidTopicName, lambda c: c.create_message_streams({"a/b": 1})),
        (errors.InvalidType, lambda c: c.create_message_streams({"t": 1}, key_decoder=5)),
        (errors.InvalidArgument, lambda c: c.create_message_streams_by_filter()),
        (errors.InvalidArgument, lambda c: c.create_message_streams_by_filter(whitelist="a", blacklist="b")),
        (errors.InvalidArgument, lambda c: c.create_message_streams_by_filter(whitelist="(")),
        (errors.InvalidType, lambda c: c.create_message_streams_by_filter(whitelist=5)),
        (errors.InvalidArgument, lambda c: c.create_message_streams_by_filter(0, whitelist="a")),
    ],
)
def test_impossible_input_is_refused(
    connect: Connect, error: type[Exception], call: Callable[[Any], Any]
) -> None:
    connector = connect()
    with pytest.raises(error):
        call(connector)
    assert connector.consumer_id == ""  # and nothing was registered


@pytest.mark.parametrize(
    ("error", "arguments", "settings"),
    [
        (errors.InvalidType, (5, G), {}),
        (errors.InvalidGroup, ("localhost", ""), {}),
        (errors.InvalidArgument, ("localhost", "a/b"), {}),
        (errors.InvalidArgument, ("localhost", G), {"consumer_id": "a/b"}),
        (errors.UnknownSetting, ("localhost", G), {"auto_comit_enable": True}),
        (errors.InvalidSetting, ("localhost", G), {"offsets.storage": "paper"}),
        (errors.InvalidSetting, ("localhost", G), {"rebalance_backoff_ms": 0}),
        (errors.ZooKeeperUnavailable, ("127.0.0.1:1", G), {"zookeeper_connection_timeout_ms": 50}),
    ],
)
def test_settings_are_checked_first(
    error: type[Exception], arguments: tuple[Any, ...], settings: dict[str, Any]
) -> None:
    with pytest.raises(error):
        ConsumerConnector(*arguments, **settings)


def test_streams_are_created_once(cluster: Cluster, connect: Connect) -> None:
    connector = connect()
    streams(connector)
    with pytest.raises(errors.ConcurrentUse, match="once"):
        connector.create_message_streams_by_filter(whitelist="a")
