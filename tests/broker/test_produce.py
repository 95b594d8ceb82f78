"""Produce over the wire: appends, refusals and their error codes, and that readers see whole batches."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from rounds import first_is_quick
from wire import TIMEOUT_S, Wire, batch_of, produce, records_of

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.broker import batch_validation as produced
from embedlog.codec import crc32c, decode_pieces, encode_batch, encode_control_batch, scan
from embedlog.codec.message_set import encode_message_set
from embedlog.model import Record
from embedlog.wire.apis.init_producer_id import InitProducerIdRequest
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.error_codes import ErrorCode

T = "t"


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.log.create_topic(T)


def values(broker: Broker, topic: str = T) -> list[bytes | None]:
    return [record.value for record in broker.log.read(topic, 0, follow=False)]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version(broker: Broker, wire: Wire, version: int, acks: int) -> None:
    request = produce(T, batch_of(b"a", b"b"), acks=acks)
    request.topic_data[0].topic_id = broker.context.topic_id(T)
    (part,) = wire.ask(request, version).responses[0].partition_responses
    assert (part.error_code, part.base_offset) == (0, 0)
    assert values(broker) == [b"a", b"b"]


def test_acks_0_answers_nothing_and_an_error_closes_the_connection(broker: Broker, wire: Wire) -> None:
    wire.send(produce(T, batch_of(b"a"), acks=0), 9)
    assert wire.produce(T, batch_of(b"b")).base_offset == 1  # its answer is the first to come
    wire.send(produce("no such", batch_of(b"a"), acks=0), 9)
    assert wire.is_closed_by_peer()
    assert values(broker) == [b"a", b"b"]


def test_several_topics_and_partitions_one_of_them_wrong(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("u", partitions=2)
    parts = [PartitionProduceData(index=number, records=batch_of(b"%d" % number)) for number in (1, 7, 0)]
    request = ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(name="u", partition_data=parts),
            TopicProduceData(name=T, partition_data=[PartitionProduceData(index=0, records=batch_of(b"x"))]),
        ],
    )
    of_u, of_t = wire.ask(request, 9).responses
    assert [(part.index, part.error_code) for part in of_u.partition_responses] == [
        (1, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 0),
    ]
    assert of_t.partition_responses[0].error_code == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_stays_compressed_as_it_came(broker: Broker, wire: Wire, codec: str, size: int) -> None:
    sent = batch_of(b"x" * size, compression=embedlog.codec.codec_number(codec))
    assert wire.produce(T, sent).error_code == 0
    found = wire.fetch(T, 0)
    assert bytes(found.records[61:]) == sent[61:]  # after the header every byte is the producer's
    assert values(broker) == [b"x" * size]


def damaged(batch: bytes, pos: int) -> bytes:
    return batch[:pos] + bytes([batch[pos] ^ 1]) + batch[pos + 1 :]


def resealed(batch: bytes, pos: int, form: str, value: int) -> bytes:
    """With a field changed, and a CRC that agrees."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, pos, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


GOOD = batch_of(b"one", b"two")

