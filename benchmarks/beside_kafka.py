"""`python -m benchmarks.beside_kafka`: `embedlog serve` beside Apache Kafka, under the same load.

Kafka's broker, and its Java client as the client of both, come through Maven (benchmarks/kafka). Each round
starts each broker over an empty directory, in changing order, never both at once, and puts each load on it.
Both run with their defaults, except that Kafka's internal topics have one replica. Kafka has the heap and the
collector of its own start script, and is its own controller (KRaft). The CPU time of a load is the broker's
alone: its garbage collector and its flushes count, the client does not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from pathlib import Path
from typing import ClassVar, NamedTuple

from embedlog.runtime.java import java_home

from .measure import Result, Row, cpu_seconds
from .table import block, markdown_rows, replaced

_PROJECT = Path(__file__).parent / "kafka"
_RESULTS = Path(__file__).parent / "results"
_START_SECONDS = 120
_IDLE_SECONDS = 10
_KAFKA_JVM = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
# ApiVersions version 0, correlation id 1, no client id.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", ""))


class Load(NamedTuple):
    """Records to produce, and to consume again."""

    title: str
    records: int
    size: int
    settings: tuple[str, ...]


def loads(scale: float) -> list[Load]:
    """What the Java client produces."""
    return [
        Load("100 B, acks=1", int(2_000_000 * scale), 100, ("acks=1", "enable.idempotence=false")),
        Load("100 B, the client's defaults", int(2_000_000 * scale), 100, ()),
        Load("1 KB, acks=all", int(400_000 * scale), 1024, ("acks=all",)),
        Load("100 B, lz4", int(2_000_000 * scale), 100, ("compression.type=lz4", "linger.ms=20")),
    ]


class Maven:
    """The classes that Maven compiled and fetched."""

    def __init__(self) -> None:
        self._java = str(java_home() / "bin" / "java")
        classpath = _PROJECT / "target" / "classpath"
        if shutil.which("mvn") is None:
            raise SystemExit("this comparison needs Maven (mvn) for Kafka's broker and client: install it")
        goals = ("compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}")
        subprocess.run(["mvn", "-q", "-B", *goals], cwd=_PROJECT, check=True)
        self._classpath = f"{_PROJECT / 'target' / 'classes'}:{classpath.read_text().strip()}"

    def command(self, main: str, *arguments: str, jvm: tuple[str, ...] = ()) -> list[str]:
        """The command that runs a class."""
        return [self._java, *jvm, "-cp", self._classpath, main, *arguments]

    def load(self, *arguments: str) -> list[float]:
        """Put a load on a broker; returns the numbers that it prints."""
        done = subprocess.run(
            self.command("Load", *arguments, jvm=("-Xmx2G", "-Xss256k")),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-4000:]}")
        return [float(number) for number in done.stdout.split()]


class Broker(ABC):
    """A broker in a process of its own, from `start` to `stop`."""

    name: ClassVar[str]

    def __init__(self, maven: Maven, directory: Path) -> None:
        self.maven = maven
        self.directory = directory
        self.port = _free_port()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """The command that runs the broker; the directory is ready then."""

    def start(self) -> float:
        """Start it; returns the seconds until it answers its first request."""
        command = self.command()
        self._output = open(self.directory / "output", "w")  # noqa: SIM115 - until stop
        began = time.perf_counter()
        self._process = subprocess.Popen(command, stdout=self._output, stderr=self._output)
        while not _answers(self.port):
            if self._process.poll() is not None or time.perf_counter() - began > _START_SECONDS:
                self.stop()
                raise RuntimeError(f"{self.name} did not start: see {self.directory / 'output'}")
            time.sleep(0.01)
        return time.perf_counter() - began

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._output.close()

    @property
    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        return cpu_seconds(self._process.pid)

    @property
    def resident_mb(self) -> float:
        """Resident memory, without the page cache."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("this system does not tell a process's resident memory")


class Embedlog(Broker):
    """`embedlog serve`."""

    name = "embedlog"

    def command(self) -> list[str]:
        log = str(self.directory / "log")
        return [sys.executable, "-m", "embedlog", "serve", log, "--port", str(self.port)]


