"""Fetch: batches from files to sockets, and waiting for batches to be appended.

A response's records are ranges of segment files. Small ones are read and sent with the rest of the response;
larger ones leave by sendfile (connection.py) and never enter this process. Clients from before record batches
get message sets, converted in another thread, one response at a time (down_conversion.py).

A request that finds less than min_bytes waits in its processor's purgatory for at most max_wait_ms. One
listener per partition and processor wakes the delayed fetches of that partition. A response has at most
max_bytes of records, but at least one whole batch if there is any (KIP-74, from version 3 on; before, a batch
may be truncated, and the client requests more bytes).

Source: Kafka 0.10 design, sections 4.4 and 5.3; KIP-74 (max_bytes), KIP-227 (sessions), KIP-320 (epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final, NamedTuple, TypeAlias

from ....errors import EmbedlogError
from ....model import PartitionState
from ....partition import Partition
from ....storage.reader import FileRange
from ....wire.apis.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ....wire.error_codes import ErrorCode
from ....wire.messages import Records
from ...network.connection import Connection, EventLoop
from ...network.event_loop import Cancellable
from ...network.outbox import FileRegion
from ..api_errors import ApiError, error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..down_conversion import Conversion, as_message_set
from ..fetch_sessions import FetchSessions, RequestedPartition, Session, authorized
from ..futures import flatten_future

_FIRST_WITH_WHOLE_BATCHES: Final = 3
_FIRST_WITH_MAGIC_1: Final = 2
_FIRST_WITH_BATCHES: Final = 4  # record batches as in the log; message sets before
_FIRST_WITH_TOPIC_IDS: Final = 13
_READ_BYTES: Final = 32 << 10  # a range up to this size is read and sent with the rest of the response
_MANY: Final = 1_000  # partitions: looking at more would keep a processor for too long

_Result: TypeAlias = FetchResponse | Future[FetchResponse]
_Attempt: TypeAlias = Callable[[bool], "FetchResponse | Future[Any] | None"]


class ReadResult(NamedTuple):
    """What one partition has for a request: a range of a file, or an error."""

    requested: RequestedPartition
    partition: Partition | None
    file_range: FileRange | None
    error: EmbedlogError | None
    diverging: EpochEndOffset | None = None

    @property
    def size(self) -> int:
        return 0 if self.file_range is None else self.file_range.size


class FetchHandlers:
    """Handles Fetch."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._sessions = FetchSessions(broker.settings.max_incremental_fetch_session_cache_slots)
        self._purgatories: dict[EventLoop, Purgatory] = {}
        self._stopped = False

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"Fetch": self.fetch}

    def stop(self) -> None:
        """Complete all delayed fetches with the available records; no fetch waits from now on."""
        self._stopped = True
        for purgatory in list(self._purgatories.values()):
            purgatory.stop()

    def on_half_close(self, connection: Connection) -> None:
        """See `connection.Application`."""
        purgatory = self._purgatories.get(connection.loop)
        if purgatory is not None:
            purgatory.on_half_close(connection)

    def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse | Future[FetchResponse]:
        try:
            session, requested = self._sessions.begin(request, context.version, self._broker.topic_name)
        except ApiError as error:
            return FetchResponse(error_code=error.code)
        if self._broker.access is not None:
            requested = authorized(self._broker.access, context, request, requested)
        max_bytes = min(max(request.max_bytes, 0), self._broker.settings.fetch_max_bytes)
        usage = context.usage
        if usage is not None:
            max_bytes = usage.most_fetched(max_bytes)

        def read() -> list[ReadResult]:
            return self._read(context, request, requested, max_bytes)

        def respond(results: list[ReadResult]) -> _Result:
            if usage is not None and not usage.fetches(sum(result.size for result in results)):
                return self._sessions.empty(session)
            if context.version < _FIRST_WITH_BATCHES:
                conversion = Conversion(
                    context.connection.loop.unsent_bytes,
                    lambda: self._stopped or context.connection.half_closed,
                )
                convert = _message_sets(context.version, max_bytes, conversion, lambda: self._stopped)
                return self._broker.run_conversion(self._response, session, results, convert)
            return self._response(session, results, _records)

        def attempt(expired: bool) -> _Result | None:
            results = read()
            return respond(results) if expired or _is_enough(results, request.min_bytes) else None

        if len(requested) <= _MANY:
            return self._begin(context, request, read, respond, attempt)
        # The first read and each later one would keep the processor from its other connections.
        return flatten_future(
            self._broker.run_large(
                lambda: self._begin(
                    context,
                    request,
                    read,
                    respond,
                    lambda expired: flatten_future(self._broker.run_large(attempt, expired)),
                )
            )
        )

    def _begin(
        self,
        context: RequestContext,
        request: FetchRequest,
        read: Callable[[], list[ReadResult]],
        respond: Callable[[list[ReadResult]], _Result],
        attempt: _Attempt,
    ) -> _Result:
        results = read()
        if request.max_wait_ms <= 0 or not results or _is_enough(results, request.min_bytes):
            return respond(results)
        loop = context.connection.loop
        purgatory = self._purgatories.get(loop)
        if purgatory is None:
            purgatory = self._purgatories.setdefault(loop, Purgatory(loop))
        if self._stopped:  # checked last: `stop` sets this before it stops the purgatories
            return respond(results)
        return purgatory.wait(
            context.connection,
            [result.partition for result in results if result.partition is not None],
            request.max_wait_ms / 1000,
            attempt,
        )

    def _read(
        self,
        context: RequestContext,
        request: FetchRequest,
        requested: Sequence[RequestedPartition],
        max_bytes: int,
    ) -> list[ReadResult]:
        """The ranges that each partition has now, at most max_bytes together. No file is read yet."""
        results = []
        bytes_left = max_bytes
        is_empty = True
        for partition in requested:
            result = self._read_partition(context, request, partition, bytes_left, is_empty)
            is_empty = is_empty and not result.size
            bytes_left = max(bytes_left - result.size, 0)
            results.append(result)
        return results

    def _read_partition(
        self,
        context: RequestContext,
        request: FetchRequest,
        requested: RequestedPartition,
        bytes_left: int,
        is_first: bool,
    ) -> ReadResult:
        partition = None
        try:
            if requested.topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            if not requested.may_read:
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "this client may not read the topic")
            partition = self._broker.store.partition(requested.topic, requested.partition)
            self._broker.check_led(partition, requested.current_leader_epoch)
            if requested.last_fetched_epoch >= 0:
                epoch, end = partition.reader.end_of_epoch(requested.last_fetched_epoch)
                if epoch < requested.last_fetched_epoch or end < requested.fetch_offset:
                    diverging = EpochEndOffset(epoch=epoch, end_offset=end)
                    return ReadResult(requested, partition, None, None, diverging)
            file_range = partition.reader.file_range(
                requested.fetch_offset,
                min(max(requested.max_bytes, 0), bytes_left),
                read_committed=request.isolation_level == 1,
                at_least_one=is_first and context.version >= _FIRST_WITH_WHOLE_BATCHES,
            )
            return ReadResult(requested, partition, file_range, None)
        except EmbedlogError as error:
            return ReadResult(requested, partition, None, error)

    def _response(
        self,
        session: Session | None,
        results: Sequence[ReadResult],
        records: Callable[[ReadResult, FileRange], Records],
    ) -> FetchResponse:
        response = FetchResponse()
        topic: FetchableTopicResponse | None = None
        for result in results:
            key = (result.requested.topic or "", result.requested.topic_id)
            if topic is None or (topic.topic, topic.topic_id) != key:
                topic = FetchableTopicResponse(topic=key[0], topic_id=key[1])
                response.responses.append(topic)
            topic.partitions.append(self._partition_data(result, records))
        return response if session is None else self._sessions.end(session, response)

    def _partition_data(
        self, result: ReadResult, records: Callable[[ReadResult, FileRange], Records]
    ) -> PartitionData:
        data = PartitionData(partition_index=result.requested.partition, high_watermark=-1, records=b"")
        error = result.error
        file_range = result.file_range
        if file_range is not None:
            try:
                data.records = records(result, file_range)
            except EmbedlogError as failure:
                error = failure
            except OSError as failure:
                error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            if self._broker.meter is not None:
                self._broker.meter.count_fetched(file_range.size)
            data.high_watermark = file_range.log_end_offset
            data.log_start_offset = file_range.log_start_offset
            committed = file_range.last_stable_offset >= 0
            data.last_stable_offset = (
                file_range.last_stable_offset if committed else file_range.log_end_offset
            )
            if committed:
                data.aborted_transactions = [
                    AbortedTransaction(
                        producer_id=transaction.producer_id, first_offset=transaction.first_offset
                    )
                    for transaction in file_range.aborted
                ]
        elif result.partition is not None:
            offsets = result.partition.offsets()
            data.log_start_offset = offsets.log_start_offset
            data.high_watermark = data.last_stable_offset = offsets.log_end_offset
        data.diverging_epoch = result.diverging
        if error is not None:
            data.error_code = error_code_for(error)
            if data.error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                data.current_leader = self._leader(result.partition)
        return data

    def _leader(self, partition: Partition | None) -> LeaderIdAndEpoch | None:
        if partition is None:
            return None
        placement = self._broker.coordination.placement(partition.name)
        return LeaderIdAndEpoch(leader_id=placement.leader, leader_epoch=placement.leader_epoch)


