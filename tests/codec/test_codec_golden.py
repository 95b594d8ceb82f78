"""Other encoders' bytes, hard-coded and generated: decoded, and encoded identically."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from codec_golden import BATCHES, MESSAGE_SETS, OLD_RECORDS, RECORDS, TRANSACTIONAL
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from old_formats import decode_message_set

from embedlog import codec
from embedlog.codec import sniff
from embedlog.codec.message_set import encode_message_set

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCER = {"producer_id": 4_000_000_000_000, "producer_epoch": 7, "base_sequence": 2_147_483_646}


def opened(batch: bytes) -> list[tuple[object, ...]]:
    scanned = codec.scan(batch)
    assert (scanned.end, scanned.error) == (len(batch), None)
    (header,) = scanned.headers
    return [(r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in codec.decode(batch, header, "", 0)]


@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_read(name: str) -> None:
    batch = bytes.fromhex(BATCHES[name])
    assert opened(batch) == [(i, *record) for i, record in enumerate(RECORDS)]
    assert NAMES[codec.read_header(batch).compression] == name.split()[1]
    assert sniff.identify(batch) == "batch-v2"


@pytest.mark.parametrize("name", ["aiokafka none", "kafka-python none"])
def test_batches_are_written_the_same(name: str) -> None:
    theirs = bytes.fromhex(BATCHES[name])
    header = codec.read_header(theirs)
    assert codec.encode_batch(RECORDS, leader_epoch=header.leader_epoch) == theirs


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_transactional_batches(name: str) -> None:
    theirs = bytes.fromhex(TRANSACTIONAL[name])
    header = codec.read_header(theirs)
    assert header.is_transactional
    assert header.last_sequence == 1
    assert opened(theirs) == [(i, *record) for i, record in enumerate(RECORDS)]
    assert (
        codec.encode_batch(RECORDS, leader_epoch=header.leader_epoch, transactional=True, **PRODUCER)
        == theirs
    )


@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
@pytest.mark.parametrize("compression", range(5))
def test_live_batches_are_read(builder: type, compression: int) -> None:
    made = builder(
        magic=2,
        compression_type=compression,
        is_transactional=True,
        batch_size=1 << 20,
        **PRODUCER,
    )
    for i, (key, value, headers, timestamp_ms) in enumerate(RECORDS * 100):
        made.append(i, timestamp_ms, key, value, list(headers))
    assert opened(bytes(made.build())) == [(i, *record) for i, record in enumerate(RECORDS * 100)]


@pytest.mark.parametrize("name", MESSAGE_SETS)
def test_message_sets_are_read(name: str) -> None:
    magic = name.split()[1]
    theirs = bytes.fromhex(MESSAGE_SETS[name])
    got = decode_message_set(theirs, "t", 1)
    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in got] == [
        ("t", 1, i, key, value) for i, (key, value, _, _) in enumerate(OLD_RECORDS)
    ]
    times = [r[3] for r in OLD_RECORDS] if magic == "1" else [-1] * len(OLD_RECORDS)
    assert [r.timestamp_ms for r in got] == times
    assert sniff.identify(theirs) == f"message-set-v{magic}"


@pytest.mark.parametrize("name", [name for name in MESSAGE_SETS if name.endswith("none")])
def test_message_sets_are_written_the_same(name: str) -> None:
    magic = int(name.split()[1])
    assert encode_message_set(OLD_RECORDS, magic) == bytes.fromhex(MESSAGE_SETS[name])


def test_there_is_a_golden_lz4_set_of_magic_0() -> None:
    assert "kafka-python 0 lz4" in MESSAGE_SETS
