"""Producing over the wire: what is appended, what is refused with which code, and that readers stay whole."""

from __future__ import annotations

import struct

import pytest
from wire import Wire, batch_of, produce, records_of

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.protocol import ErrorCode
from embedlog.cluster.protocol.produce_fetch import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from embedlog.cluster.protocol.producers import InitProducerIdRequest
from embedlog.codec import crc32c, encode_batch, encode_control_batch, scan

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
    request.topic_data[0].topic_id = broker.node.topic_id(T)
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
    assert bytes(found.records[61:]) == sent[61:]  # behind the header every byte is the producer's
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
    "nothing": (b"", ErrorCode.CORRUPT_MESSAGE),
    "a piece of a header": (GOOD[:40], ErrorCode.CORRUPT_MESSAGE),
    "cut short": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "a byte more": (GOOD + b"\0", ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "damage in a record": (damaged(GOOD, 70), ErrorCode.CORRUPT_MESSAGE),
    "damage in the header": (damaged(GOOD, 30), ErrorCode.CORRUPT_MESSAGE),
    "another magic": (GOOD[:16] + b"\1" + GOOD[17:], ErrorCode.CORRUPT_MESSAGE),
    "garbage": (bytes(range(100)), ErrorCode.CORRUPT_MESSAGE),
    "a record count that is too large": (resealed(GOOD, 57, ">i", 3), ErrorCode.CORRUPT_MESSAGE),
    "a record count that is too small": (resealed(GOOD, 57, ">i", 1), ErrorCode.INVALID_RECORD),
    "no records": (resealed(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "offsets that are not there": (resealed(GOOD, 23, ">i", 5), ErrorCode.INVALID_RECORD),
    "an impossible codec": (resealed(GOOD, 21, ">h", 6), ErrorCode.CORRUPT_MESSAGE),
    "not what its codec says": (resealed(GOOD, 21, ">h", 4), ErrorCode.INVALID_RECORD),
    "a record that lies about its length": (resealed(GOOD, 61, ">b", 126), ErrorCode.INVALID_RECORD),
    "control": (
        bytes(encode_control_batch(commit=True, producer_id=1, producer_epoch=0, timestamp_ms=1)),
        ErrorCode.INVALID_RECORD,
    ),
    "transactional": (
        bytes(
            encode_batch(
                [(None, b"", (), 1)], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
            )
        ),
        ErrorCode.INVALID_TXN_STATE,
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
def test_a_batch_that_is_later_than_it_says_is_mended(
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


def test_a_bomb_is_refused(broker: Broker, wire: Wire) -> None:
    bomb = batch_of(bytes(200 << 20), compression=4)
    assert len(bomb) < 1 << 20
    assert wire.produce(T, bomb).error_code == ErrorCode.INVALID_RECORD
    assert values(broker) == []


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


def test_durable_appends_and_new_segments_go_on_elsewhere(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("durable", flush_messages=1, segment_bytes=1024)
    for number in range(20):
        assert wire.produce("durable", batch_of(b"%03d" % number * 100)).base_offset == number
        assert broker.log.offsets("durable")[0].flushed_offset == number + 1
    assert len(values(broker, "durable")) == 20


def sequenced(first: int, *, producer_id: int, epoch: int = 0) -> bytes:
    return bytes(
        encode_batch(
            [(None, b"%d" % first, (), 1)], producer_id=producer_id, producer_epoch=epoch, base_sequence=first
        )
    )


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
    next_epoch = wire.ask(InitProducerIdRequest(producer_id=own, producer_epoch=0), 4)
    assert (next_epoch.producer_id, next_epoch.producer_epoch) == (own, 1)
    assert wire.produce(T, sequenced(0, producer_id=own, epoch=1)).error_code == 0
    fenced = wire.produce(T, sequenced(3, producer_id=own))
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(values(broker)) == 4


def test_producer_ids_are_never_given_twice(tmp_path: object) -> None:
    given: set[int] = set()
    for _ in range(3):
        with Broker(f"{tmp_path}/log") as broker, Wire(broker) as wire:
            new = {wire.ask(InitProducerIdRequest(), 4).producer_id for _ in range(5)}
            assert len(new) == 5
            assert not given & new
            given |= new


def test_transactions_fail_at_once(wire: Wire) -> None:
    refused = wire.ask(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000), 4)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
