"""Transformers consume from and produce to three brokers, in transactions; any of it is killed at random.

At the end each input is in the committed output once and in order, and nothing is open.

    EMBEDLOG_ROUNDS   how many rounds (rounds.py)
    EMBEDLOG_SEED     what the faults are drawn from; a failure tells it
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import confluent_kafka
import pytest
from brokers import Brokers, cluster
from rounds import ROUNDS
from test_transaction_client_kills import PARTITIONS, TRANSFORMER, Feeding
from transformer import NEVER_SEEN
from zookeepers import Znodes, eventually

import embedlog

pytestmark = pytest.mark.random

FAULTS_IN_A_ROUND = 4
HANGS_S = 30.0
SETTINGS = (
    *("--set", "zookeeper.session.timeout.ms=2000"),
    *("--set", "group.min.session.timeout.ms=500"),
    *("--set", "transaction.state.log.num.partitions=6"),
    *("--set", "offsets.topic.num.partitions=6"),
)


class World:
    """The brokers and the transformers."""

    def __init__(self, directory: Path, brokers: Brokers, rng: random.Random) -> None:
        self._directory = directory
        self._brokers = brokers
        self._rng = rng
        self.transformers: dict[str, subprocess.Popen[bytes]] = {}
        self.fenced: list[subprocess.Popen[bytes]] = []

    def begin(self, name: str) -> None:
        """Begin a transformer."""
        command = [sys.executable, TRANSFORMER, self._brokers.bootstrap, name, self._rng.randrange(1 << 30)]
        with open(self._directory / f"{name}.log", "ab") as said:
            self.transformers[name] = subprocess.Popen(list(map(str, command)), stdout=said, stderr=said)

    def begin_again(self) -> None:
        """In place of each transformer that has ended another one."""
        for name, process in list(self.transformers.items()):
            if process.poll() is not None:
                assert process.returncode in (3, -signal.SIGKILL), self.said()
                self.begin(name)

    def kill_transformers(self) -> None:
        for process in self.transformers.values():
            process.kill()
            process.wait()

    def fault(self) -> str:
        """Do something that may happen."""
        name = self._rng.choice(list(self.transformers))
        process = self.transformers[name]
        kind = self._rng.choice(["kill brokers", "kill brokers", "pause a broker", "kill", "stop", "fence"])
        if kind == "kill brokers":
            struck = self._rng.sample(self._brokers.all, self._rng.randrange(1, 4))
            for broker in struck:
                broker.kill()
            for broker in struck:
                broker.begin()
            for broker in struck:
                broker.wait()
            return f"{kind} {[each.number for each in struck]}"
        if kind == "pause a broker":
            paused = self._rng.choice(self._brokers.all)
            paused.pause()
            time.sleep(self._rng.uniform(0, 4))  # its session ends meanwhile, or not
            paused.resume()
            return f"{kind} {paused.number}"
        if process.poll() is None and kind == "kill":
            process.kill()
            process.wait()
        elif process.poll() is None and kind == "stop":
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._rng.uniform(0, 6))  # its session ends meanwhile, its transaction too, or not
            process.send_signal(signal.SIGCONT)
        elif process.poll() is None and kind == "fence":
            self.fenced.append(process)  # it ends with its next transaction
            self.begin(name)
        return f"{kind} {name}"

    def said(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._directory.glob("*.log")))

    def close(self) -> None:
        for process in [*self.transformers.values(), *self.fenced]:
            process.kill()
            process.wait()


class Watching:
    """Reads what is committed, in a thread of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self._stopped = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watching",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition("out", n, 0) for n in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def _watch(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.found[message.partition()].append(message.value())

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()


def wait_for_all(world: World, watching: Watching, fed: dict[int, list[bytes]], done: list[str]) -> None:
    """Until the output is complete. Clients that hang are begun again (docs/reference/compatibility.md)."""
    before, since = watching.count, time.monotonic()
    while any(len(watching.found[number]) < len(fed[number]) for number in range(PARTITIONS)):
        world.begin_again()
        time.sleep(0.05)
        if watching.count > before:
            before, since = watching.count, time.monotonic()
        elif time.monotonic() - since > HANGS_S:
            world.kill_transformers()
            done.append("they have hung")
            since = time.monotonic()


@pytest.mark.timeout(180 + 240 * ROUNDS)
def test_each_input_is_counted_once(zookeeper: Znodes, tmp_path: Path) -> None:
    seed = int(os.environ.get("EMBEDLOG_SEED", time.time_ns() % 1_000_000))
    rng = random.Random(seed)
    done: list[str] = []
    with ExitStack() as ends:
        brokers = ends.enter_context(cluster(tmp_path, zookeeper.connect, 3, *SETTINGS))
        for topic in ("in", "out"):
            brokers.create(topic, PARTITIONS)
        world = ends.enter_context(closing(World(tmp_path, brokers, rng)))
        feeding = Feeding(brokers.bootstrap)
        feeding.feed()
        feeding.finish()
        try:
            watching = ends.enter_context(closing(Watching(brokers.bootstrap)))
            for name in ("tx-0", "tx-1", "tx-2"):
                world.begin(name)
            for _ in range(ROUNDS * FAULTS_IN_A_ROUND):
                feeding.feed()
                time.sleep(rng.uniform(0, 2))  # some of the work; how much differs, and does not matter
                done.append(world.fault())
                world.begin_again()
            feeding.finish()
            wait_for_all(world, watching, feeding.fed, done)
            world.close()
            for number in range(PARTITIONS):
                assert NEVER_SEEN not in watching.found[number]
                assert watching.found[number] == feeding.fed[number]
            with embedlog.open(f"kafka://{brokers.bootstrap}") as log:

                def is_over() -> bool:
                    return not any(each.is_open for each in log.transactions())

                eventually(is_over, "what was open is aborted in time")
                group = log.group("transformers")
                eventually(lambda: group.describe().lag == 0, "the offsets are the inputs' ends")
            again = ends.enter_context(closing(Watching(brokers.bootstrap)))
            eventually(lambda: again.count == watching.count)
            assert again.found == feeding.fed
            print(f"EMBEDLOG_SEED={seed}: {watching.count} records, {done}")
        except BaseException as error:
            error.add_note("\n".join([f"EMBEDLOG_SEED={seed} EMBEDLOG_ROUNDS={ROUNDS}", *done, world.said()]))
            raise
