"""The blocks of README and docs that say `kafka://` run against Apache Kafka; only addresses are others.

A new block fails `test_every_block_is_run` until it is run here, or named with a reason.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from certificates import Authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from documents import DOCS, ROOT, Shell, on_free_ports, python_blocks, run_blocks, run_python
from java_programs import apache_kafka, free_port
from kafka_tools import classpath
from test_reference_commands import FIGURES

import embedlog
from embedlog import Log, UnsupportedByBackend
from embedlog.cluster import Broker

PASSWORD: Final = "correct horse battery staple"
PLAIN: Final = ("localhost:9092", "a:9092", "b:9092")
_BLOCK: Final = re.compile(
    r'^( *)```(?:\w*)(?: title="[^"]+")?\n(?P<fenced>.*?)^\1```$'
    r"|\n\n(?P<indented>(?:    \S.*\n| *\n)+)",
    re.S | re.M,
)


class Kafka(NamedTuple):
    """An Apache Kafka with the defaults of its groups."""

    plain: str
    secure: str
    properties: str


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    path = tmp_path_factory.mktemp("kafka")
    authority = Authority(path)
    port = free_port()
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    of_secure = "listener.name.sasl_ssl"
    settings = {
        "group.initial.rebalance.delay.ms": 3_000,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        f"{of_secure}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"{of_secure}.scram-sha-512.sasl.jaas.config": f"{scram};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    users = [f"SCRAM-SHA-512=[name=alice,password={PASSWORD}]"]
    properties = (
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.file}\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={scram} username="alice" password="{PASSWORD}";\n'
    )
    classes = classpath(path / "classpath", "connect")
    with apache_kafka(classes, path, {"SASL_SSL": port}, settings, users) as plain:
        allow(plain, ResourceType.TOPIC, "orders", AclOperation.READ, AclOperation.WRITE)
        allow(plain, ResourceType.TOPIC, "clicks", AclOperation.READ, AclOperation.WRITE)
        allow(plain, ResourceType.GROUP, "billing", AclOperation.READ)
        yield Kafka(plain, f"127.0.0.1:{port}", properties)


def allow(bootstrap: str, kind: ResourceType, prefix: str, *operations: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    rights = [
        AclBinding(
            kind, prefix, ResourcePatternType.PREFIXED, "User:alice", "*", operation, AclPermissionType.ALLOW
        )
        for operation in operations
    ]
    for done in admin.create_acls(rights).values():
        done.result()


@pytest.fixture
def log(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Of the broker, without the topics and groups of other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "client.properties").write_text(kafka.properties)
    (tmp_path / "client.properties").chmod(0o600)
    with embedlog.open(f"kafka://{kafka.plain}") as log:
        for group in log.groups():
            log.group(group).delete()
        for topic in log.topics():
            log.delete_topic(topic)
        yield log


def kafka_blocks() -> dict[str, str]:
    """The blocks with an address of brokers, by their page and the first line that has one."""
    named = {}
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        for match in _BLOCK.finditer(path.read_text()):
            text = match["fenced"] or match["indented"] or ""
            lines = [line.strip() for line in text.splitlines() if "kafka://" in line]
            if lines:
                name = f"{path.relative_to(ROOT)}: {lines[0]}"
                assert name not in named, name
                named[name] = text
    return named


BLOCKS: Final = kafka_blocks()


class Reader(NamedTuple):
    """Where a reader of the docs has arrived: a directory, a shell in it, and brokers."""

    kafka: Kafka
    log: Log
    shell: Shell
    directory: Path

    def here(self, text: str) -> str:
        """A text with the addresses of these brokers instead of its own."""
        for address in PLAIN:
            text = re.sub(rf"(?<![\w.]){re.escape(address)}", self.kafka.plain, text)
        return re.sub(r"\b(?:broker1|localhost):9093", self.kafka.secure, text)

    def clicks(self, **settings: object) -> None:
        self.log.create_topic("clicks", partitions=2, **settings)
        self.log.append_many("clicks", [(b"user-%d" % n, b"click %d" % n) for n in range(100)])


@pytest.fixture
def reader(kafka: Kafka, log: Log, tmp_path: Path) -> Iterator[Reader]:
    with Shell(tmp_path) as shell:
        yield Reader(kafka, log, shell, tmp_path)


def promote(text: str, reader: Reader) -> None:
    address = f"kafka://{reader.kafka.plain}"
    at_brokers = text.replace("kafka://{broker.bootstrap_servers}", address)
    assert at_brokers.count(address) == 1
    run_python(at_brokers.replace('bill("./shop")', f'bill("{address}")'), {})


def open_secured(text: str, reader: Reader) -> None:
    (call,) = re.findall(r"embedlog\.open\(.*client_config.*\)", reader.here(text))
    reader.log.create_topic("orders")
    with eval(call, {"embedlog": embedlog}) as log:
        assert log.topics() == ["orders"]


def open_with_a_password(text: str, reader: Reader) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDLOG_SASL_PASSWORD", PASSWORD)
        open_secured(text, reader)
        (call,) = re.findall(r"embedlog\.open\(.*sasl_mechanism.*\)", reader.here(text))
        trusted = re.findall("truststore.location=(.*)", reader.kafka.properties)
        with eval(
            call.replace(")", ", ssl_cafile=cafile)"), {"embedlog": embedlog, "cafile": trusted[0]}
        ) as log:
            assert log.topics() == ["orders"]


def consume_secured(text: str, reader: Reader) -> None:
    reader.log.create_topic("orders")
    reader.log.append_many("orders", [b"first", b"second"])
    trusted = re.findall("truststore.location=(.*)", reader.kafka.properties)
    program = reader.here(text).replace("data-security/ca.pem", trusted[0])
    (reader.directory / "consume.py").write_text(program)
    page = (DOCS / "how-to/secure-a-broker.md").read_text()
    (shown,) = re.findall(r"(\$ python consume\.py\n.*?)```", page, re.S)
    reader.shell.type(shown)


def administer(text: str, reader: Reader) -> None:
    reader.clicks(compression_type="zstd")
    lines = "".join(f"user-{n}\tvisit {n}\n" for n in range(1_000))
    (reader.directory / "lines.tsv").write_text(lines)
    reader.shell.type(reader.here(text).replace("tail -f", "tail -n 0"), figures=FIGURES)


def mirror_secured(text: str, reader: Reader) -> None:
    reader.clicks()
    reader.shell.type(reader.here(text).replace("mirror --from", "mirror --until-caught-up --from"))
    reader.shell.type("$ embedlog cat ./copy clicks | wc -l\n100\n")


def mirror_in_a_program(text: str, reader: Reader) -> None:
    reader.clicks()
    names: dict[str, object] = {}
    run_python(reader.here(text), names)
    with names["log"] as copy:  # type: ignore[attr-defined]
        assert sum(1 for _ in copy.read("clicks")) == 100


def mirror_by_commands(text: str, reader: Reader) -> None:
    """The second command's target is an Apache Kafka, and its source is one of embedlog."""
    reader.clicks()
    into_a_copy, into_kafka, of_two = re.split(r"^(?=\$)", text, flags=re.M)[1:]
    reader.shell.type(reader.here(into_a_copy), figures=FIGURES)
    reader.shell.type("$ embedlog cat ./copy clicks | wc -l\n100\n")
    with embedlog.open("./east") as east, Broker(east, port=0) as broker:
        east.create_topic("orders-east")
        east.append_many("orders-east", [b"1", b"2", b"3"])
        assert "a:9092,kafka://b:9092" in into_kafka  # two brokers of one cluster
        typed = into_kafka.replace("a:9092,kafka://b:9092", broker.bootstrap_servers)
        typed = typed.replace("c:9092", reader.kafka.plain)
        reader.shell.type(typed.replace("mirror --from", "mirror --until-caught-up --from"))
    assert [record.value for record in reader.log.read("orders-east")] == [b"1", b"2", b"3"]
    reader.shell.type(reader.here(of_two).replace("mirror --from", "mirror --until-caught-up --from"))
    reader.shell.type("$ embedlog cat ./copy east.clicks | wc -l\n100\n")


