"""A cluster of three brokers as its partitions grow: create, lose a broker, restart it, delete.

    python -m benchmarks.cluster [--partitions 3 100 300 1000]

One ZooKeeper server and three brokers (processes, each with its own address), empty at first, and one topic
for each size. A time ends when every running broker returns the expected metadata: each partition has a
leader (after creating the topic, and after restarting a broker), or the partitions of the stopped broker have
none. Beside it stands the number of requests that ZooKeeper counted meanwhile. The last column is the
resident memory of the largest broker. All processes share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import embedlog
from embedlog.backends.remote import RemoteBackend
from embedlog.cluster.zookeeper.running import ZooKeepers

from .rebalancing import requests

BROKERS = 3
SETTLE_S = 300.0
LOOK_S = 0.02


class Served:
    """`embedlog serve` in a process of its own, and a client of this broker alone."""

    def __init__(self, number: int, directory: Path, zookeeper: str) -> None:
        self.number = number
        self._directory = directory
        self._zookeeper = zookeeper
        self._port = 0
        self.start()

    def start(self) -> None:
        host = f"127.0.0.{20 + self.number}"
        with open(f"{self._directory}.log", "a") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "embedlog", "serve", str(self._directory), "--json"),
                    *("--broker-id", str(self.number), "--zookeeper", self._zookeeper),
                    *("--host", host, "--port", str(self._port)),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"broker {self.number} did not start: {self._directory}.log says why")
        self._port = json.loads(line)["port"]
        self.log = embedlog.open(f"kafka://{host}:{self._port}")

    def stop(self) -> None:
        self.log.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.communicate()

    def leaders(self, topic: str) -> Sequence[int]:
        """The leader of each partition, according to this broker; empty if it does not know the topic."""
        backend = self.log.backend
        assert isinstance(backend, RemoteBackend)
        return backend.describe_cluster().leaders.get(topic, ())

    def resident_mib(self) -> float:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def until(brokers: Iterable[Served], topic: str, as_it_should_be: Callable[[Sequence[int]], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    for broker in brokers:
        while not as_it_should_be(broker.leaders(topic)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {broker.number} does not follow")
            time.sleep(LOOK_S)


def one_size(brokers: list[Served], zookeeper: str, partitions: int) -> list[str]:
    topic = f"t{partitions}"
    cells = []

    def step(change: Callable[[], object], who: list[Served], good: Callable[[Sequence[int]], bool]) -> None:
        before, start = requests(zookeeper), time.perf_counter()
        change()
        until(who, topic, good)
        took = time.perf_counter() - start
        cells.append(f"{took * 1000:,.0f} ({requests(zookeeper) - before:,})")

    def all_led(leaders: Sequence[int]) -> bool:
        return len(leaders) == partitions and min(leaders) >= 0

    def some_without(leaders: Sequence[int]) -> bool:
        return min(leaders, default=0) < 0

    away, rest = brokers[1], [brokers[0], brokers[2]]
    step(lambda: brokers[0].log.create_topic(topic, partitions=partitions), brokers, all_led)
    step(away.stop, rest, some_without)
    step(away.start, brokers, all_led)
    memory = max(broker.resident_mib() for broker in brokers)
    step(lambda: brokers[2].log.delete_topic(topic), brokers, lambda leaders: not leaders)
    return [*cells, f"{memory:,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[3, 100, 300, 1000])
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, one ZooKeeper, {BROKERS} brokers; ms (requests to ZooKeeper)\n")
    print("| partitions | made | a broker stops | is back | deleted | MiB |")
    print("|---|---|---|---|---|---|")
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="embedlog-cluster-")))
        zookeeper = ends.enter_context(ZooKeepers()).connect_string
        brokers = []
        for number in range(BROKERS):
            brokers.append(Served(number, directory / str(number), zookeeper))
            ends.callback(brokers[-1].stop)
        for partitions in options.partitions:
            print(f"| {partitions:,} | {' | '.join(one_size(brokers, zookeeper, partitions))} |", flush=True)


if __name__ == "__main__":
    main()
