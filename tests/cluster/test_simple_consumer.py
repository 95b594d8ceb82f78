"""The documents' SimpleConsumer with our broker, and with slow, silent, closed or malicious servers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from embedlog import CommittedOffset, Record, TopicPartition, errors
from embedlog.cluster import Broker
from embedlog.cluster.classic import (
    EARLIEST_TIME,
    LATEST_TIME,
    FetchRequest,
    MessageSet,
    SimpleConsumer,
    simple_consumer,
)
from embedlog.codec import encode_batch
from embedlog.codec.message_set import encode_message_set
from embedlog.wire.apis.api_versions import ApiVersion, ApiVersionsResponse
from embedlog.wire.apis.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from embedlog.wire.apis.fetch import FetchRequest as WireFetch
from embedlog.wire.frames import decode_request_header, encode_response_chunks
from embedlog.wire.messages import Response

T = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4")


@pytest.fixture
def consumer(broker: Broker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", broker.port, buffer_size=1000) as consumer:
        yield consumer


@pytest.fixture
def message_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch as from brokers before Kafka 0.11."""
    monkeypatch.setattr(simple_consumer, "_FETCH", range(3))


def everything(consumer: SimpleConsumer, topic: str = "t", offset: int = 0) -> list[Record]:
    found: list[Record] = []
    while messages := consumer.fetch(FetchRequest(topic, 0, offset)):
        found += messages
        offset = messages.next_offset
    return found


# -- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [range(3), range(13)])
@pytest.mark.parametrize("compression", CODECS)
def test_appended_records_are_read(
    broker: Broker,
    consumer: SimpleConsumer,
    compression: str,
    versions: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple_consumer, "_FETCH", versions)
    broker.log.create_topic("t")
    for n in range(20):
        rows = [Record(key=b"%d" % n, value=b"%d" % i * i, timestamp_ms=T + i) for i in range(30)]
        broker.log.append_many("t", rows, compression=compression)
    assert everything(consumer) == list(broker.log.read("t", 0))
    assert [r.offset for r in everything(consumer, offset=317)] == list(range(317, 600))


