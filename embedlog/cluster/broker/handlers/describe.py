"""DescribeLogDirs and DescribeProducers: the size of partitions on disk, and their active producers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

from ....errors import EmbedlogError
from ....partition import Partition
from ....storage.producer_state import ProducerStateEntry
from ....wire.apis.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ....wire.apis.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ....wire.error_codes import ErrorCode
from ..api_errors import error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext


class DescribeHandlers:
    """Handles the APIs that describe storage."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"DescribeLogDirs": self.describe_log_dirs, "DescribeProducers": self.describe_producers}

    def describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> Future[DescribeLogDirsResponse]:
        return self._broker.run_blocking(self._describe_log_dirs, context, request)

    def _describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        """One directory. Unknown partitions are omitted, as in Kafka."""
        store = self._broker.store
        result = DescribeLogDirsResult(log_dir=store.path)
        try:
            result.total_bytes = store.fs.total_bytes(store.path)
            result.usable_bytes = store.fs.free_bytes(store.path)
        except OSError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        topics: dict[str, DescribeLogDirsTopic] = {}
        for partition in self._requested_partitions(request):
            self._broker.check_wanted(context.connection)
            topic, number = partition.name
            of_topic = topics.setdefault(topic, DescribeLogDirsTopic(name=topic))
            size_bytes = sum(segment.size for segment in partition.segments())
            of_topic.partitions.append(
                DescribeLogDirsPartition(partition_index=number, partition_size=size_bytes)
            )
        result.topics = list(topics.values())
        return DescribeLogDirsResponse(results=[result])

    def _requested_partitions(self, request: DescribeLogDirsRequest) -> Iterator[Partition]:
        if request.topics is None:
            yield from self._broker.store.partitions()
            return
        for topic in request.topics:
            for number in dict.fromkeys(topic.partitions):
                try:
                    yield self._broker.store.partition(topic.topic, number)
                except EmbedlogError:
                    continue

    def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        self._producers(topic.name, number)
                        for number in dict.fromkeys(topic.partition_indexes)
                    ],
                )
                for topic in {topic.name: topic for topic in request.topics}.values()
            ]
        )

    def _producers(self, topic: str, number: int) -> PartitionResponse:
        try:
            producers = self._broker.led_partition(topic, number).log.known_producers()
        except EmbedlogError as error:
            return PartitionResponse(
                partition_index=number, error_code=error_code_for(error), error_message=message_for(error)
            )
        return PartitionResponse(
            partition_index=number,
            active_producers=[
                _encode_producer(producer_id, producer) for producer_id, producer in producers.items()
            ],
        )


def _encode_producer(producer_id: int, producer: ProducerStateEntry) -> ProducerState:
    last = producer.batches[-1] if producer.batches else None
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=-1 if last is None else last.last_sequence,
        last_timestamp=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )
