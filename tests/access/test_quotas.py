"""Quotas as clients meet them: answers that say to wait, connections that rest, rules that change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from wire import TIMEOUT_S, Wire, fetch, produce
from zookeepers import Znodes, eventually

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.network.connection import Connection
from embedlog.codec import encode_batch
from embedlog.files.names import QUOTAS_FILE
from embedlog.security.quota_store import StoredQuotas
from embedlog.security.scram import credential_of
from embedlog.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from embedlog.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from embedlog.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from embedlog.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from embedlog.wire.apis.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.error_codes import ErrorCode

_RATE = 2_000  # bytes per second: ten seconds' worth is the burst that the first windows allow
_VALUE = b"x" * 1_000
_BATCH = encode_batch([(None, _VALUE, (), 0)] * 4)


def _entry(
    *entity: tuple[str, str | None], remove: tuple[str, ...] = (), **values: float
) -> RequestEntryData:
    return RequestEntryData(
        entity=[RequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            *(OpData(key=key, value=value, remove=False) for key, value in values.items()),
            *(OpData(key=key, value=0.0, remove=True) for key in remove),
        ],
    )


def _alter(
    wire: Wire, *entries: RequestEntryData, validate_only: bool = False, version: int = 1
) -> list[Any]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    answer: AlterClientQuotasResponse = wire.ask(request, version)
    return answer.entries


def _set(broker: Broker, *entity: tuple[str, str | None], **values: float) -> None:
    with Wire(broker, "admin") as wire:
        assert [each.error_code for each in _alter(wire, _entry(*entity, **values))] == [0]


def _throttled(wire: Wire, request: Callable[[], int]) -> int:
    """Ask until an answer says to wait; how long."""
    for _ in range(1_000):
        if throttle_ms := request():
            return throttle_ms
    raise AssertionError("no answer says to wait")


def _connection(broker: Broker, client_id: str) -> Connection:
    found = [
        each
        for processor in broker.server.processors
        for each in list(processor.connections)
        if each.client_id == client_id
    ]
    assert len(found) == 1
    return found[0]


# -- what clients see ----------------------------------------------------------------------------------------


def test_without_quotas_nothing_is_measured(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("t")
    for _ in range(20):
        assert wire.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms == 0
    assert broker.context.quotas is not None
    assert len(broker.context.quotas) == 0


def test_a_producer_beyond_its_rate_is_told_to_wait_and_its_connection_rests(broker: Broker) -> None:
    broker.log.create_topic("t")
    _set(broker, ("client-id", "greedy"), producer_byte_rate=_RATE)
    with Wire(broker, "greedy") as greedy, Wire(broker, "modest") as modest:
        throttle_ms = _throttled(greedy, lambda: greedy.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms)
        assert (
            throttle_ms <= len(_BATCH) / _RATE * 1000 + 1_100
        )  # of one request beyond ten seconds of the rate
        connection = _connection(broker, "greedy")
        greedy.send(MetadataRequest(topics=[]), 9)
        assert not connection.may_expire  # it rests: closing it as idle would be unfair
        for _ in range(50):
            assert modest.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms == 0
        assert connection.is_idle  # the request waits: nothing is being answered
    assert broker.context.quotas is not None
    assert broker.context.quotas.throttled["producer_byte_rate"] == 1
    assert broker.context.quotas.throttle_ms["producer_byte_rate"] == throttle_ms


@pytest.mark.slow
def test_requests_sent_during_a_rest_are_answered_after_it(broker: Broker) -> None:
    broker.log.create_topic("t")
    _set(broker, ("client-id", "greedy"), producer_byte_rate=100_000)
    with Wire(broker, "greedy") as greedy:
        began = time.monotonic()
        numbers = [greedy.send(produce("t", bytes(_BATCH)), 9) for _ in range(260)]
        told = [greedy.receive(produce("t", b""), 9, number).throttle_time_ms for number in numbers]
        assert any(told)
        assert time.monotonic() - began >= sum(told[:-1]) / 1000
    assert broker.log.offsets("t")[0].log_end_offset == 260 * 4


def test_a_rest_holds_up_neither_the_end_of_a_client_nor_of_the_broker() -> None:
    with Broker() as broker:
        broker.log.create_topic("t")
        _set(broker, ("client-id", None), producer_byte_rate=1)
        wires = [Wire(broker, f"client-{n}") for n in range(2)]
        for each in wires:
            assert each.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms > 1_000_000
        wires[0].close()
        eventually(lambda: broker.server.connections == 1, "the broker notices that the client has gone")
    wires[1].close()


def test_acks_0_is_slowed_too(broker: Broker) -> None:
    broker.log.create_topic("t")
    _set(broker, ("client-id", "silent"), producer_byte_rate=10)
    with Wire(broker, "silent") as wire:
        wire.send(produce("t", bytes(_BATCH), acks=0), 9)
        eventually(lambda: not _connection(broker, "silent").may_expire)


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_consumer_beyond_its_rate_gets_no_records(broker: Broker, version: int) -> None:
    broker.log.create_topic("t")
    for _ in range(10):
        broker.log.append_many("t", [_VALUE] * 4)
    _set(broker, ("user", "ANONYMOUS"), consumer_byte_rate=_RATE)
    with Wire(broker, "reader") as reader:
        fetched = [reader.ask(fetch("t", 0, max_bytes=4_000), version) for _ in range(1)]
        while not fetched[-1].throttle_time_ms:
            fetched.append(reader.ask(fetch("t", 0, max_bytes=4_000), version))
        *before, last = fetched
        sizes = [len(each.responses[0].partitions[0].records) for each in before]
        assert _RATE * 10 - 4_200 <= sum(sizes) <= _RATE * 11
        assert not last.responses
        assert (last.error_code, last.session_id) == (0, 0)


def test_a_fetch_session_goes_on_after_a_rest(broker: Broker) -> None:
    broker.log.create_topic("t")
    broker.log.append_many("t", [_VALUE] * 4)
    with Wire(broker, "reader") as reader:
        first = reader.ask(fetch("t", 0, session_id=0, session_epoch=0), 12)
        assert first.session_id
        _set(broker, ("client-id", "reader"), request_percentage=0.000_001)
        again = fetch("t", 0, session_id=first.session_id, session_epoch=1)
        broker.log.append_many("t", [_VALUE] * 4)
        throttled = reader.ask(again, 12)
        assert (throttled.session_id, throttled.error_code, throttled.responses) == (first.session_id, 0, [])
        assert 0 < throttled.throttle_time_ms <= 1_000  # a window
        _set(broker, ("client-id", "reader"), request_percentage=1_000_000)
        more = reader.ask(fetch("t", 0, session_id=first.session_id, session_epoch=2), 12)
        assert more.error_code == 0
        assert len(more.responses[0].partitions[0].records) > 8_000


def test_a_batch_larger_than_the_quota_ever_allows_arrives(broker: Broker) -> None:
    broker.log.create_topic("t")
    broker.log.append("t", b"x" * 10_000)
    _set(broker, ("client-id", None), consumer_byte_rate=10)
    with Wire(broker, "reader") as reader:
        answer = reader.ask(fetch("t", 0), 11)
        assert len(answer.responses[0].partitions[0].records) > 10_000


def test_the_time_of_other_threads_counts(broker: Broker) -> None:
    _set(broker, ("client-id", "busy"), request_percentage=0.000_1)
    with Wire(broker, "busy") as wire:
        topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        answer = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == 0
        assert 0 < answer.throttle_time_ms <= 1_000


def test_topics_are_refused_beyond_the_rate_and_older_clients_slowed(broker: Broker) -> None:
    _set(broker, ("client-id", "admin-of-many"), controller_mutation_rate=0.01)

    def create(wire: Wire, version: int, *names: str) -> tuple[list[int], int]:
        topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
        answer = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), version)
        return [each.error_code for each in answer.topics], answer.throttle_time_ms

    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with Wire(broker, "admin-of-many") as wire:
        codes, throttle_ms = create(wire, 6, "a", "b")
        assert codes == [0, refused]
        assert 150_000 < throttle_ms <= 200_000
    with Wire(broker, "admin-of-many") as wire:
        topics = [DeleteTopicState(name="a")]
        answer = wire.ask(DeleteTopicsRequest(topics=topics, timeout_ms=10_000), 6)
        assert answer.responses[0].error_code == refused
    with Wire(broker, "admin-of-many") as wire:
        more = [CreatePartitionsTopic(name="a", count=3, assignments=None)]
        answer = wire.ask(CreatePartitionsRequest(topics=more, timeout_ms=10_000), 3)
        assert answer.results[0].error_code == refused
        assert answer.throttle_time_ms
    with Wire(broker, "admin-of-many") as wire:
        codes, throttle_ms = create(wire, 5, "c")
        assert (codes, throttle_ms > 300_000) == ([0], True)
    with Wire(broker, "admin-of-many") as wire:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="d")], allow_auto_topic_creation=True)
        answer = wire.ask(asked, 9)
        assert (answer.topics[0].error_code, answer.throttle_time_ms > 400_000) == (0, True)
    assert set(broker.log.topics()) == {"a", "c", "d"}


def test_connections_beyond_an_addresss_rate_are_closed(broker: Broker) -> None:
    _set(broker, ("ip", "127.0.0.9"), connection_creation_rate=1)
    with closing(_Many(broker)) as many:
        opened = [many.open("127.0.0.9") for _ in range(14)]
        answered = [each.ask(MetadataRequest(topics=[]), 9) for each in opened[:10]]
        assert len(answered) == 10
        assert opened[-1].is_closed_by_peer()
        assert many.open("127.0.0.8").ask(MetadataRequest(topics=[]), 9)
    assert broker.context.quotas is not None
    assert broker.context.quotas.throttled["connection_creation_rate"] >= 1


def test_connections_beyond_the_brokers_rate_wait() -> None:
    with Broker(max_connection_creation_rate=2) as broker, closing(_Many(broker)) as many:
        opened = [many.open("127.0.0.1") for _ in range(24)]
        assert all(each.ask(MetadataRequest(topics=[]), 9).brokers for each in opened)
        assert broker.server.accepted == 24


class _Many:
    """Connections that are closed together."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._opened: list[Wire] = []

    def open(self, source: str) -> Wire:
        self._opened.append(Wire(self._broker, "many", source=source))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()


