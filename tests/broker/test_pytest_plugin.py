"""The pytest plugin, run by a pytest of its own as in a user's project, and the broker that it gives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka.admin import NewTopic
from wire import Wire, fetch, produce

import embedlog
from embedlog.cluster import BrokerForTests
from embedlog.codec import encode_batch
from embedlog.wire.apis.delete_groups import DeleteGroupsRequest
from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from embedlog.wire.apis.metadata import MetadataRequest
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.error_codes import ErrorCode

BATCH = bytes(encode_batch([(None, b"v", (), 0)]))
REQUESTS: list[tuple[Any, int]] = [
    (produce("t", BATCH), 9),
    (fetch("t", 0), 11),
    (MetadataRequest(topics=None), 9),
    (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    (DeleteGroupsRequest(groups_names=["g"]), 2),
    (
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
            ],
        ),
        5,
    ),
]
"""Of each way in which an answer is made."""

TESTS = """
import pytest
from kafka import KafkaConsumer, KafkaProducer

def test_one(kafka_broker):
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    producer.send("orders", b"first").get(60)
    producer.close()
    assert [record.value for record in kafka_broker.log.read("orders", follow=False)] == [b"first"]

def test_each_test_has_its_own_log(kafka_broker):
    assert kafka_broker.log.topics() == []

def test_shared_a(kafka_broker_session):
    kafka_broker_session.log.create_topic("shared")

def test_shared_b(kafka_broker_session):
    assert kafka_broker_session.log.topics() == ["shared"]
    assert kafka_broker_session.settings.num_partitions == 3

@pytest.fixture(scope="session")
def kafka_broker_settings():
    return {"num_partitions": 3}
"""


TESTS_OF_ONE_BROKER = """
import pytest
from confluent_kafka import Producer

pytestmark = pytest.mark.kafka_broker(mode="session")
PORTS = set()

def use(broker, value):
    PORTS.add(broker.port)
    assert broker.log.topics() == broker.log.groups() == []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", value)
    assert producer.flush(60) == 0
    assert [record.value for record in broker.log.read("orders")] == [value]
    with broker.log.consumer("orders", group="billing") as consumer:
        assert [record.value for record in consumer.poll(60_000)] == [value]
        consumer.commit()

def test_a(kafka_broker):
    use(kafka_broker, b"a")
    kafka_broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", times=None)

def test_b(kafka_broker):
    use(kafka_broker, b"b")
    kafka_broker.stop()

def test_c(kafka_broker):
    use(kafka_broker, b"c")
    assert len(PORTS) == 1

@pytest.mark.kafka_broker(mode="test")
def test_one_of_its_own(kafka_broker):
    use(kafka_broker, b"d")
    assert len(PORTS) == 2

@pytest.mark.kafka_broker
def test_the_default_is_one_of_its_own(kafka_broker):
    use(kafka_broker, b"e")
    assert len(PORTS) == 3
"""

MISTAKES = """
import pytest

OPEN = []

@pytest.mark.kafka_broker(mode="module")
def test_no_such_mode(kafka_broker):
    pass

@pytest.mark.kafka_broker(mode="session")
def test_an_open_consumer(kafka_broker):
    kafka_broker.log.create_topic("t")
    OPEN.append(kafka_broker.log.consumer("t", group="left-open"))
    OPEN[0].poll(1_000)

@pytest.mark.kafka_broker(mode="session")
def test_the_topics_are_gone(kafka_broker):
    assert kafka_broker.log.topics() == []
