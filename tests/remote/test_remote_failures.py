"""Failures over the wire: broken connections, restarted brokers, foreign servers."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from secure_peers import Peer

import embedlog
from embedlog import (
    BrokerError,
    BrokerUnavailable,
    EmbedlogError,
    ForkedHandle,
    Log,
    OutOfOrderSequence,
    RequestTimedOut,
    TopicPartition,
    UnsupportedByBackend,
)
from embedlog.backends.remote.brokers import Brokers
from embedlog.backends.remote.metadata import Metadata
from embedlog.cluster import Broker
from embedlog.storage import producer_state_manager as producer_ledger
from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersion, ApiVersionsResponse
from embedlog.wire.apis.init_producer_id import InitProducerIdResponse
from embedlog.wire.apis.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from embedlog.wire.apis.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.frames import RequestHeader, decode_request_header, encode_response_chunks
from embedlog.wire_client.settings import ClientSettings
from embedlog.wire_client.versions import SPOKEN


def at(port: int, **settings: object) -> Log:
    """The log behind a port, whatever serves it."""
    return embedlog.open(f"kafka://127.0.0.1:{port}", **{"retry_backoff_ms": 5} | settings)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Somebody who listens on a port and treats each connection in his way, in a thread of its own."""
    over = threading.Event()
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def treat(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                if over.is_set():
                    connection.close()
                    return
                connections.append(connection)
                threads.append(threading.Thread(target=treat, args=(connection,)))
                threads[-1].start()

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            socket.create_connection(listener.getsockname()).close()
            serving.join()
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


def frame(connection: socket.socket) -> bytes:
    size = received(connection, 4)
    return size + received(connection, int.from_bytes(size, "big"))


# -- connections that break --------------------------------------------------------------------------------


class Cutting:
    """Between a broker and its clients: each connection is cut when a few answers have passed, with the
    next request done and its answer on the way."""

    def __init__(self) -> None:
        self.broker = 0
        self.cuts = 0
        self._begun = 0

    def __call__(self, connection: socket.socket) -> None:
        self._begun += 1
        answers = 2 + self._begun % 4
        with socket.create_connection(("127.0.0.1", self.broker)) as broker:
            for _ in range(answers):
                broker.sendall(frame(connection))
                connection.sendall(frame(broker))
            broker.sendall(frame(connection))
            frame(broker)
            self.cuts += 1


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[tuple[Log, Log, Cutting]]:
    """A broker's log, the same over connections that are cut all the time, and who cuts them."""
    cutting = Cutting()
    with peer(cutting) as port, Broker(tmp_path / "log", advertised_port=port) as broker:
        cutting.broker = broker.port
        broker.log.create_topic("t")
        with at(port, heartbeat_interval_ms=50) as log:
            yield broker.log, log, cutting


def test_a_retried_append_is_there_once(cut: tuple[Log, Log, Cutting]) -> None:
    inside, log, cutting = cut
    offsets = [log.append("t", b"%d" % i).offset for i in range(60)]
    assert cutting.cuts > 10
    assert offsets == list(range(60))
    assert [record.value for record in inside.read("t")] == [b"%d" % i for i in range(60)]


def test_several_batches_in_flight(cut: tuple[Log, Log, Cutting]) -> None:
    inside, log, cutting = cut
    inside.alter_topic("t", max_message_bytes=2_000)
    appended = log.append_many("t", [b"%06d" % i * 20 for i in range(500)])
    assert cutting.cuts > 5
    assert [each.offset for each in appended] == list(range(500))
    assert [record.value for record in inside.read("t")] == [b"%06d" % i * 20 for i in range(500)]


def test_a_producer_and_a_group_get_through(cut: tuple[Log, Log, Cutting]) -> None:
    inside, log, _ = cut
    with log.producer(linger_ms=0, batch_bytes=200) as producer:
        futures = [producer.send("t", b"%d" % i) for i in range(200)]
        producer.flush()
    assert [future.result().offset for future in futures] == list(range(200))
    found: list[bytes | None] = []
    with log.consumer("t", group="g", max_poll_records=20) as consumer:
        while len(found) < 200:
            found += [record.value for record in consumer.poll(50)]
        consumer.commit()
    assert found == [b"%d" % i for i in range(200)]
    groups = inside.backend.coordinator
    assert groups is not None
    assert groups.committed_offsets("g")[TopicPartition("t", 0)].offset == 200


def test_non_idempotent_changes(cut: tuple[Log, Log, Cutting]) -> None:
    """An answer that was lost is no reason to say that the topic is there already."""
    inside, log, cutting = cut
    for i in range(8):
        name = f"topic-{i}"
        assert log.create_topic(name, partitions=2).partitions == 2
        assert log.create_partitions(name, 3).partitions == 3
        assert log.alter_topic(name, retention_ms=i).settings == {"retention_ms": i}
        log.delete_topic(name)
    assert cutting.cuts > 10
    assert inside.topics() == ["t"]


def test_no_batch_overtakes_the_first_one_of_a_producer() -> None:
    """A leader that has just begun rejects the first batch; Kafka would take the second one, at any sequence
    number of a producer that it does not know, and the records would be doubled."""
    sequences: list[int] = []

    def metadata(frame: memoryview, header: RequestHeader) -> MetadataResponse:
        here = MetadataResponseBroker(node_id=0, host="127.0.0.1", port=peer.port)
        partition = MetadataResponsePartition(partition_index=0, leader_id=0)
        topic = MetadataResponseTopic(name="t", partitions=[partition])
        return MetadataResponse(brokers=[here], cluster_id="c", controller_id=0, topics=[topic])

    def produced(frame: memoryview, header: RequestHeader) -> ProduceResponse:
        request = ProduceRequest.decode(frame, header.api_version, header.body_pos)
        records = request.topic_data[0].partition_data[0].records
        assert records is not None
        sequences.append(int.from_bytes(bytes(records)[53:57], "big"))
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if len(sequences) == 1 else 0
        answer = PartitionProduceResponse(index=0, error_code=code, base_offset=sequences[-1])
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])

    others = {
        "InitProducerId": lambda frame, header: InitProducerIdResponse(producer_id=7, producer_epoch=0),
        "Metadata": metadata,
        "Produce": produced,
    }
    with Peer(others=others) as peer, at(peer.port) as log:
        log.append_many("t", [b"x" * 400_000] * 8)
    assert sequences[:2] == [0, 0]
    assert sequences[1:] == sorted(set(sequences))


