"""Produce and InitProducerId: how records get into the log.

A batch is validated in the buffer that the socket filled (cluster/batch_validation.py) and appended from
there: it is in the page cache when the response leaves. An append that waits for a disk (flush_messages, a
new segment), or a validation that computes for long, goes to another thread with a copy of the batch; the
connection's next request waits for it.

A small request that differs from the one before on its connection only in its records is read and answered by
a template (wire/request_template.py). Its records are handled like any others.

acks=0 gets no response; an error closes the connection, which is how the client learns of it. acks=1 and
acks=all both mean appended while a partition has one replica. The topic's flush policy decides when a record
is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, cast

from ...codec import loops
from ...errors import EmbedlogError
from ...files.names import INTERNAL_TOPICS
from ...model import Appended
from ...partition import Partition
from ...wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ...wire.apis.produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ...wire.error_codes import ErrorCode
from ...wire.frames import RequestHeader
from ...wire.request_template import RequestTemplate, template_of
from ..api_errors import ApiError, InvalidRecords, error_code_for
from ..batch_validation import (
    FIRST_WITH_BATCHES,
    read_batch_header,
    validate,
    validate_quickly,
)
from ..broker_context import BrokerContext, Handler, RequestContext, internal_topic, not_leader
from ..connection import CloseConnection
from ..down_conversion import as_batches
from ..futures import flatten_future, map_future, when_all

_FIRST_WITH_TOPIC_IDS: Final = 13
_MANY: Final = 1_000  # batches in a request: more would keep a processor for too long
_ACKS: Final = frozenset({-1, 0, 1})

_PartitionResult = PartitionProduceResponse | Future[PartitionProduceResponse]
_Result = ProduceResponse | Future[ProduceResponse | None] | None


class LastProduce:
    """A connection's last small produce request. `fields` are all but its partitions and their records.
    `topic` is the name of the first topic; None if the request has ids."""

    __slots__ = ("context", "fields", "request", "template", "topic")

    def __init__(self, fields: Sequence[object], context: RequestContext, request: ProduceRequest) -> None:
        self.fields = fields
        self.context = context
        self.request = request
        self.topic = None if context.version >= _FIRST_WITH_TOPIC_IDS else request.topic_data[0].name
        # Made for the second request with the same fields: it costs more than decoding one.
        self.template: RequestTemplate | None = None


class ProduceHandlers:
    """Handles Produce and InitProducerId."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"Produce": self.produce, "InitProducerId": self.init_producer_id}

    def produce(self, context: RequestContext, request: ProduceRequest) -> _Result:
        if sum(len(topic.partition_data) for topic in request.topic_data) > _MANY:
            for topic in request.topic_data:
                for data in topic.partition_data:  # the socket's buffer will be overwritten
                    data.records = memoryview(bytearray(cast(memoryview, data.records or b"")))
            return flatten_future(self._broker.run_large(self._produce, context, request))
        return self._produce(context, request)

    def _produce(self, context: RequestContext, request: ProduceRequest) -> _Result:
        results: list[list[_PartitionResult]] = []
        for topic in request.topic_data:
            name = self._topic_name(context, topic)
            results.append(
                [
                    self._append(context, request, name, data.index, memoryview(data.records or b""))  # type: ignore[arg-type]
                    for data in topic.partition_data
                ]
            )
        pending = [result for of_topic in results for result in of_topic if isinstance(result, Future)]
        if pending:
            return map_future(when_all(pending), lambda _: self._response(request, results))
        return self._response(request, results)

    def produce_again(
        self, last: LastProduce, frame: memoryview
    ) -> bytes | tuple[RequestHeader, _Result] | None:
        """Handle a request that equals the connection's last one but for partition and records.

        Returns the response's frame if the append succeeded, else the request's header and the response; None
        if the request differs in more. Its acks are not 0.
        """
        template = last.template
        if template is None:
            return None
        matched = template.records_of(frame)
        if matched is None:
            return None
        correlation_id, index, records = matched
        context = last.context
        context.connection.client_id = context.client_id
        result: _PartitionResult
        try:
            partition = self._partition(
                last.topic or self._topic_name(context, last.request.topic_data[0]), index
            )
            appended = _append_plain(partition, records)
            if appended is not None:
                self._count(appended, len(records))
                return template.response(
                    correlation_id, index, appended.base_offset, -1, partition.log.log_start_offset
                )
            result = self._append_others(context, partition, records)
        except EmbedlogError as error:
            result = self._failed(index, error)
        header = RequestHeader(PRODUCE.key, context.version, correlation_id, context.client_id, 0)
        if isinstance(result, Future):
            return header, map_future(result, lambda part: self._response(last.request, [[part]]))
        return header, self._response(last.request, [[result]])

    def _topic_name(self, context: RequestContext, topic: TopicProduceData) -> str | None:
        if context.version >= _FIRST_WITH_TOPIC_IDS:
            return self._broker.topic_name(topic.topic_id)
        return topic.name

    def _response(
        self, request: ProduceRequest, results: Sequence[Sequence[_PartitionResult]]
    ) -> ProduceResponse | None:
        response = ProduceResponse()
        for topic, of_topic in zip(request.topic_data, results, strict=True):
            parts = [result.result() if isinstance(result, Future) else result for result in of_topic]
            response.responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)
            )
            for part in parts:
                if part.error_code and not request.acks:
                    raise CloseConnection(
                        f"produce with acks=0 to {topic.name!r} {part.index} failed: "
                        f"{ErrorCode(part.error_code).name}"
                    )
        return response if request.acks else None

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topic: str | None,
        index: int,
        records: memoryview,
    ) -> _PartitionResult:
        try:
            if request.acks not in _ACKS:
                raise ApiError(
                    ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
                )
            if request.transactional_id is not None:
                raise ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
            partition = self._partition(topic, index)
            appended = _append_plain(partition, records) if context.version >= FIRST_WITH_BATCHES else None
            if appended is not None:
                return self._appended(partition, appended, len(records))
            return self._append_others(context, partition, records)
        except EmbedlogError as error:
            return self._failed(index, error)

    def _partition(self, topic: str | None, index: int) -> Partition:
        """A partition that clients may append to here. Raises TopicNotFound, PartitionNotFound, ApiError."""
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        partition = self._broker.store.partition(topic, index)
        if topic in INTERNAL_TOPICS:
            raise internal_topic(topic)
        if not self._broker.coordination.leads(partition.name):
            raise not_leader()
        return partition

    def _append_others(
        self, context: RequestContext, partition: Partition, records: memoryview
    ) -> _PartitionResult:
        """Append what `_append_plain` does not. Raises EmbedlogError."""
        settings = partition.settings
        now_ms = self._broker.store.clock_ms()
        max_bytes = self._broker.settings.max_decompressed_message_bytes
        if context.version < FIRST_WITH_BATCHES:
            message_set = bytes(records)
            return self._broker.run_blocking(
                self._validate_and_append,
                partition,
                lambda: as_batches(message_set, settings, now_ms, max_bytes),
            )
        header = read_batch_header(records, context.version, settings)
        if not partition.appender.may_wait(header.size):
            valid = validate_quickly(records, header, settings, now_ms, max_bytes)
            if valid is not None:
                return self._appended(partition, partition.append(cast(bytearray, valid)), len(valid))
        copy = memoryview(bytearray(records))
        return self._broker.run_blocking(
            self._validate_and_append,
            partition,
            lambda: validate(copy, header, settings, now_ms, max_bytes),
        )

    def _validate_and_append(
        self, partition: Partition, validated: Callable[[], bytearray | memoryview]
    ) -> PartitionProduceResponse:
        try:
            batches = validated()
            appended = partition.append(cast(bytearray, batches))
        except EmbedlogError as error:
            return self._failed(partition.name.partition, error)
        return self._appended(partition, appended, len(batches))

    def _appended(self, partition: Partition, appended: Appended, size: int) -> PartitionProduceResponse:
        self._count(appended, size)
        return PartitionProduceResponse(
            index=partition.name.partition,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.timestamp_ms if partition.settings.append_time else -1,
            log_start_offset=partition.log.log_start_offset,
        )

    def _count(self, appended: Appended, size: int) -> None:
        if self._broker.meter is not None:
            self._broker.meter.count_produced(appended.last_offset + 1 - appended.base_offset, size)

    def _failed(self, index: int, error: EmbedlogError) -> PartitionProduceResponse:
        failed = PartitionProduceResponse(
            index=index, error_code=error_code_for(error), base_offset=-1, error_message=str(error)
        )
        if isinstance(error, InvalidRecords):
            failed.record_errors = [
                BatchIndexAndErrorMessage(batch_index=record, batch_index_error_message=error.reason)
                for record in error.record_indexes
            ]
        return failed

    # -- producer ids ----------------------------------------------------------------------------------

    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Future[InitProducerIdResponse]:
        """Each request gets a new producer id.

        A transactional id is refused with UNSUPPORTED_VERSION, which clients report without retrying; only
        librdkafka retries, until the timeout of init_transactions.
        """
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return self._broker.run_blocking(self._new_producer)

    def _new_producer(self) -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(producer_id=self._broker.new_producer_id())
        except EmbedlogError as error:
            return InitProducerIdResponse(error_code=error_code_for(error))


