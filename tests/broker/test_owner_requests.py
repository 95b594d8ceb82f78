"""What an owner's socket offers beyond Kafka's protocol, and that no broker's port does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FaultyFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from owners import OwnerPort, OwnerWire
from protocol_messages import messages
from wire import Wire, batch_of

import embedlog
from embedlog.cluster import Broker
from embedlog.codec import set_producer
from embedlog.errors import PartitionFailed
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.open import log_over
from embedlog.store.store import Store
from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.produce import ProduceRequest, ProduceResponse
from embedlog.wire.owner_apis import (
    ANY_OFFSET,
    LOG,
    OWNER_APIS,
    STORAGE_ERRORS,
    LogRequest,
    OwnerPartitionProduceData,
    OwnerPartitionProduceResponse,
    OwnerProduceRequest,
    OwnerTopicProduceData,
)

T = "t"
P0 = TopicPartition(T, 0)
FIRST_WITH_TAGS = 9


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.log.create_topic(T)


@pytest.fixture
def owner(broker: Broker) -> Iterator[OwnerWire]:
    with OwnerPort(broker) as port, OwnerWire(port) as wire:
        yield wire


def produce(batch: bytes, *, flush: bool = False, expected: int = ANY_OFFSET) -> OwnerProduceRequest:
    data = OwnerPartitionProduceData(index=0, records=batch, expected_offset=expected)
    topics = [OwnerTopicProduceData(name=T, partition_data=[data])]
    return OwnerProduceRequest(acks=-1, flush=flush, topic_data=topics)


def result_of(wire: Wire, request: OwnerProduceRequest, version: int = 9) -> OwnerPartitionProduceResponse:
    part: OwnerPartitionProduceResponse
    (part,) = wire.ask(request, version).responses[0].partition_responses
    return part


def numbered(batch: bytes, sequence: int) -> bytes:
    """The batch of an idempotent producer."""
    writable = bytearray(batch)
    set_producer(writable, 7_000, 0, sequence, 0)
    return bytes(writable)


# -- who offers it -----------------------------------------------------------------------------------------


def test_a_broker_neither_lists_nor_answers_the_owners_api(wire: Wire, owner: OwnerWire) -> None:
    def keys(wire: Wire) -> set[int]:
        return {each.api_key for each in wire.ask(ApiVersionsRequest(), 3).api_keys}

    # Processes beside the owner have requests of their own for queues, no share consumers, and all rights.
    without = ("Share", "Sasl", "ScramCredentials", "ClientQuotas")
    missing = {key for key, exchange in APIS.items() if any(each in exchange.api.name for each in without)}
    assert keys(owner) == keys(wire) - missing | {LOG.key}
    wire.send(LogRequest(name="flush", arguments=b"{}"), 0)
    assert wire.is_closed_by_peer()


def test_a_broker_ignores_the_owners_fields(broker: Broker, wire: Wire) -> None:
    store = broker.context.store
    before = store.partition(T, 0).offsets().flushed_offset
    number = wire.send(produce(batch_of(b"a"), flush=True, expected=70), 9)
    (part,) = wire.receive(ProduceRequest, 9, number).responses[0].partition_responses
    assert (part.error_code, part.base_offset) == (0, 0)
    assert before == 0
    # Its response has Kafka's fields only, though a client knew the others.
    number = wire.send(produce(batch_of(b"b"), flush=True), 9)
    frame = wire.receive_frame()
    plain = ProduceResponse.decode(frame, 9, 5)
    assert frame[5:] == plain.encode(9)
    assert OWNER_APIS[0].response.decode(frame, 9, 5).responses[0].partition_responses[0].durable is False  # type: ignore[attr-defined]


def test_an_owner_that_does_not_share_offers_only_its_own_api(broker: Broker, tmp_path: Path) -> None:
    with OwnerPort(broker, shared=False) as port, OwnerWire(port) as wire:
        offered = [each.api_key for each in wire.ask(ApiVersionsRequest(), 3).api_keys]
        assert offered == [18, LOG.key]
        assert wire.calls.discard("job") == 0
        wire.calls.commit_offsets("g", {P0: CommittedOffset(3)})
        for name in ("flush", "health", "compact", "recovery"):
            with pytest.raises(embedlog.DirectoryLocked, match="without shared=True by process"):
                wire.calls._ask(name, {})
        wire.send(produce(batch_of(b"a")), 9)
        assert wire.is_closed_by_peer()


# -- produce ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(9, 13))
def test_flush_and_expected_offset(broker: Broker, owner: OwnerWire, version: int) -> None:
    partition = broker.context.store.partition(T, 0)
    durable = result_of(owner, produce(batch_of(b"a", b"b"), flush=True), version)
    assert (durable.base_offset, durable.durable, durable.error) == (0, True, None)
    assert partition.offsets().flushed_offset == 2
    refused = result_of(owner, produce(batch_of(b"x"), expected=1, flush=True), version)
    assert (refused.error, refused.log_end_offset) == ("UnexpectedOffset", 2)
    assert refused.error_code
    assert result_of(owner, produce(batch_of(b"c"), expected=2), version).base_offset == 2
    assert result_of(owner, produce(batch_of(b"d"), expected=3, flush=True), version).durable
    assert result_of(owner, produce(batch_of(b"x"), expected=-5), version).error == "UnexpectedOffset"
    assert [record.value for record in broker.log.read(T, 0)] == [b"a", b"b", b"c", b"d"]


def test_a_batch_without_options_after_one_with_them(broker: Broker, owner: OwnerWire) -> None:
    """The fast path for requests that repeat keeps no options."""
    for round_ in range(4):
        base = 4 * round_
        assert result_of(owner, produce(batch_of(b"a"), expected=base)).base_offset == base
        assert result_of(owner, produce(batch_of(b"b"))).base_offset == base + 1
        assert result_of(owner, produce(batch_of(b"c"), flush=True)).durable
        assert result_of(owner, produce(batch_of(b"d"))).base_offset == base + 3
        assert result_of(owner, produce(batch_of(b"e"), expected=base)).error == "UnexpectedOffset"
    assert broker.log.offsets(T)[0].log_end_offset == 16


def test_a_repeated_append_with_an_expected_offset_is_the_first_one(broker: Broker, owner: OwnerWire) -> None:
    for flush in (False, True):
        end = broker.log.offsets(T)[0].log_end_offset
        request = produce(numbered(batch_of(b"a", b"b"), end), expected=end, flush=flush)
        for _ in range(2):
            again = result_of(owner, request)
            assert (again.base_offset, again.error) == (end, None)
            assert again.durable is flush
    late = produce(numbered(batch_of(b"c"), 4), expected=3)
    assert result_of(owner, late).error == "UnexpectedOffset"
    gap = produce(numbered(batch_of(b"c"), 9), expected=4)
    assert result_of(owner, gap).error == "OutOfOrderSequence"
    assert [record.value for record in broker.log.read(T, 0)] == [b"a", b"b"] * 2


def test_a_failed_flush_has_its_name(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with log_over(Store(str(tmp_path / "log"), fs=fs)) as log, Broker(log) as broker:
        log.create_topic(T)
        with OwnerPort(broker) as port, OwnerWire(port) as owner:
            fs.fail("sync", path=".kafka")
            assert result_of(owner, produce(batch_of(b"a"), flush=True)).error == "FlushFailed"
            again = result_of(owner, produce(batch_of(b"a")))
            assert (again.error, again.error_code) == ("PartitionFailed", STORAGE_ERRORS[PartitionFailed])
            health = owner.calls.health()
            assert (health.status, list(health.refusing)) == ("degraded", [P0])
            recovered = owner.calls.reopen(T, 0)
            assert recovered is not None
            assert (recovered.topic, recovered.partition) == (T, 0)
            assert result_of(owner, produce(batch_of(b"a"), flush=True)).durable


# -- the log's own requests ---------------------------------------------------------------------------------


def test_maintenance(
    broker: Broker, owner: OwnerWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, calls = broker.log, owner.calls
    log.append_many(T, [b"a", b"b"])
    # Other programs use the disk meanwhile.
    assert calls.health()._replace(free_disk_bytes=0) == log.health()._replace(free_disk_bytes=0)
    calls.flush()
    assert log.offsets(T)[0].flushed_offset == 2
    assert calls.recovery == log.backend.maintenance.recovery
    assert calls.reopen(T, 0) is None
    with pytest.raises(embedlog.InvalidArgument, match="not compacted"):
        calls.compact(T)
    with pytest.raises(embedlog.TopicNotFound):
        calls.compact("none")
    log.create_topic("c", cleanup_policy="compact")
    assert calls.compact("c") == 0
    monkeypatch.chdir(tmp_path)
    calls.backup("copy")
    with embedlog.open(tmp_path / "copy", mode="r") as copy:
        assert [record.value for record in copy.read(T)] == [b"a", b"b"]
    with pytest.raises(embedlog.EmbedlogError, match="copy"):
        calls.backup("copy")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("append_staged", given) for given in ({}, {"appends": 5}, {"appends": [5]}, {"appends": [{}]})),
        ("append_staged", {"transaction_id": 5, "batch_id": 0, "once": True, "appends": []}),
        ("append_staged", {"transaction_id": "q", "batch_id": -1, "once": False, "appends": []}),
        (
            "append_staged",
            {
                "transaction_id": "q",
                "batch_id": 1,
                "once": False,
                "appends": [{"topic": T, "partition": 0, "files": ["../embedlog.json"]}],
            },
        ),
        ("commit_offsets", {"group": "", "offsets": []}),
        ("commit_offsets", {"group": "g", "offsets": [{"topic": T, "partition": 0, "offset": 1}]}),
        (
            "commit_offsets",
            {
                "group": "g",
                "offsets": [
                    {"topic": T, "partition": 0, "offset": "5", "leader_epoch": 0, "metadata": ""},
                ],
            },
        ),
        *(("discard", given) for given in ({}, {"set": 7}, {"set": "../x"}, [], None, "x")),
        *(("reopen", given) for given in ({}, {"topic": T}, {"topic": T, "partition": "0"}, {"topic": 5})),
        *(("compact", given) for given in ({}, {"topic": 5}, {"topic": "none"})),
        *(("backup", given) for given in ({}, {"destination": 5}, {"destination": ""})),
        ("format the disk", {}),
        ("", {}),
    ],
)
def test_a_request_that_is_none_is_refused_and_harms_nothing(
    broker: Broker, owner: OwnerWire, name: str, arguments: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = owner.log(name, arguments)
    assert answer.error is not None
    assert issubclass(getattr(embedlog.errors, answer.error), embedlog.EmbedlogError)
    assert answer.error != "EmbedlogError", answer.message
    assert not caplog.records
    assert owner.calls.discard("job") == 0


@pytest.mark.parametrize("arguments", [b"", b"{", b"[" * 100_000, b"\xff\0", b"NaN"])
def test_arguments_that_are_not_json(owner: OwnerWire, arguments: bytes) -> None:
    answer = owner.ask(LogRequest(name="flush", arguments=arguments), 0)
    assert answer.error == "InvalidArgument"
    assert owner.log("flush", {}).error is None


def test_names_that_are_not_utf_8_survive(owner: OwnerWire, tmp_path: Path) -> None:
    with pytest.raises(embedlog.EmbedlogError, match="udcff"):
        owner.calls.backup(f"{tmp_path}/none/\udcff")


EVERY_OWNER_CLASS = [cls for exchange in OWNER_APIS.values() for cls in exchange[1:]]


@pytest.mark.parametrize("cls", EVERY_OWNER_CLASS, ids=lambda cls: cls.__name__)
@settings(max_examples=10)
@given(st.data())
def test_messages_round_trip(cls: Any, data: st.DataObject) -> None:
    """And Kafka's messages of the same API skip the fields that they lack."""
    for version in range(cls.api.min_version, cls.api.max_version + 1):
        message = data.draw(messages(cls, version))
        encoded = message.encode(version)
        assert cls.decode(encoded, version) == message
        if cls.api.key in APIS:
            plain = next(each for each in APIS[cls.api.key][1:] if issubclass(cls, each))
            read = plain.decode(encoded, version)
            assert len(read.encode(version)) <= len(encoded)
            if version < FIRST_WITH_TAGS:
                assert read.encode(version) == encoded