# -- with client libraries -----------------------------------------------------------------------------------


def _confluent(
    broker: Broker, client_id: str, values: list[bytes], settings: dict[str, Any] | None = None
) -> int:
    seen: list[int] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": client_id,
            "batch.size": 20_000,
            "throttle_cb": lambda event: seen.append(round(event.throttle_time * 1000)),
            **(settings or {}),
        }
    )
    for value in values:
        producer.produce("t", value)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    producer.poll(0)
    return max(seen, default=0)


def _kafka_python(broker: Broker, client_id: str, values: list[bytes]) -> int:
    with closing(
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            client_id=client_id,
            api_version=(2, 5),
            batch_size=20_000,
        )
    ) as producer:
        for future in [producer.send("t", value) for value in values]:
            future.get(TIMEOUT_S)
        found = [
            value
            for group in producer.metrics().values()
            for name, value in group.items()
            if name.endswith("throttle-time-max")
        ]
        return round(max(found))


def _aiokafka(broker: Broker, client_id: str, values: list[bytes]) -> int:
    async def send() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, client_id=client_id, max_batch_size=20_000
        ) as producer:
            await asyncio.gather(*[await producer.send("t", value) for value in values])

    asyncio.run(send())
    return -1  # it does not say


@pytest.mark.slow
@pytest.mark.parametrize("send", [_confluent, _kafka_python, _aiokafka])
def test_client_libraries_are_slowed_and_lose_nothing(
    broker: Broker, send: Callable[[Broker, str, list[bytes]], int]
) -> None:
    broker.log.create_topic("t")
    _set(broker, ("client-id", "greedy"), producer_byte_rate=20_000)
    values = [bytes([n % 256]) * 1_000 for n in range(260)]  # 13 s of the rate: 10 s at once, then some rests
    quotas = broker.context.quotas
    assert quotas is not None
    began = time.monotonic()
    seen_ms = send(broker, "greedy", values)
    elapsed_s = time.monotonic() - began
    told_ms = quotas.throttle_ms["producer_byte_rate"]
    assert quotas.throttled["producer_byte_rate"] > 0
    assert told_ms > 0
    assert seen_ms == -1 or 0 < seen_ms <= told_ms
    # It took at least as long as its bytes take at the rate, but for what the windows allow at once.
    assert elapsed_s >= (sum(map(len, values)) - 11 * 20_000 - 40_000) / 20_000
    before = dict(quotas.throttled)
    send(broker, "modest", values)
    assert quotas.throttled == before
    found = [record.value for record in broker.log.read("t", 0)]
    assert sorted(found) == sorted(values * 2)


