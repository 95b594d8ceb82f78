"""Consumer processes of a group that start, stop, die and pause; the group's history is checked."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import Group, Producing
from kazoo.client import KazooClient
from registered_brokers import Cluster
from zookeepers import Znodes, chroot, eventually, told

from embedlog import TopicPartition
from embedlog.cluster.classic import ConsumerConnector, MessageStream, SimpleConsumer
from embedlog.cluster.classic.registry import Registry
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.contents import STATIC, Subscription
from embedlog.cluster.zookeeper.running import ZooKeepers

pytestmark = pytest.mark.jvm

LEADERS = [0, 1] * 4
G = "g"
P = TopicPartition("t", 0)


@pytest.fixture
def cluster(zookeeper: Znodes) -> Iterator[Cluster]:
    with Cluster(zookeeper.connect, 2) as cluster:
        cluster.create_topic("t", LEADERS)
        yield cluster


@pytest.fixture
def group(cluster: Cluster, zookeeper: Znodes, tmp_path: Path) -> Iterator[Group]:
    group = Group(cluster.zookeeper, zookeeper.connect, tmp_path)
    yield group
    group.close()


# -- processes ---------------------------------------------------------------------------------------------


def test_each_record_is_consumed_once_while_members_change(cluster: Cluster, group: Group) -> None:
    producing = Producing(cluster, LEADERS)
    chance = random.Random(1)
    group.start(2)
    for round_ in range(4):
        producing.wait_for_more()
        group.start(1 + round_ % 2, streams=1 + round_ % 2)
        producing.wait_for_more()
        group.stop(chance.choice(group.alive))
        if round_ % 2 == 0:  # else the next one comes while the last one goes
            group.wait_until_owned(len(LEADERS))
    expected = producing.stop()
    group.wait_until_delivered(expected)
    while group.alive:
        group.stop(group.alive[0])
    counts = Counter(record[:3] for record in group.delivered())
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert set(counts) == expected
    group.check_order()
    group.history.check()
    for partition in range(len(LEADERS)):
        node = cluster.zookeeper.get(paths.offset(G, "t", partition))
        assert node is not None and contents.decode_number(node.data) == producing.count


def test_killed_consumers_lose_nothing(cluster: Cluster, group: Group) -> None:
    producing = Producing(cluster, LEADERS)
    chance = random.Random(2)
    group.start(3)
    for _ in range(3):
        producing.wait_for_more()
        group.kill(chance.choice(group.alive))
        group.start(1)
        group.wait_until_owned(len(LEADERS))
    expected = producing.stop()
    group.wait_until_delivered(expected)
    assert {record[:3] for record in group.delivered()} == expected
    group.check_order()
    group.history.check()


def test_a_paused_consumer_loses_its_partitions_and_rejoins(cluster: Cluster, group: Group) -> None:
    producing = Producing(cluster, LEADERS)
    first, second = group.start(2)
    group.wait_until_owned(len(LEADERS))
    producing.wait_for_more()
    before = first.id
    first.pause()
    group.alive.remove(first)
    group.wait_until_owned(len(LEADERS))  # all are the other's
    producing.wait_for_more()
    first.resume()
    group.alive.append(first)
    eventually(lambda: first.ask_id() not in ("", before), "it has another id")
    group.wait_until_owned(len(LEADERS))
    producing.wait_for_more()
    expected = producing.stop()
    group.wait_until_delivered(expected)
    group.check_order()
    group.history.check()  # what it committed late was refused: no offset went back
    group.stop(first)
    group.stop(second)


def test_new_topics_that_match_a_filter_are_shared(cluster: Cluster, group: Group) -> None:
    group.start(2, whitelist="t.*")
    group.wait_until_owned(len(LEADERS))
    cluster.create_topic("t2", [1, 0, 1])
    group.wait_until_owned(3, "t2")
    for partition, leader in enumerate([1, 0, 1]):
        cluster.append("t2", partition, [f"{partition}-{n}".encode() for n in range(5)], leader=leader)
    group.wait_until_delivered({("t2", partition, offset) for partition in range(3) for offset in range(5)})
    while group.alive:
        group.stop(group.alive[0])
    assert len(group.delivered()) == 15


def test_a_running_group_migrates_its_offsets_both_ways(zookeeper: Znodes, tmp_path: Path) -> None:
    """The documents' four steps, each way: in each step the consumers are restarted one after the other."""
    steps = [
        {"offsets_storage": "kafka", "dual_commit_enabled": True},
        {"offsets_storage": "kafka", "dual_commit_enabled": False},
        {"offsets_storage": "zookeeper", "dual_commit_enabled": True},
        {"offsets_storage": "zookeeper", "dual_commit_enabled": False},
    ]
    with Cluster(zookeeper.connect, 1) as cluster:
        cluster.create_topic("t", [0, 0, 0, 0])
        group = Group(cluster.zookeeper, zookeeper.connect, tmp_path)
        try:
            producing = Producing(cluster, [0, 0, 0, 0])
            group.start(2)
            for settings in steps:
                for consumer in list(group.alive):
                    producing.wait_for_more(5)
                    group.stop(consumer)
                    group.start(1, **settings)
                group.wait_until_owned(4)
            expected = producing.stop()
            group.wait_until_delivered(expected)
            while group.alive:
                group.stop(group.alive[0])
            counts = Counter(record[:3] for record in group.delivered())
            assert set(counts) == expected
            assert {name: count for name, count in counts.items() if count != 1} == {}
        finally:
            group.close()


