"""`embedlog serve` as a process: started, used, and stopped by signals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from programs import Program
from wire import Wire, batch_of, fetch

import embedlog
from embedlog import codec
from embedlog.cluster.secured import Secured
from embedlog.errors import AuthenticationFailed, BrokerUnavailable, DirectoryLocked, InvalidArgument
from embedlog.wire.apis.fetch import FetchRequest

TIMEOUT_S = 60  # what never comes fails a test
ROOT = Path(embedlog.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
COMMAND = [sys.executable, "-m", "embedlog"]


class Ran(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command that is expected to end by itself."""

    def run(*arguments: str, command: list[str] = COMMAND) -> Ran:
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


class Served:
    """A broker in a process of its own."""

    def __init__(self, directory: Path, *arguments: str, before: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, *COMMAND, "serve", "data", *arguments],
            cwd=directory,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, self.end()
        self.facts: dict[str, Any] = json.loads(first) if "--json" in arguments else {}
        self.said = [first.decode()]
        self.port = self.facts.get("port", 0)

    def more(self) -> list[str]:
        """The lines it says when it begins, up to the one that says where it listens."""
        assert self.process.stdout is not None
        while not self.said[-1].startswith("listening"):
            self.said.append(self.process.stdout.readline().decode())
            assert self.said[-1], self.end()
        return self.said

    def end(self, number: int | None = signal.SIGTERM) -> tuple[int, str, str]:
        """Stop it by a signal (None: it has had one): exit code, the rest of its output, its errors."""
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out.decode(), errors.decode()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """serve(*flags): a broker on the directory `data`, which says in JSON that it listens."""
    started: list[Served] = []

    def serve(*arguments: str, before: Sequence[str] = ()) -> Served:
        started.append(Served(tmp_path, "--port", "0", *arguments, before=before))
        return started[-1]

    yield serve
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def produce(served: Served, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": served.facts["listening"]})
    failed: list[Any] = []
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def test_settings_by_the_names_of_kafkas_brokers(serve: Callable[..., Served], tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('[log]\nflush.interval.messages = 7\n"segment.bytes" = 5000\n')
    served = serve(
        *("--json", "--config", "serve.toml", "--set", "log.retention.hours=2"),
        *("--set", "log.flush.interval.messages=1", "--set", "brokerid=3"),
    )
    assert (served.facts["retention_ms"], served.facts["broker_id"]) == (2 * 3_600_000, 3)
    with embedlog.open(f"kafka://127.0.0.1:{served.port}") as log:
        log.create_topic("t")
        found = log.backend.topic_settings("t")
    assert (found.flush_messages, found.segment_bytes) == (1, 5000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("zookeeper.connect=127.0.0.1:1", "a flag of its own, --zookeeper"),
        ("zk.connect=127.0.0.1:1", "a flag of its own, --zookeeper"),
        ("host.name=127.0.0.1", "a flag of its own, --host"),
        ("log.flush.interval.mesages=1", "did you mean 'log_flush_interval_messages'"),
        ("log.retention.hours=week", "log.retention.hours must be int"),
    ],
)
def test_names_that_set_does_not_take(run: Run, given: str, said: str) -> None:
    ran = run("serve", "data", "--set", given)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_served_used_and_stopped(serve: Callable[..., Served], tmp_path: Path, number: int) -> None:
    served = serve("--json")
    assert served.facts["listening"] == f"127.0.0.1:{served.facts['port']}"
    assert (served.facts["retention_ms"], served.facts["metrics_port"]) == (-1, None)
    produce(served, "events", 100)
    code, out, errors = served.end(number)
    assert (code, errors) == (0, "")
    assert json.loads(out)["stopped"] is True
    with embedlog.open(tmp_path / "data") as log:
        assert log.recovery.clean
        assert [record.value for record in log.read("events")] == [b"%d" % each for each in range(100)]


def test_a_background_broker_ignores_ctrl_c(serve: Callable[..., Served]) -> None:
    """A shell starts `embedlog serve ... &` with SIGINT ignored."""
    served = serve("--json", before=["sh", "-c", "trap '' INT; exec \"$@\"", "sh"])
    for number in range(3):
        served.process.send_signal(signal.SIGINT)
        produce(served, f"topic-{number}", 1)
    code, out, errors = served.end()
    assert (code, errors) == (0, "")
    assert json.loads(out)["stopped"] is True


def test_messages_on_startup(serve: Callable[..., Served]) -> None:
    served = serve("--set", "retention.ms=86400000", "--metrics-port", "0")
    said = served.more()
    heads = [line.split()[0] for line in said]
    assert heads == ["embedlog", "log", "retention", "durability", "metrics", "listening"]
    assert {line.index(line.split()[1]) for line in said} == {12}  # one column
    assert "records of the last 24 h (retention_ms)" in said[2]
    assert re.search(r"127\.0\.0\.1:\d+ \(plaintext, this machine only\)", said[5])
    code, out, errors = served.end()
    assert (code, errors) == (0, "")
    assert out == "stopped     0 connections served\n"


def test_a_started_request_is_answered(serve: Callable[..., Served]) -> None:
    """A fetch that waits for records is told that there are none, before the broker ends."""
    served = serve("--json")
    produce(served, "events", 1)
    with Wire(served) as waiting, Wire(served) as other:
        number = waiting.send(fetch("events", 1, max_wait_ms=1_000), 11)
        other.fetch("events", 0)  # answered after it
        served.process.send_signal(signal.SIGTERM)
        response = waiting.receive(FetchRequest, 11, number)
        assert response.responses[0].partitions[0].error_code == 0
    assert served.end(None)[0] == 0


def test_one_broker_per_directory(serve: Callable[..., Served], run: Run, tmp_path: Path) -> None:
    served = serve("--json")
    ran = run("serve", "data", "--port", "0")
    assert (ran.code, ran.out) == (2, "")
    first, second = ran.err.splitlines()
    assert first.startswith(f"data is open for writing in process {served.process.pid} ")
    assert second == "One broker serves a directory: stop that process first."
    with pytest.raises(DirectoryLocked, match=rf'embedlog.open\("kafka://127.0.0.1:{served.port}"\)'):
        embedlog.open(tmp_path / "data")
    produce(served, "events", 1)


@pytest.mark.slow
def test_a_port_that_is_taken(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("serve", "data", "--port", str(port))
        assert (ran.code, ran.out) == (2, "")
        assert f"127.0.0.1:{port} is in use by another program" in ran.err
        ran = run("serve", "data", "--port", "0", "--metrics-port", str(port))
        assert (ran.code, ran.out) == (2, "")
        assert f"127.0.0.1:{port} is in use by another program" in ran.err
    assert not (tmp_path / "data").exists()


def test_other_hosts_need_a_flag(run: Run, serve: Callable[..., Served]) -> None:
    ran = run("serve", "data", "--host", "0.0.0.0", "--port", "0")
    assert (ran.code, ran.out) == (2, "")
    assert "--allow-remote" in ran.err
    served = serve(
        "--host", "0.0.0.0", "--allow-remote", "--insecure", "--advertised-host", "localhost", "--json"
    )
    assert served.facts["listening"] == f"localhost:{served.facts['port']}"
    produce(served, "events", 1)
    assert served.end()[0] == 0


def test_flags_override_a_configuration_file(serve: Callable[..., Served], tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(
        """
        port = 1  # the flag wins
        log_level = "info"

        [broker]
        num_partitions = 3
        auto.create.topics.enable = true
        "max.connections" = 77

        [log]
        log.retention.check.interval.ms = 1000

        [topics]
        retention.ms = 60_000
        flush_ms = 20
        log.cleanup.policy = "compact"
        """
    )
    served = serve(
        "--config",
        "broker.toml",
        "--set",
        "log.flush.interval.ms=30",
        "--set",
        "message.max.bytes=2000000",
        "--json",
    )
    producer = Producer({"bootstrap.servers": served.facts["listening"]})
    producer.produce("events", b"value", b"key")
    assert producer.flush(TIMEOUT_S) == 0
    admin = AdminClient({"bootstrap.servers": served.facts["listening"]})
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics["events"].partitions) == 3
    (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]).values()
    entries = {name: entry.value for name, entry in future.result().items()}
    wanted = {
        "num.partitions": "3",
        "max.connections": "77",
        "log.retention.check.interval.ms": "1000",
        "log.retention.ms": "60000",
        "log.flush.interval.ms": "30",
        "log.cleanup.policy": "compact",
        "message.max.bytes": "2000000",
        "advertised.listeners": f"PLAINTEXT://{served.facts['listening']}",
        "log.dirs": served.facts["directory"],
        "default.replication.factor": "1",
    }
    assert {name: entries[name] for name in wanted} == wanted
    code, _, errors = served.end()
    assert code == 0
    assert "INFO" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = ", "broker.toml is not TOML"),
        ("max.connections = 5\nmax.connections.per.ip = 4", "needs underscores or quotes"),
        ("port = '9092'", "port must be int, not '9092'"),
        ("port = 70_000", "port must be from 0 to 65,535"),
        ("allow_remote = 1", "allow_remote must be bool"),
        ("log_format = 'xml'", "log_format is one of text, json"),
        ("[broker]\nnum.partitions = 0", "num_partitions must be between 1 and"),
        ("[broker]\nnum.partitions = 'many'", "num_partitions must be int"),
        ("[broker]\nnum.partition = 5", "did you mean 'num_partitions'"),
        ("[elsewhere]\nnum.partitions = 5", "unknown setting 'elsewhere.num.partitions'"),
        ("retention_ms = 5\n[topics]\nretention.ms = 5", "gives retention_ms twice"),
    ],
)
def test_an_invalid_configuration_file(run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "broker.toml").write_text(text)
    ran = run("serve", "data", "--config", "broker.toml")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) <= 2
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("number", "first"), [(signal.SIGINT, "\r\nstopped"), (signal.SIGTERM, "stopped")])
def test_output_on_a_terminal(tmp_path: Path, number: int, first: str) -> None:
    ours, its = os.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        flags = ("--port", "0", "--advertised-host", "log.example", "--advertised-port", "9000")
        command = [*COMMAND, "serve", "data", *flags]
        with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=its, stderr=its) as process:
            os.close(its)
            said = ""
            while "this machine only" not in said or not said.endswith("\n"):
                said += terminal.read(4096).decode()
            process.send_signal(number)
            rest = ""
            while "served\r\n" not in rest:
                rest += terminal.read(4096).decode()
            assert process.wait(TIMEOUT_S) == 0
    assert "advertised  log.example:9000" in said.splitlines()[-2]
    assert rest.startswith(first)


