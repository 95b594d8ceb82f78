"""Java programs that run beside a test: workers of Connect, and Apache Kafka's broker."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import embedlog
from embedlog.runtime.java import java_home

HANGS_S = 180

T = TypeVar("T")


class Java:
    """A Java program, which is killed at its end. It gets the files as arguments."""

    def __init__(self, classes: str, main: str, *files: Path, heap: str = "512m") -> None:
        self._out = files[0].with_suffix(".out")
        command = [str(java_home() / "bin" / "java"), f"-Xmx{heap}", "-cp", classes, main, *map(str, files)]
        with open(self._out, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def said(self) -> str:
        return self._out.read_text()[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def eventually(look: Callable[[], T], java: Java) -> T:
    """The first result that is true, while the program runs."""
    deadline = time.monotonic() + HANGS_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{found!r}\n{java.said()}"
        assert java.process.poll() is None, java.said()
        time.sleep(0.1)
    return found


def properties(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def apache_kafka(
    classes: str,
    path: Path,
    listeners: Mapping[str, int] | None = None,
    more: Mapping[str, object] | None = None,
    users: Sequence[str] = (),
    cluster: str = "MkU3OEVBNTcwNTJENDM2Qg",
) -> Iterator[str]:
    """The bootstrap address of an Apache Kafka, its own controller.

    Args:
        listeners: more of them: name -> port.
        more: settings.
        users: as `kafka-storage format --add-scram` takes them.
        cluster: its id.
    """
    port, controller = free_port(), free_port()
    others = "".join(f",{name}://127.0.0.1:{number}" for name, number in (listeners or {}).items())
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{others}",
        "log.dirs": path / "kafka",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.share.min.record.lock.duration.ms": 1_000,
        "group.initial.rebalance.delay.ms": 0,
        **(more or {}),
    }
    with _node(classes, properties(path / "server.properties", settings), cluster, port, users) as address:
        yield address


@contextlib.contextmanager
def one_more_broker(classes: str, path: Path, first: Path, cluster: str) -> Iterator[str]:
    """The address of a second broker of an `apache_kafka`, whose path and cluster's id these are."""
    port = free_port()
    lines = (first / "server.properties").read_text().splitlines()
    settings: dict[str, object] = dict(line.split("=", 1) for line in lines) | {
        "process.roles": "broker",
        "node.id": 2,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": path / "kafka",
    }
    with _node(classes, properties(path / "server.properties", settings), cluster, port) as address:
        yield address


@contextlib.contextmanager
def _node(classes: str, file: Path, cluster: str, port: int, users: Sequence[str] = ()) -> Iterator[str]:
    java = [str(java_home() / "bin" / "java"), "-cp", classes]
    formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)]
    formatting += [word for user in users for word in ("--add-scram", user)]
    subprocess.run(java + formatting, check=True, capture_output=True)
    broker = Java(classes, "kafka.Kafka", file)
    try:
        eventually(lambda: _answers(port), broker)
        yield f"127.0.0.1:{port}"
    finally:
        broker.kill()


class KafkaBroker:
    """One broker of several, which a test may kill, pause and start again."""

    def __init__(self, classes: str, file: Path, port: int) -> None:
        self._classes = classes
        self._file = file
        self.port = port
        self._java: Java | None = None

    def start(self) -> None:
        self._java = Java(self._classes, "kafka.Kafka", self._file, heap="256m")

    def wait(self) -> None:
        assert self._java is not None
        eventually(lambda: _answers(self.port), self._java)

    def pause(self) -> None:
        assert self._java is not None
        self._java.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._java is not None
        self._java.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        java, self._java = self._java, None
        if java is not None:
            java.kill()


@contextlib.contextmanager
def apache_kafkas(classes: str, path: Path, count: int) -> Iterator[list[KafkaBroker]]:
    """Brokers of one cluster, which are its controllers, too. Their ids begin with 1."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    voters = ",".join(f"{number}@127.0.0.1:{controller}" for number, (_, controller) in enumerate(ports, 1))
    brokers = []
    for number, (port, controller) in enumerate(ports, 1):
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": path / f"kafka-{number}",
            "offsets.topic.replication.factor": count,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": count,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        file = properties(path / f"server-{number}.properties", settings)
        formatting = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(file)]
        java = [str(java_home() / "bin" / "java"), "-Xmx256m", "-cp", classes]
        subprocess.run(java + formatting, check=True, capture_output=True)
        brokers.append(KafkaBroker(classes, file, port))
    try:
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.wait()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


def _answers(port: int) -> bool:
    try:
        with embedlog.open(f"kafka://127.0.0.1:{port}", default_api_timeout_ms=1_000) as log:
            log.topics()
    except embedlog.EmbedlogError:
        return False
    return True