# -- brokers that go ---------------------------------------------------------------------------------------


def test_a_broker_that_is_restarted(tmp_path: Path) -> None:
    """Appending and consuming go on: nothing is lost or doubled, no error is seen."""
    port = free_port()
    broker = Broker(tmp_path / "log", port=port, offsets_topic_num_partitions=1)
    broker.log.create_topic("t")
    consumed: list[bytes | None] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def consume() -> None:
        try:
            with (
                at(port, heartbeat_interval_ms=20) as own,
                own.consumer("t", group="g", auto_commit_interval_ms=10) as consumer,
            ):
                while not done.is_set() or consumer.lag().get(TopicPartition("t", 0), 1):
                    consumed.extend(record.value for record in consumer.poll(20))
        except BaseException as error:
            failed.append(error)

    with at(port) as log:
        consuming = threading.Thread(target=consume)
        consuming.start()
        sent = []
        try:
            with log.producer(linger_ms=0) as producer:
                for number in range(400):
                    sent.append(producer.send("t", b"%d" % number))
                    if number % 4 == 0:
                        sent[-1].result(60)
                    if number % 100 == 50:
                        broker.close()
                        broker = Broker(tmp_path / "log", port=port)
                producer.flush()
            assert [future.result().offset for future in sent] == list(range(400))
        finally:
            done.set()
            consuming.join()
        assert not failed
        assert [record.value for record in log.read("t")] == [b"%d" % i for i in range(400)]
    assert set(consumed) == {b"%d" % i for i in range(400)}
    broker.close()


