"""A cluster at work, and whatever may fail in it fails, at random; then the history of all of it is checked.

Processes, each with an address of its own: three brokers, three ZooKeeper servers, three of the documents'
consumers. Between all of them lies a network that is cut in one direction or in both. In each round some of
them are killed, stopped, or cut off, one ZooKeeper server at most, for a time; then all is healed, and every
other round begins before what was healed has recovered.

    EMBEDLOG_ROUNDS   how many rounds (rounds.py)
    EMBEDLOG_SEED     what the faults are drawn from; a failure tells it, with all that was done
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from brokers import BrokerProcess, Brokers, cluster
from cluster_history import ClusterHistory
from consumers import Group
from ensembles import Ensemble, ensemble
from links import WAYS, Link
from rounds import ROUNDS
from verifiable_producer import VerifiableProducer
from zookeepers import chroot, told

from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeeperServer

pytestmark = pytest.mark.random

PARTITIONS = 6
SESSION_MS = 2_000
LONGEST_S = 5.0  # of a fault: sessions end meanwhile, or do not
IN_A_ROUND = 3


class Fault(NamedTuple):
    """The fault, and how to heal it."""

    name: str
    begin: Callable[[], object]
    end: Callable[[], object]
    of_zookeeper: bool = False


class World:
    """All that may fail."""

    def __init__(self, servers: Ensemble, directory: Path, ends: ExitStack) -> None:
        self.servers = servers
        self.chroot = chroot()
        self.to_zookeeper: dict[object, Link] = {}
        self.to_clients: dict[BrokerProcess, Link] = {}
        self._ends = ends
        connect = servers.connect_string + self.chroot
        self.brokers = ends.enter_context(
            cluster(
                directory,
                connect,
                3,
                *("--set", f"zookeeper.session.timeout.ms={SESSION_MS}"),
                prepare=self._prepare,
            )
        )
        self.brokers.create("t", PARTITIONS)
        self.client = ends.enter_context(ZooKeeper(connect, session_timeout_s=30.0))
        self.group = Group(self.client, connect, directory)
        ends.callback(self.group.close)
        self.ways = [self._way_to_zookeeper(f"127.0.0.{80 + number}") for number in range(3)]
        self._consume(*self.ways)
        self.history = ClusterHistory(connect, "t")
        ends.callback(self.history.close)
        self.producing = VerifiableProducer(self.brokers.bootstrap, "t", PARTITIONS, pace_s=0.02)
        ends.callback(self.producing.close)

    def faults(self) -> Iterator[list[Fault]]:
        """For each that may fail, in which ways it may."""
        for broker in self.brokers.all:
            where = f"broker {broker.number}"
            yield [
                Fault(f"kill {where}", broker.kill, broker.start),
                Fault(f"stop {where}", broker.pause, broker.resume),
                *_cuts(f"{where} from ZooKeeper", self.to_zookeeper[broker]),
                *_cuts(f"{where} from clients", self.to_clients[broker]),
            ]
        for consumer in list(self.group.alive):
            way = self.to_zookeeper[consumer]
            where = f"consumer {self.ways.index(way)}"
            yield [
                Fault(f"kill {where}", lambda c=consumer: self.group.kill(c), lambda w=way: self._consume(w)),
                Fault(f"stop {where}", consumer.pause, consumer.resume),
                *_cuts(f"{where} from ZooKeeper", way),
            ]

    def zookeeper_faults(self) -> Iterator[list[Fault]]:
        for server in self.servers.servers:
            where = f"ZooKeeper server {server.number}"
            yield [
                Fault(f"kill {where}", server.kill, lambda s=server: _started(s), True),
                Fault(
                    f"stop {where}",
                    lambda s=server: os.kill(s.pid, signal.SIGSTOP),
                    lambda s=server: os.kill(s.pid, signal.SIGCONT),
                    True,
                ),
                *(
                    Fault(
                        f"cut off {where} from the others, {name}",
                        lambda s=server, w=ways: self.servers.cut_off(s.number, w),
                        lambda s=server: self.servers.heal(s.number),
                        True,
                    )
                    for name, ways in WAYS.items()
                ),
            ]

    def check_that_it_goes_on(self) -> None:
        """Everything is written and read again, and every partition has an owner."""
        self.producing.wait_for_more()
        self.group.wait_until_owned(PARTITIONS)
        self.group.wait_until_delivered(
            {("t", partition, self.producing.count(partition) - 1) for partition in range(PARTITIONS)}
        )

    def check_all(self) -> None:
        expected = self.producing.stop()
        self.group.wait_until_delivered(expected)
        self.group.wait_until_owned(PARTITIONS)
        for consumer in list(self.group.alive):
            self.group.stop(consumer)
        assert {record[:3] for record in self.group.delivered()} == expected
        self.group.check_order()
        self.group.history.check()
        self.history.check(self.brokers)
        for partition in range(PARTITIONS):
            node = self.client.get(paths.offset("g", "t", partition))
            assert node is not None and contents.decode_number(node.data) == self.producing.sent
        self.producing.check(self.brokers)

    # -- inside ----------------------------------------------------------------------------------------

    def _prepare(self, brokers: Brokers) -> None:
        for broker in brokers.all:
            way = self._way_to_zookeeper(f"127.0.0.{60 + broker.number}")
            self.to_zookeeper[broker] = way
            broker.connect = way.connect + self.chroot
            at = self._ends.enter_context(
                Link(f"127.0.0.{70 + broker.number}", lambda b=broker: (b.host, b.port))
            )
            self.to_clients[broker] = at
            broker.advertised = at.connect

    def _way_to_zookeeper(self, host: str) -> Link:
        places = [server.endpoint for server in self.servers.servers]
        return self._ends.enter_context(Link(host, *(lambda p=place: (p.host, p.port) for place in places)))

    def _consume(self, *ways: Link) -> None:
        """Start consumers, which reach ZooKeeper in these ways."""
        started = self.group.start(
            connects=[way.connect + self.chroot for way in ways],
            zookeeper_session_timeout_ms=SESSION_MS,
            socket_timeout_ms=2_000,
        )
        self.to_zookeeper.update(zip(started, ways, strict=True))


def _cuts(what: str, link: Link) -> list[Fault]:
    return [
        Fault(f"cut off {what}, {name}", lambda w=ways: link.cut(w), link.heal) for name, ways in WAYS.items()
    ]


def _started(server: ZooKeeperServer) -> None:
    server.start()
    server.wait_until_ready()


@contextmanager
def _told(seed: int, done: list[str], servers: Ensemble) -> Iterator[None]:
    """A failure says how it came about, and who is connected with ZooKeeper then."""
    try:
        yield
    except BaseException as error:
        error.add_note("\n".join([f"EMBEDLOG_SEED={seed} EMBEDLOG_ROUNDS={ROUNDS}", *done]))
        for server in servers.servers:
            error.add_note(told(server.address) + told(server.address, b"cons"))
        raise


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_the_history_is_correct_under_random_faults(tmp_path: Path) -> None:
    seed = int(os.environ.get("EMBEDLOG_SEED") or random.SystemRandom().randrange(1 << 32))
    chance = random.Random(seed)
    done: list[str] = []
    kinds: Counter[str] = Counter()
    with ensemble(tmp_path / "zookeeper") as servers, ExitStack() as ends, _told(seed, done, servers):
        world = World(servers, tmp_path, ends)
        world.check_that_it_goes_on()
        began = time.monotonic()
        for number in range(ROUNDS):
            victims = chance.sample(list(world.faults()), chance.randint(1, IN_A_ROUND))
            victims += chance.sample(list(world.zookeeper_faults()), chance.randint(0, 1))
            faults = [chance.choice(each) for each in victims]
            for fault in chance.sample(faults, len(faults)):
                done.append(f"round {number}, {time.monotonic() - began:.1f} s: {fault.name}")
                kinds[fault.name.split()[0]] += 1
                fault.begin()
                time.sleep(chance.uniform(0, LONGEST_S / len(faults)))  # the faults overlap
            # ZooKeeper first: no killed process can start without it.
            for fault in sorted(chance.sample(faults, len(faults)), key=lambda each: not each.of_zookeeper):
                done.append(f"round {number}, {time.monotonic() - began:.1f} s: healed: {fault.name}")
                fault.end()
            if number % 2:
                world.check_that_it_goes_on()
                done.append(f"round {number}, {time.monotonic() - began:.1f} s: all goes on")
        world.check_that_it_goes_on()
        world.check_all()
        print(
            f"EMBEDLOG_SEED={seed}: {ROUNDS} rounds, {kinds.total()} faults {dict(kinds)}, "
            f"{world.producing.count():,} records acknowledged, {len(world.group.delivered()):,} delivered"
        )