def forward(_: str, reader: Reader) -> None:
    """The whole page: the block copies what the others have made."""
    page = (DOCS / "how-to/bounded-disk.md").read_text()
    served = "$ embedlog serve ./upstream --port 9092 &\n"
    assert served in page
    run_blocks(reader.here(page.replace(served, "")), reader.directory, reader.shell, {})
    assert sum(1 for _ in reader.log.read("readings")) > 0


def work_at_brokers(text: str, reader: Reader) -> None:
    """The block works until it is told to stop; here its function closes the queue after two jobs."""
    reader.log.create_topic("mails")
    reader.log.append_many("mails", [b"first", b"second"])
    sent: list[bytes] = []
    names: dict[str, Any] = {"embedlog": embedlog}

    def send(value: bytes) -> None:
        sent.append(value)
        if len(sent) == 2:
            names["mails"].stop()

    names["send"] = send
    run_python(reader.here(text), names)
    assert sent == [b"first", b"second"]


RUN: Final[dict[str, Callable[[str, Reader], None]]] = {
    'docs/explanation/promoting.md: print(bill(f"kafka://{broker.bootstrap_servers}"))  # [1]': promote,
    'docs/explanation/promoting.md: embedlog.open("kafka://alice@broker1:9093", '
    'client_config="client.properties")': open_secured,
    'docs/explanation/reading-the-source.md: embedlog.open("kafka://alice@broker1:9093", '
    'client_config="client.properties")': open_secured,
    'docs/reference/settings.md: embedlog.open("kafka://broker1:9093", client_config="client.properties")': (
        open_with_a_password
    ),
    'docs/how-to/secure-a-broker.md: "kafka://alice@localhost:9093",': consume_secured,
    "docs/how-to/bounded-disk.md: $ embedlog mirror --from ./data --to kafka://localhost:9092 "
    "--until-caught-up": forward,
    "docs/reference/cli.md: $ embedlog topics list kafka://localhost:9092": administer,
    'docs/explanation/queues.md: with embedlog.open("kafka://localhost:9092") as log, log.queue("mails") as '
    "mails:": work_at_brokers,
    "docs/reference/cli.md: $ embedlog mirror --from kafka://broker1:9093 --to ./copy "
    "--from-config client.properties": mirror_secured,
    "docs/reference/mirroring.md: $ embedlog mirror --from kafka://localhost:9092 --to ./copy "
    "--until-caught-up": mirror_by_commands,
    'docs/reference/mirroring.md: with embedlog.Mirror("kafka://localhost:9092", log, topics="clicks.*") '
    "as mirror:": mirror_in_a_program,
}
OF_THE_GUIDE: Final = {
    "docs/how-to/move-to-kafka.md: $ python shop.py kafka://localhost:9092",
    "docs/how-to/move-to-kafka.md: $ embedlog mirror --from ./shop --to kafka://localhost:9095 "
    "--until-caught-up",
    "docs/how-to/move-to-kafka.md: $ embedlog move ./shop kafka://localhost:9095 --dry-run",
    "docs/how-to/move-to-kafka.md: $ embedlog move ./shop kafka://localhost:9095",
    "docs/how-to/move-to-kafka.md: $ python shop.py kafka://localhost:9095",
    "docs/how-to/move-to-kafka.md: $ embedlog mirror --from kafka://localhost:9095 --to ./back "
    "--until-caught-up",
}
NOT_RUN: Final = {
    'docs/format/directory.md: "east=kafka://a:9092": {': "what a file of a mirror holds, no program",
}


