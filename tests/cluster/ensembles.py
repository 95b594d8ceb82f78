"""A ZooKeeper ensemble whose internal network a test can cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from links import BOTH, TO_CLIENT, TO_SERVER, Link

from embedlog.cluster.zookeeper.running import Endpoint, Extras, ZooKeeperServer, _choose_endpoints, _locked

SERVERS: Final = 3
_SENT: Final = {TO_SERVER: TO_CLIENT, TO_CLIENT: TO_SERVER, BOTH: BOTH}


class Ensemble:
    """Three servers, each with its own address, and a link between each two.

    Clients reach them without a link.
    """

    def __init__(self, servers: list[ZooKeeperServer], links: dict[tuple[int, int], Link]) -> None:
        self.servers = servers
        self._links = links  # from which number to which, whichever begins the connection

    @property
    def connect_string(self) -> str:
        return ",".join(server.address for server in self.servers)

    def cut_off(self, number: int, ways: frozenset[str] = BOTH) -> None:
        """Cut a server off from the others: what it receives, what it sends ("to the client"), or both."""
        for (source, target), link in self._links.items():
            if target == number:
                link.cut(ways)
            elif source == number:
                link.cut(_SENT[ways])

    def heal(self, number: int) -> None:
        for pair, link in self._links.items():
            if number in pair:
                link.heal()


@contextmanager
def ensemble(directory: Path) -> Iterator[Ensemble]:
    """Started, and ready."""
    own = _choose_endpoints([f"127.0.0.{11 + number}" for number in range(SERVERS)], 0)
    numbers = range(1, SERVERS + 1)
    with ExitStack() as ends:
        lock = ends.enter_context(_locked(directory))
        links: dict[tuple[int, int], Link] = {}
        servers: list[ZooKeeperServer] = []
        for source in numbers:
            seen: list[Endpoint] = []
            for target in numbers:
                place = own[target - 1]
                if source != target:
                    link = Link(
                        f"127.0.1.{10 * source + target}",
                        lambda p=place: (p.host, p.peer_port),
                        lambda p=place: (p.host, p.election_port),
                    )
                    ends.callback(link.close)
                    links[source, target] = link
                    host, ports = link.host, link.ports
                    place = Endpoint(host, place.port, *ports)
                seen.append(place)
            servers.append(ZooKeeperServer(directory / str(source), source, seen, 96, lock, Extras()))
        for server in servers:
            ends.callback(server.stop)
            server.start()
        for server in servers:
            server.wait_until_ready()
        yield Ensemble(servers, links)
