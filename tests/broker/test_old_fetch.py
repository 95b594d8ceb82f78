"""Fetch before version 4: record batches become message sets, which have no zstd."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st
from old_formats import decode_message_set
from old_requests import T, fetch, fetched
from wire import TIMEOUT_S, Wire, batch_of
from wire import fetch as request_of

from embedlog import codec
from embedlog.cluster import Broker
from embedlog.cluster.broker.down_conversion import Conversion, as_message_set
from embedlog.codec import encode_batch, scan
from embedlog.codec.message_set import iter_messages
from embedlog.model import Record, TopicPartition
from embedlog.wire.apis.fetch import FetchRequest
from embedlog.wire.error_codes import ErrorCode

MIB = 1 << 20
ROWS = [(b"k%d" % i if i % 3 else None, b"v" * i if i % 4 else None, T + 9 - i) for i in range(10)]
CODECS = ("none", "gzip", "snappy", "lz4")


def fill(broker: Broker, compression: str = "none", topic: str = "t", **settings: object) -> None:
    broker.log.create_topic(topic, **settings)
    broker.log.append_many(
        topic,
        [Record(key=k, value=v, timestamp_ms=time, headers=[("h", b"x")]) for k, v, time in ROWS],
        compression=compression,
    )


def append(broker: Broker, batch: bytearray) -> None:
    broker.context.store.partition("t", 0).append(batch)


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_appended_records_are_read(broker: Broker, version: int, compression: str) -> None:
    fill(broker, compression)
    data = fetched(broker, version)
    magic = 1 if version >= 2 else 0
    assert {message.magic for message in iter_messages(data)} == {magic}
    assert {message.compression for message in iter_messages(data)} == {codec.codec_number(compression)}
    expected = [(i, k, v, time if magic else -1) for i, (k, v, time) in enumerate(ROWS)]
    assert [(r.offset, r.key, r.value, r.timestamp_ms) for r in decode_message_set(data)] == expected
    if (magic, compression) != (0, "lz4"):  # it needs another package for that
        assert by_aiokafka(data) == [(*row[:3], row[3] if magic else None) for row in expected]


def by_aiokafka(data: bytes) -> list[tuple[object, ...]]:
    found = []
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        found += [(record.offset, record.key, record.value, record.timestamp) for record in batch]
    return found


def test_the_time_of_the_append(broker: Broker) -> None:
    for compression in ("none", "gzip"):
        topic = f"t-{compression}"
        fill(broker, compression, topic, message_timestamp_type="LogAppendTime")
        (part,) = fetch(broker, 2, topics=(topic,))
        got = decode_message_set(cast(memoryview, part.records))
        (time,) = {record.timestamp_ms for record in broker.log.read(topic, 0)}
        assert {(record.timestamp_type, record.timestamp_ms) for record in got} == {(1, time)}


@pytest.mark.parametrize("compression", CODECS)
def test_from_an_offset_within_a_batch(broker: Broker, compression: str) -> None:
    fill(broker, compression)
    for offset in range(len(ROWS)):
        assert [r.offset for r in decode_message_set(fetched(broker, 2, offset))] == list(range(offset, 10))
    assert fetched(broker, 2, 10) == b""
    (part,) = fetch(broker, 2, 11)
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_message_set_is_truncated_at_max_bytes(broker: Broker, version: int, compression: str) -> None:
    fill(broker, compression)
    append(broker, encode_batch([(None, b"second", (), T)]))
    whole = fetched(broker, version)
    first = next(iter_messages(whole)).size
    for max_bytes in (0, 1, 11, 12, 13, first - 1, first, first + 1, len(whole) - 1, len(whole), 10_000):
        size = min(max_bytes, len(whole))
        if version == 3:  # the first message is whole from there on
            size = max(size, first)
        assert fetched(broker, version, max_bytes=max_bytes) == whole[:size], max_bytes


def test_the_bytes_of_all_partitions_are_limited(broker: Broker) -> None:
    for topic in ("a", "b", "c"):
        fill(broker, topic=topic)
    (alone,) = fetch(broker, 3, topics=("a",))
    size = len(cast(memoryview, alone.records))
    sizes = [len(part.records or b"") for part in fetch(broker, 3, in_all=size + 50, topics=("a", "b", "c"))]
    assert sizes == [size, 50, 0]
    sizes = [len(part.records or b"") for part in fetch(broker, 3, in_all=1, topics=("a", "b", "c"))]
    assert sizes[0] > 1
    assert sizes[1:] == [0, 0]


def test_gaps_of_compaction_stay(broker: Broker) -> None:
    broker.log.create_topic("t", cleanup_policy="compact", segment_bytes=1024)
    for compression in ("none", "gzip"):
        for i in range(40):
            rows = [Record(key=b"%d" % (i * j % 7), value=b"%d" % i, timestamp_ms=T) for j in (1, 2, 3)]
            broker.log.append_many("t", rows, compression=compression)
    broker.log.compact("t")
    expected = [(r.offset, r.key, r.value) for r in broker.log.read("t", 0)]
    assert len(expected) < 200
    assert expected[-1][0] == 239
    for version in (1, 2):
        got: list[tuple[object, ...]] = []
        offset = 0
        while data := fetched(broker, version, offset, max_bytes=700):
            records = decode_message_set(data)
            got += [(r.offset, r.key, r.value) for r in records if r.offset >= offset]
            offset = records[-1].offset + 1
        assert got == expected


def test_control_batches_are_left_out(broker: Broker) -> None:
    """Also where a fetch begins with nothing else: else its client would be stuck there."""
    broker.log.create_topic("t")
    append(broker, encode_batch([(None, b"a", (), T)], producer_id=7, producer_epoch=0, base_sequence=0))
    for epoch in range(3):
        broker.context.store.partition("t", 0).end_transaction(7, epoch, commit=True, timestamp_ms=T)
    append(broker, encode_batch([(None, b"b", (), T)]))
    assert [r.offset for r in decode_message_set(fetched(broker, 2))] == [0, 4]
    assert [r.offset for r in decode_message_set(fetched(broker, 2, 1))] == [4]
    assert [r.offset for r in decode_message_set(fetched(broker, 2, 1, max_bytes=70))] == [4]


def test_message_sets_have_no_zstd(broker: Broker) -> None:
    """Batches do, in every version, as from Kafka 4: clients that know batches may know zstd or not."""
    broker.log.create_topic("t")
    append(broker, encode_batch([(None, b"a", (), T)]))
    append(broker, encode_batch([(None, b"b", (), T)]))
    append(broker, encode_batch([(None, b"c" * 100, (), T)], compression=codec.ZSTD))
    append(broker, encode_batch([(None, b"d", (), T)]))
    for version in range(4):
        assert [r.value for r in decode_message_set(fetched(broker, version))] == [b"a", b"b"]
        (part,) = fetch(broker, version, 2)
        assert part.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert not part.records
        (part,) = fetch(broker, version, 3)
        assert part.error_code == 0
    for version in range(4, 13):
        assert [header.base_offset for header in scan(fetched(broker, version)).headers] == [0, 1, 2, 3]
        assert scan(fetched(broker, version, 2)).headers[0].compression == codec.ZSTD


def test_a_waiting_fetch_gets_a_message_set(broker: Broker) -> None:
    broker.log.create_topic("t")
    with Wire(broker) as wire:
        number = wire.send(request_of("t", 0, max_wait_ms=60_000), 2)
        broker.log.append("t", b"x", timestamp_ms=T)
        answer = wire.receive(FetchRequest, 2, number)
    data = answer.responses[0].partitions[0].records
    assert [(r.value, r.timestamp_ms) for r in decode_message_set(data)] == [(b"x", T)]


def test_a_conversion_uses_little_memory(broker: Broker) -> None:
    """However much there is, and however much is asked for: of one chunk, and of the answer."""
    broker.log.create_topic("t")
    for _ in range(24):
        broker.log.append_many("t", [bytes(1_000)] * 1_000)
    partition = broker.context.store.partition("t", 0)
    tracemalloc.start()
    try:
        made = as_message_set(partition, 0, 24_000, 1, 100_000, Conversion(), at_least_one=False)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert len(made) == 100_000
    assert [r.offset for r in decode_message_set(made)] == list(range(len(decode_message_set(made))))


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.slow
def test_a_large_batch_is_converted_in_pieces(broker: Broker, version: int, compression: str) -> None:
    """Each answer holds little of it, however much the client asks for, and all of it comes in the end."""
    broker.log.create_topic("t", max_message_bytes=64 * MIB)
    rows = [(None, b"%06d" % i * 200, (), T) for i in range(20_000)]
    append(broker, encode_batch(rows, compression=codec.codec_number(compression)))
    got: list[Record] = []
    answers = 0
    while len(got) < len(rows):
        data = fetched(broker, version, len(got), max_bytes=50 * MIB)
        records = decode_message_set(data, start_offset=len(got))
        assert 0 < sum(len(record.value or b"") for record in records) < 5 * MIB
        got += records
        answers += 1
    assert [(record.offset, record.value) for record in got] == [(i, row[1]) for i, row in enumerate(rows)]
    assert answers >= 5


def test_conversion_pauses_while_responses_are_unsent(broker: Broker) -> None:
    fill_pieces(broker)
    partition = broker.context.store.partition("t", 0)
    sizes = [
        len(as_message_set(partition, 0, 20_000, 1, 50 * MIB, Conversion(unsent), at_least_one=False))
        for unsent in (0, 63 * MIB, 64 * MIB, 1 << 40)
    ]
    assert sizes[0] > 4 * sizes[1] - MIB > 0
    assert sizes[2] == sizes[3] < MIB


def value_at(offset: int) -> bytes:
    return b"%06d" % offset * 200


def fill_pieces(broker: Broker) -> None:
    """A batch of many pieces, of 256 KiB each."""
    broker.log.create_topic("t", max_message_bytes=64 * MIB)
    append(broker, encode_batch([(None, value_at(i), (), T) for i in range(20_000)]))


def test_the_rest_of_a_conversion_is_dropped(broker: Broker) -> None:
    """Once its client has gone, or the broker stops: a piece is made at least."""
    fill_pieces(broker)
    partition = broker.context.store.partition("t", 0)
    asked: list[int] = []

    def over() -> bool:
        asked.append(1)
        return len(asked) == 3

    made = as_message_set(partition, 0, 20_000, 1, 50 * MIB, Conversion(0, over), at_least_one=False)
    assert 2 * 256 << 10 < len(made) < 4 * 256 << 10
    assert [record.value for record in decode_message_set(made)] == [
        value_at(i) for i in range(len(made) // 1_234)
    ]


def test_a_disconnected_client_costs_at_most_one_piece(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_pieces(broker)
    pieces: list[int] = []
    convert = Conversion.convert

    def counted(self: Conversion, records: list[Record], *more: Any) -> bytes:
        pieces.append(len(records))
        return convert(self, records, *more)

    monkeypatch.setattr(Conversion, "convert", counted)
    go = threading.Event()
    holding = broker.context.run_conversion(go.wait, TIMEOUT_S)
    wires = [Wire(broker) for _ in range(10)]
    for wire in wires:
        wire.send(request_of("t", 0, max_bytes=50 * MIB, partition_max_bytes=50 * MIB), 2)
    for wire in wires:
        wire.socket.shutdown(socket.SHUT_WR)
    (processor,) = broker.server.processors
    eventually(lambda: sum(each.half_closed for each in list(processor.connections)) == 10)
    go.set()
    assert holding.result(TIMEOUT_S)
    for wire in wires:  # who only sends no more gets his answer
        (part,) = wire.receive(FetchRequest, 2, 1).responses[0].partitions
        assert 0 < len(part.records) < MIB
        wire.close()
    assert len(pieces) == 10


def test_records_that_are_skipped_are_work_too(broker: Broker) -> None:
    """A fetch that begins near the end of a large batch makes no message of most pieces."""
    fill_pieces(broker)
    partition = broker.context.store.partition("t", 0)
    asked: list[int] = []

    def over() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert as_message_set(partition, 19_999, 20_000, 1, MIB, Conversion(0, over), at_least_one=False) == b""
    assert len(asked) == 3
    whole = as_message_set(partition, 19_999, 20_000, 1, MIB, Conversion(), at_least_one=False)
    assert [record.value for record in decode_message_set(whole)] == [value_at(19_999)]


@pytest.mark.parametrize("ends", ["clients", "broker"])
def test_conversions_end_with_their_clients_and_with_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Many wait for the one thread that converts, each with a long way to its first record."""
    fill_pieces(broker)
    pieces: list[int] = []
    convert = Conversion.convert

    def counted(self: Conversion, records: list[Record], *more: Any) -> bytes:
        pieces.append(len(records))
        return convert(self, records, *more)

    monkeypatch.setattr(Conversion, "convert", counted)
    go = threading.Event()
    holding = broker.context.run_conversion(go.wait, TIMEOUT_S)
    wires = [Wire(broker) for _ in range(24)]
    for wire in wires:
        wire.send(request_of("t", 19_999, max_bytes=50 * MIB), 2)
    (processor,) = broker.server.processors
    eventually(lambda: sum(not each.is_idle for each in list(processor.connections)) == 24)
    if ends == "clients":
        for wire in wires:
            wire.close()
        eventually(lambda: all(each.half_closed for each in list(processor.connections)))
        go.set()
        broker.context.run_conversion(bool).result(TIMEOUT_S)
        assert len(pieces) <= 24
        return
    closing = threading.Thread(target=broker.close)
    closing.start()
    eventually(lambda: processor._stopping)
    go.set()
    closing.join()
    assert holding.result(TIMEOUT_S)
    for wire in wires:
        wire.close()
    assert not pieces


