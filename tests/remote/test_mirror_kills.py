"""Source, target and mirror are killed (SIGKILL), over and over, while others write: identical in the end.

All are processes.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from programs import Program
from rounds import ROUNDS

import embedlog

pytestmark = pytest.mark.random

KILLS = 2 * ROUNDS
PARTITIONS = 3

SERVE = """
import sys
from embedlog.cluster import Broker
path, port = sys.argv[1:]
with Broker(path, port=int(port)):
    print("ready", flush=True)
    sys.stdin.read()
"""

# Appends small batches for ever, to brokers that come and go or to a directory, until it is told to stop.
WRITE = """
import os, select, sys, time
import embedlog
place, name = sys.argv[1:]
with embedlog.open(place) as log:
    log.create_topic("t", partitions=3, exist_ok=True)
    print("ready", flush=True)
    number = 0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        run = os.urandom(4).hex()
        values = [f"{name} {run} {number + i}".encode() for i in range(number % 7 + 1)]
        log.append_many("t", values, partition=number % 3, compression=["none", "zstd"][number % 2])
        number += len(values)
"""


class Restarted:
    """A process that is killed and started again."""

    def __init__(self, start: Callable[[], Program]) -> None:
        self._start = start
        self.running = start()

    def kill(self) -> None:
        self.running.kill()

    def start(self) -> None:
        self.running = self._start()


class Mirroring:
    """`embedlog mirror`, as typed."""

    def __init__(self, target: object, *sources: object) -> None:
        named = [text for source in sources for text in ("--from", str(source))]
        self._command = [sys.executable, "-m", "embedlog", "mirror", *named, "--to", str(target)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def stop(self) -> None:
        """SIGTERM: it commits where it is."""
        self.process.terminate()
        _, errors = self.process.communicate()
        assert self.process.returncode == 0, errors.decode()

    def catch_up(self) -> None:
        """Kill it once more, unless it was stopped, and let another one copy what is left."""
        self.kill()
        subprocess.run([*self._command, "--until-caught-up"], check=True, capture_output=True)


@pytest.fixture
def start(program: Callable[..., Program]) -> Callable[..., Restarted]:
    """start(code, *arguments): a process that says when it is ready."""

    def started(code: str, *arguments: object) -> Restarted:
        def run() -> Program:
            running = program(code, *arguments)
            assert running.line() == "ready"
            return running

        return Restarted(run)

    return started


@pytest.fixture
def mirror() -> Iterator[Callable[..., Mirroring]]:
    started: list[Mirroring] = []

    def start(target: object, *sources: object) -> Mirroring:
        started.append(Mirroring(target, *sources))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def rounds(*killed: Restarted | Mirroring, chosen: random.Random, number: int = KILLS) -> None:
    """Kill some of them, in any order; start them again in the order given."""
    for _ in range(number):
        time.sleep(chosen.uniform(0, 0.4))  # some of the load; how much differs, and does not matter
        victims = chosen.sample(killed, chosen.randint(1, len(killed)))
        for victim in victims:
            victim.kill()
        for each in killed:
            if each in victims:
                each.start()


def values(path: Path, partition: int) -> list[bytes]:
    with embedlog.open(path, mode="r") as log:
        return [record.value or b"" for record in log.read("t", partition)]


def until_something_came(target: Path) -> None:
    found: list[bytes] = []
    while not found:
        time.sleep(0.02)
        with suppress(embedlog.EmbedlogError):  # no topic yet
            found = [value for partition in range(PARTITIONS) for value in values(target, partition)]


@pytest.mark.timeout(1800)
def test_brokers_and_a_directory_into_a_directory(
    start: Callable[..., Restarted], mirror: Callable[..., Mirroring], tmp_path: Path
) -> None:
    """Each record once, in the order of its source."""
    broker_path, written_path, target = (tmp_path / name for name in ("broker", "written", "target"))
    port = free_port()
    broker = start(SERVE, broker_path, port)
    producer = start(WRITE, f"kafka://127.0.0.1:{port}", "broker")
    writer = start(WRITE, written_path, "written")
    mirroring = mirror(target, f"kafka://127.0.0.1:{port}", written_path)
    until_something_came(target)
    rounds(broker, writer, mirroring, chosen=random.Random(1))
    for each in (producer, writer):
        each.running.say()
        each.running.end()
    mirroring.catch_up()
    broker.kill()
    for partition in range(PARTITIONS):
        found = values(target, partition)
        for path, name in ((broker_path, b"broker"), (written_path, b"written")):
            wanted = values(path, partition)
            assert wanted
            assert [value for value in found if value.startswith(name)] == wanted
        assert len(found) == len(set(found))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", ["brokers", "brokers and mirror"])
def test_brokers_into_brokers(
    start: Callable[..., Restarted], mirror: Callable[..., Mirroring], tmp_path: Path, kills: str
) -> None:
    """Each record at least once, the first time in order; and once, where the mirror is not killed."""
    ports = free_port(), free_port()
    source, target = (
        start(SERVE, tmp_path / name, port) for name, port in zip(("source", "target"), ports, strict=True)
    )
    producer = start(WRITE, f"kafka://127.0.0.1:{ports[0]}", "source")
    mirroring = mirror(f"kafka://127.0.0.1:{ports[1]}", f"kafka://127.0.0.1:{ports[0]}")
    until_something_came(tmp_path / "target")  # one that finds no brokers when it starts says so, and ends
    killed = (source, target, mirroring) if "mirror" in kills else (source, target)
    rounds(*killed, chosen=random.Random(kills), number=KILLS if "mirror" in kills else ROUNDS)
    producer.running.say()
    producer.running.end()
    if "mirror" not in kills:
        mirroring.stop()
    mirroring.catch_up()
    source.kill()
    target.kill()
    for partition in range(PARTITIONS):
        wanted, found = (values(tmp_path / name, partition) for name in ("source", "target"))
        assert wanted
        assert list(dict.fromkeys(found)) == wanted
        assert len(found) == len(wanted) or "mirror" in kills