@pytest.mark.slow
def test_invalid_flags(run: Run, tmp_path: Path) -> None:
    for arguments, says in (
        (["--port", "70000"], "a port is a number up to 65535"),
        (["--config", "none.toml"], "none.toml cannot be read"),
        (["--set", "port=5"], "--port"),
        (["--set", "retention"], "write name=value"),
        (["--host", "192.0.2.1", "--allow-remote", "--insecure"], "cannot listen on 192.0.2.1:9092"),
    ):
        ran = run("serve", "data", *arguments)
        assert ran.code in (1, 2)
        assert ran.out == ""
        assert says in ran.err
    assert not (tmp_path / "data").exists()


def test_messages_as_json(serve: Callable[..., Served]) -> None:
    served = serve("--json", "--log-format", "json")
    for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        with socket.create_connection(("127.0.0.1", served.facts["port"]), TIMEOUT_S) as client:
            client.sendall(garbage)
            while client.recv(4096):
                pass
    code, _, errors = served.end()
    assert code == 0
    http, tls = map(json.loads, errors.splitlines())
    assert http["level"] == tls["level"] == "warning"
    assert "this is HTTP" in http["message"]
    assert "this is TLS" in tls["message"]


def test_clients_cannot_inject_log_lines(serve: Callable[..., Served]) -> None:
    served = serve("--json")
    name = b"evil\n2026-01-01 ERROR   all is lost"
    header = struct.pack(">hhih", 999, 0, 1, len(name)) + name
    with socket.create_connection(("127.0.0.1", served.facts["port"]), TIMEOUT_S) as client:
        client.sendall(struct.pack(">i", len(header)) + header)
        while client.recv(4096):
            pass
    _, _, errors = served.end()
    assert len(errors.splitlines()) == 1


