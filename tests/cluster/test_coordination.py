"""The port to the cluster: both implementations, standalone and ZooKeeper, pass the same tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zookeepers import Znodes, eventually

import embedlog
from embedlog.backends.local import WriterBackend
from embedlog.cluster.coordination import BrokerAddress, Coordination, SingleBroker, check_assignment, lease
from embedlog.cluster.coordination.assignment import assign_replicas
from embedlog.cluster.coordination.cluster_view import EMPTY, ClusterView, TopicView, VersionedLeaderAndIsr
from embedlog.cluster.coordination.controller import (
    Controller,
    DeleteTopic,
    SetLeaderAndIsr,
    SetTopicId,
    decide,
)
from embedlog.cluster.coordination.joining import register
from embedlog.cluster.coordination.port import UNKNOWN_PLACEMENT
from embedlog.cluster.coordination.registered import RegisteredBroker
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.codec import encode_batch
from embedlog.errors import (
    BrokerIdInUse,
    DirectoryError,
    InvalidArgument,
    TopicExists,
    TopicNotFound,
    UnknownSetting,
    ZooKeeperError,
)
from embedlog.files.names import TRANSACTION_STATE_TOPIC
from embedlog.model import TopicPartition
from embedlog.store.producer_ids import producer_ids_of
from embedlog.store.store import Store


class Members:
    """Brokers of one cluster in this process, without their network."""

    def __init__(self, znodes: Znodes, directory: Path) -> None:
        self._znodes = znodes
        self._directory = directory
        self._ends = ExitStack()
        self.stores: dict[int, Store] = {}

    def join(self, number: int, *, port: int = 0, **access: Any) -> RegisteredBroker:
        store = Store(str(self._directory / str(number)))
        self._ends.callback(store.close)
        self.stores[number] = store
        client = self._znodes.client(**access)
        self._ends.callback(client.close)
        broker = RegisteredBroker(client, store, BrokerAddress(number, "127.0.0.1", port or 10_000 + number))
        self._ends.callback(broker.close)
        broker.start()
        return broker

    def close(self) -> None:
        self._ends.close()


@pytest.fixture
def members(zookeeper: Znodes, tmp_path: Path) -> Iterator[Members]:
    members = Members(zookeeper, tmp_path)
    yield members
    members.close()


@pytest.fixture(params=["single", "registered"])
def coordination(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Coordination, Store]]:
    """Each implementation, of a broker that is alone, and its directory."""
    if request.param == "single":
        store = Store(str(tmp_path / "log"))
        yield SingleBroker(store, BrokerAddress(0, "127.0.0.1", 10_000)), store
        store.close()
    else:
        members = request.getfixturevalue("members")
        yield members.join(0), members.stores[0]


# -- the contract --------------------------------------------------------------------------------------


def test_live_brokers(coordination: tuple[Coordination, Store]) -> None:
    cluster, store = coordination
    assert cluster.cluster_id == store.catalog.log_id
    assert cluster.node_id == 0
    assert cluster.is_current
    assert [each[:4] for each in cluster.brokers()] == [(0, "127.0.0.1", 10_000, None)]
    assert cluster.controller_id() == 0


def test_a_topic_is_created_changed_and_deleted(coordination: tuple[Coordination, Store]) -> None:
    cluster, store = coordination
    name = TopicPartition("clicks", 1)
    assert cluster.placement(name) == UNKNOWN_PLACEMENT
    cluster.create_topic("clicks", 2, {"retention_ms": 60_000, "cleanup_policy": "compact"})
    assert store.topic("clicks").partitions == 2
    assert store.topic("clicks").settings == {"retention_ms": 60_000, "cleanup_policy": "compact"}
    assert cluster.placement(name) == (0, 0, (0,), (0,))
    assert cluster.leads(name) and cluster.leads(TopicPartition("clicks", 0))
    with pytest.raises(TopicExists, match="clicks"):
        cluster.create_topic("clicks", 1, {})
    cluster.create_partitions("clicks", 5)
    assert store.topic("clicks").partitions == 5
    assert cluster.leads(TopicPartition("clicks", 4))
    with pytest.raises(InvalidArgument, match="must be larger"):
        cluster.create_partitions("clicks", 5)
    cluster.alter_topic("clicks", {"retention_ms": None, "flush_messages": 1})
    assert store.topic("clicks").settings == {"cleanup_policy": "compact", "flush_messages": 1}
    cluster.delete_topic("clicks")
    assert store.topics() == []
    assert cluster.placement(name) == UNKNOWN_PLACEMENT
    for change in (
        lambda: cluster.delete_topic("clicks"),
        lambda: cluster.alter_topic("clicks", {"flush_ms": 1}),
        lambda: cluster.create_partitions("clicks", 2),
    ):
        with pytest.raises(TopicNotFound, match="clicks"):
            change()
    cluster.create_topic("clicks", 1, {})  # the name is free again
    assert cluster.placement(TopicPartition("clicks", 0)).leader == 0


def test_partitions_are_assigned_to_live_brokers(coordination: tuple[Coordination, Store]) -> None:
    cluster, store = coordination
    cluster.create_topic("t", 2, {}, {0: [0], 1: [0]})
    assert cluster.leads(TopicPartition("t", 1))
    cluster.create_partitions("t", 3, {2: [0]})
    assert cluster.leads(TopicPartition("t", 2))
    for wrong in ([7], [0, 1], []):
        with pytest.raises(InvalidArgument, match="one of the brokers"):
            cluster.create_topic("u", 1, {}, {0: wrong})
        with pytest.raises(InvalidArgument, match="one of the brokers"):
            cluster.create_partitions("t", 4, {3: wrong})
    assert store.topics() == ["t"]


def test_invalid_requests_change_nothing(coordination: tuple[Coordination, Store]) -> None:
    cluster, store = coordination
    for name, count, settings, error in (
        ("a/b", 1, {}, InvalidArgument),
        ("t", 0, {}, InvalidArgument),
        ("t", 1, {"retension_ms": 1}, UnknownSetting),
        ("t", 1, {"retention_ms": -2}, InvalidArgument),
    ):
        with pytest.raises(error):
            cluster.create_topic(name, count, settings)
    assert store.topics() == []


def test_producer_ids_are_unique(coordination: tuple[Coordination, Store]) -> None:
    cluster, _ = coordination
    first, second = cluster.next_producer_ids(1_000), cluster.next_producer_ids(10)
    assert len(first) == 1_000 and len(second) == 10
    assert not set(first) & set(second)


# -- several brokers -----------------------------------------------------------------------------------


def _knows(broker: RegisteredBroker, *numbers: int) -> None:
    eventually(lambda: [each.node_id for each in broker.brokers()] == sorted(numbers), f"knows {numbers}")


def test_brokers_see_each_other_and_share_the_partitions(members: Members) -> None:
    brokers = [members.join(number) for number in range(3)]
    for broker in brokers:
        _knows(broker, 0, 1, 2)
    assert len({broker.cluster_id for broker in brokers}) == 1
    brokers[1].create_topic("t", 6, {"retention_ms": 5})
    names = [TopicPartition("t", number) for number in range(6)]
    for broker in brokers:
        eventually(lambda broker=broker: sum(map(broker.leads, names)) == 2, "each leads two")
        assert members.stores[broker.node_id].topic("t").settings == {"retention_ms": 5}
    assert len({members.stores[number].topic("t").topic_id for number in range(3)}) == 1
    assert [sum(broker.leads(name) for broker in brokers) for name in names] == [1] * 6
    brokers[2].delete_topic("t")
    for number, store in members.stores.items():
        eventually(lambda store=store: not store.topics(), f"the topic goes at broker {number}")
    ids = [set(broker.next_producer_ids(100)) for broker in brokers]
    assert len(set().union(*ids)) == 300


def test_a_broker_that_leaves_leads_nothing_and_comes_back_in_a_later_epoch(members: Members) -> None:
    first, second = members.join(1), members.join(2)
    _knows(first, 1, 2)
    first.create_topic("t", 2, {}, {0: [1], 1: [2]})
    name = TopicPartition("t", 1)
    assert first.placement(name) == (2, 0, (2,), (2,))
    second.close()
    members.stores[2].close()
    eventually(lambda: first.placement(name).leader == -1, "nobody leads")
    assert first.placement(name) == (-1, 1, (2,), (2,))
    assert first.placement(TopicPartition("t", 0)).leader == 1
    again = members.join(2)
    eventually(lambda: first.placement(name) == (2, 2, (2,), (2,)), "it leads again")
    eventually(lambda: again.leads(name))
    assert members.stores[2].partition("t", 1).log.current_epoch == 2


def test_a_returning_broker_catches_up_on_changes(members: Members) -> None:
    first, second = members.join(1), members.join(2)
    _knows(first, 1, 2)
    for topic in ("gone", "again", "altered"):
        first.create_topic(topic, 1, {}, {0: [1]})
    eventually(lambda: members.stores[2].topics() == ["again", "altered", "gone"])
    old = members.stores[2].topic("again").topic_id
    second.close()
    members.stores[2].close()
    _knows(first, 1)
    first.delete_topic("gone")
    first.delete_topic("again")
    first.create_topic("again", 3, {})
    first.alter_topic("altered", {"retention_ms": 7})
    first.create_partitions("altered", 2)
    first.create_topic("new", 1, {})
    members.join(2)
    store = members.stores[2]
    eventually(lambda: store.topics() == ["again", "altered", "new"])
    eventually(lambda: store.topic("again").topic_id != old and store.topic("again").partitions == 3)
    eventually(lambda: store.topic("altered").settings == {"retention_ms": 7})
    assert store.topic("altered").partitions == 2


def test_the_controller_follows_its_broker(members: Members) -> None:
    brokers = {number: members.join(number) for number in range(3)}
    for broker in brokers.values():
        _knows(broker, 0, 1, 2)
    left = dict(brokers)
    for _ in range(2):
        before = eventually(lambda: next(iter(left.values())).controller_id() + 1, "there is one") - 1
        left.pop(before).close()
        for broker in left.values():
            eventually(lambda broker=broker: broker.controller_id() in left, "another one is elected")
        next(iter(left.values())).create_topic(f"after-{before}", 1, {})


def test_a_taken_id_names_its_holder(members: Members, zookeeper: Znodes, tmp_path: Path) -> None:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        members.join(1, port=port)
        store = Store(str(tmp_path / "other"))
        with zookeeper.client() as client:
            other = RegisteredBroker(client, store, BrokerAddress(1, "127.0.0.1", 1))
            with pytest.raises(BrokerIdInUse, match=f"taken by the broker at 127.0.0.1:{port}") as raised:
                other.start()
            other.close()
        assert raised.value.holder == f"127.0.0.1:{port}"
        store.close()


def test_a_broker_waits_for_its_old_session_to_end(
    members: Members, zookeeper: Znodes, caplog: pytest.LogCaptureFixture
) -> None:
    with zookeeper.client() as former, caplog.at_level("INFO"):
        former.create(paths.broker(1), contents.Broker("127.0.0.1", 10_001, 0).encode(), ephemeral=True)

        def end() -> None:
            eventually(lambda: "waiting for the previous session of broker 1" in caplog.text)
            former.close()

        ending = threading.Thread(target=end)
        ending.start()
        assert [each[:3] for each in members.join(1).brokers()] == [(1, "127.0.0.1", 10_001)]
        ending.join()


def test_a_lease_is_counted_from_before_its_question(
    zookeeper: Znodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session may have ended before the answer was read: the machine sleeps in between."""
    now_s = 1_000.0
    monkeypatch.setattr(lease, "clock", lambda: now_s)
    valid: list[bool] = []
    with zookeeper.client(session_timeout_s=2.0) as client:
        ask = client.kazoo.sync_async

        def sleep(path: str) -> Any:
            nonlocal now_s
            valid.append(its_lease.is_valid)  # after the answer to the question before
            answer = ask(path)
            now_s += 60
            return answer

        monkeypatch.setattr(client.kazoo, "sync_async", sleep)
        its_lease = lease.Lease(client)
        try:
            its_lease.begin(client.session_id, now_s)
            eventually(lambda: len(valid) >= 4)
        finally:
            its_lease.stop()
    assert valid[:4] == [True, False, False, False]