@pytest.mark.slow
def test_a_confluent_consumer_is_slowed_and_gets_everything(broker: Broker) -> None:
    broker.log.create_topic("t")
    for _ in range(30):
        broker.log.append_many("t", [_VALUE] * 10)
    _set(broker, ("client-id", "greedy"), consumer_byte_rate=25_000)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "greedy",
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 20_000,
        }
    )
    try:
        consumer.subscribe(["t"])
        count = 0
        while count < 300:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None
            count += 1
    finally:
        consumer.close()
    assert broker.context.quotas is not None
    assert broker.context.quotas.throttled["consumer_byte_rate"] > 0


def test_users_who_authenticate_have_quotas_of_their_own() -> None:
    """Alice's two clients share hers; Bob, with the same client id, has none."""

    def throttled_ms(user: str, client_id: str) -> int:
        settings = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": f"{user}'s"}
        return _confluent(
            broker,
            client_id,
            [_VALUE] * 30,
            {
                **settings,
                "bootstrap.servers": broker.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
            },
        )

    with Broker(listeners="SASL_PLAINTEXT://127.0.0.1:0") as broker:
        broker.log.create_topic("t")
        users, quotas = broker.context.users, broker.context.quotas
        assert users is not None
        assert quotas is not None
        for user in ("alice", "bob"):
            users.alter(user, {"SCRAM-SHA-256": credential_of("SCRAM-SHA-256", f"{user}'s")})
        quotas.store.alter((("user", "alice"),), {"producer_byte_rate": 5_000})
        quotas.refresh()
        assert throttled_ms("alice", "one") == 0
        assert throttled_ms("alice", "two") > 0
        assert throttled_ms("bob", "two") == 0
        assert quotas.throttled["producer_byte_rate"] > 0