def test_headers_zstd_and_control_batches(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t")
    broker.log.append("t", b"with headers", headers={"trace": b"1"})
    broker.log.append_many("t", [b"small", b"x" * 5_000], compression="zstd")
    broker.context.store.partition("t", 0).end_transaction(1, 0, commit=False, timestamp_ms=T)
    broker.log.append("t", b"last")
    found = everything(consumer)
    assert found == list(broker.log.read("t", 0))
    assert [r.offset for r in found] == [0, 1, 2, 4]
    assert found[0].headers == (("trace", b"1"),)


def test_batches_come_whole_whatever_the_buffer(broker: Broker) -> None:
    broker.log.create_topic("t", partitions=2)
    for partition in (0, 1):
        broker.log.append_many("t", [b"x" * 100] * 50, partition=partition)
    with SimpleConsumer("127.0.0.1", broker.port, buffer_size=1, max_buffer_size=10_000) as consumer:
        found = consumer.multifetch([FetchRequest("t", 0, 10), FetchRequest("t", 1, 0)])
    assert [[r.offset for r in each] for each in found] == [list(range(10, 50)), list(range(50))]
    assert [each.next_offset for each in found] == [50, 50]


@pytest.mark.usefixtures("message_sets")
def test_a_partial_last_message_is_dropped(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t")
    broker.log.append_many("t", [b"x" * 266] * 10)  # 300 bytes each, as messages
    messages = consumer.fetch(FetchRequest("t", 0, 0))
    assert [r.offset for r in messages] == [0, 1, 2]
    assert (messages.next_offset, messages.high_watermark) == (3, 10)
    messages = consumer.fetch(FetchRequest("t", 0, 3, max_bytes=600))
    assert [r.offset for r in messages] == [3, 4]
    assert messages.request == FetchRequest("t", 0, 3, max_bytes=600)


@pytest.mark.usefixtures("message_sets")
@pytest.mark.parametrize("compression", CODECS)
def test_the_buffer_is_doubled_until_a_message_fits(broker: Broker, compression: str) -> None:
    broker.log.create_topic("t")
    broker.log.append_many(
        "t", [b"small", b"".join(b"%d" % i for i in range(20_000))], compression=compression
    )
    with SimpleConsumer("127.0.0.1", broker.port, buffer_size=1) as consumer:
        assert everything(consumer) == list(broker.log.read("t", 0))


@pytest.mark.usefixtures("message_sets")
def test_it_gives_up_at_a_maximum(broker: Broker) -> None:
    broker.log.create_topic("t")
    broker.log.append_many("t", [b"small", b"x" * 10_000, b"small"])
    with SimpleConsumer("127.0.0.1", broker.port, buffer_size=100, max_buffer_size=5_000) as consumer:
        assert [r.offset for r in consumer.fetch(FetchRequest("t", 0, 0))] == [0]
        with pytest.raises(errors.RecordTooLarge, match=r"offset 1 does not fit into 5,000.*max_buffer_size"):
            consumer.fetch(FetchRequest("t", 0, 1))
        assert [r.offset for r in consumer.fetch(FetchRequest("t", 0, 2))] == [2]
    with SimpleConsumer("127.0.0.1", broker.port, buffer_size=100, max_buffer_size=10_034) as consumer:
        assert [r.offset for r in consumer.fetch(FetchRequest("t", 0, 1))] == [1]


def test_the_end_of_the_log(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t")
    nothing = consumer.fetch(FetchRequest("t", 0, 0))
    assert nothing == MessageSet(FetchRequest("t", 0, 0, 1000), [], 0, 0)
    assert not nothing
    timer = threading.Thread(target=lambda: broker.log.append("t", b"late"))
    timer.start()
    while not (found := consumer.fetch(FetchRequest("t", 0, 0), max_wait_ms=60_000)):
        pass
    timer.join()
    assert [r.value for r in found] == [b"late"]


def test_invalid_requests(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t")
    broker.log.append("t", b"x")
    with pytest.raises(errors.OffsetOutOfRange, match=r"OFFSET_OUT_OF_RANGE \(1\).*look up its edges"):
        consumer.fetch(FetchRequest("t", 0, 2))
    for topic, partition in (("nowhere", 0), ("t", 1)):
        with pytest.raises(errors.TopicNotFound, match=r"UNKNOWN_TOPIC_OR_PARTITION \(3\)"):
            consumer.fetch(FetchRequest(topic, partition, 0))


@pytest.mark.usefixtures("message_sets")
def test_zstd_has_no_form_in_message_sets(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t")
    broker.log.append("t", b"x")
    broker.log.append_many("t", [b"y" * 100], compression="zstd")
    assert [r.value for r in consumer.fetch(FetchRequest("t", 0, 0))] == [b"x"]
    with pytest.raises(errors.CompressionUnavailable, match="another codec"):
        consumer.fetch(FetchRequest("t", 0, 1))


@pytest.mark.parametrize(
    ("versions", "told"),
    [(range(3), r"CORRUPT_MESSAGE \(2\).*embedlog verify"), (range(13), "offset 1: the CRC does not match")],
)
def test_damage_is_reported_after_the_records_before_it(
    broker: Broker,
    consumer: SimpleConsumer,
    versions: range,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple_consumer, "_FETCH", versions)
    broker.log.create_topic("t")
    for value in (b"good", b"bad", b"good"):
        broker.context.store.partition("t", 0).append(encode_batch([(None, value, (), T)]))
    segment = broker.context.store.partition("t", 0).segments()[-1]
    with open(segment.path, "r+b") as file:
        data = file.read()
        file.seek(data.index(b"bad"))
        file.write(b"odd")
    assert [r.value for r in consumer.fetch(FetchRequest("t", 0, 0))] == [b"good"]
    with pytest.raises(errors.CorruptRecord, match=told):
        consumer.fetch(FetchRequest("t", 0, 1))


# -- several at once ---------------------------------------------------------------------------------------


def test_multifetch(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t", partitions=3)
    broker.log.create_topic("u")
    for i in range(3):
        broker.log.append("t", b"t%d" % i, partition=i)
    broker.log.append("u", b"x" * 3_000)
    requests = [
        FetchRequest("t", 2, 0),
        FetchRequest("nowhere", 0, 0),
        FetchRequest("u", 0, 0),  # takes a larger buffer than the others
        FetchRequest("t", 0, 0),
        FetchRequest("t", 0, 1),  # the same partition again
        FetchRequest("t", 1, 7),
    ]
    found = consumer.multifetch(requests)
    assert [(each.request.topic, each.request.partition, each.request.offset) for each in found] == [
        (request.topic, request.partition, request.offset) for request in requests
    ]
    assert [[r.value for r in each.records] for each in found] == [
        [b"t2"],
        [],
        [b"x" * 3_000],
        [b"t0"],
        [],
        [],
    ]
    assert [type(each.error) for each in found] == [
        type(None),
        errors.TopicNotFound,
        type(None),
        type(None),
        type(None),
        errors.OffsetOutOfRange,
    ]
    with pytest.raises(errors.TopicNotFound):
        list(found[1])
    assert consumer.multifetch([]) == []


def test_offsets_before(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t", segment_bytes=1024)
    assert consumer.get_offsets_before("t", 0, LATEST_TIME, 5) == [0]
    for _ in range(10):
        broker.log.append("t", bytes(400))
    for time_ms in (LATEST_TIME, EARLIEST_TIME, 2**62, 5):
        for count in (1, 2, 100):
            expected = broker.log.offsets_before("t", 0, time_ms, count)
            assert consumer.get_offsets_before("t", 0, time_ms, count) == expected
    assert consumer.get_offsets_before("t", 0, LATEST_TIME, 100)[0] == 10
    assert consumer.get_offsets_before("t", 0, EARLIEST_TIME, 1) == [0]
    with pytest.raises(errors.TopicNotFound):
        consumer.get_offsets_before("t", 7, LATEST_TIME, 1)


# -- offsets of a group ------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["kafka", "zookeeper"])
def test_offsets_are_committed_and_fetched_by_hand(
    broker: Broker, consumer: SimpleConsumer, storage: str
) -> None:
    broker.log.create_topic("t", partitions=3)
    broker.log.append_many("t", [b"x"] * 10, partition=0)
    at = consumer.find_coordinator("billing")
    assert (at.node_id, at.host, at.port) == (0, "127.0.0.1", broker.port)
    names = [TopicPartition("t", i) for i in range(3)]
    assert consumer.fetch_offsets("billing", names, storage=storage) == dict.fromkeys(names)
    consumer.commit_offsets(
        "billing", {names[0]: 4, names[1]: CommittedOffset(0, metadata="here")}, storage=storage
    )
    found = consumer.fetch_offsets("billing", names, storage=storage)
    assert found == {
        names[0]: CommittedOffset(4),
        names[1]: CommittedOffset(0, metadata="here"),
        names[2]: None,
    }
    with broker.log.consumer("t", group="billing", stop_at_end=True) as embedded:
        assert [record.offset for record in embedded] == [4, 5, 6, 7, 8, 9]


def test_a_group_with_members_takes_no_commits_by_hand(broker: Broker, consumer: SimpleConsumer) -> None:
    broker.log.create_topic("t")
    broker.log.append("t", b"x")
    with broker.log.consumer("t", group="billing") as member:
        assert member.poll(60_000)
        with pytest.raises(errors.UnknownMember, match=r"stop them before committing offsets by hand"):
            consumer.commit_offsets("billing", {TopicPartition("t", 0): 0})


# -- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.fetch(("t", 0, 0)),
        lambda c: c.fetch(FetchRequest("a/b", 0, 0)),
        lambda c: c.fetch(FetchRequest("t", -1, 0)),
        lambda c: c.fetch(FetchRequest("t", 0, -1)),
        lambda c: c.fetch(FetchRequest("t", 0, 2**63)),
        lambda c: c.fetch(FetchRequest("t", 0, 0, 0)),
        lambda c: c.fetch(FetchRequest("t", 0, 0, 2**30)),
        lambda c: c.fetch(FetchRequest("t", 0, 0), max_wait_ms=-1),
        lambda c: c.fetch(FetchRequest("t", 0, 0), min_bytes=-1),
        lambda c: c.get_offsets_before("t", 0, -3, 1),
        lambda c: c.get_offsets_before("t", 0, 0, 0),
        lambda c: c.find_coordinator(""),
        lambda c: c.commit_offsets("g", [("t", 0)]),
        lambda c: c.commit_offsets("g", {("t", 0): -1}),
        lambda c: c.commit_offsets("g", {("t", 0): 1}, storage="paper"),
        lambda c: c.fetch_offsets("g", [("t",)]),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    call: Callable[[SimpleConsumer], object],
) -> None:
    with (
        SimpleConsumer("127.0.0.1", 1) as consumer,
        pytest.raises((errors.InvalidArgument, errors.EmbedlogError)) as caught,
    ):
        call(consumer)
    assert not isinstance(caught.value, errors.BrokerUnavailable)


@pytest.mark.parametrize(
    "wrong", [{"port": 0}, {"so_timeout_ms": 0}, {"buffer_size": 0}, {"max_buffer_size": 1}]
)
def test_wrong_settings(wrong: dict[str, int]) -> None:
    with pytest.raises(errors.InvalidArgument):
        SimpleConsumer(**{"host": "localhost", "port": 9092, **wrong})  # type: ignore[arg-type]


# -- peers -------------------------------------------------------------------------------------------------


@contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Somebody who listens on a port and treats each connection in his way."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            while not over.is_set():
                connection, _ = listener.accept()
                with connection:
                    if not over.is_set():
                        with suppress(OSError):
                            behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


def gone(connection: socket.socket) -> None:
    connection.recv(1000)


def silent(connection: socket.socket) -> None:
    while connection.recv(1000):
        pass


def dripping(connection: socket.socket) -> None:
    """So slowly that each byte comes in time and the answer never does."""
    connection.sendall(struct.pack(">i", 1000))
    connection.settimeout(0.02)
    while True:
        connection.sendall(b"\0")
        with suppress(TimeoutError):
            if not connection.recv(1000):
                return


def http(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    silent(connection)


def negative(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(struct.pack(">i", -1))
    silent(connection)


def another_answer(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(struct.pack(">ii", 10, 4711) + bytes(6))
    silent(connection)


def half(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(struct.pack(">ii", 1000, 1) + bytes(100))


def silent_after_its_versions(connection: socket.socket) -> None:
    header = decode_request_header(connection.recv(1000)[4:])
    offered = ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, min_version=0, max_version=2)])
    chunks = encode_response_chunks(offered, header.api_version, header.correlation_id)
    connection.sendall(b"".join(chunks))  # type: ignore[arg-type]
    silent(connection)


def modern(connection: socket.socket) -> None:
    """As a broker that names topics by id only: Fetch begins at version 13."""
    frame = connection.recv(1000)[4:]
    header = decode_request_header(frame)
    offered = ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, min_version=13, max_version=17)])
    chunks = encode_response_chunks(offered, header.api_version, header.correlation_id)
    connection.sendall(b"".join(chunks))  # type: ignore[arg-type]
    silent(connection)


def damaging(connection: socket.socket) -> None:
    """As a broker between which and us a byte is flipped, in the second message."""
    good, bad = (
        encode_message_set([(None, value, (), T)], 1, base_offset=i)
        for i, value in enumerate([b"good", b"bad"])
    )
    while frame := connection.recv(1000)[4:]:
        header = decode_request_header(frame)
        answer: Response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, min_version=0, max_version=2)])
        if header.api_key == 1:
            request = WireFetch.decode(frame, header.api_version, header.body_pos)
            records = (good if request.topics[0].partitions[0].fetch_offset == 0 else b"") + bad[:-1] + b"x"
            part = PartitionData(partition_index=0, high_watermark=2, records=records)
            answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
        chunks = encode_response_chunks(answer, header.api_version, header.correlation_id)
        connection.sendall(b"".join(chunks))  # type: ignore[arg-type]


def test_responses_are_checked() -> None:
    with peer(damaging) as port, SimpleConsumer("127.0.0.1", port) as consumer:
        messages = consumer.fetch(FetchRequest("t", 0, 0))
        assert [(r.offset, r.value) for r in messages] == [(0, b"good")]
        with pytest.raises(errors.CorruptRecord, match="CRC"):
            consumer.fetch(FetchRequest("t", 0, messages.next_offset))


@pytest.mark.parametrize(
    ("behave", "kind", "told"),
    [
        (gone, errors.BrokerUnavailable, "closed the connection"),
        (half, errors.BrokerUnavailable, "closed the connection"),
        (silent, errors.RequestTimedOut, r"within 0\.3 s"),
        (dripping, errors.RequestTimedOut, r"within 0\.3 s"),
        (http, errors.BrokerUnavailable, "does not speak Kafka's protocol"),
        (negative, errors.BrokerUnavailable, "does not speak Kafka's protocol"),
        (another_answer, errors.BrokerUnavailable, "does not speak Kafka's protocol"),
        (modern, errors.BrokerError, r"versions 13 to 17 of Fetch.*needs one of 0 to 12"),
    ],
)
def test_incompatible_servers(
    behave: Callable[[socket.socket], None], kind: type[Exception], told: str
) -> None:
    timeout_ms = 300 if kind is errors.RequestTimedOut else 60_000
    with peer(behave) as port, SimpleConsumer("127.0.0.1", port, so_timeout_ms=timeout_ms) as consumer:
        for _ in range(2):  # the next request makes a new connection
            with pytest.raises(kind, match=told):
                consumer.fetch(FetchRequest("t", 0, 0))


def test_a_response_that_comes_too_late_is_not_taken_for_another() -> None:
    """The connection is closed. The time that the broker may wait comes on top of the timeout."""
    connections = []

    def behave(connection: socket.socket) -> None:
        connections.append(connection)
        silent_after_its_versions(connection)

    with peer(behave) as port, SimpleConsumer("127.0.0.1", port, so_timeout_ms=200) as consumer:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(errors.RequestTimedOut, match=r"no response to Fetch within 0\.3 s"):
                consumer.fetch(FetchRequest("t", 0, 0), max_wait_ms=100)
            assert time.monotonic() - began >= 0.3
    assert len(connections) == 2


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        SimpleConsumer("127.0.0.1", port) as consumer,
        pytest.raises(errors.BrokerUnavailable, match=str(port)),
    ):
        consumer.fetch(FetchRequest("t", 0, 0))


def test_it_connects_again_after_the_broker_was_away() -> None:
    with Broker() as broker:
        broker.log.create_topic("t")
        port = broker.port
        consumer = SimpleConsumer("127.0.0.1", port)
        assert not consumer.fetch(FetchRequest("t", 0, 0))
    with pytest.raises(errors.BrokerUnavailable):
        consumer.fetch(FetchRequest("t", 0, 0))
    with Broker(port=port) as broker:
        broker.log.create_topic("t")
        broker.log.append("t", b"x")
        assert [r.value for r in consumer.fetch(FetchRequest("t", 0, 0))] == [b"x"]
        consumer.close()