def test_a_broker_that_stays_away(tmp_path: Path) -> None:
    with Broker(tmp_path / "log") as broker:
        broker.log.create_topic("t")
        log = at(broker.port, default_api_timeout_ms=500, delivery_timeout_ms=500)
        log.append("t", b"there")
        consumer = log.consumer("t")
        assert len(consumer.poll(10_000)) == 1
        producer = log.producer(linger_ms=0)
    for act in (
        lambda: log.append("t", b"lost"),
        lambda: log.append_many("t", [b"lost"]),
        log.topics,
        lambda: log.offsets("t"),
        lambda: list(log.read("t")),
        lambda: consumer.poll(60_000),
    ):
        with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{broker.port}"):
            act()
    consumer.close()
    producer.close()
    log.close()


def test_nothing_answers() -> None:
    port = free_port()
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port}: .*refused"):
        at(port)
    with pytest.raises(ConnectionError, match=r"no broker responds: .*; "):
        embedlog.open(f"kafka://127.0.0.1:{port},127.0.0.1:{free_port()}")


def test_one_of_several_brokers_suffices(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "log") as broker,
        embedlog.open(f"kafka://127.0.0.1:{free_port()},{broker.bootstrap_servers}") as log,
    ):
        log.create_topic("t")
        assert log.append("t", b"here").offset == 0


def test_a_stopped_broker_delays_no_question_that_others_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped, embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=2)
        with Broker(log, port=0) as broker:
            began = time.monotonic()
            path = f"kafka://127.0.0.1:{stopped.getsockname()[1]},127.0.0.1:{broker.port}"
            with embedlog.open(path, metadata_max_age_ms=0) as remote:
                for number in range(3):
                    assert remote.topics() == ["t"]
                    remote.append("t", b"x", partition=number % 2)
            assert time.monotonic() - began < 5  # a connection alone had 10 s


def test_who_can_be_reached(tmp_path: Path) -> None:
    """What is known of brokers and leaders, without asking anybody."""
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=2)
        broker = Broker(log, port=0)
        brokers = Brokers("kafka://", [("127.0.0.1", broker.port)], ClientSettings(retry_backoff_ms=5))
        metadata = Metadata(brokers)
        try:
            assert metadata.led_partitions("t") == [] and metadata.last_leader(TopicPartition("t", 0)) is None
            leader = metadata.leader(TopicPartition("t", 0), time.monotonic() + 10)
            metadata.forget("t")
            assert metadata.last_leader(TopicPartition("t", 0)) == leader
            assert metadata.led_partitions("t") == [0, 1] and brokers.why_away(leader) is None
            broker.close()
            assert metadata.led_partitions("t") == []
            assert "refused" in str(brokers.why_away(leader))
            with pytest.raises(BrokerUnavailable, match="refused"):
                brokers.take(leader, time.monotonic() + 10)
            with Broker(log, port=leader[1]):
                while not metadata.led_partitions("t"):  # which connects again, ever more rarely
                    time.sleep(0.01)
        finally:
            brokers.close()


def test_opening_respects_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Broker() as broker:
        address = f"kafka://127.0.0.1:{silent.getsockname()[1]},{broker.bootstrap_servers}"
        with pytest.raises(BrokerUnavailable, match="did not respond in time"):
            embedlog.open(address, default_api_timeout_ms=50)  # which is no time to ask the second one