class Kafka(Broker):
    """Apache Kafka, with itself as its controller."""

    name = "Apache Kafka"

    def command(self) -> list[str]:
        controller = _free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": self.directory / "log",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }
        file = self.directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        arguments = ("format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(file))
        format_log = self.maven.command("kafka.tools.StorageTool", *arguments)
        subprocess.run(format_log, check=True, capture_output=True)
        return self.maven.command("kafka.Kafka", str(file), jvm=_KAFKA_JVM)


class Measured:
    """The samples, by row and broker."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._samples: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._cpu_us: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, broker: Broker, title: str, unit: str, value: float, cpu_us: float | None = None) -> None:
        self._rows[title] = Row(title, unit, unit.endswith("/s"), [])
        self._samples[title, broker.name].append(value)
        if cpu_us is not None:
            self._cpu_us[title, broker.name].append(cpu_us)

    def results(self) -> list[tuple[Row, list[Result]]]:
        """Each row, embedlog's result first."""
        return [
            (row, [self._result(title, broker.name) for broker in (Embedlog, Kafka)])
            for title, row in self._rows.items()
        ]

    def _result(self, title: str, name: str) -> Result:
        return Result(name, self._samples[title, name], self._cpu_us[title, name])


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one round")
    parser.add_argument("--rounds", type=int, help="rounds (default: 3, or 1 with --quick)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the samples there, too")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the table into this page, too")
    parser.add_argument("--dir", type=Path, default=_RESULTS, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    scale = 0.1 if options.quick else 1.0
    rounds = options.rounds or (1 if options.quick else 3)

    maven = Maven()
    options.dir.mkdir(parents=True, exist_ok=True)
    measured = Measured()
    brokers: list[type[Broker]] = [Embedlog, Kafka]
    for number in range(rounds):
        for kind in brokers if number % 2 == 0 else brokers[::-1]:
            with tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=options.dir) as directory:
                _run(kind(maven, Path(directory)), scale, measured, f"round {number + 1} of {rounds}")
    results = measured.results()
    for row, of_row in results:
        print(block(row, of_row))
    if options.json is not None:
        options.json.write_text(
            json.dumps([[row.title, row.unit, of_row] for row, of_row in results], indent=1)
        )
    if options.page is not None:
        table = markdown_rows(results)
        options.page.write_text(replaced(options.page.read_text(), table, "bench-kafka"))


def _run(broker: Broker, scale: float, measured: Measured, when: str) -> None:
    """Put all loads on a broker."""

    def tell(what: str) -> None:
        print(f"{when}, {broker.name}: {what}", file=sys.stderr, flush=True)

    tell("start")
    measured.add(broker, "start to first answer", "s", broker.start())
    try:
        time.sleep(2)  # what a start leaves to do
        measured.add(broker, "memory, idle", "MB", broker.resident_mb)
        before = broker.cpu_seconds
        time.sleep(_IDLE_SECONDS)
        idle = (broker.cpu_seconds - before) / _IDLE_SECONDS
        measured.add(broker, "CPU, idle", "ms per s", idle * 1000)
        for number, load in enumerate(loads(scale)):
            topic = f"load-{number}"
            broker.maven.load("create", broker.bootstrap, topic, "4")
            for verb in ("produce", "consume"):
                tell(f"{verb} {load.title}")
                arguments = (str(load.size), *load.settings) if verb == "produce" else ()
                before = broker.cpu_seconds
                (rate,) = broker.maven.load(verb, broker.bootstrap, topic, str(load.records), *arguments)
                cpu_us = (broker.cpu_seconds - before) / load.records * 1e6
                measured.add(broker, f"{verb} {load.title}", "records/s", rate, cpu_us)
        broker.maven.load("create", broker.bootstrap, "sync", "4")
        for producers in (1, 10, 50, 200, 1000):
            title = f"{producers:,} connections, one request each at a time"
            tell(title)
            sends = max(int(20_000 * scale / producers), 10)
            before = broker.cpu_seconds
            numbers = (str(producers), str(sends), "100")
            median, p99, rate = broker.maven.load("sync", broker.bootstrap, "sync", *numbers)
            cpu_us = (broker.cpu_seconds - before) / (producers * (sends + max(sends // 4, 1))) * 1e6
            measured.add(broker, f"{title}: requests", "requests/s", rate, cpu_us)
            measured.add(broker, f"{title}: median", "ms", median)
            measured.add(broker, f"{title}: 99th percentile", "ms", p99)
        title = "transactions of 100 records, partitions: 4"
        tell(title)
        broker.maven.load("create", broker.bootstrap, "commit", "4")
        transactions = int(4_000 * scale)
        before = broker.cpu_seconds
        (rate,) = broker.maven.load("commit", broker.bootstrap, "commit", str(transactions), "100", "100")
        cpu_us = (broker.cpu_seconds - before) / transactions * 1e6
        measured.add(broker, title, "transactions/s", rate, cpu_us)
        measured.add(broker, "memory, after these loads", "MB", broker.resident_mb)
    finally:
        broker.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    """Whether a broker there answers ApiVersions."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(_API_VERSIONS)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


if __name__ == "__main__":
    main()