# -- sessions ----------------------------------------------------------------------------------------------


def expire(zookeeper: ZooKeeper) -> None:
    """Expire a client's session, as the server does after its timeout."""
    thief = KazooClient(hosts=zookeeper.connect_string.partition("/")[0], client_id=zookeeper.kazoo.client_id)
    thief.start()
    thief.stop()
    thief.close()


def test_a_consumer_with_an_expired_session_registers_again(cluster: Cluster, zookeeper: Znodes) -> None:
    with ConsumerConnector(
        zookeeper.connect, G, auto_offset_reset="smallest", rebalance_backoff_ms=100
    ) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        cluster.append("t", 0, [b"a", b"b"])
        assert next(stream).offset == 0
        before = connector.consumer_id
        expire(connector._zookeeper)
        eventually(lambda: connector.consumer_id not in ("", before))
        eventually(lambda: len(connector.owned()) == len(LEADERS))
        assert cluster.zookeeper.children(paths.consumers(G)) == [connector.consumer_id]
        assert next(stream).offset in (0, 1)  # the first was not committed
        cluster.append("t", 1, [b"c"], leader=1)
        found = next(stream)
        while found.partition != 1:
            found = next(stream)
        assert found.value == b"c"


def test_a_lost_partition_is_claimed_again(cluster: Cluster, zookeeper: Znodes) -> None:
    """By hand, say: what it read since its last commit it reads again."""
    with ConsumerConnector(
        zookeeper.connect, G, auto_offset_reset="smallest", auto_commit_enable=False
    ) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        cluster.append("t", 0, [b"a", b"b"])
        assert next(stream).value == b"a"
        connector.commit_offsets()
        assert next(stream).value == b"b"
        cluster.zookeeper.delete(paths.owner(G, "t", 0))
        connector.commit_offsets()
        eventually(lambda: owned_by(cluster) == connector.consumer_id)
        assert next(stream).value == b"b"


def test_a_group_survives_zookeepers_election(zookeeper_ensemble: ZooKeepers) -> None:
    """Sessions survive the election, and with them who owns what."""
    connect = zookeeper_ensemble.connect_string + chroot()
    settings = {
        "auto_offset_reset": "smallest",
        "zookeeper_session_timeout_ms": 30_000,
        "rebalance_max_retries": 1_000,
    }
    with Cluster(connect) as cluster, ConsumerConnector(connect, G, **settings) as first:
        cluster.create_topic("t", [0, 0])
        (stream,) = first.create_message_streams({"t": 1})["t"]
        cluster.append("t", 0, [b"a"])
        assert next(stream).value == b"a"
        first.commit_offsets()
        before = first.consumer_id
        leader = next(each for each in zookeeper_ensemble.servers if "Mode: leader" in told(each.address))
        leader.kill()
        with ConsumerConnector(connect, G, **settings) as second:  # needs a majority with a leader
            second.create_message_streams({"t": 1})
            eventually(lambda: len(first.owned()) == len(second.owned()) == 1)
            assert first.consumer_id == before
        eventually(lambda: len(first.owned()) == 2)
        cluster.append("t", 1, [b"b"])
        assert next(stream).value == b"b"


