"""Produce and InitProducerId: how records get into the log.

A batch is checked in the bytes that the socket filled (cluster/batch_validation.py) and appended from there:
the page cache has it when the answer leaves. What has to wait for a disk (flush_messages, a new segment), or
computes for long, goes to another thread with a copy of its own; the connection's next request waits for it.

acks=0 gets no answer, and an error closes the connection: that is how the client learns of it. acks=1 and
acks=all are the same while a partition has one replica: appended. When it is durable the topic's flush policy
says.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, cast

from ...errors import EmbedlogError
from ...model import Appended
from ...partition import Partition
from ...wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ...wire.apis.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ...wire.error_codes import ErrorCode
from ..batch_validation import FIRST_WITH_BATCHES, checked, checked_at_once, header_of, ready
from ..broker_context import BrokerContext, Handler, RequestContext, chained, gathered, then
from ..connection import CloseConnection
from ..down_conversion import as_batches
from ..problems import ApiError, RecordsRefused, code_of

_FIRST_WITH_TOPIC_IDS: Final = 13
_MANY: Final = 1_000  # batches in a request: more than so many take a processor too long
_ACKS: Final = frozenset({-1, 0, 1})

_Answered = PartitionProduceResponse | Future[PartitionProduceResponse]


class ProduceHandlers:
    """Implements the APIs of producers."""

    def __init__(self, node: BrokerContext) -> None:
        self._node = node

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
        return {"Produce": self.produce, "InitProducerId": self.init_producer_id}

    def produce(
        self, call: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Future[ProduceResponse | None] | None:
        if sum(len(topic.partition_data) for topic in request.topic_data) > _MANY:
            for topic in request.topic_data:
                for data in topic.partition_data:  # what is in the socket's buffer would not wait
                    data.records = memoryview(bytearray(cast(memoryview, data.records or b"")))
            return chained(self._node.in_turn(self._produce, call, request))
        return self._produce(call, request)

    def _produce(
        self, call: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Future[ProduceResponse | None] | None:
        answers: list[list[_Answered]] = []
        later: list[Future[PartitionProduceResponse]] = []
        for topic in request.topic_data:
            name = self._name(call, topic)
            of_topic: list[_Answered] = []
            for data in topic.partition_data:
                records = memoryview(data.records or b"")  # type: ignore[arg-type]
                answer = self._append(call, request, name, data.index, records)
                if isinstance(answer, Future):
                    later.append(answer)
                of_topic.append(answer)
            answers.append(of_topic)
        finish = partial(self._response, call, request, answers)
        if later:
            return then(gathered(later), lambda _: finish())
        return finish()

    def once_more(
        self, call: RequestContext, request: ProduceRequest, index: int, records: memoryview
    ) -> PartitionProduceResponse | ProduceResponse | Future[ProduceResponse | None]:
        """Answer a request of records for one partition, which is else like `request`, with acks, was.

        Returns what became of the partition's records, where nothing is wrong; else the whole response.
        """
        answer = self._append(call, request, self._name(call, request.topic_data[0]), index, records)
        if isinstance(answer, Future):
            return then(answer, lambda part: self._response(call, request, [[part]]))
        if answer.error_code:
            return cast(ProduceResponse, self._response(call, request, [[answer]]))
        return answer

    def _name(self, call: RequestContext, topic: TopicProduceData) -> str | None:
        if call.version >= _FIRST_WITH_TOPIC_IDS:
            return self._node.topic_named(topic.topic_id)
        return topic.name

    def _response(
        self, call: RequestContext, request: ProduceRequest, answers: list[list[_Answered]]
    ) -> ProduceResponse | None:
        response = ProduceResponse()
        for topic, of_topic in zip(request.topic_data, answers, strict=True):
            parts = [answer.result() if isinstance(answer, Future) else answer for answer in of_topic]
            response.responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)
            )
        if request.acks:
            return response
        for of in response.responses:
            for part in of.partition_responses:
                if part.error_code:
                    raise CloseConnection(
                        f"produce with acks=0 to {of.name!r} {part.index} failed: "
                        f"{ErrorCode(part.error_code).name}"
                    )
        return None

    def _append(
        self,
        call: RequestContext,
        request: ProduceRequest,
        topic: str | None,
        index: int,
        records: memoryview,
    ) -> _Answered:
        try:
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            if request.acks not in _ACKS:
                raise ApiError(
                    ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
                )
            if request.transactional_id is not None:
                raise ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
            partition = self._node.partition(topic, index)
            if self._node.is_internal(topic):
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the broker's own")
            if not self._node.leads(partition.name):
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads this partition")
            settings = partition.settings
            if call.version < FIRST_WITH_BATCHES:
                return self._node.offload(self._append_old, partition, bytes(records))
            found = ready(records, settings)
            if found is not None:
                # The socket's buffer is as writable as a bytearray, and appended from before it is used anew.
                batch = cast(bytearray, records)
                count, timestamp_ms, sequenced = found
                appended = None if sequenced else partition.append_ready(batch, count, timestamp_ms)
                if appended is None and not partition.append_may_wait(len(batch)):
                    appended = partition.append(batch)
                if appended is not None:
                    return self._done(partition, appended, len(records))
            header = header_of(records, call.version, settings)
            now_ms = self._node.store.clock_ms()
            max_bytes = self._node.settings.max_decompressed_message_bytes
            if not partition.append_may_wait(header.size):
                taken = checked_at_once(records, header, settings, now_ms, max_bytes)
                if taken is not None:
                    return self._done(partition, partition.append(cast(bytearray, taken)), len(taken))
            own = memoryview(bytearray(records))
            return self._node.offload(
                self._appended, partition, lambda: checked(own, header, settings, now_ms, max_bytes)
            )
        except EmbedlogError as error:
            return self._failed(index, error)

    def _append_old(self, partition: Partition, message_set: bytes) -> PartitionProduceResponse:
        now_ms = self._node.store.clock_ms()
        max_bytes = self._node.settings.max_decompressed_message_bytes
        return self._appended(
            partition, lambda: as_batches(message_set, partition.settings, now_ms, max_bytes)
        )

    def _appended(
        self, partition: Partition, batches: Callable[[], bytearray | memoryview]
    ) -> PartitionProduceResponse:
        try:
            taken = batches()
            appended: Appended = partition.append(cast(bytearray, taken))
        except EmbedlogError as error:
            return self._failed(partition.name.partition, error)
        return self._done(partition, appended, len(taken))

    def _done(self, partition: Partition, appended: Appended, size: int) -> PartitionProduceResponse:
        if self._node.meter is not None:
            self._node.meter.produced(appended.last_offset + 1 - appended.base_offset, size)
        return PartitionProduceResponse(
            index=partition.name.partition,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.timestamp_ms if partition.settings.append_time else -1,
            log_start_offset=partition.log_start_offset,
        )

    def _failed(self, index: int, error: EmbedlogError) -> PartitionProduceResponse:
        failed = PartitionProduceResponse(
            index=index, error_code=code_of(error), base_offset=-1, error_message=str(error)
        )
        if isinstance(error, RecordsRefused):
            failed.record_errors = [
                BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=error.reason)
                for place in error.guilty
            ]
        return failed

    # -- producer ids ----------------------------------------------------------------------------------

    def init_producer_id(
        self, call: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Future[InitProducerIdResponse]:
        """A new id each time; only a transactional id would get the same one back, with its next epoch.

        There are no transactions yet. UNSUPPORTED_VERSION makes clients say so without retrying; only
        librdkafka retries, until the timeout of init_transactions.
        """
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return self._node.offload(self._new_producer)

    def _new_producer(self) -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(producer_id=self._node.new_producer_id())
        except EmbedlogError as error:
            return InitProducerIdResponse(error_code=code_of(error))
