"""ZooKeeper for tests: one real server for the whole run, one chroot for each test."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from embedlog.cluster.coordination.port import Coordination
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeepers
from embedlog.errors import ZooKeeperUnavailable

WAIT_S = 60.0
_ASKED_S = 5.0
_OTHER_PORTS = 2
_T = TypeVar("_T")


def eventually(look: Callable[[], _T], what: str = "", timeout_s: float = WAIT_S) -> _T:
    """Return `look()` once it is true, ignoring its failed assertions; fail if it never is."""
    deadline = time.monotonic() + timeout_s
    while True:
        last: Any = None
        try:
            found = look()
            if found:
                return found
            last = found
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what or look}; last: {last!r}")
        time.sleep(0.01)


def know_each_other(*brokers: Coordination) -> None:
    """Wait until each broker of a cluster knows all of these.

    A broker that has just started answers before ZooKeeper has told the others of it: what they are asked for
    until then, they do without it.
    """
    ids = {broker.node_id for broker in brokers}
    for broker in brokers:
        eventually(
            lambda broker=broker: ids <= {address.node_id for address in broker.brokers()},
            f"broker {broker.node_id} knows {ids}",
        )


def started(**options: Any) -> ZooKeepers:
    """Starts servers on free ports; on others, if another program takes one before the server does.

    Else all tests that need them would fail.
    """
    for _ in range(_OTHER_PORTS):
        with suppress(ZooKeeperUnavailable):
            return ZooKeepers(**options)
    return ZooKeepers(**options)


def told(address: str, command: bytes = b"srvr") -> str:
    """A ZooKeeper server's status, or nothing if it does not answer."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), _ASKED_S) as connection:
            connection.sendall(command)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


def chroot() -> str:
    """A new chroot."""
    return f"/test-{uuid.uuid4().hex}"


class Znodes:
    """A test's part of a ZooKeeper: `connect` is what brokers and clients are given, with the chroot."""

    def __init__(self, connect: str) -> None:
        self.servers, slash, rest = connect.partition("/")
        self.connect = connect
        self.chroot = slash + rest

    def client(self, **settings: Any) -> ZooKeeper:
        """A new session: a context manager that closes it."""
        return ZooKeeper(self.connect, **settings)

    def remove(self) -> None:
        with ZooKeeper(self.servers) as client:
            client.delete(self.chroot, recursive=True)
