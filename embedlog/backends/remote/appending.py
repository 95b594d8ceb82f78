"""Appends over the wire: acks=all and idempotent, so that a retried batch is in the log once.

    append --sequence numbers--> batches --Produce, up to five in flight--> offsets

Each partition has a producer id, an epoch and the next sequence number. A batch gets its number before it is
first sent and keeps it: a broker that already has it responds with its offset. After an append of unknown
outcome (a timeout, Ctrl-C) the partition begins a new epoch, so that the broker refuses batches still in
flight; likewise if a broker no longer knows the producer. A batch that such a broker may already have is not
sent again in the new epoch: it could be appended twice.

Invariants: the appends to one partition follow each other; at most five batches are in flight, as many as a
broker remembers; a request has one batch, which is appended whole or not at all.

Source: KIP-98 (idempotent producers), KIP-360 (epochs of idempotent producers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from ...codec import BatchHeader, encode_one, read_header, set_producer
from ...codec.record_batch import TIMESTAMP_TYPE_BIT
from ...config import TopicSettings
from ...errors import (
    BrokerError,
    BrokerUnavailable,
    EmbedlogError,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    UnsupportedByBackend,
)
from ...model import Appended, AppendedInPieces, Headers, RecordMetadata, TopicPartition
from ...wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ...wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ...wire.error_codes import ErrorCode
from .brokers import Brokers, Retry, check_code
from .connection import NotKafka
from .metadata import Metadata

_ALL: Final = -1
_MAX_IN_FLIGHT: Final = 5
_LAST_EPOCH: Final = (1 << 15) - 1
_SEQUENCES: Final = (1 << 31) - 1
_NO_TRANSACTION_TIMEOUT_MS: Final = (1 << 31) - 1
_NEEDS_NEW_EPOCH: Final = (OutOfOrderSequence, InvalidProducerEpoch)
_MAX_NEW_EPOCHS: Final = 3  # in one append


class Stamp:
    """A partition's producer id, epoch and next sequence number. All fields are guarded by `lock`."""

    __slots__ = ("epoch", "lock", "next_sequence", "owns_id", "producer_id")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owns_id = False  # whether the id is this partition's alone
        self.producer_id = -1
        self.epoch = 0
        self.next_sequence = 0

    def renew(self, *, fenced: bool = False) -> None:
        """Begin a new epoch; take a new producer id if epochs are used up or it was fenced."""
        self.next_sequence = 0
        self.epoch += 1
        if fenced or self.epoch > _LAST_EPOCH:
            self.producer_id, self.epoch, self.owns_id = -1, 0, True


class Appending:
    """Appends to all partitions of a cluster. Thread-safe."""

    def __init__(
        self, brokers: Brokers, metadata: Metadata, appended: Callable[[TopicPartition], None]
    ) -> None:
        """`appended` is called for each partition that has grown."""
        self._brokers = brokers
        self._metadata = metadata
        self._appended = appended
        self._lock = threading.Lock()
        self._stamps: dict[TopicPartition, Stamp] = {}
        self._producer_id = -1

    def append(self, name: TopicPartition, batches: bytearray) -> Appended:
        """Append encoded batches.

        Raises the broker's error; BrokerUnavailable after delivery_timeout_ms: some or all of the batches may
        have been appended.
        """
        headers = _headers(batches)
        with self._lock:
            stamp = self._stamps.setdefault(name, Stamp())
        with stamp.lock:
            try:
                done = _Delivery(self._brokers, self._metadata, self, stamp, name, batches, headers).run()
            except _Refused as refused:
                if isinstance(refused.error, BrokerError):  # its outcome is unknown
                    stamp.renew()
                raise refused.error from refused.error.__cause__
            except BaseException:
                stamp.renew()
                raise
        self._appended(name)
        return done[0] if len(done) == 1 else AppendedInPieces.of(done)

    def producer_id(self, deadline: float, *, fresh: bool) -> int:
        """This handle's producer id, or a fresh one."""
        with self._lock:
            if self._producer_id >= 0 and not fresh:
                return self._producer_id
        request = InitProducerIdRequest(transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)
        answer = self._brokers.ask_any(request, InitProducerIdResponse, deadline)
        check_code(answer.error_code, f"{self._brokers.path}: no producer id")
        with self._lock:
            if fresh:
                return answer.producer_id
            if self._producer_id < 0:
                self._producer_id = answer.producer_id
            return self._producer_id


class RemoteAppender:
    """Implements `port.PartitionAppender`."""

    __slots__ = ("_appending", "_name", "settings")

    def __init__(self, appending: Appending, name: TopicPartition, settings: TopicSettings) -> None:
        self._appending = appending
        self._name = name
        self.settings = settings

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        flush: bool = False,
        expected_offset: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        check_options(flush, expected_offset)
        attributes = TIMESTAMP_TYPE_BIT if self.settings.append_time else 0
        batch = encode_one(key, value, timestamp_ms, attributes, 0, -1, headers)
        appended = self._appending.append(self._name, batch)
        if self.settings.append_time:
            timestamp_ms = appended.timestamp_ms
        return RecordMetadata(*self._name, appended.base_offset, timestamp_ms, appended.durable)


def check_options(flush: bool, expected_offset: int | None) -> None:
    """Raises UnsupportedByBackend for options that a produce request does not have."""
    if flush:
        raise UnsupportedByBackend(
            "flush=True: a produce request cannot ask a broker to fsync; set flush_messages=1 for the topic, "
            "or open the log's directory"
        )
    if expected_offset is not None:
        raise UnsupportedByBackend(
            "expected_offset: a produce request has no condition; open the log's directory, or let only one "
            "client write to the partition"
        )


