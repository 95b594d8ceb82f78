"""Fixtures of the broker, and of the ZooKeeper that brokers share: of one server for the whole run.

Their modules are imported when a test asks for them: most tests need none.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from wire import Wire
    from zookeepers import Znodes

    from embedlog.cluster import Broker
    from embedlog.cluster.zookeeper.running import ZooKeepers


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in this process, on a free port, with its own directory."""
    from embedlog.cluster import Broker

    with Broker() as broker:
        while not broker.context.groups.is_loaded:  # until then clients are told to retry
            time.sleep(0.001)
        yield broker


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A raw connection to it."""
    from wire import Wire

    with Wire(broker) as wire:
        yield wire


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeepers]:
    """A real server, for the whole run."""
    from zookeepers import started

    with started() as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_servers() -> Iterator[ZooKeepers]:
    """An ensemble of three for the whole run, each with its own address."""
    from zookeepers import started

    with started(servers=3, hosts=("127.0.0.11", "127.0.0.12", "127.0.0.13")) as servers:
        yield servers


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeepers) -> Iterator[Znodes]:
    """A chroot of the server, for one test. `zookeeper.connect` is the connect string."""
    from zookeepers import Znodes, chroot

    znodes = Znodes(zookeeper_server.connect_string + chroot())
    yield znodes
    znodes.remove()


@pytest.fixture
def zookeeper_ensemble(zookeeper_servers: ZooKeepers) -> Iterator[ZooKeepers]:
    """The ensemble, restored at the end: a test may kill and pause its servers."""
    yield zookeeper_servers
    for server in zookeeper_servers.servers:
        if server.is_running:
            os.kill(server.pid, signal.SIGCONT)
        server.start()
    for server in zookeeper_servers.servers:
        server.wait_until_ready()
