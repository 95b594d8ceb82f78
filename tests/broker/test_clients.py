"""The four client libraries against the broker: each reads what the others write."""

from __future__ import annotations

import threading
import time

import confluent_kafka
import pytest
from clients import CLIENTS, EACH, NEEDS_KCAT, Client, Sent
from confluent_kafka.admin import AdminClient, NewTopic
from wire import TIMEOUT_S

from embedlog.cluster import Broker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
READERS = {"gzip": "aiokafka", "snappy": "kafka-python", "lz4": "confluent-kafka"}


def reader_of(codec: str, writer: Client) -> Client:
    """Another client than the writer; over all codecs, each of Python's."""
    others = [client for client in CLIENTS[:3] if client.name != writer.name]
    return next((client for client in others if client.name == READERS.get(codec)), others[0])


def plain(records: list[Sent]) -> list[Sent]:
    """Without times, where those are the client's own."""
    return sorted((record._replace(timestamp_ms=None) for record in records), key=repr)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", EACH)
def test_each_codec(broker: Broker, writer: Client, codec: str) -> None:
    check_records(broker, writer, codec, reader_of(codec, writer))


@NEEDS_KCAT
@pytest.mark.parametrize("writer", EACH[:3])
def test_kcat_reads_what_others_write(broker: Broker, writer: Client) -> None:
    check_records(broker, writer, "none", CLIENTS[3])


def check_records(broker: Broker, writer: Client, codec: str, reader: Client) -> None:
    broker.log.create_topic("t", partitions=3)
    records = [Sent(b"key-%d" % (n % 7), b"value %d " % n * 50) for n in range(300)]
    writer.produce(broker.bootstrap_servers, "t", records, codec)
    assert plain(reader.consume(broker.bootstrap_servers, "t", len(records), "readers")) == plain(records)
    inside = [record for number in range(3) for record in broker.log.read("t", number, follow=False)]
    assert plain([Sent(r.key, r.value) for r in inside]) == plain(records)


@pytest.mark.parametrize("writer", EACH)
def test_headers(broker: Broker, writer: Client) -> None:
    broker.log.create_topic("t")
    records = [Sent(b"k", b"v", (("trace", b"abc"), ("trace", b"twice"), ("empty", b"")))]
    writer.produce(broker.bootstrap_servers, "t", records, "none")
    for reader in CLIENTS[:3]:
        assert plain(reader.consume(broker.bootstrap_servers, "t", 1, reader.name)) == plain(records)


@pytest.mark.parametrize("writer", EACH[:3])
def test_timestamps(broker: Broker, writer: Client) -> None:
    broker.log.create_topic("t")
    broker.log.create_topic("appended", message_timestamp_type="LogAppendTime")
    records = [Sent(None, b"%d" % n, (), 1_700_000_000_000 + n) for n in range(10)]
    before = int(time.time() * 1000)
    for topic in ("t", "appended"):
        writer.produce(broker.bootstrap_servers, topic, records, "gzip")
    for reader in CLIENTS[:3]:
        assert reader.consume(broker.bootstrap_servers, "t", 10, reader.name) == records
        times = {
            r.timestamp_ms for r in reader.consume(broker.bootstrap_servers, "appended", 10, reader.name)
        }
        assert all(before <= at <= int(time.time() * 1000) for at in times if at is not None)


@pytest.mark.parametrize("writer", EACH)
@pytest.mark.slow
def test_large_records(writer: Client) -> None:
    with Broker(max_message_bytes=8 << 20) as broker:
        broker.log.create_topic("t")
        records = [Sent(b"large", bytes([65 + n]) * 5_000_000) for n in range(3)]
        writer.produce(broker.bootstrap_servers, "t", records, "none")
        reader = reader_of("lz4", writer)
        assert plain(reader.consume(broker.bootstrap_servers, "t", 3, "g")) == plain(records)


def test_an_oversized_record_is_reported(broker: Broker) -> None:
    broker.log.create_topic("t", max_message_bytes=1000)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    told = []
    producer.produce("t", bytes(5000), on_delivery=lambda error, _: told.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert told[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("client", EACH[:3])
def test_a_compacted_topic_keeps_the_last_of_each_key(client: Client) -> None:
    with Broker(min_cleanable_dirty_ratio=0.0, segment_bytes=1024) as broker:
        broker.log.create_topic("t", cleanup_policy="compact")
        records = [Sent(b"key-%d" % (n % 3), b"%d" % n) for n in range(100)] + [Sent(b"key-0", None)]
        for start in range(0, len(records), 10):
            client.produce(broker.bootstrap_servers, "t", records[start : start + 10], "none")
        broker.log.append("t", b"the active segment stays as it is", key=b"last")
        broker.context.store.partition("t", 0).roll()
        broker.log.compact("t")
        left = client.consume(broker.bootstrap_servers, "t", 4, "g")
        assert {record.key: record.value for record in left} == {
            b"key-0": None,
            b"key-1": b"97",
            b"key-2": b"98",
            b"last": b"the active segment stays as it is",
        }


@pytest.mark.slow
def test_a_thousand_topics(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    names = [f"topic-{number}" for number in range(1_000)]
    for start in range(0, len(names), 100):  # a topic takes four fsyncs: a busy disk needs 30 s for them all
        topics = [NewTopic(name, 1, 1) for name in names[start : start + 100]]
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S * 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for name in names:
        producer.produce(name, name.encode())
    assert producer.flush(TIMEOUT_S * 2) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["^topic-.*"])
    found = set()
    while len(found) < len(names):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(found)} topics came"
        assert message.error() is None
        assert message.topic() == message.value().decode()
        found.add(message.topic())
    consumer.close()


@pytest.mark.parametrize("client", EACH)
def test_a_waiting_consumer_gets_new_records(broker: Broker, client: Client) -> None:
    """The long poll: records that are produced while a consumer waits for them."""
    broker.log.create_topic("t")
    found: list[Sent] = []
    thread = threading.Thread(
        target=lambda: found.extend(client.consume(broker.bootstrap_servers, "t", 20, "g"))
    )
    thread.start()
    for number in range(20):
        broker.log.append("t", b"%d" % number, key=b"k")
        time.sleep(0.01)  # some of them while it waits
    thread.join()
    assert [record.value for record in found] == [b"%d" % number for number in range(20)]