def test_a_registration_ends_with_its_own_session(zookeeper: Znodes) -> None:
    """A lagging server shows an old node, which is gone when it is to be written."""

    class Lagging(ZooKeeper):
        def get(self, path: str, watch: Any = None) -> Any:
            found = super().get(path, watch)
            self.delete(path)
            return found

    with Lagging(zookeeper.connect) as client:
        for _ in range(2):
            session, _ = register(client, BrokerAddress(1, "127.0.0.1", 9092), lambda: 0, lambda: False)
            assert session == client.session_id
            with zookeeper.client() as other:
                node = other.get(paths.broker(1))
                assert node is not None and node.owner == session


def test_a_directory_registers_its_topics_once(members: Members, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "1") as log:
        log.create_topic("mine", partitions=2, retention_ms=9)
        log.append("mine", b"x", partition=1)
    first = members.join(1)
    assert first.leads(TopicPartition("mine", 1))
    assert first.cluster_id == members.stores[1].catalog.log_id
    second = members.join(2)
    assert second.placement(TopicPartition("mine", 1)).leader == 1
    assert members.stores[2].topic("mine").settings == {"retention_ms": 9}
    with embedlog.open(tmp_path / "3") as log:
        log.create_topic("mine")
    with pytest.raises(InvalidArgument, match="both have a topic"):
        members.join(3)


