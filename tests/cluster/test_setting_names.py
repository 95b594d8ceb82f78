"""The design documents' names of settings are accepted everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from registered_brokers import Cluster
from zookeepers import Znodes

import embedlog
from embedlog import InvalidArgument, InvalidSetting, InvalidType, UnknownSetting
from embedlog.cluster import Broker
from embedlog.cluster.classic import (
    CallbackHandler,
    ConsumerConnector,
    Event,
    Producer,
    ProducerData,
    SimpleConsumer,
)
from embedlog.cluster.classic.producer_data import DefaultEventHandler
from embedlog.cluster.settings.broker_settings import BrokerSettings
from embedlog.config import HOUR_MS, LogSettings, Settings, TopicSettings
from embedlog.synonyms import BROKER, LOG, TOPIC

# -- topics, logs, brokers ---------------------------------------------------------------------------------

OF_TOPICS = {
    "log.flush.interval.messages": (1, "flush_messages", 1),
    "log.flush.interval.ms": (500, "flush_ms", 500),
    "log.segment.bytes": (4096, "segment_bytes", 4096),
    "log.cleanup.policy": ("compact", "cleanup_policy", "compact"),
    "log.message.timestamp.type": ("LogAppendTime", "message_timestamp_type", "LogAppendTime"),
    "log.retention.hours": (168, "retention_ms", 168 * HOUR_MS),
    "log.retention.minutes": ("90", "retention_ms", 90 * 60_000),
    "log.roll.hours": (1, "segment_ms", HOUR_MS),
    "message.max.bytes": (5000, "max_message_bytes", 5000),
    "retention.bytes": (7, "retention_bytes", 7),
}


@pytest.mark.parametrize("typed", OF_TOPICS)
def test_of_a_topic(tmp_path: Path, typed: str) -> None:
    value, name, expected = OF_TOPICS[typed]
    for spelled in (typed, typed.replace(".", "_"), typed.replace(".", "-")):
        with embedlog.open(tmp_path / spelled, **{spelled: value}) as log:
            log.create_topic("t")
            assert getattr(log.backend.topic_settings("t"), name) == expected
            assert log.create_topic("u", **{spelled: value}).settings == {name: expected}
            assert log.alter_topic("t", **{spelled: value}).settings == {name: expected}
            assert log.alter_topic("t", **{spelled: None}).settings == {}


def test_over_the_wire() -> None:
    with (
        Broker(**{"log.segment.bytes": 5000}) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
    ):
        made = log.create_topic("t", **{"log.flush.interval.messages": 1, "log.retention.hours": 1})
        assert made.settings == {"flush_messages": 1, "retention_ms": HOUR_MS}
        assert log.alter_topic("t", **{"log.flush.interval.messages": None}).settings == {
            "retention_ms": HOUR_MS
        }
        assert broker.log.backend.topic_settings("t").segment_bytes == 5000


@pytest.mark.parametrize("settings", [TopicSettings, LogSettings, BrokerSettings])
def test_synonyms_name_existing_settings(settings: type[Settings]) -> None:
    for typed, meant in settings.synonyms.items():
        assert meant.name in settings.names()
        assert typed not in settings.names()
    of_all = [*TOPIC, *LOG, *BROKER]
    assert len(set(of_all)) == len(of_all)


def test_impossible_input_is_refused(tmp_path: Path) -> None:
    for given, error, said in [
        ({"log.flush.interval.mesages": 1}, UnknownSetting, "did you mean 'log_flush_interval_messages'"),
        ({"log.retention.hours": "a week"}, InvalidType, "log.retention.hours must be int"),
        ({"log.retention.hours": 1, "retention_ms": 1}, InvalidSetting, "retention_ms is given twice"),
        ({"log.flush.interval.messages": 0}, InvalidSetting, "must be between"),
    ]:
        with pytest.raises(error, match=said):
            embedlog.open(tmp_path / "log", **given)
        with pytest.raises(error, match=said):
            Broker(tmp_path / "log", **given)
    with embedlog.open(tmp_path / "log") as log, pytest.raises(InvalidSetting, match="given twice"):
        log.create_topic("t", **{"log.segment.bytes": 5000, "segment.bytes": 5000})
    assert TopicSettings.parse({"log.retention.hours": -1}) == {"retention_ms": -1}


# -- the documents' clients --------------------------------------------------------------------------------


class Reversed:
    """An encoder and a partitioner: texts backwards, and always the last partition."""

    def to_message(self, data: str) -> bytes:
        return data[::-1].encode()

    def partition(self, key: Any, num_partitions: int) -> int:
        return num_partitions - 1


class Counting(CallbackHandler):
    def __init__(self) -> None:
        self.batches: list[int] = []

    def before_sending(self, events: Sequence[Event]) -> Sequence[Event]:
        self.batches.append(len(events))
        return events


class Doubling(DefaultEventHandler):
    def handle(self, events: Sequence[Event], sender: Any, encoder: Any) -> None:
        super().handle([*events, *events], sender, encoder)


def test_of_a_producer(zookeeper: Znodes) -> None:
    """Plug-ins may be objects or, as `partitioner.class` says, classes."""
    counting = Counting()
    with Cluster(zookeeper.connect) as cluster:
        cluster.create_topic("t", [0, 0])
        given = {
            "zk.connect": zookeeper.connect,
            "producer.type": "async",
            "queue.time": 60_000,
            "batch.size": 2,
            "partitioner.class": Reversed,
            "serializer.class": Reversed(),
            "event.handler": Doubling,
            "callback.handler": counting,
            "compression.codec": 1,
        }
        with Producer(**given) as producer:
            producer.send([ProducerData("t", ["ab", "cd", "ef"], key="k")])
        values = [record.value for record in cluster.broker(0).log.read("t", 1)]
        assert values == [b"ba", b"dc", b"ba", b"dc", b"fe", b"fe"]
        assert counting.batches == [2, 1]


def test_of_a_producer_with_a_list() -> None:
    with Broker() as broker:
        broker.log.create_topic("t")
        for typed in ("broker.list", "metadata.broker.list", "broker_list"):
            with Producer(**{typed: broker.bootstrap_servers, "request.required.acks": -1}) as producer:
                producer.send(ProducerData("t", typed.encode()))
        assert len(list(broker.log.read("t"))) == 3


def test_of_a_connector(zookeeper: Znodes) -> None:
    with Cluster(zookeeper.connect) as cluster:
        cluster.create_topic("t", [0])
        cluster.append("t", 0, [b"0", b"1"])
        for expected, names in enumerate(
            [
                {"zookeeper.connect": zookeeper.connect, "group.id": "g", "auto.offset.reset": "smallest"},
                {"zk.connect": zookeeper.connect, "groupid": "g", "autooffset.reset": "smallest"},
            ]
        ):
            given = {
                "auto.commit.interval.ms": 1000,
                "offsets.storage": "kafka",
                "dual.commit.enabled": "true",
            }
            with ConsumerConnector(**names, **given) as connector:
                (stream,) = connector.create_message_streams({"t": 1})["t"]
                assert next(stream).offset == expected


def test_of_a_simple_consumer() -> None:
    with Broker() as broker:
        broker.log.create_topic("t")
        given = {"socket.timeout.ms": 5_000, "fetch.size": 1_000, "client.id": "c"}
        with SimpleConsumer("127.0.0.1", broker.port, **given) as consumer:
            assert consumer.get_offsets_before("t", 0, -1, 1) == [0]


def test_of_embedlogs_own_clients(tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("t")
        options = {"linger.ms": 1, "batch.size": 1_000, "buffer.memory": 1 << 20, "compression.type": "gzip"}
        with log.producer(**options) as producer:
            producer.send("t", b"0")
        options = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "max.poll.records": 5}
        with log.consumer("t", "g", **options) as consumer:
            assert [record.value for record in consumer.poll(60_000)] == [b"0"]
        with pytest.raises(UnknownSetting, match="did you mean 'linger_ms'"):
            log.producer(**{"linger.m": 1})
        with pytest.raises(InvalidArgument, match="linger_ms is given twice"):
            log.producer(**{"linger.ms": 1, "queue.time": 1})


def test_unknown_names_suggest_the_nearest() -> None:
    for made, given, near in [
        (Producer, {"zk.conect": "127.0.0.1:1"}, "zk_connect"),
        (Producer, {"broker.list": "127.0.0.1:1", "queue.tim": 1}, "queue_time"),
        (
            ConsumerConnector,
            {"zk.connect": "127.0.0.1:1", "group.id": "g", "offsets.storag": 1},
            "offsets_storage",
        ),
        (SimpleConsumer, {"host": "127.0.0.1", "port": 1, "fetch.siz": 1}, "fetch_size"),
    ]:
        with pytest.raises(UnknownSetting, match=f"did you mean '{near}'"):
            made(**given)
    with pytest.raises(InvalidArgument, match="broker_list is given twice"):
        Producer(**{"broker.list": "127.0.0.1:1", "metadata.broker.list": "127.0.0.1:1"})
