"""Templates of produce requests: a repeated request is read and answered like any other, only faster."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire import Wire, batch_of, produce

from embedlog.cluster import Broker
from embedlog.codec import encode_batch
from embedlog.wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.errors import ProtocolError
from embedlog.wire.frames import (
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response_chunks,
)
from embedlog.wire.request_template import template_for, template_of

T = "t"
FIRST = 5

sizes = st.sampled_from([1, 61, 126, 127, 128, 16_382, 16_383, 16_384]) | st.integers(1, 400)
names = st.sampled_from(["t", "u", "é", "a longer name"])
numbers32 = st.integers(-(2**31), 2**31 - 1)
numbers64 = st.integers(-(2**63), 2**63 - 1)
requests = st.builds(
    lambda acks, timeout, name, topic_id, index, size: ProduceRequest(
        acks=acks,
        timeout_ms=timeout,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=topic_id * 16,
                partition_data=[PartitionProduceData(index=index, records=b"r" * size)],
            )
        ],
    ),
    st.sampled_from([1, -1]),
    st.sampled_from([1000, 30_000]),
    names,
    st.sampled_from([b"a", b"b"]),
    numbers32,
    sizes,
)


def frame_of(request: ProduceRequest, version: int, number: int = 7, client: str | None = "c") -> bytes:
    return b"".join(map(bytes, encode_request(request, version, number, client)))[4:]  # type: ignore[arg-type]


def decoded(frame: bytes) -> tuple[Any, ProduceRequest] | None:
    try:
        header = decode_request_header(frame)
        return header, ProduceRequest.decode(frame, header.api_version, header.body_pos)
    except ProtocolError:
        return None


def told(request: ProduceRequest) -> tuple[Any, ...]:
    """All that a request of one partition says but its index and records."""
    (topic,) = request.topic_data
    assert len(topic.partition_data) == 1
    return request.transactional_id, request.acks, request.timeout_ms, topic.name, topic.topic_id


def made_of(request: ProduceRequest, version: int, client: str | None = "c") -> Any:
    frame = frame_of(request, version, client=client)
    header = decode_request_header(frame)
    return template_of(memoryview(frame), header, ProduceRequest.decode(frame, version, header.body_pos))


@given(st.integers(FIRST, 13), requests, requests, numbers32, st.sampled_from(["c", "", None]))
def test_a_matching_request_is_read_as_decoded(
    version: int, first: ProduceRequest, second: ProduceRequest, number: int, client: str | None
) -> None:
    found = made_of(first, version)
    frame = frame_of(second, version, number, client)
    records = second.topic_data[0].partition_data[0].records
    seen = found.records_of(memoryview(frame))
    _, plain = decoded(frame) or pytest.fail()
    _, before = decoded(frame_of(first, version)) or pytest.fail()
    if client == "c" and told(plain) == told(before) and len(bytes(records)) < 16_383:  # type: ignore[arg-type]
        assert seen == (number, second.topic_data[0].partition_data[0].index, records)
    elif client != "c" or told(plain) != told(before):
        assert seen is None


@given(st.integers(FIRST, 13), requests, st.data())
def test_changed_bytes_are_read_as_decoded(
    version: int, request: ProduceRequest, data: st.DataObject
) -> None:
    found = made_of(request, version)
    frame = bytearray(frame_of(request, version))
    for _ in range(data.draw(st.integers(0, 2))):
        frame[data.draw(st.integers(0, min(len(frame) - 1, 90)))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(frame)) | st.integers(0, len(frame)))
    changed = bytes(frame[:end]) + data.draw(st.just(b"") | st.binary(max_size=3))
    seen = found.records_of(memoryview(changed))
    if seen is not None:
        header, plain = decoded(changed) or pytest.fail()
        (part,) = plain.topic_data[0].partition_data
        assert seen == (header.correlation_id, part.index, part.records)
        assert (header.api_key, header.api_version, header.client_id) == (0, version, "c")
        assert told(plain) == told(decoded(frame_of(request, version))[1])  # type: ignore[index]


@given(st.integers(FIRST, 13), requests, numbers32, numbers32, numbers64, numbers64, numbers64)
@example(9, produce(T, b"x"), -2, -2, -2, -2, -2)
def test_a_response_equals_the_encoder(
    version: int, request: ProduceRequest, number: int, index: int, base: int, time: int, start: int
) -> None:
    part = PartitionProduceResponse(
        index=index, base_offset=base, log_append_time_ms=time, log_start_offset=start
    )
    (topic,) = request.topic_data
    whole = ProduceResponse(
        responses=[TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[part])]
    )
    wanted = b"".join(map(bytes, encode_response_chunks(whole, version, number)))  # type: ignore[arg-type]
    found = made_of(request, version)
    assert found.response(number, index, base, time, start) == wanted
    assert found.numbers_of(memoryview(wanted)[4:]) == (number, index, base, time)


@given(st.integers(FIRST, 13), requests, requests, numbers32, st.sampled_from(["c", "", None]))
def test_a_request_equals_the_encoder(
    version: int, first: ProduceRequest, second: ProduceRequest, number: int, client: str | None
) -> None:
    """Whatever records and index the template was made with."""
    (data,) = second.topic_data[0].partition_data
    first.topic_data[0].partition_data = [data]
    wanted = frame_of(first, version, number, client)
    first.topic_data[0].partition_data = [PartitionProduceData(index=0, records=b"others")]
    found = template_for(first, version, client)
    assert found is not None
    chunks = found.request(number, data.index, memoryview(data.records))  # type: ignore[arg-type]
    frame = b"".join(map(bytes, chunks))  # type: ignore[arg-type]
    assert frame == struct.pack(">i", len(wanted)) + wanted


@given(st.integers(FIRST, 13), requests, st.data())
def test_changed_responses_are_read_as_decoded(
    version: int, request: ProduceRequest, data: st.DataObject
) -> None:
    found = made_of(request, version)
    frame = bytearray(found.response(7, 3, 5, -1, 0)[4:])
    for _ in range(data.draw(st.integers(1, 2))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(frame)) | st.integers(0, len(frame)))
    changed = bytes(frame[:end]) + data.draw(st.just(b"") | st.binary(max_size=3))
    seen = found.numbers_of(memoryview(changed))
    if seen is not None:
        correlation_id, pos = decode_response_header(changed, ProduceResponse.api, version)
        (topic,) = ProduceResponse.decode(changed, version, pos).responses
        (part,) = topic.partition_responses
        assert seen == (correlation_id, part.index, part.base_offset, part.log_append_time_ms)
        assert part.error_code == 0
        assert topic.name == ("" if version >= 13 else request.topic_data[0].name)


def test_requests_without_a_template() -> None:
    part = PartitionProduceData(index=0, records=b"x")
    topic = TopicProduceData(name=T, partition_data=[part])
    for request in (
        ProduceRequest(acks=1),
        ProduceRequest(acks=1, topic_data=[topic, topic]),
        ProduceRequest(acks=1, topic_data=[TopicProduceData(name=T, partition_data=[part, part])]),
        ProduceRequest(acks=1, topic_data=[TopicProduceData(name=T)]),
        ProduceRequest(
            acks=1,
            topic_data=[TopicProduceData(name=T, partition_data=[PartitionProduceData(index=0)])],
        ),
    ):
        assert made_of(request, 9) is None
    assert made_of(produce(T, b"x"), FIRST - 1) is None
    frame = frame_of(produce(T, b"x"), 9) + b"\0"  # bytes after a message are ignored
    header = decode_request_header(frame)
    assert template_of(memoryview(frame), header, ProduceRequest.decode(frame, 9, header.body_pos)) is None


# -- a broker ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def topic(request: pytest.FixtureRequest) -> None:
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").log.create_topic(T, partitions=2)


def refuse(*_: object) -> None:
    raise AssertionError("this request was to be known")


@pytest.mark.parametrize("version", [FIRST, 7, 9, 12, 13])
def test_a_third_similar_request_uses_the_template(
    broker: Broker, wire: Wire, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(partition: int, value: bytes) -> int:
        request = produce(T, batch_of(value), partition=partition)
        request.topic_data[0].topic_id = broker.context.topic_id(T)
        (found,) = wire.ask(request, version).responses[0].partition_responses
        assert (found.index, found.error_code, found.log_start_offset) == (partition, 0, 0)
        return int(found.base_offset)

    assert [ask(0, b"a"), ask(1, b"b" * 200)] == [0, 0]
    monkeypatch.setattr(ProduceRequest, "decode", refuse)
    assert [ask(0, b"c" * 1000), ask(1, b"d"), ask(0, b"e")] == [1, 1, 2]
    found = [[record.value for record in broker.log.read(T, part, follow=False)] for part in (0, 1)]
    assert found == [[b"a", b"c" * 1000, b"e"], [b"b" * 200, b"d"]]


def test_errors_in_a_templated_request_are_reported(broker: Broker) -> None:
    """As a client is told that has sent nothing before."""
    broker.log.create_topic("slow", flush_messages=1)
    good = batch_of(b"v")
    odd = bytearray(good)
    struct.pack_into(">i", odd, 57, 5)
    packed = encode_batch([(None, b"v" * 50, (), 5)], compression=1)
    sequenced = produce(
        T, bytes(encode_batch([(None, b"v", (), 5)], producer_id=9, producer_epoch=0, base_sequence=3))
    )
    requests = [
        produce(T, good, partition=7),
        produce(T, good[:-1] + b"\x05"),
        produce(T, good[:-1]),
        produce(T, good + good),
        produce(T, bytes(odd)),
        produce(T, batch_of(b"x" * 2_000_000)),
        produce(T, bytes(packed)),
        sequenced,
        produce("no such", good),
        produce("slow", good),
        produce("slow", good),
        produce("slow", good),
        produce("slow", good[:-1] + b"\x05"),
    ]
    with Wire(broker) as knowing:
        for _ in range(3):
            knowing.ask(produce(T, good), 9)
        for request in requests:
            with Wire(broker) as fresh:
                (wanted,) = fresh.ask(request, 9).responses[0].partition_responses
            (found,) = knowing.ask(request, 9).responses[0].partition_responses
            assert (found.index, found.error_code, found.error_message) == (
                wanted.index,
                wanted.error_code,
                wanted.error_message,
            )
            if not wanted.error_code:
                assert found.base_offset == wanted.base_offset + (request is not sequenced)
            knowing.ask(produce(T, good), 9)


def test_a_transactional_batch_is_recognized(wire: Wire) -> None:
    batch = batch_of(b"v", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    for transaction in (None, "x", "x", "x", None, None, None, "x"):
        request = produce(T, batch if transaction else batch_of(b"v"))
        request.transactional_id = transaction
        (found,) = wire.ask(request, 9).responses[0].partition_responses
        assert found.error_code == (ErrorCode.INVALID_TXN_STATE if transaction else 0)


def test_concurrent_changes_are_noticed(broker: Broker, wire: Wire) -> None:
    def code() -> int:
        return wire.produce(T, batch_of(b"v" * 500)).error_code

    assert [code() for _ in range(3)] == [0] * 3
    broker.log.alter_topic(T, max_message_bytes=100)
    assert code() == 10
    broker.log.alter_topic(T, max_message_bytes=10_000, message_timestamp_type="LogAppendTime")
    assert wire.produce(T, batch_of(b"v" * 500)).log_append_time_ms > 0
    broker.log.delete_topic(T)
    assert code() == 3
    broker.log.create_topic(T)
    assert wire.produce(T, batch_of(b"v")).base_offset == 0


def test_clients_of_one_connection_that_differ(broker: Broker, wire: Wire) -> None:
    """Topics by turns, other acks between them, and none of it is taken for another's."""
    broker.log.create_topic("u")
    sent = {T: 0, "u": 0}
    for round_number in range(12):
        for name in (T, "u", "u") if round_number % 2 else (T, T, "u"):
            assert wire.produce(name, batch_of(b"v")).base_offset == sent[name]
            sent[name] += 1
        wire.send(produce(T, batch_of(b"v"), acks=0), 9)
        sent[T] += 1
    assert wire.produce(T, batch_of(b"v")).base_offset == sent[T]
    sent[T] += 1
    for name, count in sent.items():
        assert broker.log.offsets(name)[0].log_end_offset == count