def test_a_directory_belongs_to_one_broker_of_one_cluster(members: Members, tmp_path: Path) -> None:
    members.join(1)
    members.close()
    (tmp_path / "1").rename(tmp_path / "2")
    with pytest.raises(DirectoryError, match="is broker 1 of its cluster, not 2"):
        members.join(2)


def test_another_clusters_directory_is_refused(members: Members, zookeeper: Znodes, tmp_path: Path) -> None:
    members.join(1)
    members.close()
    elsewhere = Members(Znodes(zookeeper.connect + "/elsewhere"), tmp_path)
    try:
        with pytest.raises(DirectoryError, match="check the address of ZooKeeper"):
            elsewhere.join(1)
    finally:
        elsewhere.close()


def test_a_log_in_a_later_epoch_raises_the_registered_one(members: Members, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "1") as log:
        log.create_topic("t")
        log.append("t", b"x")
        assert isinstance(log.backend, WriterBackend)
        log.backend.store.partition("t", 0).log.begin_epoch(7)
        log.append("t", b"y")
    broker = members.join(1)
    name = TopicPartition("t", 0)
    eventually(lambda: broker.placement(name).leader_epoch == 7)
    eventually(lambda: broker.leads(name))


def test_a_deposed_controller_writes_nothing(members: Members, zookeeper: Znodes) -> None:
    with zookeeper.client() as client, zookeeper.client() as second:
        paused = Controller(client, 1)
        assert paused.elect(EMPTY, lambda: 0)
        assert paused.epoch == 1
        client.delete(paths.CONTROLLER)  # as if its session were over
        later = Controller(second, 2)
        assert later.elect(EMPTY, lambda: 0)
        assert later.epoch == 2
        view = _view({0: [1]}, {}, brokers=(1,))
        client.create(paths.topic("t"), view.topics["t"].topic.encode())
        assert paused.reconcile(view) == [paths.partition_state("t", 0)]
        assert second.get(paths.partition_state("t", 0)) is None
        assert paused.epoch == 0
        later.reconcile(view)
        found = second.get(paths.partition_state("t", 0))
        assert found is not None
        assert contents.LeaderAndIsr.decode(found.data) == (1, 0, (1,), 2)