def test_partitions_that_different_brokers_lead(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways to one broker stand for two leaders: who waits for both is woken by either."""

    def passing(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", broker.port)) as there:
            while True:
                there.sendall(frame(connection))
                connection.sendall(frame(there))

    with peer(passing) as first, peer(passing) as second, at(broker.port) as log:
        broker.log.create_topic("t", partitions=2)
        monkeypatch.setattr(Metadata, "_leader_of", lambda *given: ("127.0.0.1", (first, second)[given[2]]))
        assert log.offsets("t").keys() == {0, 1}
        found: list[bytes | None] = []
        with log.consumer("t") as consumer:
            for i in range(20):
                assert consumer.poll() == []
                later = threading.Timer(0.01, broker.log.append, ("t", b"%d" % i), {"partition": i % 2})
                later.start()
                while len(found) <= i:
                    found += [record.value for record in consumer.poll(60_000)]
                later.join()
        assert found == [b"%d" % i for i in range(20)]


def test_an_append_after_one_of_unknown_fate(tmp_path: Path) -> None:
    """The next append begins an epoch, so that requests in flight cannot come between."""
    hold = threading.Event()
    hold.set()
    ports: list[int] = []

    def holding(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", ports[0])) as broker:
            while True:
                request = frame(connection)
                if request[4:6] == b"\0\0":  # Produce
                    hold.wait()
                broker.sendall(request)
                connection.sendall(frame(broker))

    with peer(holding) as port, Broker(tmp_path / "log", advertised_port=port) as broker:
        ports.append(broker.port)
        broker.log.create_topic("t")
        with at(port, delivery_timeout_ms=1_000, request_timeout_ms=1_000) as log:
            log.append("t", b"first")
            hold.clear()
            try:
                with pytest.raises(RequestTimedOut):
                    log.append("t", b"unknown")
            finally:
                hold.set()
        with at(port) as log:
            log.append("t", b"another handle")
        found = [record.value for record in broker.log.read("t")]
        assert found[0] == b"first"
        assert found.count(b"unknown") <= 1
        assert found.count(b"another handle") == 1


@pytest.mark.parametrize("forgotten", [False, True])
def test_two_batches_whose_answers_were_lost_when_the_broker_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """A snapshot names the last of them alone, and the log the other one. Where a broker has forgotten that,
    it answers as out of order, and whether it was appended cannot be known: it is not appended again."""
    if forgotten:
        monkeypatch.setattr(producer_ledger, "_RECALLED_BYTES", 0)
    brokers: list[Broker] = []
    produced: list[bytes] = []

    def restarting(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", brokers[-1].port)) as broker:
            while True:
                request = frame(connection)
                broker.sendall(request)
                answer = frame(broker)
                if request[4:6] == b"\0\0":  # Produce
                    produced.append(answer)
                    if len(produced) == 2:
                        continue
                    if len(produced) == 3:  # neither answer arrives
                        brokers[-1].close()
                        brokers.append(Broker(tmp_path / "log", advertised_port=port))
                        return
                connection.sendall(answer)

    with peer(restarting) as port:
        brokers.append(Broker(tmp_path / "log", advertised_port=port))
        brokers[0].log.create_topic("t")
        sent = [b"%d" % number + bytes(600_000) for number in range(2)]
        with at(port) as log:
            log.append("t", b"first")  # alone: then two may be under way
            if forgotten:
                with pytest.raises(OutOfOrderSequence) as raised:
                    log.append_many("t", sent)
                assert "may have been appended" in "".join(raised.value.__notes__)
            else:
                log.append_many("t", sent)
            log.append("t", b"next")
            assert [record.value for record in log.read("t")] == [b"first", *sent, b"next"]
        brokers[-1].close()


# -- peers that lie ----------------------------------------------------------------------------------------


def silent(connection: socket.socket) -> None:
    while connection.recv(1000):
        pass


def saying(answer: bytes) -> Callable[[socket.socket], None]:
    def say(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer)
        silent(connection)

    return say


def gone(connection: socket.socket) -> None:
    connection.recv(1000)


def half(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(struct.pack(">ii", 1000, 1) + bytes(100))


def promising(connection: socket.socket) -> None:
    """Two hundred megabytes, of which a few bytes come."""
    connection.recv(1000)
    connection.sendall(struct.pack(">ii", 200 << 20, 1) + bytes(100))


def dripping(connection: socket.socket) -> None:
    """So slowly that each byte comes in time and the answer never does."""
    connection.sendall(struct.pack(">i", 1000))
    connection.settimeout(0.02)
    while True:
        connection.sendall(b"\0")
        with suppress(TimeoutError):
            if not connection.recv(1000):
                return


def greeting(connection: socket.socket, versions: dict[str, tuple[int, int]]) -> None:
    """Answer ApiVersions as a broker that has these."""
    header = decode_request_header(frame(connection)[4:])
    keys = {exchange.api.name: key for key, exchange in APIS.items()}
    offered = ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=keys[name], min_version=low, max_version=high)
            for name, (low, high) in versions.items()
        ]
    )
    chunks = encode_response_chunks(offered, header.api_version, header.correlation_id)
    connection.sendall(b"".join(chunks))  # type: ignore[arg-type]


def rambling(connection: socket.socket) -> None:
    """As a broker at first, and then anything."""
    greeting(connection, dict(SPOKEN))
    request = decode_request_header(frame(connection)[4:])
    connection.sendall(struct.pack(">iix", 1_004, request.correlation_id) + b"\x7f" * 1_000)
    silent(connection)


def without_versions(connection: socket.socket) -> None:
    header = decode_request_header(frame(connection)[4:])
    refusing = ApiVersionsResponse(error_code=35, api_keys=[])
    connection.sendall(b"".join(encode_response_chunks(refusing, 0, header.correlation_id)))  # type: ignore[arg-type]
    without_versions(connection)


@pytest.mark.parametrize(
    ("behave", "says"),
    [
        pytest.param(gone, "the broker closed the connection", id="gone"),
        pytest.param(half, "the broker closed the connection", id="half"),
        pytest.param(promising, "the broker closed the connection", id="promising"),
        pytest.param(silent, "in time", id="silent"),
        pytest.param(dripping, "in time", id="dripping"),
        pytest.param(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak Kafka", id="http"),
        pytest.param(saying(struct.pack(">i", -1)), "does not speak Kafka", id="negative"),
        pytest.param(saying(struct.pack(">i", 2**31 - 1)), "at most", id="huge"),
        pytest.param(saying(struct.pack(">ii", 10, 4711) + bytes(6)), "request 4711", id="another answer"),
        pytest.param(saying(struct.pack(">i", 2) + bytes(2)), "too short", id="short"),
        pytest.param(rambling, "does not speak Kafka's protocol: Metadata", id="rambling"),
        pytest.param(without_versions, "does not report its versions", id="without versions"),
    ],
)
def test_foreign_servers(behave: Callable[[socket.socket], None], says: str) -> None:
    with peer(behave) as port:
        tracemalloc.start()
        try:
            with pytest.raises(BrokerUnavailable, match=says):
                at(port, request_timeout_ms=300 if says == "in time" else 60_000)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_older_and_newer_brokers() -> None:
    def ancient(connection: socket.socket) -> None:
        greeting(connection, {"Metadata": (0, 1)})
        silent(connection)

    with peer(ancient) as port, pytest.raises(UnsupportedByBackend, match="versions 0 to 1 of Metadata"):
        at(port)


def test_error_codes_without_a_class(tmp_path: Path) -> None:
    with Broker(tmp_path / "log", max_partitions=10) as broker, at(broker.port) as log:
        with pytest.raises(BrokerError, match="POLICY_VIOLATION") as caught:
            log.create_topic("t", partitions=100)
        assert (caught.value.code, caught.value.retriable) == (44, False)


# -- forks -------------------------------------------------------------------------------------------------


def test_a_forked_child_refuses_and_harms_no_other(broker: Broker) -> None:
    with at(broker.port) as log:
        log.create_topic("t")
        log.append("t", b"the parent's")
        producer, consumer = log.producer(), log.consumer("t", group="g")
        while not consumer.poll(50):
            pass

        def told(act: Callable[[], object]) -> str:
            try:
                return repr(act())
            except EmbedlogError as error:
                return type(error).__name__

        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answers = [
                    told(lambda: log.append("t", b"the child's")),
                    told(log.topics),
                    told(lambda: list(log.read("t"))),
                    told(lambda: producer.send("t", b"the child's")),
                    told(log.close),
                    told(consumer.close),
                ]
                os.write(writing, " ".join(answers).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answers:
            assert answers.read().split() == [ForkedHandle.__name__] * 4 + ["None", "None"]
        os.waitpid(pid, 0)
        log.append("t", b"the parent's again")
        assert [record.value for record in log.read("t")] == [b"the parent's", b"the parent's again"]
        assert [record.value for record in consumer.poll(60_000)] == [b"the parent's again"]
        consumer.commit()