def test_metrics_and_health(serve: Callable[..., Served]) -> None:
    served = serve("--json", "--metrics-port", "0")
    produce(served, "events", 10)

    def get(path: str) -> str:
        url = f"http://127.0.0.1:{served.facts['metrics_port']}{path}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())

    text = get("/metrics")
    assert 'embedlog_log_end_offset{partition="0",topic="events"} 10.0' in text
    assert re.search(r'embedlog_requests_total\{api="Produce",error="NONE"\} [1-9]', text)
    assert json.loads(get("/health"))["status"] == "ok"
    assert served.end()[0] == 0


def test_without_prometheus_client(run: Run, tmp_path: Path) -> None:
    """The broker works; a metrics port is refused in a line that says what to install."""
    code = """
import sys
sys.modules["prometheus_client"] = None
from embedlog.cli import main
sys.exit(main(["serve", "data", "--port", "0", *sys.argv[1:]]))
"""
    command = [sys.executable, "-c", code]
    ran = run("--metrics-port", "0", command=command)
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'embedlog[cluster]'" in ran.err
    with subprocess.Popen(
        [*command, "--json"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["port"]
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.slow
def test_a_decompression_bomb_and_many_disconnecting_clients(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    """100 KB that hold 100 MB, which an older broker took, and old clients whose fetches convert them."""
    bomb = batch_of(*[bytes(100_000)] * 1_000, compression=codec.GZIP)
    assert len(bomb) < 200_000
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.backend.store.partition("t", 0).append(bytearray(bomb))  # type: ignore[attr-defined]
    served = serve("--json")
    before = peak(served.process.pid)
    wires = [Wire(served) for _ in range(24)]
    for version in (2, 3):
        for wire in wires:
            wire.send(fetch("t", 0, max_bytes=50 << 20, partition_max_bytes=50 << 20), version)
    for wire in wires:
        (part,) = wire.receive(FetchRequest, 2, 1).responses[0].partitions
        assert part.error_code == 0
        assert part.records
    assert peak(served.process.pid) - before < 64 << 20
    for wire in wires:
        wire.close()
    code, _, errors = served.end()
    assert (code, errors) == (0, "")


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10  # type: ignore[index]


# -- --secure ------------------------------------------------------------------------------------------------


def topics_at(served: Served) -> list[str]:
    """As the administrator."""
    port = served.facts["port"]
    with embedlog.open(f"kafka://localhost:{port}", client_config=served.facts["client_properties"]) as log:
        log.create_topic("t", exist_ok=True)
        return log.topics()


@pytest.mark.slow
def test_what_it_makes_is_kept(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("--secure", "--json")
    assert topics_at(served) == ["t"]
    made = tmp_path / "data-security"
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in made.iterdir()}
    private = dict.fromkeys(("broker.pem", "ca-key.pem", "client.properties"), 0o600)
    assert {name: mode for name, mode in modes.items() if name != "ca.pem"} == private
    assert modes.keys() == {*private, "ca.pem"}
    assert stat.S_IMODE((tmp_path / "data" / "users.json").stat().st_mode) == 0o600
    before = {file.name: file.read_bytes() for file in made.iterdir()}
    assert served.end()[0] == 0
    again = serve("--secure", "--json")
    assert topics_at(again) == ["t"]
    assert {file.name: file.read_bytes() for file in made.iterdir()} == before


def test_nobody_comes_in_otherwise(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("--secure", "--json")
    port, authority = served.facts["port"], tmp_path / "data-security" / "ca.pem"
    with pytest.raises(BrokerUnavailable, match="TLS"):
        embedlog.open(f"kafka://localhost:{port}", request_timeout_ms=5_000, default_api_timeout_ms=5_000)
    with pytest.raises(AuthenticationFailed):
        embedlog.open(
            f"kafka://admin@localhost:{port}",
            security_protocol="SASL_SSL",
            ssl_cafile=str(authority),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_password="guessed",
        )


@pytest.mark.slow
def test_a_lost_file_gets_another_password(serve: Callable[..., Served], tmp_path: Path) -> None:
    first = serve("--secure", "--json")
    path = tmp_path / "data-security" / "client.properties"
    lost = path.read_text()
    assert first.end()[0] == 0
    path.unlink()
    served = serve("--secure", "--json")
    assert path.read_text() != lost
    assert topics_at(served) == ["t"]
    (tmp_path / "old.properties").write_text(lost)
    with pytest.raises(AuthenticationFailed):
        embedlog.open(
            f"kafka://localhost:{served.facts['port']}", client_config=str(tmp_path / "old.properties")
        )


@pytest.mark.slow
def test_a_new_log_beside_old_certificates_has_its_administrator(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    assert serve("--secure", "--json").end()[0] == 0
    shutil.rmtree(tmp_path / "data")
    assert topics_at(serve("--secure", "--json")) == ["t"]


@pytest.mark.slow
def test_a_kill_between_the_user_and_its_file_locks_nobody_out(
    serve: Callable[..., Served], program: Callable[..., Program], tmp_path: Path
) -> None:
    """Beside the file of a log that is gone, which must not pass for the new administrator's."""
    assert serve("--secure", "--json").end()[0] == 0
    shutil.rmtree(tmp_path / "data")
    killed = program(
        textwrap.dedent("""
        import os, signal, sys
        from embedlog.cluster.secured import Secured
        from embedlog.files.filesystem import FileSystem

        write = FileSystem.write_file

        def killed(fs, path, *rest, **options):
            if path.endswith("client.properties"):
                os.kill(os.getpid(), signal.SIGKILL)
            return write(fs, path, *rest, **options)

        FileSystem.write_file = killed
        Secured(sys.argv[1], [])
        """),
        tmp_path / "data",
    )
    assert killed.process.wait() == -signal.SIGKILL
    assert topics_at(serve("--secure", "--json")) == ["t"]


def test_other_machines_may_come(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(
        "--secure", "--json", "--host", "0.0.0.0", "--allow-remote", "--advertised-host", "localhost"
    )
    assert served.facts["listening"] == f"localhost:{served.facts['port']}"
    assert topics_at(served) == ["t"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--zookeeper", "127.0.0.1:1"], "leave out zookeeper"),
        (["--insecure"], "leave out insecure"),
        (["--set", "listeners=PLAINTEXT://127.0.0.1:0"], "leave out listeners"),
    ],
)
def test_one_way_to_be_secure(run: Run, arguments: list[str], says: str) -> None:
    ran = run("serve", "data", "--secure", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_a_directory_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="users are in ZooKeeper"):
        Secured(str(tmp_path), [])