"""


def run(tmp_path: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_with_broker.py").write_text(tests)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *options,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )


def test_the_fixtures(tmp_path: Path) -> None:
    ran = run(tmp_path, TESTS)
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_one_broker_for_the_session(tmp_path: Path) -> None:
    ran = run(tmp_path, TESTS_OF_ONE_BROKER, "--strict-markers", "-W", "error")
    assert ran.returncode == 0, ran.stdout
    assert "5 passed" in ran.stdout


def test_mistakes_are_told(tmp_path: Path) -> None:
    ran = run(tmp_path, MISTAKES)
    assert "kafka_broker(mode='module'): the modes are test and session" in ran.stdout
    assert "consumers of the groups left-open are open: close them in the test" in ran.stdout
    assert "2 passed, 2 errors" in ran.stdout


def test_a_run_that_asks_for_no_broker_imports_none(tmp_path: Path) -> None:
    tests = "import sys\ndef test_it():\n    assert 'embedlog' not in sys.modules\n"
    ran = run(tmp_path, tests)
    assert ran.returncode == 0, ran.stdout


# -- stop and start ------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[BrokerForTests]:
    with BrokerForTests() as broker:
        yield broker


def confluent_producer(broker: BrokerForTests, **settings: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})


def send(producer: confluent_kafka.Producer, topic: str = "t", value: bytes = b"v") -> int | None:
    """The code of the error that a record met; None if it was acknowledged."""
    codes: list[int | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: codes.append(error and error.code()))
    assert producer.flush(120) == 0
    (code,) = codes
    return code


def values(broker: BrokerForTests, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in broker.log.read(topic)]


def test_records_and_clients_outlive_a_restart(broker: BrokerForTests) -> None:
    address, first = broker.bootstrap_servers, broker.log
    producer = confluent_producer(broker)
    assert send(producer, value=b"before") is None
    broker.stop()
    broker.stop()
    with pytest.raises(embedlog.Closed, match="the broker is stopped"):
        assert broker.log
    assert (broker.bootstrap_servers, repr(broker).endswith("stopped>")) == (address, True)
    producer.produce("t", b"meanwhile")
    broker.start()
    broker.start()
    assert producer.flush(120) == 0
    broker.restart()
    assert send(producer, value=b"after") is None
    assert broker.bootstrap_servers == address
    assert values(broker) == [b"before", b"meanwhile", b"after"]
    with pytest.raises(embedlog.Closed):
        first.topics()


def test_its_directory_goes_in_the_end_alone(tmp_path: Path) -> None:
    with BrokerForTests() as broker:
        directory = Path(broker.log.path)
        broker.restart()
        assert directory.exists()
    assert not directory.exists()
    with BrokerForTests(tmp_path / "kept") as broker:
        broker.log.create_topic("t")
    with BrokerForTests(tmp_path / "kept") as broker:
        assert broker.log.topics() == ["t"]


def test_several_listeners_keep_their_ports() -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0"
    protocols = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
    with BrokerForTests(listeners=listeners, listener_security_protocol_map=protocols) as broker:
        before = [listener.port for listener in broker.broker.listeners]
        broker.restart()
        assert [listener.port for listener in broker.broker.listeners] == before


# -- faults --------------------------------------------------------------------------------------------------


def test_a_client_retries_what_may_pass(broker: BrokerForTests) -> None:
    broker.log.create_topic("t")
    fault = broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(confluent_producer(broker)) is None
    assert (fault.requests, values(broker)) == (2, [b"v"])
    assert send(confluent_producer(broker)) is None
    assert fault.requests == 2


def test_a_client_reports_what_does_not_pass(broker: BrokerForTests) -> None:
    """Nothing is appended. A number is as good as a name."""
    broker.log.create_topic("t")
    broker.inject("Produce", error=44)
    producer = confluent_producer(broker)
    assert send(producer) == confluent_kafka.KafkaError.POLICY_VIOLATION
    assert values(broker) == []
    assert send(producer) is None
    assert values(broker) == [b"v"]


def test_faults_choose_topics_and_clients(broker: BrokerForTests) -> None:
    for topic in ("t", "u"):
        broker.log.create_topic(topic)
    broker.inject("Produce", error="POLICY_VIOLATION", topic="t", client_id="bad", times=None)
    good, bad = (confluent_producer(broker, **{"client.id": name}) for name in ("good", "bad"))
    assert send(good, "t") is send(good, "u") is send(bad, "u") is None
    assert send(bad, "t") == confluent_kafka.KafkaError.POLICY_VIOLATION
    broker.clear_faults()
    assert send(bad, "t") is None


def test_the_rest_of_a_request_is_handled(broker: BrokerForTests) -> None:
    for topic in ("t", "u"):
        broker.log.create_topic(topic)
    data = [
        TopicProduceData(
            name=topic,
            partition_data=[PartitionProduceData(index=0, records=BATCH)],
        )
        for topic in ("t", "u")
    ]
    with (
        broker.inject("Produce", error="POLICY_VIOLATION", topic="t", times=None) as fault,
        Wire(broker) as wire,
    ):
        answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=data), 9)
        codes = {each.name: each.partition_responses[0].error_code for each in answer.responses}
        assert codes == {"t": ErrorCode.POLICY_VIOLATION, "u": 0}
        assert wire.produce("t", BATCH, version=9).error_code == 44
        assert fault.requests == 2
    assert (values(broker, "t"), values(broker, "u")) == ([], [b"v"])
    with Wire(broker) as wire:
        assert wire.produce("t", BATCH, version=9).error_code == 0


def test_a_delay_comes_after_the_append(broker: BrokerForTests) -> None:
    """A producer that gives up sends again, and idempotence keeps the record single."""
    broker.log.create_topic("t")
    fault = broker.inject("Produce", delay_ms=600_000)
    settings = {"enable.idempotence": True, "socket.timeout.ms": 1_000, "request.timeout.ms": 1_000}
    assert send(confluent_producer(broker, **settings)) is None
    assert (fault.requests, values(broker)) == (1, [b"v"])


def test_a_delayed_response_arrives(broker: BrokerForTests) -> None:
    broker.log.create_topic("t")
    for error in (None, "POLICY_VIOLATION"):
        broker.inject("Produce", error=error, delay_ms=50)
        with Wire(broker) as wire:
            began = time.monotonic()
            code = wire.produce("t", BATCH).error_code
            assert (code, time.monotonic() - began >= 0.05) == (44 if error else 0, True)
    assert len(values(broker)) == 1


@pytest.mark.parametrize("end", ["clear_faults", "stop"])
def test_no_end_waits_for_a_delay(broker: BrokerForTests, end: str) -> None:
    broker.log.create_topic("t")
    fault = broker.inject("Metadata", delay_ms=600_000)
    with Wire(broker) as wire:
        number = wire.send(MetadataRequest(topics=None), 9)
        while not fault.requests:
            pass
        getattr(broker, end)()
        assert wire.receive(MetadataRequest, 9, number).topics[0].name == "t"


def test_a_consumer_meets_errors(broker: BrokerForTests) -> None:
    """A commit that fails is the program's to handle; a fetch is retried."""
    broker.log.create_topic("t")
    broker.log.append("t", b"v")
    fetch = broker.inject("Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="t", times=2)
    coordinator = broker.inject("FindCoordinator", error="COORDINATOR_NOT_AVAILABLE")
    join = broker.inject("JoinGroup", error="COORDINATOR_LOAD_IN_PROGRESS")
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.error.backoff.ms": 10,
        "retry.backoff.ms": 10,
    }
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.subscribe(["t"])
        message = consumer.poll(120)
        assert message is not None and message.value() == b"v"
        assert (fetch.requests, coordinator.requests, join.requests) == (2, 1, 1)
        broker.inject("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", topic="t")
        with pytest.raises(confluent_kafka.KafkaException, match="Group authorization failed"):
            consumer.commit(asynchronous=False)
        assert broker.log.group("g").offsets() == {}
        consumer.commit(asynchronous=False)
        assert len(broker.log.group("g").offsets()) == 1


