"""The documents' producer with a real ZooKeeper and real brokers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from brokers import cluster as cluster_of
from registered_brokers import Cluster
from zookeepers import Znodes, eventually

import embedlog
from embedlog import (
    BrokerError,
    BrokerUnavailable,
    BufferExhausted,
    Closed,
    CompressionUnavailable,
    InvalidArgument,
    InvalidType,
    TopicNotFound,
)
from embedlog.cluster import Broker
from embedlog.cluster.classic import CallbackHandler, Encoder, Event, Producer, ProducerData, Sender
from embedlog.cluster.zookeeper import contents, paths

Connect = Callable[..., Producer]


@pytest.fixture
def cluster(zookeeper: Znodes) -> Iterator[Cluster]:
    """Two brokers in this process, registered in ZooKeeper. They create no topics that are asked for: they do
    not know of each other."""
    brokers = [Broker(broker_id=number, auto_create_topics_enable=False) for number in range(2)]
    with Cluster(zookeeper.connect, brokers) as cluster:
        yield cluster


@pytest.fixture
def connect(zookeeper: Znodes) -> Iterator[Connect]:
    """Makes producers that find brokers there; they are closed at the end."""
    with ExitStack() as made:

        def connect(**options: Any) -> Producer:
            return made.enter_context(Producer(zookeeper.connect, **{"retry_backoff_ms": 20} | options))

        yield connect


def values(broker: Broker, topic: str = "t", partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in broker.log.read(topic, partition)]


def everything(cluster: Cluster, topic: str = "t") -> list[bytes]:
    there = [broker for broker in cluster.brokers if broker is not None]
    return sorted(value or b"" for broker in there for value in values(broker, topic))


class At:
    """A partitioner: always the same index."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.asked: list[tuple[Any, int]] = []

    def partition(self, key: Any, num_partitions: int) -> int:
        self.asked.append((key, num_partitions))
        index: int = self.index
        return index


# -- which partition ---------------------------------------------------------------------------------------


def test_the_partitioner_chooses_from_the_sorted_list_of_broker_and_partition(
    cluster: Cluster, connect: Connect
) -> None:
    cluster.create_topic("t", [1, 0, 1, 0])
    sorted_list = [(0, 1), (0, 3), (1, 0), (1, 2)]
    for index, (broker, partition) in enumerate(sorted_list):
        at = At(index)
        with connect(partitioner=at) as producer:
            producer.send(ProducerData("t", b"%d" % index, key="k"))
        assert at.asked == [("k", 4)]
        assert values(cluster.broker(broker), "t", partition) == [b"%d" % index]


def test_a_key_goes_to_one_partition_in_every_process(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0] * 5)
    code = "import sys; from embedlog.cluster.classic.producer_data import DefaultPartitioner as P; print(*("
    code += "P().partition(key, 5) for key in ('user-7', b'user-7', 7, -3, 'ü')))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    text, as_bytes, number, negative, _ = map(int, told.pop().split())
    assert (text, number, negative) == (as_bytes, 7 % 5, -3 % 5)
    producer = connect()
    for _ in range(3):
        producer.send(ProducerData("t", [b"a", b"b"], key="user-7"))
    assert values(cluster.broker(0), "t", text) == [b"a", b"b"] * 3
    found = list(cluster.broker(0).log.read("t", text))
    assert {record.key for record in found} == {b"user-7"}


def test_without_a_key_it_is_a_random_one(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0, 1, 0, 1])
    producer = connect()
    for i in range(200):
        producer.send(ProducerData("t", b"%d" % i))
    per_partition = [len(values(cluster.broker(p % 2), "t", p)) for p in range(4)]
    assert sum(per_partition) == 200
    assert min(per_partition) > 10


@pytest.mark.parametrize("wrong", ["0", 1.0, True, None, -1, 2])
def test_a_partitioners_answer_is_checked(cluster: Cluster, connect: Connect, wrong: Any) -> None:
    cluster.create_topic("t", [0, 1])
    with pytest.raises((InvalidArgument, InvalidType), match="partitioner"):
        connect(partitioner=At(wrong)).send(ProducerData("t", b"", key=1))
    assert everything(cluster) == []


