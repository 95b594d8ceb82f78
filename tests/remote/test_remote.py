"""The backend over the wire: unsupported operations, and other clients at the same log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transactions import Transactions, coordinated

import embedlog
from embedlog import (
    Closed,
    EmbedlogError,
    InvalidArgument,
    Log,
    LogTruncated,
    OffsetOutOfRange,
    TopicNotFound,
    TopicPartition,
    UnknownSetting,
    UnsupportedByBackend,
)
from embedlog.backends.remote import RemoteBackend
from embedlog.cluster import Broker
from embedlog.wire.messages import Request
from embedlog.wire_client.connection import Connection
from embedlog.wire_client.settings import addresses

TP = TopicPartition("t", 0)


def at(broker: Broker, **settings: object) -> Log:
    """The broker's log over the wire."""
    return embedlog.open(f"kafka://{broker.bootstrap_servers}", **{"retry_backoff_ms": 5} | settings)


@pytest.fixture
def remote(broker: Broker) -> Iterator[Log]:
    """A log over the wire with a topic of two partitions."""
    with at(broker) as log:
        log.create_topic("t", partitions=2)
        yield log


def values(log: Log, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in log.read(topic)]


# -- what it is asked --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda log: log.append("t", b"", flush=True), "flush_messages=1"),
        (lambda log: log.append("t", b"", key=b"", expected_offset=0), "expected_offset"),
        (lambda log: log.append_many("t", [b""], flush=True), "flush=True"),
        (lambda log: log.producer(flush=True), "flush=True"),
        (lambda log: log.offsets("t")[0].flushed_offset, "flushed_offset"),
        (lambda log: log.flush(), "flush_ms"),
        (lambda log: log.reopen("t", 0), "reopen"),
        (lambda log: log.compact("t"), "compact by themselves"),
        (lambda log: log.backup("copy"), "backup"),
        (lambda log: log.health(), "health"),
        (lambda log: log.recovery, "recovery"),
        (lambda log: log._writer(), "directory"),
        (lambda log: embedlog.open(log.path, mode="r"), "mode='r' belongs to a directory"),
        (lambda log: embedlog.open(log.path, layout="kafka"), "layout"),
        (lambda log: embedlog.open(log.path, retention_ms=5), "create_topic and alter_topic"),
    ],
)
def test_operations_without_a_wire_request(remote: Log, act: Callable[[Log], object], says: str) -> None:
    with pytest.raises(UnsupportedByBackend, match=says):
        act(remote)
    assert values(remote) == []


def test_settings_by_name(broker: Broker) -> None:
    with pytest.raises(UnknownSetting, match="request_timeout_ms"):
        at(broker, request_timeout=5)
    with at(broker, **{"request.timeout.ms": 5_000}) as log:
        assert isinstance(log.backend, RemoteBackend)
        assert log.backend.settings.request_timeout_ms == 5_000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kafka://h", [("h", 9092)]),
        ("kafka://h:1,g:2", [("h", 1), ("g", 2)]),
        ("kafka://h:1,h:1/", [("h", 1)]),
        ("kafka://[::1]:7,[::2]", [("::1", 7), ("::2", 9092)]),
    ],
)
def test_addresses(text: str, found: list[tuple[str, int]]) -> None:
    assert addresses(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "h:",
        "h:0",
        "h:70000",
        "h:x",
        "[::1",
        "@h",
        "h/t",
        "h h",
        ":9092",
        "::1",
        "h:9092\0",
        "[::1]9",
    ],
)
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(InvalidArgument, match="kafka://host:9092"):
        embedlog.open(f"kafka://{text}")
    with pytest.raises(InvalidArgument, match="kafka://host:9092"):
        embedlog.open(f"http://{text}")


def test_repr_of_a_remote_log(remote: Log, broker: Broker) -> None:
    assert repr(remote) == f"<embedlog.Log 'kafka://{broker.bootstrap_servers}': over the wire>"
    assert remote.path == f"kafka://{broker.bootstrap_servers}"
    assert remote.mode == "rw"
    remote.close()
    assert "closed" in repr(remote)


