"""How the cost of a rebalance through ZooKeeper (time, requests) grows with partitions and consumers.

    python -m benchmarks.rebalancing [--partitions 10 100 1000] [--consumers 2 5 10 20 50]

For each size all consumers but one join first; then the last one joins, then one leaves. A time ends when
every partition has its new owner. The requests are those that the server counted meanwhile (`mntr`). Broker,
ZooKeeper and consumers (threads of this process) share the machine: with many consumers its processors bound
the time, not the algorithm. The requests are the same on any machine.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from embedlog.cluster import Broker
from embedlog.cluster.classic import ConsumerConnector
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeepers

SETTLE_S = 120.0


class Took(NamedTuple):
    """Seconds until every partition has its owner, CPU seconds of this process, requests."""

    seconds: float
    cpu_seconds: float
    requests: int


def requests(address: str) -> int:
    """The number of requests that a server has received since it started."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"mntr")
        response = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(dict(line.split("\t")[:2] for line in response.splitlines())["zk_packets_received"])


def measured(address: str, change: Callable[[], object], settled: Callable[[], bool]) -> Took:
    """Measure a change of the group."""
    before, start, cpu = requests(address), time.perf_counter(), time.process_time()
    change()
    while not settled():
        if time.perf_counter() - start > SETTLE_S:
            raise TimeoutError("the group did not settle")
        time.sleep(0.002)
    took, used = time.perf_counter() - start, time.process_time() - cpu
    return Took(took, used, requests(address) - before)


def one_size(zookeepers: ZooKeepers, broker: Broker, partitions: int, consumers: int) -> tuple[Took, Took]:
    """The last consumer joins, then the first leaves."""
    connect = f"{zookeepers.connect_string}/{partitions}-{consumers}"
    topic = f"t{partitions}"
    address = zookeepers.servers[0].address
    with ZooKeeper(connect) as zookeeper:
        zookeeper.create(
            paths.broker(0), contents.Broker("127.0.0.1", broker.port, 0).encode(), ephemeral=True
        )
        zookeeper.create(paths.topic(topic), contents.Topic({n: [0] for n in range(partitions)}).encode())
        state = contents.PartitionState(0, 0, (0,), 1).encode()
        for number in range(partitions):
            zookeeper.create(paths.partition_state(topic, number), state)
            zookeeper.create(paths.offset("g", topic, number), contents.encode_number(0))

        def new_connector(number: int) -> ConsumerConnector:
            return ConsumerConnector(
                connect,
                "g",
                consumer_id=f"c{number:03}",
                auto_commit_enable=False,
                fetch_wait_max_ms=1_000,
                rebalance_max_retries=1_000,
                zookeeper_session_timeout_ms=30_000,
                zookeeper_connection_timeout_ms=60_000,
            )

        def join(connector: ConsumerConnector) -> None:
            connector.create_message_streams({topic: 1})

        def settled(group: list[ConsumerConnector]) -> bool:
            loads = [len(connector.owned()) for connector in group]
            return sum(loads) == partitions and max(loads) - min(loads) <= 1

        group = [new_connector(number) for number in range(consumers)]
        try:
            with ThreadPoolExecutor(consumers) as pool:
                list(pool.map(join, group[:-1]))
                while not settled(group[:-1]):
                    time.sleep(0.01)
                joined = measured(address, lambda: join(group[-1]), lambda: settled(group))
                left = measured(address, group[0].shutdown, lambda: settled(group[1:]))
                list(pool.map(ConsumerConnector.shutdown, group))
        finally:
            for connector in group:
                connector.shutdown()
    return joined, left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--consumers", type=int, nargs="+", default=[2, 5, 10, 20, 50])
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, one ZooKeeper server, one broker, all on this machine\n")
    print("| partitions | consumers | joins: ms | CPU ms | requests | leaves: ms | CPU ms | requests |")
    print("|---|---|---|---|---|---|---|---|")
    with ZooKeepers() as zookeepers, Broker() as broker:
        for partitions in options.partitions:
            broker.log.create_topic(f"t{partitions}", partitions=partitions)
            for consumers in options.consumers:
                cells = [
                    cell
                    for took in one_size(zookeepers, broker, partitions, consumers)
                    for cell in (
                        f"{took.seconds * 1000:,.0f}",
                        f"{took.cpu_seconds * 1000:,.0f}",
                        f"{took.requests:,}",
                    )
                ]
                print(f"| {partitions:,} | {consumers} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
