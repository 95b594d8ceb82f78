"""Broker processes of a cluster, each with its own directory and address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from zookeepers import WAIT_S, eventually

_ROOT = Path(__file__).parent.parent.parent


class BrokerProcess:
    """`embedlog serve`, which a test may kill, pause and restart."""

    def __init__(self, number: int, directory: Path, connect: str, *more: str) -> None:
        self.number = number
        self.directory = directory
        self.host = f"127.0.0.{20 + number}"
        self.port = 0  # the kernel's choice at the first start, kept from then on
        self.advertised = ""  # where clients are sent, where that is not here
        self.connect = connect
        self.more = more
        self.began: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        return self.advertised or f"{self.host}:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def begin(self) -> None:
        """Start it; `wait` waits until it listens."""
        more = list(self.more)
        if self.advertised:
            host, _, port = self.advertised.rpartition(":")
            more += ["--advertised-host", host, "--advertised-port", port]
        with open(f"{self.directory}.log", "a") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "embedlog", "serve", str(self.directory), "--json"),
                    *("--broker-id", str(self.number), "--zookeeper", self.connect),
                    *("--host", self.host, "--port", str(self.port), "--log-level", "info", *more),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )

    def wait(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"broker {self.number} ended: {self.said()[-2000:]}"
        self.began = json.loads(line)
        self.port = self.began["port"]

    def start(self) -> None:
        self.begin()
        self.wait()

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def said(self) -> str:
        """Its log."""
        return Path(f"{self.directory}.log").read_text()

    def _end(self) -> int:
        process, self._process = self.process, None
        process.communicate(timeout=WAIT_S)
        return process.returncode

    def close(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._end()


class Brokers:
    """Brokers of one cluster."""

    def __init__(self, directory: Path, connect: str, count: int, *more: str) -> None:
        self.connect = connect
        self.all = [
            BrokerProcess(number, directory / f"broker-{number}", connect, *more) for number in range(count)
        ]

    def __getitem__(self, number: int) -> BrokerProcess:
        return self.all[number]

    def start(self) -> None:
        for broker in self.all:
            broker.begin()
        for broker in self.all:
            broker.wait()
        self.settled()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.all if broker.port)

    def admin(self, *numbers: int) -> AdminClient:
        """An admin client for these brokers, or all."""
        known = [self.all[number].address for number in numbers] or [self.bootstrap]
        return AdminClient({"bootstrap.servers": ",".join(known)})

    def settled(self, numbers: Sequence[int] = ()) -> None:
        """Wait until each of these knows all of these."""
        wanted = set(numbers or range(len(self.all)))
        for number in wanted:
            eventually(
                lambda number=number: set(self.admin(number).list_topics(timeout=WAIT_S).brokers) == wanted,
                f"broker {number} knows {wanted}",
            )

    def create(self, topic: str, partitions: int, **config: str) -> None:
        """Create a topic, and wait until every broker knows the leaders of its partitions."""
        new = NewTopic(topic, partitions, 1, config=config)
        admin = self.admin()  # it must live until it is answered
        admin.create_topics([new])[topic].result(WAIT_S)

        def is_led(number: int) -> bool:
            leaders = self.leaders(topic, number).values()
            return len(leaders) == partitions and min(leaders) >= 0

        for broker in self.all:
            eventually(lambda n=broker.number: is_led(n), f"broker {broker.number} knows the leaders")

    def leaders(self, topic: str, number: int = 0) -> dict[int, int]:
        """The leader of each partition according to one broker; empty if it does not know the topic."""
        found = self.admin(number).list_topics(timeout=WAIT_S).topics
        if topic not in found or found[topic].error is not None:
            return {}
        return {partition: each.leader for partition, each in found[topic].partitions.items()}


@contextmanager
def cluster(
    directory: Path,
    connect: str,
    count: int,
    *more: str,
    prepare: Callable[[Brokers], object] = lambda brokers: None,
) -> Iterator[Brokers]:
    """Started brokers that know each other. `prepare` changes their arguments."""
    brokers = Brokers(directory, connect, count, *more)
    prepare(brokers)
    with ExitStack() as ends:
        for broker in brokers.all:
            ends.callback(broker.close)
        brokers.start()
        yield brokers
