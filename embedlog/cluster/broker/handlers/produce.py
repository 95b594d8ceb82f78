"""Produce: how records get into the log.

A batch is validated in the buffer that the socket filled (batch_validation.py) and appended from
there: it is in the page cache when the response leaves. An append that waits for a disk (flush_messages, a
new segment), or a validation that computes for long, goes to another thread with a copy of the batch, unless
the connection has its thread to itself; its next request waits for it.

A small request that differs from the one before on its connection only in its records is read and answered by
a template (wire/request_template.py). Its records are handled like any others.

A transactional batch needs its partition's permission, which the coordinator of its transaction gives
(peers/transaction_permission.py). From v12 on (KIP-890) the request adds the partitions that are not part
of the transaction; before, AddPartitionsToTxn has done it. The coordinator may be another broker: the request
waits for it without a thread.

On the owner's socket a request may ask to wait for the fsync, and a batch may state the offset that it
expects (wire/owner_apis.py).

acks=0 gets no response; an error closes the connection, which is how the client learns of it. acks=1 and
acks=all both mean appended while a partition has one replica. The topic's flush policy decides when a record
is durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from ....codec import HEADER_SIZE, loops, read_header
from ....errors import (
    EmbedlogError,
    InvalidProducerIdMapping,
    InvalidTimestamp,
    InvalidTxnState,
    ProducerFenced,
    UnexpectedOffset,
)
from ....files.names import INTERNAL_TOPICS
from ....groups.machines.transaction import ProducerIdAndEpoch
from ....model import Appended, TopicPartition
from ....partition import Partition
from ....wire.apis.produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ....wire.error_codes import ErrorCode
from ....wire.frames import RequestHeader
from ....wire.owner_apis import (
    ANY_OFFSET,
    OwnerPartitionProduceData,
    OwnerPartitionProduceResponse,
    OwnerProduceRequest,
    OwnerProduceResponse,
)
from ...network.close_reasons import CloseConnection
from ..api_errors import ApiError, ErrorAnswers, InvalidRecords
from ..batch_validation import FIRST_WITH_BATCHES, read_batch_header, validate, validate_quickly
from ..broker_context import BrokerContext, Handler, RequestContext, internal_topic, not_leader
from ..down_conversion import as_batches
from ..futures import flatten_future, map_future, when_all
from ..last_produce import ACKS, LastProduce
from ..peers.transaction_permission import Refused

_FIRST_WITH_ABORTABLE: Final = 11  # knows TRANSACTION_ABORTABLE
_FIRST_THAT_ADDS: Final = 12  # partitions to transactions
_FIRST_WITH_TOPIC_IDS: Final = 13
_MANY: Final = 1_000  # batches in a request: more would keep a processor for too long

_PartitionResult = PartitionProduceResponse | Future[PartitionProduceResponse]
_Result = ProduceResponse | Future[ProduceResponse | None] | None
_NOTHING_REFUSED: Final[Mapping[TopicPartition, EmbedlogError]] = MappingProxyType({})


class _Options(NamedTuple):
    """What only an owner's client can ask for."""

    flush: bool = False
    expected_offset: int | None = None


_NO_OPTIONS: Final = _Options()
_FLUSHED: Final = _Options(flush=True)


