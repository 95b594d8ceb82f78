"""Expensive requests: other clients are served meanwhile, and a repeated name does not enlarge a response."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from wire import TIMEOUT_S, Wire, batch_of, fetch, records_of

from embedlog.cluster import Broker
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from embedlog.wire.apis.describe_groups import DescribeGroupsRequest
from embedlog.wire.apis.describe_producers import DescribeProducersRequest, TopicRequest
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from embedlog.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from embedlog.wire.apis.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.messages import Request

T = "t"
MANY = 20_000
FOREVER_MS = 600_000


def many_produced(batch: bytes = b"") -> ProduceRequest:
    parts = [PartitionProduceData(index=0, records=batch) for _ in range(MANY)]
    return ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name=T, partition_data=parts)])


def many_fetched(first: int, count: int, max_wait_ms: int, **more: int) -> FetchRequest:
    parts = [FetchPartition(partition=n, partition_max_bytes=1000) for n in range(first, first + count)]
    topics = [FetchTopic(topic=T, partitions=parts)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics, **more)


LARGE: dict[str, tuple[Request, int]] = {
    "metadata": (
        MetadataRequest(
            topics=[MetadataRequestTopic(name=str(n)) for n in range(MANY)], allow_auto_topic_creation=False
        ),
        4,
    ),
    "offsets": (
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name=T,
                    partitions=[ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(MANY)],
                )
            ]
        ),
        5,
    ),
    "epochs": (
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic=T,
                    partitions=[OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in range(MANY)],
                )
            ]
        ),
        3,
    ),
    "fetch": (many_fetched(0, MANY, 0), 11),
    "produce": (many_produced(), 7),
}


@pytest.mark.parametrize("what", LARGE)
@pytest.mark.slow
def test_others_are_served_meanwhile(
    broker: Broker, wire: Wire, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.log.create_topic(T)
    request, version = LARGE[what]
    entered, go = threading.Event(), threading.Event()
    store_topic, store_partition = broker.context.store.describe_topic, broker.context.store.partition

    def slowly(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            if not entered.is_set():  # in the middle of it, until a bystander has been served
                entered.set()
                go.wait(TIMEOUT_S)
            return real(*args)

        return call

    monkeypatch.setattr(broker.context.store, "describe_topic", slowly(store_topic))
    monkeypatch.setattr(broker.context.store, "partition", slowly(store_partition))
    with Wire(broker) as bystander:
        sending = threading.Thread(target=lambda: answers.append(wire.ask(request, version)))
        answers: list[object] = []
        sending.start()
        entered.wait(TIMEOUT_S)
        try:
            assert bystander.ask(ApiVersionsRequest(), 0).error_code == 0
        finally:
            go.set()
            sending.join()
    assert answers


def test_many_batches_in_one_request(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic(T)
    answers = wire.ask(many_produced(batch_of(b"x")), 9).responses[0].partition_responses
    assert [answer.base_offset for answer in answers] == list(range(MANY))
    assert [record.value for record in broker.log.read(T, 0, follow=False)] == [b"x"] * MANY


@pytest.mark.slow
def test_a_fetch_waits_for_many_partitions(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic(T, partitions=3_000)
    with Wire(broker) as producer:
        first = wire.ask(many_fetched(0, 3_000, 0, session_id=0, session_epoch=0), 11)
        assert len(first.responses[0].partitions) == 3_000
        for epoch in range(1, 4):
            read = FetchPartition(partition=2_000, fetch_offset=epoch - 1, partition_max_bytes=1000)
            request = FetchRequest(
                max_wait_ms=FOREVER_MS,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[FetchTopic(topic=T, partitions=[read])],
                session_id=first.session_id,
                session_epoch=epoch,
            )
            number = wire.send(request, 11)
            assert producer.produce(T, batch_of(b"%d" % epoch), partition=2_000).error_code == 0
            (topic,) = wire.receive(FetchRequest, 11, number).responses
            news = {part.partition_index: part for part in topic.partitions}
            assert [record.value for record in records_of(news[2_000])] == [b"%d" % epoch]


def test_a_duplicate_name_is_answered_once(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic(T, partitions=2)
    broker.log.append(T, b"x")
    topics = [MetadataRequestTopic(name=T) for _ in range(100)]
    assert len(wire.ask(MetadataRequest(topics=topics), 9).topics) == 1
    resources = [DescribeConfigsResource(resource_type=2, resource_name=T) for _ in range(100)]
    assert len(wire.ask(DescribeConfigsRequest(resources=resources), 4).results) == 1
    assert len(wire.ask(DescribeGroupsRequest(groups=["g"] * 100), 5).groups) == 1
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None) for _ in range(100)]
    assert len(wire.ask(OffsetFetchRequest(groups=groups), 8).groups) == 1
    asked = [TopicRequest(name=T, partition_indexes=[0, 1] * 100) for _ in range(100)]
    (found,) = wire.ask(DescribeProducersRequest(topics=asked), 0).topics
    assert [part.partition_index for part in found.partitions] == [0, 1]


def test_topics_by_id_while_they_are_created_and_deleted(broker: Broker, wire: Wire) -> None:
    def code(topic_id: bytes) -> int:
        asked = [MetadataRequestTopic(name=None, topic_id=topic_id)]
        found: int = wire.ask(MetadataRequest(topics=asked), 12).topics[0].error_code
        return found

    ids = []
    for _ in range(3):
        broker.log.create_topic(T)
        ids.append(broker.context.topic_id(T))
        assert [code(topic_id) for topic_id in ids] == [ErrorCode.UNKNOWN_TOPIC_ID] * (len(ids) - 1) + [0]
        broker.log.delete_topic(T)
        assert code(ids[-1]) == ErrorCode.UNKNOWN_TOPIC_ID
    assert wire.fetch(T, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_responses_keep_the_order_of_requests(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic(T)
    request, version = LARGE["epochs"]
    large = wire.send(request, version)
    small = wire.send(fetch(T, 0), 11)
    wire.receive(request, version, large)
    wire.receive(FetchRequest, 11, small)


def test_one_large_request_at_a_time(broker: Broker) -> None:
    """Several would together keep the interpreter from all other connections."""
    release = threading.Event()
    first = broker.context.run_large(release.wait)
    second = broker.context.run_large(first.done)
    assert not broker.context.run_blocking(first.done).result()  # other work goes on
    release.set()
    assert second.result()