def test_a_topic_that_kafkas_tools_made_gets_an_id(members: Members, zookeeper: Znodes) -> None:
    broker = members.join(1)
    with zookeeper.client() as client:
        client.create(paths.topic_config("t"), contents.encode_config({"retention.ms": "5", "x.y": "z"}))
        client.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
        eventually(lambda: broker.leads(TopicPartition("t", 1)))
        found = client.get(paths.topic("t"))
        assert found is not None
        topic = contents.TopicAssignment.decode(found.data)
        assert topic.topic_id == members.stores[1].topic("t").topic_id
        assert members.stores[1].topic("t").settings == {"retention_ms": 5}
        client.create(paths.deletion("t"))
        eventually(lambda: not members.stores[1].topics())
        assert client.children(paths.TOPICS) == [] == client.children(paths.TOPIC_CONFIGS)
        assert client.children(paths.DELETE_TOPICS) == []


def test_an_unreadable_topic_registration_deletes_no_records(members: Members, zookeeper: Znodes) -> None:
    broker = members.join(1)
    broker.create_topic("t", 1, {})
    members.stores[1].partition("t", 0).append(bytearray(encode_batch([(None, b"kept", (), 0)])))
    broker.close()
    members.stores[1].close()
    with zookeeper.client() as client:
        registered = client.get(paths.topic("t"))
        assert registered is not None
        client.write(paths.topic("t"), b"{")
        again = members.join(1)
        again.create_topic("other", 1, {})
        assert members.stores[1].topics() == ["other", "t"]
        assert not again.leads(TopicPartition("t", 0))
        client.write(paths.topic("t"), registered.data)
        eventually(lambda: again.leads(TopicPartition("t", 0)), "it is led again")
        assert members.stores[1].partition("t", 0).offsets().log_end_offset == 1