def test_a_failed_commit_is_retried(zookeeper: Znodes) -> None:
    """Nobody knows where offsets are kept for a moment: who takes over begins where it was all the same."""
    settings = {
        "auto_offset_reset": "smallest",
        "offsets_storage": "kafka",
        "offsets_commit_max_retries": 0,
        "rebalance_backoff_ms": 50,
        "rebalance_max_retries": 100_000,
    }
    with Cluster(zookeeper.connect, 1) as cluster:
        cluster.create_topic("t", [0])
        cluster.append("t", 0, [b"a", b"b", b"c"])
        with (
            ConsumerConnector(zookeeper.connect, G, consumer_id="b", **settings) as first,
            ConsumerConnector(zookeeper.connect, G, consumer_id="a", **settings) as second,
        ):
            (stream,) = first.create_message_streams({"t": 1})["t"]
            assert next(stream).value == b"a"
            eventually(lambda: stored(cluster) is not None)  # where it began
            assert next(stream).value == b"b"  # so there is something to commit
            cluster._sessions[0].delete(paths.broker(0))
            assert first._member is not None and first._member._offsets._coordinator is not None
            first._member._offsets.close()  # and its position is lost
            found: list[list[MessageStream]] = []
            joining = threading.Thread(
                target=lambda: found.append(second.create_message_streams({"t": 1})["t"])
            )
            joining.start()
            claim = first._member._claims[TopicPartition("t", 0)]
            eventually(lambda: not claim.alive)
            assert claim.consumed == 1  # the second one is in hand
            eventually(lambda: first._member is not None and first._member._attempts > 1)
            assert owned_by(cluster) == first.consumer_id
            cluster.register(0)
            joining.join()
            assert owned_by(cluster) == second.consumer_id
            assert next(found[0][0]).value == b"b"


def stored(cluster: Cluster) -> int | None:
    """The group's offset of t 0 in Kafka."""
    with SimpleConsumer("127.0.0.1", cluster.broker(0).port) as consumer:
        found = consumer.fetch_offsets(G, [P])[P]
        return None if found is None else found.offset


def owned_by(cluster: Cluster) -> str:
    """The owner of t 0."""
    node = cluster.zookeeper.get(paths.owner(G, *P))
    return "" if node is None else contents.decode_owner(node.data)[0]


@pytest.fixture
def members(zookeeper: Znodes, cluster: Cluster) -> Iterator[tuple[Registry, Registry]]:
    """Two consumers of a group, "a" and "b", each with a session of its own."""
    with zookeeper.client() as one, zookeeper.client() as other:
        registries = Registry(one, G, lambda: None), Registry(other, G, lambda: None)
        for registry, name in zip(registries, "ab", strict=True):
            registry.register(name, Subscription({"t": 1}, STATIC, 0))
        yield registries


def test_a_partition_has_one_owner(members: tuple[Registry, Registry]) -> None:
    a, b = members
    assert a.claim("a", {P: 0}) == {P}
    assert a.claim("a", {P: 0}) == {P}  # by an attempt whose answer did not come, say
    assert b.claim("b", {P: 0}) == set()
    b.release("b", [P])  # which it may have claimed, for all that it knows
    assert b.claim("b", {P: 0}) == set()
    a.abandon("b", [P])
    assert b.claim("b", {P: 0}) == set()
    a.release("a", [P])
    assert b.claim("b", {P: 0}) == set()  # it is not registered any more


def test_a_commit_after_release_is_refused(members: tuple[Registry, Registry]) -> None:
    a, b = members
    assert a.commit("a", {P: 5}) == {P}  # it never owned it
    a.claim("a", {P: 0})
    assert a.commit("a", {P: 5}) == set()
    a.release("a", [P])
    assert a.commit("a", {P: 6}) == {P}
    assert b.offsets([P]) == {P: 5}
    assert a.still_owned("a", [P]) == set()


