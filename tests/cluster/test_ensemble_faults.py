"""One of three ZooKeeper servers, leader or follower, is killed or paused under a working cluster."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import cluster
from cluster_history import ClusterHistory
from consumers import Group
from rounds import ROUNDS
from verifiable_producer import VerifiableProducer
from zookeepers import chroot, eventually, told

from embedlog.cluster.coordination.lease import Lease, clock
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeepers, ZooKeeperServer

# A leader that is stopped is missed after ten seconds and more, so it comes last.
FAULTS = [("follower", "stop"), ("leader", "kill"), ("follower", "kill"), ("leader", "stop")]
PARTITIONS = 6


@pytest.mark.random
@pytest.mark.timeout(600)
def test_a_cluster_goes_on_without_one_server(zookeeper_ensemble: ZooKeepers, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, order holds, and who was connected there is connected elsewhere."""
    servers = zookeeper_ensemble.servers
    connect = zookeeper_ensemble.connect_string + chroot()
    with ExitStack() as ends:
        brokers = ends.enter_context(cluster(tmp_path, connect, 3))
        brokers.create("t", PARTITIONS)
        client = ends.enter_context(ZooKeeper(connect))
        group = Group(client, connect, tmp_path)
        ends.callback(group.close)
        group.start(2, zookeeper_session_timeout_ms=6_000)
        history = ClusterHistory(connect, "t")
        ends.callback(history.close)
        producing = VerifiableProducer(brokers.bootstrap, "t", PARTITIONS)
        ends.callback(producing.close)
        group.wait_until_owned(PARTITIONS)
        producing.wait_for_more()
        for role, fault in FAULTS[:ROUNDS]:
            clients = sum(map(_sessions, servers))
            server = max((each for each in servers if _mode(each) == role), key=_sessions)
            others = [each for each in servers if each is not server]
            if fault == "kill":
                server.kill()
            else:
                os.kill(server.pid, signal.SIGSTOP)
            if role == "leader":
                eventually(lambda o=others: "leader" in map(_mode, o), "another one is elected")
            eventually(lambda o=others, c=clients: sum(map(_sessions, o)) >= c, "all are connected elsewhere")
            producing.wait_for_more()
            group.wait_until_owned(PARTITIONS)
            group.wait_until_delivered(
                {("t", partition, producing.count(partition) - 1) for partition in range(PARTITIONS)}
            )
            if fault == "kill":
                server.start()
            else:
                os.kill(server.pid, signal.SIGCONT)
            eventually(lambda s=server: _mode(s) == "follower", "it is back")
        expected = producing.stop()
        group.wait_until_delivered(expected)
        assert {record[:3] for record in group.delivered()} == expected
        group.wait_until_owned(PARTITIONS)
        for each in list(group.alive):
            group.stop(each)
        group.check_order()
        group.history.check()
        history.check(brokers)
    producing.check(brokers)


@pytest.mark.jvm
def test_a_lease_ends_if_a_follower_lost_its_leader(zookeeper_ensemble: ZooKeepers) -> None:
    """It still serves, and answers what it can answer alone; but it is the leader who ends sessions."""
    servers = zookeeper_ensemble.servers
    follower, leader = (
        next(each for each in servers if _mode(each) == role) for role in ("follower", "leader")
    )
    with ZooKeeper(follower.address, session_timeout_s=2.0) as client:
        lease = Lease(client)
        try:
            lease.begin(client.session_id, clock())
            os.kill(leader.pid, signal.SIGSTOP)
            eventually(lambda: not lease.is_valid)
            assert _mode(follower) == "follower"
        finally:
            os.kill(leader.pid, signal.SIGCONT)
            lease.stop()


def _mode(server: ZooKeeperServer) -> str:
    """A server's mode; "" if it does not serve."""
    lines = told(server.address).splitlines()
    return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")


def _sessions(server: ZooKeeperServer) -> int:
    """How many are connected there."""
    return told(server.address, b"cons").count("sid=")
