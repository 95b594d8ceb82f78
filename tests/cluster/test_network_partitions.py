"""Brokers and consumers that are cut off from ZooKeeper, and clients that are cut off from a broker.

The network is cut silently: what is sent to the server meets nothing, or what it answers, or both. In the
first two tests three are cut off at the same time, each in another of these ways, and a fourth goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from brokers import BrokerProcess, Brokers, cluster
from cluster_history import ClusterHistory
from consumers import Group, Producing
from links import WAYS, Link
from registered_brokers import Cluster
from verifiable_producer import VerifiableProducer
from wire import Wire, batch_of
from zookeepers import Znodes, eventually

from embedlog.cluster.coordination.lease import Lease, clock
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeepers

pytestmark = pytest.mark.jvm

SESSION_MS = 2_000
SHORT = ("--set", f"zookeeper.session.timeout.ms={SESSION_MS}")


class Cut(NamedTuple):
    """Four brokers, each with a link to ZooKeeper, and one that its clients are given. `connect`: without."""

    brokers: Brokers
    connect: str
    to_zookeeper: list[Link]
    to_clients: list[Link]


@pytest.fixture(scope="module")
def cut(zookeeper_server: ZooKeepers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    directory = tmp_path_factory.mktemp("cut-off")
    place = zookeeper_server.servers[0].endpoint
    to_zookeeper: list[Link] = []
    to_clients: list[Link] = []
    with ExitStack() as ends:

        def prepare(brokers: Brokers) -> None:
            for broker in brokers.all:
                number = broker.number
                to_zookeeper.append(Link(f"127.0.0.{60 + number}", lambda: (place.host, place.port)))
                to_clients.append(Link(f"127.0.0.{70 + number}", lambda b=broker: (b.host, b.port)))
                ends.callback(to_zookeeper[-1].close)
                ends.callback(to_clients[-1].close)
                broker.connect = f"{to_zookeeper[-1].connect}/{directory.name}"
                broker.advertised = to_clients[-1].connect

        connect = f"{zookeeper_server.connect_string}/{directory.name}"
        with cluster(directory, connect, 4, *SHORT, prepare=prepare) as brokers:
            yield Cut(brokers, connect, to_zookeeper, to_clients)


@pytest.fixture
def links(zookeeper_server: ZooKeepers) -> Iterator[list[Link]]:
    """Four ways to ZooKeeper."""
    place = zookeeper_server.servers[0].endpoint
    with ExitStack() as ends:
        yield [
            ends.enter_context(Link(f"127.0.0.{60 + number}", lambda: (place.host, place.port)))
            for number in range(4)
        ]


def test_brokers_that_are_cut_off_from_zookeeper(cut: Cut) -> None:
    """None answers a request that is sent when its registration is gone; healed, they are as before."""
    brokers, links = cut.brokers, cut.to_zookeeper
    with ExitStack() as ends:
        client = ends.enter_context(ZooKeeper(cut.connect))
        brokers.create("t", 8)
        brokers.create("asked", 4)
        for broker in brokers.all:
            eventually(lambda b=broker: set(brokers.leaders("asked", b.number).values()) == {0, 1, 2, 3})
        leaders = brokers.leaders("asked")
        partition_of = {leader: partition for partition, leader in leaders.items()}
        history = ClusterHistory(cut.connect, "t")
        ends.callback(history.close)
        producing = VerifiableProducer(brokers.bootstrap, "t", 8)
        ends.callback(producing.close)
        producing.wait_for_more()
        first = _controller(client)
        survivor = next(broker for broker in brokers.all if broker.number != first)
        gone = [broker for broker in brokers.all if broker is not survivor]
        open_before = {broker.number: ends.enter_context(Wire(broker, host=broker.host)) for broker in gone}
        for broker, wire in zip(gone, open_before.values(), strict=True):
            eventually(
                lambda w=wire, p=partition_of[broker.number]: (
                    w.produce("asked", batch_of(b"x"), partition=p).error_code == 0
                ),
                "it knows that it leads",
            )

        for broker, ways in zip(gone, WAYS.values(), strict=True):
            links[broker.number].cut(ways)
        waiting = set(gone)

        def look() -> bool:
            for broker in list(waiting):
                is_gone = client.get(paths.broker(broker.number)) is None  # looked at first
                served = _is_served(broker, partition_of[broker.number])
                assert not (is_gone and served), f"broker {broker.number} has no session, and answers"
                if is_gone:
                    waiting.discard(broker)
            return not waiting

        _until(look, "their sessions are over")
        for broker in gone:
            with pytest.raises(ConnectionError):
                open_before[broker.number].produce(
                    "asked", batch_of(b"x"), partition=partition_of[broker.number]
                )
        eventually(lambda: _controller(client) == survivor.number, "another one is elected")
        eventually(
            lambda: set(brokers.leaders("t", survivor.number).values()) == {-1, survivor.number},
            "they are missed",
        )
        left = brokers.leaders("t", survivor.number)
        producing.wait_for_more(*(number for number, leader in left.items() if leader >= 0))

        for broker in gone:
            links[broker.number].heal()
        for broker in brokers.all:
            eventually(
                lambda b=broker: set(brokers.leaders("t", b.number).values()) == {0, 1, 2, 3}, "all lead"
            )
            eventually(lambda b=broker: _is_served(b, partition_of[b.number]))
        producing.wait_for_more()
        producing.stop()
        assert _controller(client) == survivor.number
        history.check(brokers)
        for partition, leader in brokers.leaders("t").items():
            node = client.get(paths.partition_state("t", partition))
            assert node is not None
            lost = 0 if leader == survivor.number else 2  # one epoch without a leader, one with it again
            assert contents.LeaderAndIsr.decode(node.data).leader_epoch == lost
        producing.check(brokers)


def _controller(client: ZooKeeper) -> int:
    node = client.get(paths.CONTROLLER)
    return -1 if node is None else contents.Controller.decode(node.data).broker


def _is_served(broker: BrokerProcess, partition: int) -> bool:
    with suppress(ConnectionError), Wire(broker, host=broker.host) as wire:
        return bool(wire.produce("asked", batch_of(b"x"), partition=partition).error_code == 0)
    return False


def _until(look: object, what: str) -> None:
    """As `eventually`, but what is asserted on the way must hold each time."""
    failed: list[AssertionError] = []

    def looked() -> bool:
        try:
            return bool(look())  # type: ignore[operator]
        except AssertionError as error:
            failed.append(error)
            return True

    eventually(looked, what)
    if failed:
        raise failed[0]


def test_consumers_that_are_cut_off_from_zookeeper(
    zookeeper: Znodes, links: list[Link], tmp_path: Path
) -> None:
    """They deliver and commit nothing more when others have their partitions; healed, they get some again."""
    leaders = [0, 1] * 4
    with Cluster(zookeeper.connect, 2) as serving, ExitStack() as ends:
        serving.create_topic("t", leaders)
        group = Group(serving.zookeeper, zookeeper.connect, tmp_path)
        ends.callback(group.close)
        producing = Producing(serving, leaders)
        group.start(
            connects=[link.connect + zookeeper.chroot for link in links],
            zookeeper_session_timeout_ms=SESSION_MS,
        )
        group.wait_until_owned(len(leaders))
        eventually(lambda: all(each.delivered() for each in group.alive), "each has begun")
        everyone = list(group.alive)
        survivor, *gone = everyone
        former = [each.id for each in gone]

        for link, ways in zip(links[1:], WAYS.values(), strict=True):
            link.cut(ways)
        group.alive = [survivor]
        group.wait_until_owned(len(leaders))  # by the survivor alone
        producing.wait_for_more()
        _delivered_to(survivor, producing.count)
        before = [len(each.delivered()) for each in gone]
        producing.wait_for_more()
        _delivered_to(survivor, producing.count)
        assert [len(each.delivered()) for each in gone] == before

        for link in links:
            link.heal()
        group.alive = everyone
        for each, id_ in zip(gone, former, strict=True):
            eventually(lambda each=each, id_=id_: each.ask_id() not in ("", id_), "it has another id")
        group.wait_until_owned(len(leaders))
        producing.wait_for_more()
        eventually(
            lambda: all(len(each.delivered()) > n for each, n in zip(gone, before, strict=True)),
            "each goes on",
        )
        expected = producing.stop()
        group.wait_until_delivered(expected)
        assert {record[:3] for record in group.delivered()} == expected
        for each in everyone:
            group.stop(each)
        group.check_order()
        group.history.check()  # what was sent into the cut and came late was refused: no offset went back
        for partition in range(len(leaders)):
            node = serving.zookeeper.get(paths.offset("g", "t", partition))
            assert node is not None and contents.decode_number(node.data) == producing.count


def _delivered_to(consumer: object, count: int) -> None:
    """Everything so far."""
    eventually(
        lambda: {row.partition for row in consumer.delivered() if row.offset >= count - 1} == set(range(8))
        # type: ignore[attr-defined]
    )


def test_a_session_moves_away_from_a_silent_server(zookeeper: Znodes, links: list[Link]) -> None:
    """A lease's questions, which get no answer, do not keep kazoo from noticing it."""
    first, second = links[:2]
    with ZooKeeper(f"{first.connect},{second.connect}{zookeeper.chroot}", session_timeout_s=2.0) as client:
        lease = Lease(client)
        lease.begin(client.session_id, clock())
        used, other = (first, second) if first.connections else (second, first)
        used.cut()
        eventually(lambda: other.connections == 1)
        eventually(lambda: client.is_connected)
        lease.begin(client.session_id, clock())  # the same session, if this machine was fast
        assert lease.is_valid
        lease.stop()