def _is_enough(results: Sequence[ReadResult], min_bytes: int) -> bool:
    """Whether to respond now: with min_bytes, or with something that the client has to know at once."""
    return sum(result.size for result in results) >= min_bytes or any(
        result.error is not None or result.diverging is not None for result in results
    )


def _records(result: ReadResult, file_range: FileRange) -> Records:
    """The batches as in the file."""
    segment = file_range.segment
    if segment is None:
        return b""
    if file_range.size <= _READ_BYTES:
        return segment.pread(file_range.size, file_range.pos)
    lease = segment.held()
    return FileRegion(
        lease.__enter__(), file_range.pos, file_range.size, lambda: lease.__exit__(None, None, None)
    )


def _message_sets(
    version: int, max_bytes: int, conversion: Conversion, is_stopping: Callable[[], bool]
) -> Callable[[ReadResult, FileRange], Records]:
    """A function that converts the records of one response, at most max_bytes together; none while the broker
    stops, when many may wait."""
    bytes_left = max_bytes
    magic = 1 if version >= _FIRST_WITH_MAGIC_1 else 0
    at_least_one = version >= _FIRST_WITH_WHOLE_BATCHES

    def convert(result: ReadResult, file_range: FileRange) -> Records:
        nonlocal bytes_left, at_least_one
        if not file_range.size or conversion.ends or is_stopping():
            return b""
        assert result.partition is not None
        message_set = as_message_set(
            result.partition,
            result.requested.fetch_offset,
            file_range.log_end_offset,
            magic,
            min(max(result.requested.max_bytes, 0), bytes_left),
            conversion,
            at_least_one=at_least_one,
        )
        bytes_left = max(bytes_left - len(message_set), 0)
        at_least_one = at_least_one and not message_set
        return message_set

    return convert