def test_a_lost_registry_deletes_nothing(
    members: Members, zookeeper: Znodes, caplog: pytest.LogCaptureFixture
) -> None:
    broker = members.join(1)
    broker.create_topic("t", 1, {})
    with zookeeper.client() as client:
        everything = client.transaction()
        everything.delete(paths.partition_state("t", 0))
        everything.delete(paths.partition(TopicPartition("t", 0)))
        for path in (paths.partitions("t"), paths.topic("t"), paths.TOPICS):
            everything.delete(path)
        assert client.commit(everything) is None
        eventually(lambda: f"{paths.TOPICS} is missing" in caplog.text)
        assert members.stores[1].topics() == ["t"]


def test_an_unreadable_node_does_not_stop_the_others(members: Members, zookeeper: Znodes) -> None:
    broker = members.join(1)
    with zookeeper.client() as client:
        client.create(paths.topic("broken"), b"{")
        broker.create_topic("whole", 1, {})
        assert broker.leads(TopicPartition("whole", 0))
        assert broker.placement(TopicPartition("broken", 0)) == UNKNOWN_PLACEMENT


def test_brokers_delete_only_their_own_registrations(members: Members, zookeeper: Znodes) -> None:
    access: dict[str, Any] = {"auth": "broker:secret", "set_acl": True}
    first, second = members.join(1, **access), members.join(2, **access)
    _knows(first, 1, 2)
    first.create_topic("t", 2, {})
    second.create_partitions("t", 4)
    with zookeeper.client() as nobody:
        found = nobody.get(paths.topic("t"))
        assert found is not None and len(contents.TopicAssignment.decode(found.data).partitions) == 4
        for path in (paths.topic("t"), paths.partition_state("t", 0), paths.CONTROLLER_EPOCH):
            with pytest.raises(ZooKeeperError, match="credentials"):
                nobody.write(path, b"{}")
        with pytest.raises(ZooKeeperError, match="credentials"):
            nobody.delete(paths.broker(1))
        assert nobody.create(paths.consumer("g", "c"), b"{}", ephemeral=True)  # open to all
    controller = first if first.controller_id() == 1 else second
    left = second if controller is first else first
    controller.close()
    eventually(lambda: left.controller_id() == left.node_id, "the other one is elected")
    left.delete_topic("t")
    members.close()
    with zookeeper.client(auth="broker:secret") as owner:  # no other client may tidy up
        for name in owner.children("/") or ():
            owner.delete(f"/{name}", recursive=True)