def test_confluents_admin_client_is_told_of_its_quota(broker: Broker) -> None:
    _set(broker, ("client-id", "admin-of-many"), controller_mutation_rate=0.01)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "client.id": "admin-of-many"})
    results = admin.create_topics([NewTopic(name, 2, 1) for name in ("a", "b")], request_timeout=TIMEOUT_S)
    errors = [future.exception() for future in results.values()]
    assert broker.context.quotas is not None
    assert broker.context.quotas.throttled["controller_mutation_rate"] == 1
    assert len(broker.log.topics()) == 2 - sum(error is not None for error in errors)


# -- describing and altering ---------------------------------------------------------------------------------


@pytest.fixture
def described(broker: Broker, wire: Wire) -> Iterator[Callable[..., set[str]]]:
    """Sets some quotas; a function that describes those that a filter chooses."""
    _set(broker, ("user", "alice"), producer_byte_rate=1)
    _set(broker, ("user", None), producer_byte_rate=2)
    _set(broker, ("client-id", "app"), producer_byte_rate=3)
    _set(broker, ("user", "alice"), ("client-id", "app"), producer_byte_rate=4)
    _set(broker, ("user", "alice"), ("client-id", None), request_percentage=5.5)
    _set(broker, ("ip", "10.0.0.1"), connection_creation_rate=6)

    def describe(
        *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
    ) -> set[str]:
        given = [
            ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components
        ]
        answer = wire.ask(DescribeClientQuotasRequest(components=given, strict=strict), version)
        if answer.error_code:
            assert answer.entries is None
            return {ErrorCode(answer.error_code).name}
        return {
            " ".join(
                [f"{each.entity_type}={each.entity_name}" for each in entry.entity]
                + [f"{each.key}:{each.value:g}" for each in entry.values]
            )
            for entry in answer.entries
        }

    yield describe


def test_filters_choose_entities(described: Callable[..., set[str]]) -> None:
    alice, app = "user=alice producer_byte_rate:1", "client-id=app producer_byte_rate:3"
    both = "user=alice client-id=app producer_byte_rate:4"
    default = "user=alice client-id=None request_percentage:5.5"
    assert len(described()) == len(described(version=0)) == 6
    assert described(strict=True) == set()
    assert described(("user", 0, "alice")) == {alice, both, default}
    assert described(("user", 0, "alice"), strict=True) == {alice}
    assert described(("user", 1, None)) == {"user=None producer_byte_rate:2"}
    assert described(("user", 2, None), strict=True) == {alice, "user=None producer_byte_rate:2"}
    assert described(("client-id", 2, None)) == {app, both, default}
    assert described(("user", 0, "alice"), ("client-id", 1, None)) == {default}
    assert described(("ip", 2, None)) == {"ip=10.0.0.1 connection_creation_rate:6"}


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("group", 2, None)], "UNSUPPORTED_VERSION"),
        ([("user", 3, None)], "INVALID_REQUEST"),
        ([("user", 0, None)], "INVALID_REQUEST"),
        ([("user", 2, None), ("user", 2, None)], "INVALID_REQUEST"),
        ([("user", 2, None), ("ip", 2, None)], "INVALID_REQUEST"),
    ],
)
def test_filters_that_are_none(described: Callable[..., set[str]], components: list[Any], error: str) -> None:
    assert described(*components) == {error}