def _append_plain(partition: Partition, records: memoryview) -> Appended | None:
    """Fast path for the common batch, which is valid and appended unchanged, without waiting for a disk.

    Returns None, with no side effects, if any precondition fails.
    """
    settings = partition.settings
    if (
        len(records) > settings.max_message_bytes
        or settings.append_time
        or settings.compresses
        or settings.compacts
    ):
        return None
    summary = loops.ready_batch(records)
    if summary is None:
        return None
    # The socket's buffer is as writable as a bytearray, and is not reused before the append.
    batch = cast(bytearray, records)
    count, timestamp_ms, sequenced = summary
    appended = None if sequenced else partition.fast_append.append_batch(batch, count, timestamp_ms)
    if appended is None and not partition.appender.may_wait(len(batch)):
        appended = partition.append(batch)
    return appended


def remember(
    frame: memoryview, header: RequestHeader, context: RequestContext, request: ProduceRequest
) -> None:
    """Keep a produce request's fields, and make a template if the previous request had the same."""
    if request.acks not in _ACKS or request.transactional_id is not None:
        return
    connection = context.connection
    fields = (
        context.version,
        context.client_id,
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [(topic.name, topic.topic_id) for topic in request.topic_data],
    )
    last = connection.application_state
    if isinstance(last, LastProduce) and last.fields == fields:
        if last.template is None:
            last.template = template_of(frame, header, request)
    else:
        connection.application_state = LastProduce(fields, context, request)
    for topic in request.topic_data:  # keep no records
        topic.partition_data.clear()