def test_a_commit_from_an_expired_session_is_refused(members: tuple[Registry, Registry]) -> None:
    """Even where it is sent in a new session, and the partition has another owner by then."""
    a, b = members
    a.claim("a", {P: 0})
    session = a.zookeeper.session_id
    expire(a.zookeeper)
    eventually(lambda: a.zookeeper.session_id not in (0, session) and a.zookeeper.is_connected)
    eventually(lambda: b.claim("b", {P: 0}) == {P})
    assert b.commit("b", {P: 10}) == set()
    assert a.commit("a", {P: 5}) == {P}
    assert a.claim("a", {TopicPartition("t", 1): 0}) == set()  # and nothing new is its
    a.release("a", [P])
    assert b.offsets([P]) == {P: 10}
    assert b.still_owned("b", [P]) == {P}


def test_leftovers_of_an_old_session_are_not_taken_from_the_next_owner(
    members: tuple[Registry, Registry],
) -> None:
    """Also where the server that is asked does not know yet that it has another owner."""
    a, b = members
    a.claim("a", {P: 0})
    lagging = a._owned_by("a", [P])
    expire(a.zookeeper)
    eventually(lambda: b.claim("b", {P: 0}) == {P})
    eventually(lambda: a.zookeeper.session_id)
    a._owned_by = lambda consumer, partitions: lagging  # type: ignore[method-assign]
    a.abandon("a", [P])
    assert b.still_owned("b", [P]) == {P}


def test_refused_commits_are_reported_one_by_one(
    members: tuple[Registry, Registry], cluster: Cluster
) -> None:
    a, b = members
    names = [TopicPartition("t", number) for number in range(len(LEADERS))]
    a.claim("a", dict.fromkeys(names[:5], 0))
    b.claim("b", dict.fromkeys(names[5:], 0))
    cluster.zookeeper.delete(paths.owner(G, "t", 4))  # by hand
    assert a.commit("a", dict.fromkeys(names, 7)) == set(names[4:])
    assert b.offsets(names) == dict.fromkeys(names[:4], 7)


def test_nodes_deleted_by_hand_are_restored(members: tuple[Registry, Registry], cluster: Cluster) -> None:
    a, _ = members
    a.claim("a", {P: 0})
    assert a.commit("a", {P: 1}) == set()
    cluster.zookeeper.delete(paths.offsets(G, "t"), recursive=True)
    eventually(lambda: a.commit("a", {P: 2}) == set())
    a.release("a", [P])
    cluster.zookeeper.delete(paths.owners(G, "t"), recursive=True)
    eventually(lambda: a.claim("a", {P: 0}) == {P})
    assert a.offsets([P]) == {P: 2}


def test_an_unreadable_registration_stops_no_consumer(
    cluster: Cluster, zookeeper: Znodes, caplog: pytest.LogCaptureFixture
) -> None:
    """A member, a topic and a partition's state that are no JSON; a filter that is not supported."""
    cluster.zookeeper.create(paths.consumer(G, "broken"), b"{")
    unsupported = contents.Subscription({"(?x)t": 1}, contents.WHITE_LIST, 0)
    cluster.zookeeper.create(paths.consumer(G, "unsupported"), unsupported.encode())
    cluster.zookeeper.create(paths.topic("broken"), b"\xff")
    cluster.zookeeper.create(paths.broker(7), b"nobody")
    cluster.zookeeper.write(paths.partition_state("t", 1), b"[]")
    cluster.append("t", 0, [b"a"])
    with ConsumerConnector(zookeeper.connect, G, auto_offset_reset="smallest") as connector:
        (stream,) = connector.create_message_streams_by_filter(whitelist=".*")
        assert len(connector.owned()) == len(LEADERS)
        assert next(stream).value == b"a"
        cluster.append("t", 1, [b"b"], leader=1)
        cluster.lead("t", 1, 1)
        assert next(stream).value == b"b"
    assert "Consumer unsupported has an invalid subscription" in caplog.text
    assert "(?x) is not supported" in caplog.text