def test_what_is_no_quota_is_refused_and_changes_nothing(broker: Broker, wire: Wire) -> None:
    entries = [
        _entry(("user", "a"), producer_byte_rate=0),
        _entry(("user", "b"), connection_creation_rate=1),
        _entry(("ip", "10.0.0.1"), producer_byte_rate=1),
        _entry(("user", "c"), ("ip", "10.0.0.1"), producer_byte_rate=1),
        _entry(("group", "g"), producer_byte_rate=1),
        _entry(("user", ""), producer_byte_rate=1),
        _entry(producer_byte_rate=1),
        _entry(("user", "d"), remove=("nonsense",)),
        _entry(("user", "e"), producer_byte_rate=float("nan")),
        _entry(("user", "twice"), producer_byte_rate=1),
        _entry(("user", "twice"), producer_byte_rate=2),
        _entry(("user", "fine"), producer_byte_rate=3),
    ]
    for validate_only in (True, False):
        results = _alter(wire, *entries, validate_only=validate_only, version=int(validate_only))
        assert [each.error_code for each in results] == [ErrorCode.INVALID_REQUEST] * 11 + [0]
        assert all(each.error_message for each in results[:-1])
        assert results[2].entity[0].entity_name == "10.0.0.1"
        kept = StoredQuotas(f"{broker.log.path}/{QUOTAS_FILE}").read()
        assert set(kept) == (set() if validate_only else {(("user", "fine"),)})


def test_quotas_change_while_the_broker_runs_and_outlive_it(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.log.create_topic("t")
        StoredQuotas(str(tmp_path / QUOTAS_FILE)).alter((("client-id", "c"),), {"producer_byte_rate": 1})
        with Wire(broker, "c") as wire:  # another process has changed the file
            eventually(lambda: wire.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms)
    with Broker(tmp_path) as broker, Wire(broker, "c") as wire, Wire(broker, "admin") as admin:
        assert wire.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms
        assert not _alter(admin, _entry(("client-id", "c"), remove=("producer_byte_rate",)))[0].error_code
        assert admin.ask(DescribeClientQuotasRequest(), 1).entries == []
    with Broker(tmp_path) as broker, Wire(broker, "c") as wire:
        assert not wire.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms


def test_the_owner_of_a_shared_log_is_not_slowed(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, shared=True) as log:
        log.create_topic("t")
        StoredQuotas(str(tmp_path / QUOTAS_FILE)).alter((("client-id", None),), {"producer_byte_rate": 1})
        with Wire.to_owner(tmp_path) as wire:
            assert not wire.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms


def test_two_brokers_through_zookeeper_have_one_set_of_quotas(tmp_path: Path, zookeeper: Znodes) -> None:
    with (
        Broker(tmp_path / "0", broker_id=0, zookeeper=zookeeper.connect) as first,
        Broker(tmp_path / "1", broker_id=1, zookeeper=zookeeper.connect) as second,
        Wire(first, "admin") as asked,
        Wire(second, "admin") as other,
        zookeeper.client() as znodes,
    ):
        znodes.create("/config/users/al%2Fice", b'{"version":1,"config":{"SCRAM-SHA-256":"kept"}}')
        results = _alter(
            asked,
            _entry(("user", "al/ice"), producer_byte_rate=1_000, request_percentage=50),
            _entry(("user", None), ("client-id", "a*b c"), consumer_byte_rate=5),
            _entry(("ip", "10.0.0.1"), connection_creation_rate=7),
        )
        assert [each.error_code for each in results] == [0, 0, 0]
        found = znodes.get("/config/users/al%2Fice")
        assert found is not None
        assert b'"SCRAM-SHA-256":"kept"' in found.data
        assert b'"producer_byte_rate":"1000"' in found.data
        assert znodes.get("/config/users/<default>/clients/a%2Ab%20c") is not None
        changes = znodes.children("/config/changes")
        assert changes is not None and len(changes) == 3
        last = znodes.get(f"/config/changes/{changes[-1]}")
        assert last is not None and last.data == b'{"version":2,"entity_path":"ips/10.0.0.1"}'

        def seen() -> bool:
            entries = other.ask(DescribeClientQuotasRequest(), 1).entries
            names = {tuple((e.entity_type, e.entity_name) for e in entry.entity) for entry in entries}
            return names == {
                (("user", "al/ice"),),
                (("user", None), ("client-id", "a*b c")),
                (("ip", "10.0.0.1"),),
            }

        eventually(seen, "the other broker's quotas")
        _set(second, ("client-id", "c"), producer_byte_rate=1)
        first.context.coordination.create_topic("t", 1, {}, {0: [0]})
        with Wire(first, "c") as wire:
            eventually(
                lambda: wire.ask(produce("t", bytes(_BATCH)), 9).throttle_time_ms, "the first's quotas"
            )
    assert not [each for each in threading.enumerate() if each.name == "embedlog-quotas"]