class ProduceHandlers:
    """Handles Produce."""

    def __init__(self, broker: BrokerContext, answers: ErrorAnswers) -> None:
        self._broker = broker
        self._answers = answers
        self._authorizer = None if broker.access is None else broker.access.authorizer

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"Produce": self.produce}

    def produce(self, context: RequestContext, request: ProduceRequest) -> _Result:
        if sum(len(topic.partition_data) for topic in request.topic_data) > _MANY:
            _copy_records(request)
            return flatten_future(self._broker.run_large(self._permit_and_produce, context, request))
        transactions = self._broker.transactions
        if (
            transactions is not None
            and request.transactional_id is not None
            and (not transactions.is_loaded or any(self._not_permitted(context, request)))
        ):
            _copy_records(request)
            return flatten_future(self._broker.run_blocking(self._permit_and_produce, context, request))
        return self._produce(context, request)

    def _produce(
        self,
        context: RequestContext,
        request: ProduceRequest,
        refused: Mapping[TopicPartition, EmbedlogError] = _NOTHING_REFUSED,
    ) -> _Result:
        results: list[list[_PartitionResult]] = []
        for topic in request.topic_data:
            name = self._topic_name(context, topic)
            results.append(
                [self._append(context, request, name, data, refused) for data in topic.partition_data]
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
        if self._authorizer is not None and self._authorizer.changes != last.rules:
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
            options = _FLUSHED if template.flushes else _NO_OPTIONS
            appended = _append_plain(context, partition, records, options)
            if appended is None:
                result = self._append_others(context, partition, records, options)
            elif appended.durable is template.flushes:
                self._count(appended, len(records))
                return template.response(
                    correlation_id, index, appended.base_offset, -1, partition.log.log_start_offset
                )
            else:
                result = self._appended(partition, appended, len(records))
        except EmbedlogError as error:
            result = self._failed(index, error, context.version)
        header = RequestHeader(PRODUCE.key, context.version, correlation_id, context.client_id, 0)
        if isinstance(result, Future):
            return header, map_future(result, lambda response: self._response(last.request, [[response]]))
        return header, self._response(last.request, [[result]])

    def _topic_name(self, context: RequestContext, topic: TopicProduceData) -> str | None:
        if context.version >= _FIRST_WITH_TOPIC_IDS:
            return self._broker.topic_name(topic.topic_id)
        return topic.name

    def _response(
        self, request: ProduceRequest, results: Sequence[Sequence[_PartitionResult]]
    ) -> ProduceResponse | None:
        response = OwnerProduceResponse() if isinstance(request, OwnerProduceRequest) else ProduceResponse()
        for topic, of_topic in zip(request.topic_data, results, strict=True):
            partitions = [result.result() if isinstance(result, Future) else result for result in of_topic]
            response.responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
            for partition in partitions:
                if partition.error_code and not request.acks:
                    raise CloseConnection(
                        f"produce with acks=0 to {topic.name!r} {partition.index} failed: "
                        f"{ErrorCode(partition.error_code).name}"
                    )
        return response if request.acks else None

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topic: str | None,
        data: PartitionProduceData,
        refused: Mapping[TopicPartition, EmbedlogError],
    ) -> _PartitionResult:
        records = memoryview(data.records or b"")  # type: ignore[arg-type]
        options = _options(request, data)
        try:
            if request.acks not in ACKS:
                raise ApiError(
                    ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
                )
            transactional = request.transactional_id is not None
            partition = self._partition(topic, data.index)
            if partition.name in refused:
                raise refused[partition.name]
            plain = options.expected_offset is None and context.version >= FIRST_WITH_BATCHES
            appended = _append_plain(context, partition, records, options) if plain else None
            if appended is not None:
                return self._appended(partition, appended, len(records))
            return self._append_others(context, partition, records, options, transactional=transactional)
        except EmbedlogError as error:
            return self._failed(data.index, error, context.version)

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
        self,
        context: RequestContext,
        partition: Partition,
        records: memoryview,
        options: _Options,
        *,
        transactional: bool = False,
    ) -> _PartitionResult:
        """Append what `_append_plain` does not. Raises EmbedlogError."""
        settings = partition.settings
        now_ms = self._broker.store.clock_ms()
        max_bytes = self._broker.settings.max_decompressed_message_bytes
        if context.version < FIRST_WITH_BATCHES:
            message_set = bytes(records)
            return self._broker.run_blocking(
                self._validate_and_append,
                context,
                partition,
                lambda: as_batches(message_set, settings, now_ms, max_bytes),
                options,
            )
        header = read_batch_header(records, context.version, settings, transactional=transactional)
        if not (options.flush or partition.appender.may_wait(header.size)):
            valid = validate_quickly(records, header, settings, now_ms, max_bytes)
            if valid is not None:
                appended = partition.append(cast(bytearray, valid), expected_offset=options.expected_offset)
                return self._appended(partition, appended, len(valid))
        if context.connection.loop.may_wait:
            return self._validate_and_append(
                context, partition, lambda: validate(records, header, settings, now_ms, max_bytes), options
            )
        copy = memoryview(bytearray(records))
        return self._broker.run_blocking(
            self._validate_and_append,
            context,
            partition,
            lambda: validate(copy, header, settings, now_ms, max_bytes),
            options,
        )

    def _validate_and_append(
        self,
        context: RequestContext,
        partition: Partition,
        validated: Callable[[], bytearray | memoryview],
        options: _Options,
    ) -> PartitionProduceResponse:
        try:
            batches = validated()
            appended = partition.append(
                cast(bytearray, batches), flush=options.flush, expected_offset=options.expected_offset
            )
        except EmbedlogError as error:
            return self._failed(partition.name.partition, error, context.version)
        return self._appended(partition, appended, len(batches))

    def _appended(self, partition: Partition, appended: Appended, size: int) -> PartitionProduceResponse:
        self._count(appended, size)
        # The class of the whole response decides whether an owner's fields are sent.
        return OwnerPartitionProduceResponse(
            index=partition.name.partition,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.timestamp_ms if partition.settings.append_time else -1,
            log_start_offset=partition.log.log_start_offset,
            durable=appended.durable,
        )

    def _count(self, appended: Appended, size: int) -> None:
        if self._broker.meter is not None:
            self._broker.meter.count_produced(appended.last_offset + 1 - appended.base_offset, size)

    def _failed(self, index: int, error: EmbedlogError, version: int) -> PartitionProduceResponse:
        code = self._answers.code_for(error)
        if isinstance(error, ProducerFenced) and not isinstance(error, InvalidProducerIdMapping):
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif isinstance(error, InvalidTxnState) and version >= _FIRST_WITH_ABORTABLE:
            code = ErrorCode.TRANSACTION_ABORTABLE
        failed = OwnerPartitionProduceResponse(
            index=index,
            error_code=code,
            base_offset=-1,
            error_message=self._answers.message_for(error),
            error=type(error).__name__,
            log_end_offset=error.actual if isinstance(error, UnexpectedOffset) else -1,
        )
        if isinstance(error, InvalidTimestamp):
            failed.record_errors = [
                BatchIndexAndErrorMessage(
                    batch_index=record, batch_index_error_message=f"the timestamp {time_ms} is out of range"
                )
                for record, time_ms in error.records
            ]
        elif isinstance(error, InvalidRecords):
            failed.record_errors = [
                BatchIndexAndErrorMessage(batch_index=record, batch_index_error_message=error.reason)
                for record in error.record_indexes
            ]
        return failed

    # -- transactions ----------------------------------------------------------------------------------

    def _permit_and_produce(self, context: RequestContext, request: ProduceRequest) -> _Result:
        """Get the permission that partitions lack, and append."""
        refusals: list[Future[Refused]] = []
        transactions, permissions = self._broker.transactions, self._broker.permissions
        if transactions is not None and permissions is not None and request.transactional_id is not None:
            with contextlib.suppress(EmbedlogError):  # as if it had none
                transactions.load()
            names_by_producer: dict[ProducerIdAndEpoch, list[TopicPartition]] = {}
            for producer, name in self._not_permitted(context, request):
                names_by_producer.setdefault(producer, []).append(name)
            adds = context.version >= _FIRST_THAT_ADDS
            refusals = [
                permissions.get(request.transactional_id, producer, names, adds=adds)
                for producer, names in names_by_producer.items()
            ]

        def produce() -> _Result:
            errors = {name: error for refused in refusals for name, error in refused.result().items()}
            return self._produce(context, request, errors)

        if all(refused.done() for refused in refusals):
            return produce()
        run = self._broker.run_blocking
        return flatten_future(map_future(when_all(refusals), lambda _: flatten_future(run(produce))))

    def _not_permitted(
        self, context: RequestContext, request: ProduceRequest
    ) -> Iterator[tuple[ProducerIdAndEpoch, TopicPartition]]:
        """The partitions with a transactional batch that they do not permit.

        Without those of which the request will be told another error.
        """
        for topic in request.topic_data:
            name = self._topic_name(context, topic)
            for data in topic.partition_data:
                records = cast(memoryview, data.records or b"")
                if len(records) < HEADER_SIZE:
                    continue
                try:
                    header = read_header(records)
                    partition = self._partition(name, data.index)
                except EmbedlogError:
                    continue
                producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
                if (
                    header.is_transactional
                    and min(producer) >= 0
                    and not partition.allows_transaction(*producer)
                ):
                    yield producer, partition.name


def _copy_records(request: ProduceRequest) -> None:
    """Take the records out of the socket's buffer, which will be overwritten."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = memoryview(bytearray(cast(memoryview, data.records or b"")))


def _options(request: ProduceRequest, data: PartitionProduceData) -> _Options:
    """A batch's options."""
    if not isinstance(request, OwnerProduceRequest):
        return _NO_OPTIONS
    expected = data.expected_offset if isinstance(data, OwnerPartitionProduceData) else ANY_OFFSET
    if expected == ANY_OFFSET:
        return _FLUSHED if request.flush else _NO_OPTIONS
    return _Options(request.flush, expected)


def _append_plain(
    context: RequestContext, partition: Partition, records: memoryview, options: _Options
) -> Appended | None:
    """Fast path for the common batch, which is valid and appended unchanged, in this thread.

    Returns None, with no side effects, if any precondition fails.
    """
    settings = partition.settings
    may_wait = context.connection.loop.may_wait
    if (options.flush and not may_wait) or (
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
    appended = None
    if not (sequenced or options.flush):
        appended = partition.fast_append.append_batch(batch, count, timestamp_ms)
    if appended is None and (may_wait or not partition.appender.may_wait(len(batch))):
        appended = partition.append(batch, flush=options.flush)
    return appended