def test_conversions_block_no_other_client(broker: Broker) -> None:
    """Also not those whose requests another thread handles because they are large."""
    broker.log.create_topic("t", max_message_bytes=10 * MIB)
    go = threading.Event()
    holding = broker.context.run_conversion(go.wait, TIMEOUT_S)
    with Wire(broker) as old, Wire(broker) as wire:
        number = old.send(request_of("t", 0), 2)
        assert wire.produce("t", batch_of(bytes(5 * MIB))).error_code == 0
        assert wire.produce("t", batch_of(bytes(5 * MIB), compression=codec.GZIP)).error_code == 0
        go.set()
        assert holding.result(TIMEOUT_S)
        old.receive(FetchRequest, 2, number)


def test_unread_responses_are_counted(broker: Broker) -> None:
    fill_pieces(broker)
    (processor,) = broker.server.processors
    with Wire(broker) as wire:
        for offset in (0, 4_000, 8_000, 12_000) * 2:
            wire.send(request_of("t", offset, max_bytes=50 * MIB, partition_max_bytes=50 * MIB), 2)
        eventually(lambda: processor.unsent_bytes > 0)
        for number in range(1, 9):
            wire.receive(FetchRequest, 2, number)
        eventually(lambda: processor.unsent_bytes == 0)
        for _ in range(8):
            wire.send(request_of("t", 0, max_bytes=50 * MIB, partition_max_bytes=50 * MIB), 2)
        eventually(lambda: processor.unsent_bytes > 0)
    eventually(lambda: not processor.connections)
    assert processor.unsent_bytes == 0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread is about to do."""
    while not condition():
        time.sleep(0.001)


def test_damage_fails_the_fetch_that_begins_there(broker: Broker) -> None:
    broker.log.create_topic("t")
    append(broker, encode_batch([(None, b"good", (), T)]))
    append(broker, encode_batch([(None, b"bad", (), T)]))
    append(broker, encode_batch([(None, b"good", (), T)]))
    segment = broker.context.store.partition("t", 0).segments()[-1]
    with open(segment.path, "r+b") as file:
        data = file.read()
        file.seek(data.index(b"bad"))
        file.write(b"worse"[:3])
    assert [r.offset for r in decode_message_set(fetched(broker, 2))] == [0]
    (part,) = fetch(broker, 2, 1)
    assert part.error_code == ErrorCode.CORRUPT_MESSAGE
    assert [r.offset for r in decode_message_set(fetched(broker, 2, 2))] == [2]


some_bytes = st.none() | st.binary(max_size=40)


@given(
    st.lists(st.lists(st.tuples(some_bytes, some_bytes), min_size=1, max_size=6), min_size=1, max_size=8),
    st.lists(st.sampled_from(CODECS), min_size=8, max_size=8),
    st.integers(0, 1),
    st.integers(1, 500),
)
def test_a_client_that_doubles_its_buffer_reads_everything(
    broker_for_examples: Broker, batches: list, codecs: list[str], magic: int, max_bytes: int
) -> None:
    log = broker_for_examples.log
    partition = broker_for_examples.context.store.partition("t", 0)
    start = log.offsets("t")[0].log_end_offset
    for rows, compression in zip(batches, codecs, strict=False):
        log.append_many(
            "t", [Record(key=k, value=v, timestamp_ms=T) for k, v in rows], compression=compression
        )
    end = log.offsets("t")[0].log_end_offset
    offset, size = start, max_bytes
    got: list[tuple[int, bytes | None, bytes | None]] = []
    while offset < end:
        data = as_message_set(partition, offset, end, magic, size, Conversion(), at_least_one=False)
        assert len(data) <= size
        records = decode_message_set(data, start_offset=offset)
        got += [(r.offset, r.key, r.value) for r in records]
        if records:
            offset = records[-1].offset + 1
        else:
            assert data
            size *= 2
    expected = [row for rows in batches for row in rows]
    assert got == [(start + i, k, v) for i, (k, v) in enumerate(expected)]


@pytest.fixture(scope="module")
def broker_for_examples():
    with Broker() as broker:
        broker.log.create_topic("t")
        assert broker.context.store.partition("t", 0).name == TopicPartition("t", 0)
        yield broker