# -- what is sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_one_and_several(cluster: Cluster, connect: Connect, codec: str) -> None:
    for topic in ("t", "u"):
        cluster.create_topic(topic, [0, 1])
    producer = connect(compression_codec=codec)
    producer.send(ProducerData("t", b"one"))
    producer.send([ProducerData("t", [b"two", b"three"], key=b"k"), ProducerData("u", None, key="null")])
    producer.send([])
    assert everything(cluster) == [b"one", b"three", b"two"]
    assert everything(cluster, "u") == [b""]


def test_much_at_once_goes_in_several_requests_in_order(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    many = [b"%07d" % i * 20 for i in range(25_000)]
    connect(partitioner=At(0)).send(ProducerData("t", many, key=0))
    assert values(cluster.broker(0)) == many


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(cluster: Cluster, connect: Connect, acks: int) -> None:
    cluster.create_topic("t", [0])
    with connect(acks=acks) as producer:
        for i in range(10):
            producer.send(ProducerData("t", b"%d" % i))
    eventually(lambda: len(values(cluster.broker(0))) == 10)
    assert values(cluster.broker(0)) == [b"%d" % i for i in range(10)]


def test_an_encoder_makes_messages(cluster: Cluster, connect: Connect) -> None:
    class Text:
        def to_message(self, data: Any) -> bytes:
            return str(data).encode()

    cluster.create_topic("t", [0])
    connect(encoder=Text()).send(ProducerData("t", ["text", 5]))
    assert values(cluster.broker(0)) == [b"text", b"5"]
    with pytest.raises(InvalidType, match="encoder"):
        connect().send(ProducerData("t", "text"))


def test_an_event_handler_replaces_the_sender(cluster: Cluster, connect: Connect) -> None:
    class Doubling:
        closed = False

        def handle(self, events: Sequence[Event], sender: Sender, encoder: Encoder) -> None:
            sender.send([each._replace(topic=topic) for each in events for topic in ("t", "audit")])

        def close(self) -> None:
            self.closed = True

    for topic in ("t", "audit"):
        cluster.create_topic(topic, [0])
    handler = Doubling()
    with connect(event_handler=handler) as producer:
        producer.send(ProducerData("t", b"x"))
    assert everything(cluster) == everything(cluster, "audit") == [b"x"]
    assert handler.closed


# -- asynchronous ------------------------------------------------------------------------------------------


class Told(CallbackHandler):
    """Remembers each stage, and holds batches up until it is let go."""

    def __init__(self) -> None:
        self.stages: list[tuple[Any, ...]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.sending = threading.Event()

    def before_enqueue(self, event: Event) -> Event:
        self.stages.append(("before enqueue", event.data))
        return event._replace(data=event.data + b"!")

    def after_enqueue(self, event: Event, added: bool) -> None:
        self.stages.append(("after enqueue", event.data, added))

    def after_dequeuing(self, event: Event | None) -> Sequence[Event]:
        return [] if event is None or event.data == b"drop!" else [event]

    def before_sending(self, events: Sequence[Event]) -> Sequence[Event]:
        self.sending.set()
        assert self.go_on.wait(60)
        self.stages.append(("before sending", [each.data for each in events]))
        return events

    def after_sending(self, events: Sequence[Event], error: Exception | None) -> None:
        self.stages.append(("after sending", [each.data for each in events], error))

    def last_batch_before_close(self) -> Sequence[Event]:
        return [Event("t", b"last")]

    def close(self) -> None:
        self.stages.append(("close",))


def test_a_batch_is_sent_when_full_and_at_close(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    told = Told()
    with connect(
        producer_type="async", batch_size=2, queue_time_ms=600_000, callback_handler=told
    ) as producer:
        producer.send(ProducerData("t", [b"a", b"drop", b"b", b"c"]))
        eventually(lambda: len(values(cluster.broker(0))) == 2)
    assert values(cluster.broker(0)) == [b"a!", b"b!", b"c!", b"last"]
    assert [each for each in told.stages if "enqueue" in each[0]][:4] == [
        ("before enqueue", b"a"),
        ("after enqueue", b"a!", True),
        ("before enqueue", b"drop"),
        ("after enqueue", b"drop!", True),
    ]
    assert [each for each in told.stages if "enqueue" not in each[0]] == [
        ("before sending", [b"a!", b"b!"]),
        ("after sending", [b"a!", b"b!"], None),
        ("before sending", [b"c!"]),
        ("after sending", [b"c!"], None),
        ("before sending", [b"last"]),
        ("after sending", [b"last"], None),
        ("close",),
    ]


def test_a_batch_is_sent_when_its_linger_ends(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    producer = connect(producer_type="async", batch_size=1_000, queue_time_ms=50)
    producer.send(ProducerData("t", [b"a", b"b"]))
    eventually(lambda: values(cluster.broker(0)) == [b"a", b"b"])


def test_a_full_queue_refuses_or_waits(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    for timeout_ms in (0, 20, -1):
        told = Told()
        told.go_on.clear()
        producer = connect(
            producer_type="async",
            batch_size=1,
            queue_size=2,
            queue_enqueue_timeout_ms=timeout_ms,
            callback_handler=told,
        )
        producer.send(ProducerData("t", b"taken"))
        assert told.sending.wait(60)
        producer.send(ProducerData("t", [b"1", b"2"]))
        if timeout_ms < 0:
            waiting = threading.Thread(target=producer.send, args=(ProducerData("t", b"3"),))
            waiting.start()
            eventually(lambda told=told: told.stages[-1] == ("before enqueue", b"3"))  # type: ignore[misc]
            told.go_on.set()
            waiting.join(60)
            assert not waiting.is_alive()
        else:
            with pytest.raises(BufferExhausted, match="queue_size"):
                producer.send(ProducerData("t", b"3"))
            assert told.stages[-1] == ("after enqueue", b"3!", False)
            told.go_on.set()
        producer.close()
    wanted = [b"taken!", b"1!", b"2!", b"last"]
    assert values(cluster.broker(0)) == [*wanted, *wanted, *wanted[:3], b"3!", b"last"]


def test_a_failed_batch_is_reported_and_the_next_is_sent(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    told = Told()
    with connect(producer_type="async", batch_size=1, num_retries=0, callback_handler=told) as producer:
        producer.send([ProducerData("nowhere", b"a"), ProducerData("t", b"b")])
    failed = [each for each in told.stages if each[0] == "after sending" and each[2] is not None]
    assert [each[1] for each in failed] == [[b"a!"]]
    assert isinstance(failed[0][2], TopicNotFound)
    assert values(cluster.broker(0)) == [b"b!", b"last"]


def test_send_after_close_is_refused(cluster: Cluster, connect: Connect) -> None:
    for kind in ("sync", "async"):
        producer = connect(producer_type=kind)
        producer.close()
        producer.close()
        with pytest.raises(Closed):
            producer.send(ProducerData("t", b""))


# -- brokers that come and go ------------------------------------------------------------------------------


def test_a_new_topic_is_found(cluster: Cluster, connect: Connect) -> None:
    producer = connect(num_retries=0)
    with pytest.raises(TopicNotFound, match="topic 't'"):
        producer.send(ProducerData("t", b"too soon"))
    cluster.create_topic("t", [1])
    producer.send(ProducerData("t", b"now"))
    assert everything(cluster) == [b"now"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.slow
def test_a_new_topic_is_created_on_first_send(
    zookeeper: Znodes, connect: Connect, tmp_path: Path, kind: str
) -> None:
    """By the cluster, with its number of partitions, for the first message."""
    with cluster_of(tmp_path, zookeeper.connect, 2, "--set", "num.partitions=4") as brokers:
        at = At(3)
        with connect(
            producer_type=kind, num_retries=1_000, partitioner=at, request_timeout_ms=60_000
        ) as producer:
            for topic in ("t", "u"):
                producer.send(
                    [ProducerData(topic, [b"0", b"1"], key="k"), ProducerData(topic, b"2", key="k")]
                )
        # More often than six times if a leader did not know the topic yet.
        assert len(at.asked) >= 6 and set(at.asked) == {("k", 4)}
        with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
            for topic in ("t", "u"):
                found = list(log.read(topic))
                assert [record.value for record in found] == [b"0", b"1", b"2"]
                state = zookeeper_state(zookeeper, topic, found[0].partition)
                others = [zookeeper_state(zookeeper, topic, number) for number in range(4)]
                assert (state, found[0].partition) == max(
                    (each, number) for number, each in enumerate(others)
                )


def zookeeper_state(zookeeper: Znodes, topic: str, partition: int) -> int:
    """The leader of a partition according to the registry."""
    with zookeeper.client() as client:
        node = client.get(paths.partition_state(topic, partition))
        assert node is not None
        return contents.LeaderAndIsr.decode(node.data).leader


def test_the_pool_follows_the_brokers(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0, 1])
    at = At(1)
    producer = connect(partitioner=at)
    producer.send(ProducerData("t", b"to 1", key=0))
    assert producer.pool.idle() == {1: 1}
    cluster.stop(1)
    eventually(lambda: producer.pool.brokers() == [0] and not producer.pool.idle())
    at.index = 0
    producer.send(ProducerData("t", b"to 0", key=0))
    assert at.asked[-1] == (0, 1)  # the partition of the broker that is gone is not offered
    assert values(cluster.broker(0)) == [b"to 0"]


def test_a_partition_that_moves_is_followed(cluster: Cluster, connect: Connect) -> None:
    cluster.create_topic("t", [0])
    producer = connect()
    producer.send(ProducerData("t", b"0", key=1))
    cluster.lead("t", 0, 1)
    eventually(lambda: (producer.send(ProducerData("t", b"1", key=1)), values(cluster.broker(1)))[1])
    assert values(cluster.broker(0))[0] == b"0"


def test_a_broker_that_registers_an_existing_topic_gets_its_share(cluster: Cluster, connect: Connect) -> None:
    """0.7's registry: each broker says how many partitions of the topic it has."""
    for broker in cluster.brokers:
        assert broker is not None
        broker.log.create_topic("old", partitions=2)
    at = At(0)
    producer = connect(partitioner=at)
    zookeeper = cluster.zookeeper
    assert zookeeper.create(paths.topic_of_broker("old", 0), contents.encode_number(1))
    producer.send(ProducerData("old", b"0", key=0))
    assert at.asked[-1] == (0, 1)
    assert zookeeper.create(paths.topic_of_broker("old", 1), contents.encode_number(2))
    at.index = 2

    def sent() -> bool:
        try:
            producer.send(ProducerData("old", b"1", key=0))
        except InvalidArgument:  # the news has not come yet
            return False
        return True

    eventually(sent)
    assert values(cluster.broker(1), "old", 1) == [b"1"]


def test_cached_metadata_serves_while_zookeeper_is_unreachable(
    cluster: Cluster, connect: Connect, zookeeper: Znodes
) -> None:
    cluster.create_topic("t", [0])
    producer = connect()
    producer.send(ProducerData("t", b"before"))
    client = producer._partitions._zookeeper  # type: ignore[union-attr]
    client.close()  # from here on it can ask nothing
    producer.send(ProducerData("t", b"after"))
    assert values(cluster.broker(0)) == [b"before", b"after"]


@pytest.mark.jvm
@pytest.mark.timeout(600)
def test_brokers_are_killed_while_it_sends(zookeeper: Znodes, connect: Connect, tmp_path: Path) -> None:
    """Broker processes: every record sent is there at least once, whichever broker was killed."""
    sent: list[bytes] = []
    stop = threading.Event()
    with cluster_of(tmp_path, zookeeper.connect, 3, "--set", "zookeeper.session.timeout.ms=3000") as brokers:
        brokers.create("t", 6)
        producer = connect(num_retries=1_000, request_timeout_ms=60_000)

        def send() -> None:
            while not stop.is_set():
                some = [b"%d" % (len(sent) + i) for i in range(5)]
                producer.send(ProducerData("t", some, key=len(sent)))
                sent.extend(some)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for number in range(3):
                before = len(sent)
                eventually(lambda before=before: len(sent) > before + 50)  # type: ignore[misc]
                brokers[number].kill()
                eventually(lambda number=number: number not in producer.pool.brokers())  # type: ignore[misc]
                before = len(sent)  # two brokers take all of it
                eventually(lambda before=before: len(sent) > before + 50)  # type: ignore[misc]
                brokers[number].start()
                eventually(lambda: len(producer.pool.brokers()) == 3)
        finally:
            stop.set()
            sender.join(120)
        assert not sender.is_alive()
        with embedlog.Mirror(f"kafka://{brokers.bootstrap}", tmp_path / "copy") as mirror:
            mirror.run(until_caught_up=True)
    with embedlog.open(tmp_path / "copy", mode="r") as copy:
        assert copy.describe_topic("t").partitions == 6
        assert set(sent) <= {record.value for record in copy.read("t")}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


# -- a static list -----------------------------------------------------------------------------------------


def test_requests_without_a_response_go_before_others_on_a_connection() -> None:
    with Broker() as broker, Producer(broker_list=f"127.0.0.1:{broker.port}", acks=0) as producer:
        for topic in "tu":  # the second one's leaders are asked for after the first one's events
            broker.log.create_topic(topic)
            producer.send(ProducerData(topic, b"x"))
            eventually(lambda topic=topic: values(broker, topic) == [b"x"])  # type: ignore[misc]


def test_a_list_of_brokers_without_zookeeper() -> None:
    with Broker() as one, Broker() as two:
        for broker in (one, two):
            broker.log.create_topic("t", partitions=3)
        brokers = f"7:127.0.0.1:{one.port}, 127.0.0.1:{two.port}"
        with Producer(broker_list=brokers) as producer:
            for i in range(120):
                producer.send(ProducerData("t", b"%d" % i, key="ignored"))
        found = [values(broker, "t", partition) for broker in (one, two) for partition in range(3)]
        assert sum(map(len, found)) == 120
        assert all(found)


def test_a_topic_that_one_broker_of_the_list_leads(zookeeper: Znodes, tmp_path: Path) -> None:
    """Each message goes to its topic's leader, wherever that is in the list."""
    with cluster_of(tmp_path, zookeeper.connect, 3) as brokers:
        topics = ("t", "u", "v")
        for topic in topics:
            brokers.create(topic, 1)
        expected = [b"%d" % i for i in range(20)]
        with Producer(broker_list=brokers.bootstrap) as producer:
            for value in expected:
                producer.send([ProducerData(topic, value) for topic in topics])
        with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
            assert [[record.value for record in log.read(topic)] for topic in topics] == [expected] * 3


def test_a_leader_that_moves_within_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as one, Broker() as two:
        for broker in (one, two):
            broker.log.create_topic("t")
        leaders = [one]
        for broker in (one, two):
            monkeypatch.setattr(
                broker.context.coordination, "leads", lambda _, broker=broker: broker in leaders
            )
        with Producer(broker_list=f"127.0.0.1:{one.port},127.0.0.1:{two.port}") as producer:
            for i in range(40):
                leaders[:] = [two if i >= 20 else one]
                producer.send(ProducerData("t", b"%d" % i))
        assert values(one) == [b"%d" % i for i in range(20)]
        assert values(two) == [b"%d" % i for i in range(20, 40)]
        leaders.clear()
        with (
            Producer(broker_list=f"127.0.0.1:{one.port},127.0.0.1:{two.port}") as producer,
            pytest.raises(BrokerError, match="sending to t 0"),
        ):
            producer.send(ProducerData("t", b"nobody's"))


def test_a_request_whose_broker_is_down_fails() -> None:
    with Broker() as broker:
        broker.log.create_topic("t")
        with Producer(broker_list=f"127.0.0.1:{broker.port},127.0.0.1:{free_port()}") as producer:
            went = failed = 0
            while not (went and failed):
                try:
                    producer.send(ProducerData("t", b""))
                    went += 1
                except BrokerUnavailable:
                    failed += 1
            assert len(values(broker)) == went


def test_an_unknown_topic() -> None:
    with Broker(auto_create_topics_enable=False) as broker, ExitStack() as stack:
        producer = stack.enter_context(Producer(broker_list=f"127.0.0.1:{broker.port}"))
        with pytest.raises(TopicNotFound):
            producer.send(ProducerData("t", b""))


class Balancer:
    """A layer-4 balancer: each connection goes, whole, to the next of its brokers."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._brokers = list(brokers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            broker = self._brokers[self.accepted % len(self._brokers)]
            self.accepted += 1
            theirs = socket.create_connection(("127.0.0.1", broker.port))
            self._ends += [ours, theirs]
            for ends in ((ours, theirs), (theirs, ours)):
                self._threads.append(threading.Thread(target=self._pass, args=ends))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        ends = [self._listening, *self._ends]
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in ends:
            each.close()


def test_a_balancers_single_address_is_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it is one of the cluster's brokers, which takes some of the partitions; others it refuses."""
    with Broker() as one, Broker() as two, ExitStack() as stack:
        for broker in (one, two):
            broker.log.create_topic("t", partitions=6)
        monkeypatch.setattr(one.context.coordination, "leads", lambda name: name.partition % 2 == 1)
        balancer = Balancer([one, two])
        stack.callback(balancer.close)
        with Producer(broker_list=f"127.0.0.1:{balancer.port}") as producer:
            for i in range(60):
                producer.send(ProducerData("t", b"%d" % i))
        assert balancer.accepted == 1
        assert sum(len(values(one, "t", partition)) for partition in (1, 3, 5)) == 60
        assert all(values(one, "t", partition) for partition in (1, 3, 5))


# -- arguments ---------------------------------------------------------------------------------------------


def test_wrong_arguments() -> None:
    given: dict[str, list[Any]] = {
        "broker_list": [None, "", "a", "a:b:c:d", "1:a:1,1:b:2", "a:0", "a:70000", 5],
        "producer_type": ["quick", None],
        "acks": [2, "all", True],
        "compression_codec": ["brotli", 9],
        "encoder": [5, object()],
        "partitioner": [At(0)],
        "event_handler": [object()],
        "callback_handler": [object()],
        "queue_time_ms": [-1, "5"],
        "batch_size": [0, 1.5],
        "queue_size": [0],
        "queue_enqueue_timeout_ms": [-2],
        "num_retries": [-1],
        "request_timeout_ms": [0],
        "client_id": [5],
    }
    for name, wrong in given.items():
        for value in wrong:
            with pytest.raises((InvalidArgument, InvalidType, CompressionUnavailable)):
                Producer(**{"broker_list": "127.0.0.1:1", name: value})
    with pytest.raises(InvalidArgument, match="and not both"):
        Producer("127.0.0.1:1", broker_list="127.0.0.1:1")
    with Producer(broker_list="127.0.0.1:1") as producer:
        for data in (
            None,
            5,
            b"x",
            "x",
            ("t", b""),
            [("t", b"")],
            ProducerData("", b""),
            ProducerData(None, b""),
        ):  # type: ignore[arg-type]
            with pytest.raises((InvalidArgument, InvalidType)):
                producer.send(data)  # type: ignore[arg-type]