REFUSED = {
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "a piece of a header": (GOOD[:40], ErrorCode.INVALID_RECORD),
    "cut short": (GOOD[:-1], ErrorCode.INVALID_RECORD),
    "a byte more": (GOOD + b"\0", ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "damage in a record": (damaged(GOOD, 70), ErrorCode.CORRUPT_MESSAGE),
    "damage in the header": (damaged(GOOD, 30), ErrorCode.CORRUPT_MESSAGE),
    "another magic": (GOOD[:16] + b"\1" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "garbage": (bytes(range(100)), ErrorCode.CORRUPT_MESSAGE),
    "a record count that is too large": (resealed(GOOD, 57, ">i", 3), ErrorCode.INVALID_RECORD),
    "a record count that is too small": (resealed(GOOD, 57, ">i", 1), ErrorCode.INVALID_RECORD),
    "no records": (resealed(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "offsets that are not there": (resealed(GOOD, 23, ">i", 5), ErrorCode.INVALID_RECORD),
    "an impossible codec": (resealed(GOOD, 21, ">h", 6), ErrorCode.CORRUPT_MESSAGE),
    "not what its codec says": (resealed(GOOD, 21, ">h", 4), ErrorCode.INVALID_RECORD),
    "a record that lies about its length": (resealed(GOOD, 61, ">b", 126), ErrorCode.INVALID_RECORD),
    "control": (
        bytes(encode_control_batch(commit=True, producer_id=1, producer_epoch=0, timestamp_ms=1)),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "transactional": (
        bytes(
            encode_batch(
                [(None, b"", (), 1)], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
            )
        ),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "too large": (batch_of(b"x" * (1 << 20)), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(broker: Broker, wire: Wire, what: str) -> None:
    batch, code = REFUSED[what]
    part = wire.produce(T, batch)
    assert ErrorCode(part.error_code) is code, part.error_message
    assert part.error_message
    assert wire.produce(T, GOOD).base_offset == 0
    assert values(broker) == [b"one", b"two"]


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("compression", [0, 1, 4])
@pytest.mark.parametrize("said", [-1, 5])
def test_a_wrong_max_timestamp_is_corrected(
    broker: Broker, wire: Wire, said: int, compression: int, policy: str
) -> None:
    """Sarama says -1 always. Kafka writes the largest timestamp itself; look-ups by time go by it."""
    broker.log.create_topic("u", cleanup_policy=policy)
    rows = [(b"k", b"%d" % i, (), 1_000 + i) for i in (0, 7, 3)]
    sent = resealed(bytes(encode_batch(rows, compression=compression)), 35, ">q", said)
    assert wire.produce("u", sent).error_code == 0
    (header,) = scan(wire.fetch("u", 0).records).headers
    assert (header.max_timestamp_ms, header.compression) == (1_007, compression)
    assert [(r.value, r.timestamp_ms) for r in broker.log.read("u", 0)] == [
        (b"0", 1_000),
        (b"7", 1_007),
        (b"3", 1_003),
    ]
    found = broker.log.offset_for_time("u", 0, 1_005)
    assert found is not None
    assert found.offset == 1


CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    "settings",
    first_is_quick(
        [{}, {"compression_type": "gzip"}, {"cleanup_policy": "compact"}, {"compression_type": "none"}]
    ),
)
def test_a_bomb_is_refused(broker: Broker, wire: Wire, name: str, settings: dict[str, str]) -> None:
    broker.log.create_topic("bombs", max_message_bytes=64 << 20, **settings)
    rows = [(b"k", bytes(1 << 20), (), 1)] * 33
    bomb = bytes(encode_batch(rows, compression=embedlog.codec.codec_number(name)))
    refused = wire.produce("bombs", bomb)
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.decompressed.message.bytes" in str(refused.error_message)
    assert values(broker, "bombs") == []


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("version", [2, 9])
def test_the_decompressed_size_limit_is_a_setting(name: str, version: int) -> None:
    """Also where max_message_bytes allows more, which counts compressed bytes."""
    limit = 1 << 20
    if version == 2 and name == "zstd":
        name = "none"
    codec = embedlog.codec.codec_number(name)
    with (
        Broker(max_decompressed_message_bytes=limit, max_message_bytes=8 << 20) as broker,
        Wire(broker) as wire,
    ):
        broker.log.create_topic(T)
        rows = [(None, b"v" * 1_000, (), 1)] * 1_000
        fits, too_large = rows, rows * 2
        encode = encode_batch if version == 9 else partial(encode_message_set, magic=1)
        codes = [
            wire.produce(T, bytes(encode(sent, compression=codec)), version=version).error_code
            for sent in (fits, too_large)
        ]
        assert codes == [0, ErrorCode.MESSAGE_TOO_LARGE if codec else 0]
        kept = len(fits) if codec else len(fits) + len(too_large)
        assert values(broker) == [b"v" * 1_000] * kept


@pytest.mark.parametrize("name", CODECS)
def test_small_bombs_are_decompressed_off_the_loop(
    broker: Broker, wire: Wire, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor has other connections: it opens little itself, even of a batch of few bytes."""
    broker.log.create_topic("kept", cleanup_policy="compact")
    opened_by: list[str] = []

    def noted(*args: Any, **options: Any) -> Iterator[list[Record]]:
        for piece in decode_pieces(*args, **options):
            opened_by.append(threading.current_thread().name.rpartition("_")[0])
            yield piece

    monkeypatch.setattr(produced, "decode_pieces", noted)
    for size in (100, 300_000):
        sent = encode_batch([(b"k", bytes(size), (), 1)], compression=embedlog.codec.codec_number(name))
        assert len(sent) < 16 << 10
        assert wire.produce("kept", bytes(sent)).error_code == 0
    assert opened_by == ["", "embedlog-io"]


def test_zstd_needs_version_7(broker: Broker, wire: Wire) -> None:
    sent = batch_of(b"x", compression=4)
    assert wire.produce(T, sent, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert wire.produce(T, sent, version=7).error_code == 0


def test_wrong_acks_and_internal_topics(broker: Broker, wire: Wire) -> None:
    assert wire.produce(T, GOOD, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    with broker.log.consumer(T, group="g") as consumer:
        consumer.poll(timeout_ms=0)
        consumer.commit()
    assert "__consumer_offsets" in broker.log.topics(internal=True)
    part = wire.produce("__consumer_offsets", GOOD)
    assert part.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_append_time(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("appended", message_timestamp_type="LogAppendTime")
    part = wire.produce("appended", GOOD)
    assert part.log_append_time_ms > 1_700_000_000_000
    found = records_of(wire.fetch("appended", 0))  # the CRC is right, too
    assert [(r.timestamp_ms, r.timestamp_type) for r in found] == [(part.log_append_time_ms, 1)] * 2


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "zstd"])
def test_a_topic_with_a_codec_of_its_own(broker: Broker, wire: Wire, codec: str) -> None:
    broker.log.create_topic("packed", compression_type=codec)
    sent = [b"a" * 1000, b"b"]
    assert wire.produce("packed", batch_of(*sent, compression=2)).error_code == 0
    chunk = wire.fetch("packed", 0)
    (header,) = embedlog.codec.scan(bytes(chunk.records)).headers
    assert header.compression == {"uncompressed": 0, "gzip": 1, "zstd": 4}[codec]
    assert [record.value for record in records_of(chunk)] == sent


def test_a_compacted_topic_wants_keys(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("kept", cleanup_policy="compact")
    assert wire.produce("kept", GOOD).error_code == ErrorCode.INVALID_RECORD
    keyed = bytes(encode_batch([(b"k", b"v", (), 1)]))
    assert wire.produce("kept", keyed).error_code == 0


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("compression", [0, 1])
def test_invalid_records_are_named(broker: Broker, wire: Wire, compression: int, version: int) -> None:
    broker.log.create_topic("kept", cleanup_policy="compact")
    rows = [(None if place in (1, 4) else b"k", b"v", (), 1) for place in range(6)]
    request = produce("kept", bytes(encode_batch(rows, compression=compression)))
    request.topic_data[0].topic_id = broker.context.topic_id("kept")
    (refused,) = wire.ask(request, version).responses[0].partition_responses
    assert refused.error_code == ErrorCode.INVALID_RECORD
    named = [error.batch_index for error in refused.record_errors]
    assert named == ([1, 4] if version >= 8 else [])
    assert all("keys" in error.batch_index_error_message for error in refused.record_errors)
    assert values(broker, "kept") == []


def test_confluents_producer_fails_only_the_invalid_records(broker: Broker) -> None:
    broker.log.create_topic("kept", cleanup_policy="compact")
    failed: dict[bytes | None, str] = {}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000, "partitioner": "consistent"}
    )
    for place in range(4):
        producer.produce(
            "kept",
            b"%d" % place,
            None if place in (0, 2) else b"k",
            on_delivery=lambda error, message: failed.update({message.value(): error.name()}),
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == {
        b"0": "INVALID_RECORD",
        b"1": "_INVALID_DIFFERENT_RECORD",
        b"2": "INVALID_RECORD",
        b"3": "_INVALID_DIFFERENT_RECORD",
    }


def test_durable_appends_and_rolls_run_off_the_loop(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("durable", flush_messages=1, segment_bytes=1024)
    for number in range(20):
        assert wire.produce("durable", batch_of(b"%03d" % number * 100)).base_offset == number
        assert broker.log.offsets("durable")[0].flushed_offset == number + 1
    assert len(values(broker, "durable")) == 20


def sequenced(first: int, *, producer_id: int, epoch: int = 0, count: int = 1) -> bytes:
    rows = [(None, b"%d" % number, (), 1) for number in range(first, first + count)]
    return bytes(encode_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=first))


def test_idempotence(broker: Broker, wire: Wire) -> None:
    made = wire.ask(InitProducerIdRequest(), 4)
    assert (made.error_code, made.producer_epoch) == (0, 0)
    own = made.producer_id
    for first in range(3):
        assert wire.produce(T, sequenced(first, producer_id=own)).base_offset == first
    again = wire.produce(T, sequenced(1, producer_id=own))
    assert (again.error_code, again.base_offset) == (0, 1)
    gap = wire.produce(T, sequenced(9, producer_id=own))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(T, sequenced(0, producer_id=own, epoch=1)).error_code == 0
    fenced = wire.produce(T, sequenced(3, producer_id=own))
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(values(broker)) == 4


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 8), (1, 2), (5, 2), (6, 1), (7, 2), (4, 3)])
def test_overlapping_sequences_are_out_of_order(broker: Broker, wire: Wire, first: int, count: int) -> None:
    own = wire.ask(InitProducerIdRequest(), 4).producer_id
    for base in (0, 2, 3, 4, 5, 6):  # the first is of two records, and forgotten by the time of the last
        size = 2 if base in (0, 6) else 1
        assert wire.produce(T, sequenced(base, producer_id=own, count=size)).error_code == 0
    again = wire.produce(T, sequenced(6, producer_id=own, count=2))
    assert (again.error_code, again.base_offset) == (0, 6)
    overlapping = wire.produce(T, sequenced(first, producer_id=own, count=count))
    assert overlapping.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(T, sequenced(8, producer_id=own)).base_offset == 8
    assert values(broker) == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize(("producer_id", "epoch"), [(0, 0), (7, 3), (1 << 40, 0), (5, -1)])
def test_concurrent_producers_never_share_an_id(
    broker: Broker, wire: Wire, producer_id: int, epoch: int
) -> None:
    """Some clients send an id of 0 where they mean none; one another's records would be taken for repeats."""
    request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
    answers = [wire.ask(request, 4) for _ in range(2)]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0), (0, 0)]
    ids = [answer.producer_id for answer in answers]
    assert len(set(ids)) == 2
    for number in ids:
        assert wire.produce(T, sequenced(0, producer_id=number)).error_code == 0
    assert len(values(broker)) == 2


def test_producer_ids_are_never_given_twice(tmp_path: object) -> None:
    given: set[int] = set()
    for _ in range(3):
        with Broker(f"{tmp_path}/log") as broker, Wire(broker) as wire:
            new = {wire.ask(InitProducerIdRequest(), 4).producer_id for _ in range(5)}
            assert len(new) == 5
            assert not given & new
            given |= new