def test_transactional_ids_are_coordinated_by_hash(members: Members) -> None:
    both = members.join(0), members.join(1)
    _knows(both[0], 0, 1)
    assert both[0].coordinator_of("tx", TRANSACTION_STATE_TOPIC) is None  # the topic is created now
    names = [f"tx-{number}" for number in range(20)]
    eventually(
        lambda: all(each.coordinator_of(name, TRANSACTION_STATE_TOPIC) for each in both for name in names)
    )
    found = [both[0].coordinator_of(name, TRANSACTION_STATE_TOPIC) for name in names]
    assert found == [both[1].coordinator_of(name, TRANSACTION_STATE_TOPIC) for name in names]
    assert {each.node_id for each in found if each} == {0, 1}
    for name, at in zip(names, found, strict=True):
        assert at is not None
        # A broker may hear later than another one that it leads a partition.
        eventually(
            lambda name=name, at=at: (
                [each.coordinates(name, TRANSACTION_STATE_TOPIC) for each in both]
                == [at.node_id == 0, at.node_id == 1]
            )
        )
        partition = both[0].partition_of(name, TRANSACTION_STATE_TOPIC)
        assert partition == both[1].partition_of(name, TRANSACTION_STATE_TOPIC)
        assert partition is not None and both[1].broker_of(partition) == at.node_id
    assert both[0].coordinator_of("g") is None, "another topic"
    assert both[0].partition_of("g") is None
    assert both[0].latest_coordinator_epoch == 0
    assert len(members.stores[0].by_topic[TRANSACTION_STATE_TOPIC]) == 50


def test_producer_ids_of_a_directory_that_joins_are_not_assigned_again(
    members: Members, tmp_path: Path
) -> None:
    """By no broker: also those that nothing has been written with yet."""
    store = Store(str(tmp_path / "0"))
    store.create_topic("t", 1, {})
    assert producer_ids_of(store).next(5_000) == range(5_000)
    store.close()
    members.join(0)
    other = members.join(1)
    assert other.next_producer_ids(10) == range(5_000, 5_010)
    store = Store(str(tmp_path / "2"))
    store.create_topic("u", 1, {})
    producer_ids_of(store).next(100)
    store.close()
    members.join(2)
    assert other.next_producer_ids(10) == range(5_010, 5_020), "they were assigned before"


def test_where_partitions_are(members: Members) -> None:
    both = members.join(0), members.join(1)
    eventually(lambda: both[0].address_of(1), "they know each other")
    both[0].create_topic("t", 2, {}, {0: [1], 1: [0]})
    both[1].catch_up(["t"])
    partition = TopicPartition("t", 0)
    for each in both:
        eventually(lambda each=each: each.broker_of(partition) == 1)
        assert each.address_of(1) == ("127.0.0.1", 10_001)
        assert each.broker_of(TopicPartition("t", 2)) is None
        assert each.broker_of(TopicPartition("no", 0)) is None
        assert each.address_of(2) is None
    both[1].close()
    eventually(lambda: both[0].placement(partition).leader < 0)
    assert both[0].broker_of(partition) == 1, "also while it is away"
    eventually(lambda: both[0].address_of(1) is None)
    both[0].delete_topic("t")
    assert both[0].broker_of(partition) is None


# -- decisions -----------------------------------------------------------------------------------------


def _view(
    partitions: dict[int, list[int]],
    states: dict[int, contents.LeaderAndIsr],
    *,
    brokers: tuple[int, ...],
    deletions: frozenset[str] = frozenset(),
    topic_id: str | None = "id",
) -> ClusterView:
    topic = TopicView(
        contents.TopicAssignment(partitions, topic_id),
        3,
        1,
        {},
        {n: VersionedLeaderAndIsr(state, 5) for n, state in states.items()},
    )
    alive = {number: contents.Broker("h", number, 0) for number in brokers}
    return ClusterView(alive, -1, 0, {"t": topic}, deletions, frozenset({"t"}))