def test_a_hundred_topics_take_a_few_requests(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        broker.log.create_topic(f"topic-{i}", retention_ms=i)
    sent: list[str] = []
    send = Connection.send

    def noted(self: Connection, request: Request, deadline: float, **options: Any) -> None:
        sent.append(request.api.name)
        send(self, request, deadline, **options)

    monkeypatch.setattr(Connection, "send", noted)
    with at(broker, metadata_max_age_ms=600_000) as log:
        assert len(log.topics()) == 100
        assert log.describe_topic("topic-7").settings == {"retention_ms": 7}
    assert len(sent) < 10, sent


# -- others at the same log --------------------------------------------------------------------------------


def test_a_waiter_is_woken_by_another_client(remote: Log, broker: Broker) -> None:
    with remote.consumer("t") as consumer:
        assert consumer.poll() == []
        later = threading.Timer(0.05, lambda: broker.log.append("t", b"from elsewhere", partition=1))
        later.start()
        assert [record.value for record in consumer.poll(60_000)] == [b"from elsewhere"]
        later.join()


def test_data_of_a_waiting_fetch_is_not_fetched_again(remote: Log, broker: Broker) -> None:
    backend = remote.backend
    broker.log.append("t", b"one", partition=0)
    assert backend.wait({TP: 0}, 60_000, read_committed=False)
    asked = broker.server.connections
    broker.log.delete_topic("t")  # no request: it is here already
    assert len(backend.fetch("t", 0, 0, 1 << 20).data) > 0
    assert broker.server.connections == asked
    with pytest.raises(TopicNotFound):
        backend.fetch("t", 0, 0, 1 << 20)


@pytest.mark.parametrize("what", ["close", "wakeup"])
def test_a_wait_can_be_interrupted(remote: Log, what: str) -> None:
    consumer = remote.consumer("t")
    consumer.poll()
    threading.Timer(0.05, getattr(consumer, what)).start()
    assert consumer.poll(3_600_000) == []
    remote.append("t", b"still good", partition=0)
    assert values(remote) == [b"still good"]


def test_a_wait_ends_when_the_log_closes(remote: Log) -> None:
    told: list[BaseException] = []

    def wait() -> None:
        try:
            remote.backend.wait({TP: 0}, 3_600_000, read_committed=False)
        except EmbedlogError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    remote.close()
    waiting.join(60)
    assert [type(error) for error in told] == [Closed]


def test_several_threads_append_to_several_partitions(remote: Log) -> None:
    def run(number: int) -> None:
        for i in range(100):
            remote.append("t", b"%d %d" % (number, i), partition=(number + i) % 2)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(remote)
    assert sorted(found) == sorted(b"%d %d" % (number, i) for number in range(4) for i in range(100))


def test_append_many_returns_exact_offsets_beside_other_appenders(remote: Log, broker: Broker) -> None:
    """Several batches go one by one: what each record's offset is, each batch's answer says."""
    remote.create_topic("small", max_message_bytes=2_000)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            broker.log.append("small", b"other")

    other = threading.Thread(target=disturb)
    other.start()
    try:
        appended = remote.append_many("small", [b"%06d" % i * 20 for i in range(2_000)])
    finally:
        stop.set()
        other.join()
    assert len(appended) == 2_000
    assert b"other" in values(remote, "small")
    for i in (0, 999, 1_999):
        record = remote.read_at("small", 0, appended[i].offset)
        assert record is not None
        assert record.value == b"%06d" % i * 20


def test_read_committed(remote: Log, broker: Broker) -> None:
    partition = broker.log._writer().partition("t", 0)
    transactions = Transactions(lambda batch: coordinated(partition, batch).base_offset)
    transactions.plain(b"plain")
    transactions.send(1, b"aborted", b"aborted too")
    transactions.send(2, b"committed")
    transactions.end(1, commit=False)
    transactions.end(2, commit=True)
    transactions.send(1, b"after")
    transactions.end(1, commit=True)
    transactions.send(3, b"open")
    transactions.plain(b"behind the open one")

    def committed() -> list[tuple[int, bytes | None]]:
        return [(each.offset, each.value) for each in remote.read("t", 0, isolation_level="read_committed")]

    assert committed() == transactions.expected()
    transactions.end(3, commit=True)
    assert committed() == transactions.expected()
    uncommitted = remote.read("t", 0, isolation_level="read_uncommitted")
    assert len(list(uncommitted)) == 7


def test_truncated_history_is_detected(tmp_path: Path) -> None:
    """A crash of the machine loses records: a position after them has an epoch that ended earlier."""
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        log.append_many("t", [b"%d" % i for i in range(5)])
    (tmp_path / "log" / "clean-shutdown").unlink()
    with Broker(tmp_path / "log") as broker, at(broker) as log:
        log.append_many("t", [b"new %d" % i for i in range(5)])
        backend = log.backend
        with pytest.raises(LogTruncated) as caught:
            backend.fetch("t", 0, 8, 1 << 20, leader_epoch=0)
        assert (caught.value.offset, caught.value.surviving_offset) == (8, 5)
        with pytest.raises(OffsetOutOfRange):
            backend.fetch("t", 0, 11, 1 << 20)