class DelayedFetch:
    """A fetch that waits for records."""

    __slots__ = (
        "attempt",
        "connection",
        "future",
        "in_attempt",
        "is_expired",
        "must_retry",
        "partitions",
        "timer",
        "wait_s",
    )

    def __init__(
        self, connection: Connection, partitions: Sequence[Partition], wait_s: float, attempt: _Attempt
    ) -> None:
        self.connection = connection
        self.partitions = partitions
        self.wait_s = wait_s
        self.attempt = attempt
        self.future: Future[FetchResponse] = Future()
        self.is_expired = False  # respond with the available records
        self.in_attempt = False  # in another thread
        self.must_retry = False  # a partition has grown since that attempt began
        self.timer: Cancellable | None = None


class Purgatory:
    """One processor's delayed fetches. Everything happens in the processor's thread except `wait`, `stop` and
    the listeners, which add to a set and post."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._delayed: dict[Partition, set[DelayedFetch]] = {}
        self._by_connection: dict[Connection, DelayedFetch] = {}
        self._listeners: dict[Partition, Callable[[], None]] = {}
        self._grown: set[Partition] = set()  # partitions whose wake-up is posted
        self._stopped = False

    def wait(
        self, connection: Connection, partitions: Sequence[Partition], wait_s: float, attempt: _Attempt
    ) -> Future[FetchResponse]:
        """The first result of attempt(False) that is not None, made whenever one of the partitions grows; the
        result of attempt(True) after wait_s."""
        delayed = DelayedFetch(connection, partitions, wait_s, attempt)
        delayed.future.add_done_callback(lambda _: self._loop.post(lambda: self._remove(delayed)))
        self._loop.post(lambda: self._add(delayed))
        return delayed.future

    def on_half_close(self, connection: Connection) -> None:
        """Answer the connection's fetch now."""
        delayed = self._by_connection.get(connection)
        if delayed is not None:
            self._try(delayed, expired=True)

    def stop(self) -> None:
        """Answer all delayed fetches, and later ones at once. Remove the listeners."""
        self._loop.post(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        for delayed in list(self._by_connection.values()):
            self._try(delayed, expired=True)
        for partition in list(self._delayed):
            self._unwatch(partition)

    def _add(self, delayed: DelayedFetch) -> None:
        if delayed.future.done():
            return
        if self._stopped or delayed.connection.half_closed:
            self._try(delayed, expired=True)
            return
        self._by_connection[delayed.connection] = delayed
        for partition in delayed.partitions:
            if partition not in self._delayed:
                self._delayed[partition] = set()
                listener = self._listeners[partition] = self._listener(partition)
                partition.log.add_listener(listener)
            self._delayed[partition].add(delayed)
        delayed.timer = self._loop.call_later(delayed.wait_s, lambda: self._try(delayed, expired=True))
        self._try(delayed)  # an append between the first read and the listener woke no fetch

    def _listener(self, partition: Partition) -> Callable[[], None]:
        def wake() -> None:
            if partition not in self._grown and (self._delayed.get(partition) or _is_closed(partition)):
                self._grown.add(partition)
                self._loop.post(lambda: self._wake(partition))

        return wake

    def _wake(self, partition: Partition) -> None:
        self._grown.discard(partition)
        fetches = self._delayed.get(partition, set())
        for delayed in list(fetches):
            self._try(delayed)
        if not fetches and _is_closed(partition):
            self._unwatch(partition)

    def _try(self, delayed: DelayedFetch, *, expired: bool = False) -> None:
        if delayed.future.done():
            return
        delayed.is_expired |= expired
        if delayed.in_attempt:
            delayed.must_retry = True
            return
        try:
            response = delayed.attempt(delayed.is_expired)
        except BaseException as error:  # a defect: the connection logs it and closes
            _fail(delayed.future, error)
            return
        if isinstance(response, Future):
            delayed.in_attempt, delayed.must_retry = True, False
            response.add_done_callback(lambda done: self._loop.post(lambda: self._on_attempt(delayed, done)))
        elif response is not None:
            _complete(delayed.future, response)

    def _on_attempt(self, delayed: DelayedFetch, done: Future[FetchResponse | None]) -> None:
        delayed.in_attempt = False
        error = CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            _fail(delayed.future, error)
        elif (response := done.result()) is not None:
            _complete(delayed.future, response)
        elif delayed.must_retry:
            self._try(delayed)

    def _remove(self, delayed: DelayedFetch) -> None:
        if self._by_connection.get(delayed.connection) is delayed:
            del self._by_connection[delayed.connection]
        if delayed.timer is not None:
            delayed.timer.cancel()
        for partition in delayed.partitions:
            fetches = self._delayed.get(partition)
            if fetches is not None:
                fetches.discard(delayed)
                if not fetches and _is_closed(partition):
                    self._unwatch(partition)

    def _unwatch(self, partition: Partition) -> None:
        if self._delayed.pop(partition, None) is not None:
            partition.log.remove_listener(self._listeners.pop(partition))


def _is_closed(partition: Partition) -> bool:
    return partition.state is PartitionState.CLOSED


def _complete(future: Future[FetchResponse], response: FetchResponse) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(response)


def _fail(future: Future[FetchResponse], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