class _Refused(Exception):
    """A broker has rejected a batch without appending it."""

    def __init__(self, error: EmbedlogError) -> None:
        super().__init__(str(error))
        self.error = error


class _Delivery:
    """One append: its batches and its progress. The producer's lock is held."""

    def __init__(
        self,
        brokers: Brokers,
        metadata: Metadata,
        appending: Appending,
        stamp: Stamp,
        name: TopicPartition,
        batches: bytearray,
        headers: Sequence[BatchHeader],
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._appending = appending
        self._stamp = stamp
        self._name = name
        self._batches = batches
        self._headers = headers
        self._done: list[Appended] = []
        self._numbered = False
        self._renewed = 0
        self._unanswered = 0  # this many of the first batches were sent without a response

    def run(self) -> list[Appended]:
        """Deliver all batches, retrying until the deadline. Raises _Refused, and as `retried`."""
        try:
            while len(self._done) < len(self._headers):
                self._brokers.retried(self._attempt, self._brokers.settings.delivery_timeout_ms)
            return self._done
        except (_Refused, EmbedlogError) as raised:
            if self._done:
                error = raised.error if isinstance(raised, _Refused) else raised
                error.add_note(
                    f"{len(self._done):,} of {len(self._headers):,} batches had been appended to "
                    f"{self._name}: offsets {self._done[0].base_offset:,} to {self._done[-1].last_offset:,}"
                )
            raise

    def _attempt(self, deadline: float) -> None:
        """Send the unappended batches. Returns if at least one was appended; otherwise raises."""
        before = len(self._done)
        try:
            self._send(deadline)
        except (Retry, BrokerUnavailable):
            if len(self._done) == before:
                raise

    def _send(self, deadline: float) -> None:
        """Send the unappended batches, and handle the responses in order."""
        leader = self._metadata.leader(self._name, deadline)
        self._number(deadline)
        limit = self._brokers.limit(deadline)
        with self._metadata.asking(self._name.topic), self._brokers.connection(leader, limit) as connection:
            failed: PartitionProduceResponse | None = None
            unanswered = self._unanswered
            while failed is None and len(self._done) < len(self._headers):
                first = len(self._done)
                window = self._headers[first : first + _MAX_IN_FLIGHT]
                self._unanswered = max(unanswered, first + len(window))
                for header in window:
                    connection.send(self._request(header), limit)
                for header in window:
                    # Receive the other responses, too, so that the connection can be used again.
                    answer = self._result_in(connection.receive(ProduceResponse, limit))
                    if answer.error_code:
                        failed = failed or answer
                    elif failed is None:
                        self._note_appended(header, answer)
                if failed is None or failed.error_code not in _PERHAPS_APPENDED:
                    self._unanswered = unanswered
                limit = self._brokers.limit(deadline)
        if failed is not None:
            self._failed(failed, sent_before=len(self._done) < unanswered)

    def _number(self, deadline: float) -> None:
        """Write producer id, epoch and sequence number into each unappended batch."""
        if self._numbered:
            return
        stamp = self._stamp
        if stamp.producer_id < 0:
            stamp.producer_id = self._appending.producer_id(deadline, fresh=stamp.owns_id)
        sequence = stamp.next_sequence
        for header in self._headers[len(self._done) :]:
            set_producer(self._batches, stamp.producer_id, stamp.epoch, sequence, header.pos)
            sequence = _sequence_after(sequence, header)
        self._numbered = True

    def _request(self, header: BatchHeader) -> ProduceRequest:
        records = memoryview(self._batches)[header.pos : header.pos + header.size]
        data = PartitionProduceData(index=self._name.partition, records=records)
        return ProduceRequest(
            acks=_ALL,
            timeout_ms=self._brokers.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=self._name.topic, partition_data=[data])],
        )

    def _result_in(self, response: ProduceResponse) -> PartitionProduceResponse:
        for topic in response.responses:
            for answer in topic.partition_responses:
                if topic.name == self._name.topic and answer.index == self._name.partition:
                    return answer
        raise NotKafka(f"{self._name}: the response to an append lacks the partition")

    def _note_appended(self, header: BatchHeader, answer: PartitionProduceResponse) -> None:
        base = answer.base_offset
        time_ms = answer.log_append_time_ms if answer.log_append_time_ms >= 0 else header.max_timestamp_ms
        self._done.append(Appended(base, base + header.last_offset_delta, time_ms, False))
        self._stamp.next_sequence = _sequence_after(self._stamp.next_sequence, header)

    def _failed(self, answer: PartitionProduceResponse, *, sent_before: bool) -> None:
        """Raises Retry if that may help; else _Refused, or an error if it may have been appended."""
        try:
            self._metadata.check_code(
                answer.error_code, self._name.topic, f"appending to {self._name}", answer.error_message
            )
        except _NEEDS_NEW_EPOCH as error:
            self._renewed += 1
            if sent_before:
                error.add_note("the batch was sent before without a response: it may have been appended")
                raise
            if self._renewed > _MAX_NEW_EPOCHS:
                raise
            self._stamp.renew(fenced=isinstance(error, InvalidProducerEpoch))
            self._numbered = False
            raise Retry(error) from None
        except Retry:
            raise
        except EmbedlogError as error:
            raise _Refused(error) from None


_PERHAPS_APPENDED: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)


def _headers(batches: bytearray) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    pos = 0
    while pos < len(batches):
        found.append(read_header(batches, pos))
        pos += found[-1].size
    return found


def _sequence_after(sequence: int, header: BatchHeader) -> int:
    """The sequence number after a batch; after 2**31-1 comes 0."""
    return (sequence + header.last_offset_delta + 1) & _SEQUENCES