def _state(leader: int, epoch: int, *isr: int) -> contents.LeaderAndIsr:
    return contents.LeaderAndIsr(leader, epoch, isr, 1)


@pytest.mark.parametrize(
    ("replicas", "before", "brokers", "after"),
    [
        ([1], None, (1, 2), (1, 0, (1,), 9)),
        ([1], None, (2,), (-1, 0, (1,), 9)),
        ([2, 1], None, (1,), (1, 0, (1,), 9)),
        ([1], _state(1, 4, 1), (2,), (-1, 5, (1,), 9)),
        ([1], _state(-1, 5, 1), (1,), (1, 6, (1,), 9)),
        ([1], _state(-1, 5, 1), (2,), None),
        ([1], _state(1, 5, 1), (1,), None),
        ([1, 2, 3], _state(1, 5, 1, 3), (2, 3), (3, 6, (1, 3), 9)),
        ([1, 2], _state(1, 5, 1), (2,), (-1, 6, (1,), 9)),
    ],
)
def test_leader_election(
    replicas: list[int],
    before: contents.LeaderAndIsr | None,
    brokers: tuple[int, ...],
    after: tuple[object, ...] | None,
) -> None:
    view = _view({0: replicas}, {} if before is None else {0: before}, brokers=brokers)
    decided = list(decide(view, 9))
    if after is None:
        assert decided == []
    else:
        assert decided == [SetLeaderAndIsr(TopicPartition("t", 0), after, -1 if before is None else 5)]


def test_other_decisions() -> None:
    states = {0: _state(1, 0, 1)}
    going = _view({0: [1]}, states, brokers=(1,), deletions=frozenset({"t", "u"}))
    assert list(decide(going, 1)) == [DeleteTopic("t", True, [0]), DeleteTopic("u", False, ())]
    nameless = _view({0: [1]}, states, brokers=(1,), topic_id=None)
    assert list(decide(nameless, 1, lambda: "new")) == [
        SetTopicId("t", contents.TopicAssignment({0: [1]}, "new"), 3)
    ]


@given(
    st.sets(st.integers(0, 50), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(0, 30),
    st.integers(0, 7),
    st.integers(1, 4),
)
def test_partitions_are_spread_evenly(
    brokers: set[int], partitions: int, first: int, start: int, replicas: int
) -> None:
    if replicas > len(brokers):
        with pytest.raises(InvalidArgument, match="replicas need as many brokers"):
            assign_replicas(sorted(brokers), partitions, replicas=replicas)
        return
    found = assign_replicas(sorted(brokers), partitions, first=first, start=start, replicas=replicas)
    assert list(found) == list(range(first, first + partitions))
    assert all(len(set(chosen)) == replicas and set(chosen) <= brokers for chosen in found.values())
    leaders = [[chosen[0] for chosen in found.values()].count(broker) for broker in brokers]
    assert max(leaders) - min(leaders) <= 1
    if replicas == 1:
        check_assignment(found, sorted(brokers))


def test_assignment_equals_kafkas() -> None:
    """The example in the comment of Kafka's AdminUtils: 10 partitions, 3 replicas, 5 brokers."""
    found = assign_replicas(range(5), 10, start=0, shift=0, replicas=3)
    assert [found[n] for n in range(10)] == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 0],
        [4, 0, 1],
        [0, 2, 3],
        [1, 3, 4],
        [2, 4, 0],
        [3, 0, 1],
        [4, 1, 2],
    ]


def test_added_partitions_continue_the_assignment(members: Members) -> None:
    brokers = [members.join(number) for number in range(3)]
    for broker in brokers:
        _knows(broker, 0, 1, 2)
    brokers[0].create_topic("t", 2, {}, {0: [1], 1: [2]})
    brokers[0].create_partitions("t", 6)
    leaders = [brokers[0].placement(TopicPartition("t", number)).leader for number in range(6)]
    assert leaders == [1, 2, 0, 1, 2, 0]
