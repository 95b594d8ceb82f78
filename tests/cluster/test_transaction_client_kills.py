"""Clients that consume, transform and produce in transactions, and whatever of it is killed at random.

Two transformers (transformer.py) and their broker are killed and stopped. All the time a third client reads
what is committed, and the last stable offsets are looked up. At the end each input is in the committed output
once and in order, and what was read on the way is the same.

    EMBEDLOG_ROUNDS   how many rounds (rounds.py)
    EMBEDLOG_SEED     what the faults are drawn from; a failure tells it
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from programs import Program
from rounds import ROUNDS
from transformer import NEVER_SEEN
from wire import TIMEOUT_S, Wire

from embedlog.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = pytest.mark.random

PARTITIONS = 3
FAULTS_IN_A_ROUND = 4
FED_AT_ONCE = 60
TRANSFORMER = Path(__file__).with_name("transformer.py")

SERVE = """
import sys
from embedlog.cluster import Broker
path, port = sys.argv[1:]
with Broker(path, port=int(port), num_partitions=3, group_min_session_timeout_ms=500) as broker:
    print("ready", flush=True)
    sys.stdin.read()
"""


class World:
    """The broker and its transformers."""

    def __init__(self, directory: Path, program: Callable[..., Program], rng: random.Random) -> None:
        self._directory = directory
        self._program = program
        self._rng = rng
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.transformers: dict[str, subprocess.Popen[str]] = {}
        self.fenced: list[subprocess.Popen[str]] = []
        self.start_broker()

    def start_broker(self) -> None:
        self.broker = self._program(SERVE, self._directory / "log", self.port)
        assert self.broker.line() == "ready"

    def kill_broker(self) -> None:
        self.broker.kill()
        self.start_broker()

    def begin(self, name: str) -> None:
        """Begin a transformer."""
        command = [sys.executable, TRANSFORMER, self.bootstrap, name, self._rng.randrange(1 << 30)]
        with open(self._directory / f"{name}.log", "a") as said:
            self.transformers[name] = subprocess.Popen(list(map(str, command)), stdout=said, stderr=said)

    def begin_again(self) -> None:
        """In place of each transformer that has ended another one."""
        for name, process in list(self.transformers.items()):
            if process.poll() is not None:
                assert process.returncode in (3, -signal.SIGKILL), self.said()
                self.begin(name)

    def fault(self) -> str:
        """Do something that may happen."""
        name = self._rng.choice(list(self.transformers))
        process = self.transformers[name]
        kind = self._rng.choice(["kill the broker", "kill", "kill", "stop", "fence"])
        if kind == "kill the broker":
            self.kill_broker()
        elif process.poll() is None and kind == "kill":
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
        return "\n".join(
            path.read_text()[-2_000:] for path in sorted(self._directory.glob("*.log")) if path.is_file()
        )

    def close(self) -> None:
        for process in [*self.transformers.values(), *self.fenced]:
            process.kill()
            process.wait()


class Watching:
    """Reads what is committed, and looks up the last stable offsets, in a thread of its own."""

    def __init__(self, bootstrap: str, port: int) -> None:
        self.port = port
        self.found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.stable = [0] * PARTITIONS
        self.failed: list[str] = []
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

    def _watch(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.found[message.partition()].append(message.value())
            try:
                with Wire(self) as wire:
                    self._look_up(wire)
            except OSError:  # the broker is away
                continue

    def _look_up(self, wire: Wire) -> None:
        asked = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(PARTITIONS)]
        topics = [ListOffsetsTopic(name="out", partitions=asked)]
        for each in wire.ask(ListOffsetsRequest(isolation_level=1, topics=topics), 5).topics[0].partitions:
            if each.error_code:
                continue
            if each.offset < self.stable[each.partition_index]:
                self.failed.append(f"{each} after {self.stable}")
            self.stable[each.partition_index] = each.offset

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()


class Feeding:
    """Appends numbers to `in`."""

    def __init__(self, bootstrap: str) -> None:
        self.fed: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._next = 0

    def feed(self) -> None:
        for number in range(self._next, self._next + FED_AT_ONCE):
            partition = number % PARTITIONS
            self._producer.produce("in", b"%d" % number, partition=partition)
            self.fed[partition].append(b"%d" % number)
        self._next += FED_AT_ONCE
        self._producer.poll(0)

    def finish(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0


@contextmanager
def world(directory: Path, program: Callable[..., Program], rng: random.Random) -> Iterator[World]:
    with closing(World(directory, program, rng)) as made:
        yield made


@pytest.mark.timeout(120 + 120 * ROUNDS)
def test_each_input_is_counted_once(tmp_path: Path, program: Callable[..., Program]) -> None:
    seed = int(os.environ.get("EMBEDLOG_SEED", time.time_ns() % 1_000_000))
    rng = random.Random(seed)
    done: list[str] = []
    with ExitStack() as ends:
        made = ends.enter_context(world(tmp_path, program, rng))
        feeding = Feeding(made.bootstrap)
        feeding.feed()
        feeding.finish()
        try:
            watching = ends.enter_context(closing(Watching(made.bootstrap, made.port)))
            for name in ("tx-0", "tx-1"):
                made.begin(name)
            for _ in range(ROUNDS * FAULTS_IN_A_ROUND):
                feeding.feed()
                time.sleep(rng.uniform(0, 2))  # some of the work; how much differs, and does not matter
                done.append(made.fault())
                made.begin_again()
            feeding.finish()
            while any(len(watching.found[n]) < len(feeding.fed[n]) for n in range(PARTITIONS)):
                made.begin_again()
                time.sleep(0.05)
                assert not watching.failed
            made.kill_broker()
            for number in range(PARTITIONS):
                assert NEVER_SEEN not in watching.found[number]
                assert watching.found[number] == feeding.fed[number]
            assert not watching.failed
            again = ends.enter_context(closing(Watching(made.bootstrap, made.port)))
            while any(len(again.found[n]) < len(feeding.fed[n]) for n in range(PARTITIONS)):
                time.sleep(0.05)
            assert again.found == feeding.fed
        except BaseException as error:
            error.add_note("\n".join([f"EMBEDLOG_SEED={seed} EMBEDLOG_ROUNDS={ROUNDS}", *done, made.said()]))
            raise
