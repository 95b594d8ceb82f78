"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: lookups of offsets, and moving the log start.

The edges of a partition are in memory; lookups by time read files and run in another thread.

Source: Kafka 0.10 design (getOffsetsBefore is version 0); KIP-79 (version 1), KIP-101 and KIP-320 (leader
epochs), KIP-734 (largest timestamp), KIP-405 and KIP-1005 (tiers; there is only the local one here).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, OffsetOutOfRange
from ....files.names import INTERNAL_TOPICS
from ....model import NO_OFFSET, NO_TIMESTAMP, OffsetAndTimestamp
from ....partition import Partition
from ....wire.apis.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ....wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ....wire.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ....wire.error_codes import ErrorCode
from ..api_errors import ApiError, CodeFor, error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext, internal_topic

_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE: Final = {  # special timestamps: the first version of ListOffsets that has them
    _LATEST: 0,
    _EARLIEST: 0,
    _LARGEST_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_EDGES: Final = frozenset(_SINCE) - {_LARGEST_TIMESTAMP}
_NOTHING: Final = OffsetAndTimestamp(NO_OFFSET, NO_TIMESTAMP, -1)
_HIGH_WATERMARK: Final = -1
_READ_COMMITTED: Final = 1


class OffsetHandlers:
    """Handles the APIs that look up offsets and move the log start."""

    def __init__(self, broker: BrokerContext, code_for: CodeFor) -> None:
        self._broker = broker
        self._code_for = code_for

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "ListOffsets": self.list_offsets,
            "OffsetForLeaderEpoch": self.offset_for_leader_epoch,
            "DeleteRecords": self.delete_records,
        }

    # -- ListOffsets -----------------------------------------------------------------------------------

    def list_offsets(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Future[ListOffsetsResponse]:
        timestamps = (partition.timestamp for topic in request.topics for partition in topic.partitions)
        if context.version and all(timestamp in _EDGES for timestamp in timestamps):
            return self._list_all(context, request)
        return self._broker.run_blocking(self._list_all, context, request)

    def _list_all(self, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        duplicates = _find_duplicates(
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
        committed = request.isolation_level == _READ_COMMITTED
        response = ListOffsetsResponse()
        for topic in request.topics:
            of_topic = ListOffsetsTopicResponse(name=topic.name)
            for partition in topic.partitions:
                index = partition.partition_index
                try:
                    if (topic.name, index) in duplicates:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the partition twice")
                    response_partition = self._list(context, topic.name, partition, committed)
                except (EmbedlogError, OSError) as error:
                    response_partition = ListOffsetsPartitionResponse(
                        error_code=self._code(error, topic.name, index)
                    )
                response_partition.partition_index = index
                of_topic.partitions.append(response_partition)
            response.topics.append(of_topic)
        return response

    def _list(
        self, context: RequestContext, topic: str, requested: ListOffsetsPartition, committed: bool
    ) -> ListOffsetsPartitionResponse:
        version = context.version
        partition = self._broker.led_partition(
            topic, requested.partition_index, requested.current_leader_epoch
        )
        if not version:
            offsets = partition.offsets_before(requested.timestamp, max(requested.max_num_offsets, 0))
            return ListOffsetsPartitionResponse(old_style_offsets=offsets)
        time_ms = requested.timestamp
        if time_ms < 0 and (time_ms not in _SINCE or version < _SINCE[time_ms]):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"this version has no special timestamp {time_ms}")
        if time_ms in _EDGES:
            offset, timestamp, epoch = _edge(partition, time_ms, committed)
        else:
            self._broker.check_wanted(context.connection)  # each may decompress a batch
            by_time = (
                partition.offset_for_time(time_ms) if time_ms >= 0 else partition.reader.largest_timestamp()
            )
            if by_time is None or (committed and by_time.offset >= partition.log.last_stable_offset):
                by_time = _NOTHING
            offset, timestamp, epoch = by_time
        return ListOffsetsPartitionResponse(offset=offset, timestamp=timestamp, leader_epoch=epoch)

    def _code(self, error: EmbedlogError | OSError, topic: str, number: int) -> ErrorCode:
        """The code of a failed lookup; reading files may fail because the topic is being deleted."""
        try:
            self._broker.store.partition(topic, number)
        except EmbedlogError as gone:
            return error_code_for(gone)
        return error_code_for(error) if isinstance(error, EmbedlogError) else ErrorCode.KAFKA_STORAGE_ERROR

    # -- OffsetForLeaderEpoch --------------------------------------------------------------------------

    def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[self._end_of_epoch(topic.topic, partition) for partition in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _end_of_epoch(self, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = self._broker.led_partition(topic, requested.partition, requested.current_leader_epoch)
        except EmbedlogError as error:
            return EpochEndOffset(partition=requested.partition, error_code=error_code_for(error))
        current = partition.log.current_epoch
        if requested.leader_epoch == current:  # it may have no records yet
            epoch, end = current, partition.offsets().log_end_offset
        elif requested.leader_epoch > current:
            epoch, end = -1, NO_OFFSET
        else:
            epoch, end = partition.reader.end_of_epoch(requested.leader_epoch)
        return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end)

    # -- DeleteRecords ---------------------------------------------------------------------------------

    def delete_records(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> Future[DeleteRecordsResponse]:
        return self._broker.run_blocking(self._delete_records, request)

    def _delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        self._delete_before(topic.name, partition.partition_index, partition.offset)
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _delete_before(self, topic: str, number: int, offset: int) -> DeleteRecordsPartitionResult:
        try:
            partition = self._broker.led_partition(topic, number)
            if topic in INTERNAL_TOPICS:
                raise internal_topic(topic)
            if not partition.settings.deletes:
                raise ApiError(ErrorCode.POLICY_VIOLATION, "the topic's cleanup.policy does not delete")
            if offset == _HIGH_WATERMARK:
                offset = partition.offsets().log_end_offset
            elif offset < 0:
                raise OffsetOutOfRange(f"offset {offset} is invalid")
            with partition.lifecycle.lifecycle_lock:
                partition.lifecycle.advance_log_start(offset)
            log_start_offset = partition.offsets().log_start_offset
        except EmbedlogError as error:
            return DeleteRecordsPartitionResult(
                partition_index=number, low_watermark=NO_OFFSET, error_code=self._code_for(error)
            )
        return DeleteRecordsPartitionResult(partition_index=number, low_watermark=log_start_offset)


def _edge(partition: Partition, edge: int, committed: bool) -> OffsetAndTimestamp:
    """An edge of the log. It has no timestamp, as there may be no record at its offset."""
    if edge in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NOTHING
    offsets = partition.offsets()
    if edge == _LATEST:
        end = partition.log.last_stable_offset if committed else offsets.log_end_offset
        return OffsetAndTimestamp(end, NO_TIMESTAMP, partition.log.current_epoch)
    log_start_offset = offsets.log_start_offset
    return OffsetAndTimestamp(
        log_start_offset, NO_TIMESTAMP, max(partition.log.epochs.epoch_at(log_start_offset), 0)
    )


def _find_duplicates(names: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    return {name for name, count in Counter(names).items() if count > 1}