def test_clients_that_are_cut_off_from_brokers(cut: Cut, tmp_path: Path) -> None:
    """For longer than they wait for an answer: they go on with the broker that is left, and with the others
    when these are healed; nothing is lost, or twice in the log."""
    brokers, links = cut.brokers, cut.to_clients
    brokers.create("clients", 4)
    for broker in brokers.all:
        eventually(lambda b=broker: set(brokers.leaders("clients", b.number).values()) == {0, 1, 2, 3})
    with ExitStack() as ends:
        client = ends.enter_context(ZooKeeper(cut.connect))
        group = Group(client, cut.connect, tmp_path)
        ends.callback(group.close)
        group.start(2, topic="clients", socket_timeout_ms=1_000)
        producing = VerifiableProducer(brokers.bootstrap, "clients", 4)
        ends.callback(producing.close)
        group.wait_until_owned(4, "clients")
        producing.wait_for_more()
        for link, ways in zip(links, WAYS.values(), strict=False):
            link.cut(ways)
        (left,) = (partition for partition, leader in brokers.leaders("clients", 3).items() if leader == 3)
        producing.wait_for_more(left, count=600)  # the clients give up connections meanwhile, and try others
        group.wait_until_delivered({("clients", left, producing.count(left) - 1)})
        for link in links:
            link.heal()
        producing.wait_for_more()
        expected = producing.stop()
        group.wait_until_delivered(expected)
        assert {record[:3] for record in group.delivered()} == expected
        for each in list(group.alive):
            group.stop(each)
        group.check_order()
        group.history.check()
        producing.check(brokers)