def test_aiokafka_meets_them_too(broker: BrokerForTests) -> None:
    broker.log.create_topic("t")

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            fault = broker.inject("Produce", error="NOT_ENOUGH_REPLICAS", times=2)
            await producer.send_and_wait("t", b"v")
            assert fault.requests == 2
            broker.inject("Produce", error="TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("t", b"refused")

    asyncio.run(produce())
    assert values(broker) == [b"v"]


def test_administrators_meet_them(broker: BrokerForTests) -> None:
    broker.inject("CreateTopics", error="POLICY_VIOLATION", topic="refused")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    futures = admin.create_topics([NewTopic(name, 1) for name in ("made", "refused")])
    futures["made"].result(120)
    with pytest.raises(confluent_kafka.KafkaException, match="POLICY_VIOLATION"):
        futures["refused"].result(120)
    assert broker.log.topics() == ["made"]
    broker.inject("DeleteTopics", error="TOPIC_DELETION_DISABLED")
    with pytest.raises(confluent_kafka.KafkaException):
        admin.delete_topics(["made"])["made"].result(120)
    assert broker.log.topics() == ["made"]
    broker.inject("Metadata", error="LEADER_NOT_AVAILABLE", topic="made")
    producer = confluent_producer(broker)
    assert send(producer, "made") is None


def test_faults_outlive_a_restart(broker: BrokerForTests) -> None:
    broker.log.create_topic("t")
    fault = broker.inject("Produce", error="POLICY_VIOLATION")
    broker.restart()
    assert send(confluent_producer(broker)) == confluent_kafka.KafkaError.POLICY_VIOLATION
    assert fault.requests == 1


def test_each_way_to_answer_has_the_error_in_it(broker: BrokerForTests) -> None:
    """Of requests that change something and of those that read, as clients decode it."""
    broker.log.create_topic("t")
    broker.log.append("t", b"v")
    with Wire(broker) as wire:
        for request, version in REQUESTS:
            with broker.inject(request.api.name, error="UNKNOWN_SERVER_ERROR") as fault:
                answer = wire.ask(request, version)
                assert fault.requests == 1
                assert "error_code=-1" in repr(answer)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"api": "Prodcue", "error": 6}, "give the name of one of Kafka's APIs"),
        ({"api": "Produce"}, "give an error"),
        ({"api": "Produce", "error": "NO_SUCH"}, "one of Kafka's errors"),
        ({"api": "Produce", "error": 0}, "one of Kafka's errors"),
        ({"api": "Produce", "error": 6, "times": 0}, "times"),
        ({"api": "Produce", "error": 6, "delay_ms": -1}, "delay_ms"),
        ({"api": "JoinGroup", "error": 27, "topic": "t"}, "a fault of JoinGroup has no topic"),
        ({"api": "ApiVersions", "error": 35}, "only a delay"),
    ],
)
def test_impossible_faults_are_refused(broker: BrokerForTests, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(embedlog.InvalidArgument, match=why):
        broker.inject(**arguments)
