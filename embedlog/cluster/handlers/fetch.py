"""Fetch: batches from the files to the sockets, and waiting for batches that are not there yet.

An answer's records are pieces of segment files. Small ones are read and sent with the rest of the answer;
larger ones leave by sendfile (see connection.py), so that they never enter this process. Clients of before
record batches get message sets, made in another thread, one answer at a time (cluster/down_conversion.py).

A request that finds less than min_bytes waits in the purgatory of its processor, for at most max_wait_ms: one
listener a partition and processor wakes those who wait for that partition. A request of many partitions gets
at most max_bytes in all; at least one batch, whole, if there is any (KIP-74; from version 3 on: before, a
batch may be cut off, and the client asks again for more).

Source: Kafka 0.10 design, sections 4.4 and 5.3; KIP-74 (max_bytes), KIP-227 (sessions), KIP-320 (epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final, NamedTuple, TypeAlias

from ...errors import EmbedlogError
from ...model import PartitionState
from ...partition import Partition
from ...storage.reader import Stretch
from ...wire.apis.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ...wire.error_codes import ErrorCode
from ...wire.messages import Records
from ..broker_context import BrokerContext, Handler, RequestContext, chained, check_epoch
from ..connection import Connection, FileRegion
from ..down_conversion import Conversion, as_message_set, size_before_zstd
from ..fetch_sessions import FetchSessions, Wanted
from ..problems import ApiError, code_of
from ..processor import Processor, Timer

_FIRST_WITH_WHOLE_BATCHES: Final = 3
_FIRST_WITH_MAGIC_1: Final = 2
_FIRST_WITH_BATCHES: Final = 4  # record batches as they are in the log; before, message sets
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_TOPIC_IDS: Final = 13
_READ_BYTES: Final = 32 << 10  # a piece up to this is read and sent with the answer's other bytes
_MANY: Final = 1_000  # partitions: looking at more than so many takes a processor too long

_Answered: TypeAlias = FetchResponse | Future[FetchResponse]
_Attempt: TypeAlias = Callable[[bool], "FetchResponse | Future[Any] | None"]


class Found(NamedTuple):
    """What there is for one partition: a piece of a file, or an error."""

    wanted: Wanted
    partition: Partition | None
    stretch: Stretch | None
    error: EmbedlogError | None
    diverging: EpochEndOffset | None = None

    @property
    def size(self) -> int:
        return 0 if self.stretch is None else self.stretch.size


class FetchHandlers:
    """Implements Fetch."""

    def __init__(self, node: BrokerContext) -> None:
        self._node = node
        self._sessions = FetchSessions(node.settings.max_incremental_fetch_session_cache_slots)
        self._purgatories: dict[Processor, Purgatory] = {}
        self._stopped = False

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
        return {"Fetch": self.fetch}

    def stop(self) -> None:
        """Whoever waits for records is answered with what there is, and from now on nobody waits."""
        self._stopped = True
        for purgatory in list(self._purgatories.values()):
            purgatory.stop()

    def on_half_close(self, connection: Connection) -> None:
        """See `processor.Application`."""
        purgatory = self._purgatories.get(connection.processor)
        if purgatory is not None:
            purgatory.on_half_close(connection)

    def fetch(self, call: RequestContext, request: FetchRequest) -> FetchResponse | Future[FetchResponse]:
        try:
            session, wanted = self._sessions.begin(request, call.version, self._node.topic_named)
        except ApiError as refusal:
            return FetchResponse(error_code=refusal.code)
        max_bytes = min(max(request.max_bytes, 0), self._node.settings.fetch_max_bytes)

        def look() -> list[Found]:
            return self._look(call, request, wanted, max_bytes)

        def answer(found: list[Found]) -> FetchResponse | Future[FetchResponse]:
            if call.version < _FIRST_WITH_BATCHES:
                conversion = Conversion(
                    call.connection.processor.unsent_bytes,
                    lambda: self._stopped or call.connection.ended,
                )
                return self._node.convert(
                    self._response, found, _message_sets(call.version, max_bytes, conversion)
                )
            if call.version < _FIRST_WITH_ZSTD:
                return self._node.offload(
                    lambda: self._sessions.end(session, self._response(found, _without_zstd))
                )
            return self._sessions.end(session, self._response(found, _records))

        def attempt(over: bool) -> FetchResponse | Future[FetchResponse] | None:
            return answer(now) if _is_enough(now := look(), request.min_bytes) or over else None

        if len(wanted) <= _MANY:
            return self._begin(call, request, look, answer, attempt)
        # The processor has other connections to serve, at the first look and at each one after it.
        return chained(
            self._node.in_turn(
                lambda: self._begin(
                    call,
                    request,
                    look,
                    answer,
                    lambda over: chained(self._node.in_turn(attempt, over)),
                )
            )
        )

    def _begin(
        self,
        call: RequestContext,
        request: FetchRequest,
        look: Callable[[], list[Found]],
        answer: Callable[[list[Found]], _Answered],
        attempt: _Attempt,
    ) -> _Answered:
        found = look()
        if request.max_wait_ms <= 0 or not found or _is_enough(found, request.min_bytes):
            return answer(found)
        processor = call.connection.processor
        purgatory = self._purgatories.get(processor)
        if purgatory is None:
            purgatory = self._purgatories.setdefault(processor, Purgatory(processor))
        if self._stopped:  # asked last: who stops says so before it looks for purgatories
            return answer(found)
        return purgatory.wait(
            call.connection,
            [each.partition for each in found if each.partition is not None],
            request.max_wait_ms / 1000,
            attempt,
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _look(
        self, call: RequestContext, request: FetchRequest, wanted: Sequence[Wanted], max_bytes: int
    ) -> list[Found]:
        """What there is for each partition now, at most max_bytes in all. Nothing is read yet."""
        found = []
        left = max_bytes
        anything = False
        for each in wanted:
            one = self._look_at(call, request, each, left, not anything)
            anything = anything or one.size > 0
            left = max(left - one.size, 0)
            found.append(one)
        return found

    def _look_at(
        self, call: RequestContext, request: FetchRequest, wanted: Wanted, left: int, first: bool
    ) -> Found:
        partition = None
        try:
            if wanted.topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            partition = self._node.partition(wanted.topic, wanted.partition)
            if not self._node.leads(partition.name):
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads this partition")
            check_epoch(partition, wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0:
                epoch, end = partition.end_of_epoch(wanted.last_fetched_epoch)
                if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                    diverging = EpochEndOffset(epoch=epoch, end_offset=end)
                    return Found(wanted, partition, None, None, diverging)
            stretch = partition.stretch(
                wanted.fetch_offset,
                min(max(wanted.max_bytes, 0), left),
                read_committed=request.isolation_level == 1,
                at_least_one=first and call.version >= _FIRST_WITH_WHOLE_BATCHES,
            )
            return Found(wanted, partition, stretch, None)
        except EmbedlogError as error:
            return Found(wanted, partition, None, error)

    def _response(
        self, found: Sequence[Found], records: Callable[[Found, Stretch], Records]
    ) -> FetchResponse:
        response = FetchResponse()
        topic: FetchableTopicResponse | None = None
        for one in found:
            key = (one.wanted.topic or "", one.wanted.topic_id)
            if topic is None or (topic.topic, topic.topic_id) != key:
                topic = FetchableTopicResponse(topic=key[0], topic_id=key[1])
                response.responses.append(topic)
            topic.partitions.append(self._data(one, records))
        return response

    def _data(self, found: Found, records: Callable[[Found, Stretch], Records]) -> PartitionData:
        data = PartitionData(partition_index=found.wanted.partition, high_watermark=-1, records=b"")
        error = found.error
        stretch = found.stretch
        if stretch is not None:
            try:
                data.records = records(found, stretch)
            except (OSError, EmbedlogError) as failed:
                error = (
                    failed
                    if isinstance(failed, EmbedlogError)
                    else ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(failed))
                )
            if self._node.meter is not None:
                self._node.meter.fetched(stretch.size)
            data.high_watermark = stretch.log_end_offset
            data.log_start_offset = stretch.log_start_offset
            committed = stretch.last_stable_offset >= 0
            data.last_stable_offset = stretch.last_stable_offset if committed else stretch.log_end_offset
            if committed:
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=t.producer_id, first_offset=t.first_offset)
                    for t in stretch.aborted
                ]
        elif found.partition is not None:
            offsets = found.partition.offsets()
            data.log_start_offset = offsets.log_start_offset
            data.high_watermark = data.last_stable_offset = offsets.log_end_offset
        data.diverging_epoch = found.diverging
        if error is not None:
            data.error_code = code_of(error)
            if data.error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                data.current_leader = self._leader(found.partition)
        return data

    def _leader(self, partition: Partition | None) -> LeaderIdAndEpoch | None:
        if partition is None:
            return None
        found = self._node.coordination.placement(partition.name)
        return LeaderIdAndEpoch(leader_id=found.leader, leader_epoch=found.leader_epoch)


def _is_enough(found: Sequence[Found], min_bytes: int) -> bool:
    """Is there as much as was asked for, or something that the client has to know at once?"""
    return sum(one.size for one in found) >= min_bytes or any(
        one.error is not None or one.diverging is not None for one in found
    )


def _records(found: Found, stretch: Stretch) -> Records:
    """The batches as they are in the file."""
    segment = stretch.segment
    if segment is None:
        return b""
    if stretch.size <= _READ_BYTES:
        return segment.pread(stretch.size, stretch.pos)
    held = segment.held()
    return FileRegion(held.__enter__(), stretch.pos, stretch.size, lambda: held.__exit__(None, None, None))


def _without_zstd(found: Found, stretch: Stretch) -> Records:
    """The same, up to the first batch that the client cannot decompress. Raises Refusal."""
    segment = stretch.segment
    if segment is None:
        return b""
    size = size_before_zstd(segment, stretch.pos, stretch.size)
    return _records(found, stretch._replace(size=size))


def _message_sets(
    version: int, max_bytes: int, conversion: Conversion
) -> Callable[[Found, Stretch], Records]:
    """What makes the records of one answer, at most max_bytes in all."""
    left = max_bytes
    magic = 1 if version >= _FIRST_WITH_MAGIC_1 else 0
    anything = version < _FIRST_WITH_WHOLE_BATCHES

    def converted(found: Found, stretch: Stretch) -> Records:
        nonlocal left, anything
        if not stretch.size or conversion.ends:
            return b""
        assert found.partition is not None
        made = as_message_set(
            found.partition,
            found.wanted.fetch_offset,
            stretch.log_end_offset,
            magic,
            min(max(found.wanted.max_bytes, 0), left),
            conversion,
            at_least_one=not anything,
        )
        left = max(left - len(made), 0)
        anything = anything or bool(made)
        return made

    return converted


class Waiting:
    """A fetch that waits for records."""

    __slots__ = (
        "again",
        "attempt",
        "connection",
        "future",
        "is_over",
        "is_tried",
        "partitions",
        "seconds",
        "timer",
    )

    def __init__(
        self, connection: Connection, partitions: Sequence[Partition], seconds: float, attempt: _Attempt
    ) -> None:
        self.connection = connection
        self.partitions = partitions
        self.seconds = seconds
        self.attempt = attempt
        self.future: Future[FetchResponse] = Future()
        self.is_over = False  # it is to be answered with what there is
        self.is_tried = False  # just now, by another thread
        self.again = False  # something has grown since that began
        self.timer: Timer | None = None


class Purgatory:
    """The fetches of one processor that wait for records. All of it happens in the processor's thread, but
    for `wait`, `stop`, and the listeners, which append a name and post."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._waiting: dict[Partition, set[Waiting]] = {}
        self._of: dict[Connection, Waiting] = {}
        self._listeners: dict[Partition, Callable[[], None]] = {}
        self._grown: set[Partition] = set()
        self._stopped = False

    def wait(
        self, connection: Connection, partitions: Sequence[Partition], seconds: float, attempt: _Attempt
    ) -> Future[FetchResponse]:
        """What attempt(False) gives once one of the partitions has grown, if not None; attempt(True) after
        so many seconds."""
        waiting = Waiting(connection, partitions, seconds, attempt)
        waiting.future.add_done_callback(lambda _: self._processor.post(lambda: self._leave(waiting)))
        self._processor.post(lambda: self._enter(waiting))
        return waiting.future

    def on_half_close(self, connection: Connection) -> None:
        """Answer a connection's fetch now."""
        waiting = self._of.get(connection)
        if waiting is not None:
            self._try(waiting, over=True)

    def stop(self) -> None:
        """Answer all that wait and all that come. No partition keeps a listener."""
        self._processor.post(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        for waiting in list(self._of.values()):
            self._try(waiting, over=True)
        for partition in list(self._waiting):
            self._forget(partition)

    def _enter(self, waiting: Waiting) -> None:
        if waiting.future.done():
            return
        if self._stopped or waiting.connection.ended:
            self._try(waiting, over=True)
            return
        self._of[waiting.connection] = waiting
        for partition in waiting.partitions:
            there = self._waiting.get(partition)
            if there is None:
                there = self._waiting[partition] = set()
                listener = self._listeners[partition] = self._listener(partition)
                partition.add_listener(listener)
            there.add(waiting)
        waiting.timer = self._processor.call_later(waiting.seconds, lambda: self._try(waiting, over=True))
        # What was appended between the look and the listener wakes nobody.
        self._try(waiting)

    def _listener(self, partition: Partition) -> Callable[[], None]:
        def wake() -> None:
            if partition not in self._grown and (self._waiting.get(partition) or _is_closed(partition)):
                self._grown.add(partition)
                self._processor.post(lambda: self._wake(partition))

        return wake

    def _wake(self, partition: Partition) -> None:
        self._grown.discard(partition)
        there = self._waiting.get(partition, set())
        for waiting in list(there):
            self._try(waiting)
        if not there and _is_closed(partition):
            self._forget(partition)

    def _try(self, waiting: Waiting, *, over: bool = False) -> None:
        if waiting.future.done():
            return
        waiting.is_over |= over
        if waiting.is_tried:
            waiting.again = True
            return
        try:
            answer = waiting.attempt(waiting.is_over)
        except BaseException as error:  # a defect: the connection says so and closes
            _fail(waiting.future, error)
            return
        if isinstance(answer, Future):
            waiting.is_tried, waiting.again = True, False
            answer.add_done_callback(lambda done: self._processor.post(lambda: self._tried(waiting, done)))
        elif answer is not None:
            _complete(waiting.future, answer)

    def _tried(self, waiting: Waiting, done: Future[FetchResponse | None]) -> None:
        waiting.is_tried = False
        error = CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            _fail(waiting.future, error)
        elif (answer := done.result()) is not None:
            _complete(waiting.future, answer)
        elif waiting.again:
            self._try(waiting)

    def _leave(self, waiting: Waiting) -> None:
        if self._of.get(waiting.connection) is waiting:
            del self._of[waiting.connection]
        if waiting.timer is not None:
            waiting.timer.cancel()
        for partition in waiting.partitions:
            there = self._waiting.get(partition)
            if there is not None:
                there.discard(waiting)
                if not there and _is_closed(partition):
                    self._forget(partition)

    def _forget(self, partition: Partition) -> None:
        """Nobody will wait for it any more."""
        if self._waiting.pop(partition, None) is not None:
            partition.remove_listener(self._listeners.pop(partition))


def _is_closed(partition: Partition) -> bool:
    return partition.state is PartitionState.CLOSED


def _complete(future: Future[FetchResponse], response: FetchResponse) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(response)


def _fail(future: Future[FetchResponse], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