def test_every_block_is_run() -> None:
    assert BLOCKS.keys() == RUN.keys() | OF_THE_GUIDE | NOT_RUN.keys()


@pytest.mark.parametrize("name", RUN)
def test_a_block(name: str, reader: Reader) -> None:
    RUN[name](BLOCKS[name], reader)


def test_the_guide_to_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move to Kafka and back, with a broker of its own, whose files are imported after its end."""
    guide, desk = tmp_path / "guide", tmp_path / "kafka"
    guide.mkdir()
    desk.mkdir()
    monkeypatch.chdir(guide)
    page = (DOCS / "how-to/move-to-kafka.md").read_text()
    served = "$ embedlog serve ./cluster --port 9095 &\n"
    stopped = (
        "$ kill %2; wait %2\n$ embedlog export ./cluster ./kafka-logs --layout kafka\n./kafka-logs: ...\n"
    )
    assert served in page and stopped in page
    with Shell(guide) as shell:
        with apache_kafka(
            classpath(desk / "classpath", "connect"), desk, more={"group.initial.rebalance.delay.ms": 3_000}
        ) as address:
            at_kafka = on_free_ports(page.replace(served, "").replace("localhost:9095", "KAFKA"))
            moved, back = at_kafka.replace("KAFKA", address).split("```console\n" + stopped)
            run_blocks(moved, guide, shell, {})
        shutil.copytree(desk / "kafka", guide / "kafka-logs")
        run_blocks("```console\n" + back, guide, shell, {})


# -- README, whose address is a directory -----------------------------------------------------------------

README: Final = (ROOT / "README.md").read_text()
REFUSED: Final = {
    'log.append("orders", b\'{"total": 12}\', key=b"alice", flush=True)': (
        ", flush=True",
        "1 0 True",
        "1 0 False",
    ),
    'embedlog.open("./shop", shared=True)': (", shared=True", "", ""),
}
"""What brokers do not have, of a block: the block runs without it."""


def test_the_readme(log: Log, kafka: Kafka) -> None:
    """Each block says what it says of a directory, or is refused by name."""
    first, *tour = python_blocks(README)
    namespaces: dict[str, object] = {"__name__": "__main__"}
    run_python(at(first, kafka), dict(namespaces))
    refused = set()
    for block in tour:
        text = at(block, kafka)
        for part, (left_out, shown, differently) in REFUSED.items():
            if part in block:
                refused.add(part)
                with pytest.raises(UnsupportedByBackend), contextlib.redirect_stdout(None):
                    exec(text, namespaces)
                text = text.replace(left_out, "").replace(shown, differently)
        text = text.replace('log.create_topic("orders",', 'log.create_topic("orders", exist_ok=True,')
        run_python(text, namespaces)
    assert refused == REFUSED.keys()
    assert len(tour) == 5
    assert sum(1 for _ in log.read("invoices")) == 1
    billed = log.group("receipts").offsets()
    read = sum(committed.offset for committed in billed.values())
    assert read == sum(1 for _ in log.read("receipts")) == 500


def test_the_page_on_transactions(log: Log, kafka: Kafka) -> None:
    """As on a directory: it says that brokers have them, too."""
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = python_blocks((DOCS / "explanation/transactions.md").read_text())
    assert len(blocks) == 4
    for block in blocks:
        run_python(at(block, kafka), names)


def at(block: str, kafka: Kafka) -> str:
    return re.sub(r'embedlog\.open\("\./\w+"', f'embedlog.open("kafka://{kafka.plain}"', block)
