"""Appends over the wire: acks=all and idempotent, so that a retried batch is in the log once.

    append --sequence numbers--> batches --Produce, up to five in flight--> offsets

Each partition has a producer id, an epoch and the next sequence number. A batch gets its number before it is
first sent and keeps it: a broker that already has it responds with its offset. After an append of unknown
outcome (a timeout, Ctrl-C) the partition begins a new epoch, so that the broker refuses batches still in
flight; likewise if a broker no longer knows the producer. A batch that such a broker may already have is not
sent again in the new epoch: it could be appended twice.

A log's owner takes two more options: flush, and the expected offset (wire/owner_apis.py). An append with an
expected offset is retried like any other: the owner recognizes it before it compares offsets.

Invariants: the appends to one partition follow each other; at most five batches are in flight, as many as a
broker remembers; a request has one batch, which is appended whole or not at all.

Source: KIP-98 (idempotent producers), KIP-360 (epochs of idempotent producers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...codec import encode_one, make_producible, read_header, set_producer
from ...config import TopicSettings
from ...errors import (
    BrokerError,
    BrokerUnavailable,
    EmbedlogError,
    FlushFailed,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    UnexpectedOffset,
    UnsupportedByBackend,
)
from ...model import Appended, AppendedInPieces, Headers, RecordMetadata, TopicPartition
from ...runtime.locks import Lock
from ...wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ...wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ...wire.error_codes import ErrorCode
from ...wire.owner_apis import (
    ANY_OFFSET,
    STORAGE_ERRORS,
    OwnerPartitionProduceData,
    OwnerPartitionProduceResponse,
    OwnerProduceRequest,
    OwnerProduceResponse,
    OwnerTopicProduceData,
)
from ...wire.request_template import RequestTemplate, template_for
from ...wire_client.connection import Connection, NotKafka
from ..log_requests import error_named
from .brokers import Brokers, Retry, check_code
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
        self.lock = Lock()
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


class Options(NamedTuple):
    """What only an owner offers of an append."""

    flush: bool
    expected_offset: int | None


class Batch(NamedTuple):
    """What an append has to know of a batch: where it lies, and what its header says."""

    pos: int
    size: int
    last_offset_delta: int
    max_timestamp_ms: int


class Appending:
    """Appends to all partitions of a cluster. Thread-safe."""

    def __init__(
        self, brokers: Brokers, metadata: Metadata, appended: Callable[[TopicPartition], None]
    ) -> None:
        """`appended` is called for each partition that has grown."""
        self._brokers = brokers
        self._metadata = metadata
        self._appended = appended
        self._lock = Lock()
        self._stamps: dict[TopicPartition, Stamp] = {}
        self._producer_id = -1

    def append(
        self,
        name: TopicPartition,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
        headers: Sequence[Batch] | None = None,
        timeout_ms: int | None = None,
    ) -> Appended:
        """Append encoded batches. flush and expected_offset need an owner: see `check_options`.

        headers: of the batches, if the caller knows them.

        Raises the broker's error; BrokerUnavailable after timeout_ms (by default delivery_timeout_ms), which
        names partition and leader: some or all of the batches may have been appended; UnsupportedByBackend.
        """
        self.check_options(flush, expected_offset)
        options = Options(flush, expected_offset)
        headers = headers or _headers(batches)
        stamp = self._stamps.get(name)
        if stamp is None:
            stamp = self._stamps.setdefault(name, Stamp())
        with stamp.lock:
            try:
                done = _Delivery(
                    self._brokers, self._metadata, self, stamp, name, batches, headers, options
                ).run(timeout_ms)
            except _Refused as refused:
                if isinstance(refused.error, BrokerError):  # its outcome is unknown
                    stamp.renew()
                raise refused.error from refused.error.__cause__
            except BaseException:
                stamp.renew()
                raise
        self._appended(name)
        return done[0] if len(done) == 1 else AppendedInPieces.of(done)

    def check_options(self, flush: bool, expected_offset: int | None) -> None:
        """Raises UnsupportedByBackend for options that a broker's produce request does not have."""
        if self._brokers.reaches_owner:
            return
        if flush:
            raise UnsupportedByBackend(
                "flush=True: a produce request cannot ask a broker to fsync; set flush_messages=1 for the "
                "topic, or open the log's directory"
            )
        if expected_offset is not None:
            raise UnsupportedByBackend(
                "expected_offset: a produce request has no condition; open the log's directory, or let only "
                "one client write to the partition"
            )

    def producer_id(self, deadline: float, *, fresh: bool) -> int:
        """This handle's producer id, or a fresh one."""
        with self._lock:
            if self._producer_id >= 0 and not fresh:
                return self._producer_id
        request = InitProducerIdRequest(transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)
        response = self._brokers.ask_any(request, InitProducerIdResponse, deadline)
        check_code(response.error_code, f"{self._brokers.path}: no producer id")
        with self._lock:
            if fresh:
                return response.producer_id
            if self._producer_id < 0:
                self._producer_id = response.producer_id
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
        batch = encode_one(key, value, timestamp_ms, 0, 0, -1, headers)
        appended = self._appending.append(
            self._name,
            batch,
            flush=flush,
            expected_offset=expected_offset,
            headers=(Batch(0, len(batch), 0, timestamp_ms),),
        )
        if self.settings.append_time:
            timestamp_ms = appended.timestamp_ms
        return RecordMetadata(*self._name, appended.base_offset, timestamp_ms, appended.durable)


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
        headers: Sequence[Batch],
        options: Options,
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._appending = appending
        self._stamp = stamp
        self._name = name
        self._batches = batches
        self._headers = headers
        self._options = options
        self._done: list[Appended] = []
        self._numbered = False
        self._renewed = 0
        self._unanswered = 0  # this many of the first batches were sent without a response

    def run(self, timeout_ms: int | None) -> list[Appended]:
        """Deliver all batches, retrying until the deadline. Raises _Refused, and as `retried`."""
        if timeout_ms is None:
            timeout_ms = self._brokers.settings.delivery_timeout_ms
        try:
            while len(self._done) < len(self._headers):
                self._brokers.retried(self._attempt, timeout_ms)
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
        except Retry:
            if len(self._done) == before:
                raise
        except BrokerUnavailable:
            if len(self._done) == before:
                with self._metadata.asking((self._name,)):
                    raise
            self._metadata.forget(self._name.topic)  # there may be another leader

    def _send(self, deadline: float) -> None:
        """Send the unappended batches, and handle the responses in order."""
        leader = self._metadata.leader(self._name, deadline)
        self._number(deadline)
        limit = self._brokers.limit(deadline)
        partition = self._name.partition
        with self._brokers.connection(leader, limit) as connection:
            failed: PartitionProduceResponse | None = None
            unanswered = self._unanswered
            template = self._template(connection)
            while failed is None and len(self._done) < len(self._headers):
                first = len(self._done)
                # Kafka takes a producer that it does not know at any sequence number: a second batch must not
                # overtake a first one that the leader rejects, because it has just begun to be that.
                count = _MAX_IN_FLIGHT if self._stamp.next_sequence else 1
                window = self._headers[first : first + count]
                self._unanswered = max(unanswered, first + len(window))
                for header in window:
                    if template is None:
                        connection.send(self._request(header, connection), limit)
                    else:
                        connection.send_again(template, partition, self._records(header), limit)
                kind = OwnerProduceResponse if connection.is_owner else ProduceResponse
                response: ProduceResponse | tuple[int, int]
                for header in window:
                    # Receive the other responses, too, so that the connection can be used again.
                    if template is None:
                        response = connection.receive(kind, limit)
                    else:
                        response = connection.receive_again(template, partition, kind, limit)
                    if isinstance(response, tuple):
                        if failed is None:
                            base_offset, time_ms = response
                            self._note_appended(header, base_offset, time_ms, self._options.flush)
                        continue
                    part = self._result_in(response)
                    if part.error_code:
                        failed = failed or part
                    elif failed is None:
                        durable = isinstance(part, OwnerPartitionProduceResponse) and part.durable
                        self._note_appended(header, part.base_offset, part.log_append_time_ms, durable)
                if failed is None or failed.error_code not in _PERHAPS_APPENDED:
                    self._unanswered = unanswered
                limit = self._brokers.limit(deadline)
        if failed is not None:
            self._failed(failed, sent_before=len(self._done) < unanswered)

    def _number(self, deadline: float) -> None:
        """Write producer id, epoch and sequence number into each unappended batch, as of a client's."""
        if self._numbered:
            return
        stamp = self._stamp
        if stamp.producer_id < 0:
            stamp.producer_id = self._appending.producer_id(deadline, fresh=stamp.owns_id)
        sequence = stamp.next_sequence
        for header in self._headers[len(self._done) :]:
            make_producible(self._batches, header.pos)
            set_producer(self._batches, stamp.producer_id, stamp.epoch, sequence, header.pos, header.size)
            sequence = _sequence_after(sequence, header)
        self._numbered = True

    def _template(self, connection: Connection) -> RequestTemplate | None:
        """The template of this append's requests; None if they cannot have one."""
        options = self._options
        if options.expected_offset is not None:
            return None
        key = self._name.topic, options.flush
        try:
            return connection.templates[key]
        except KeyError:
            request = self._request(self._headers[0], connection)
            version = connection.version_of(request)
            template = template_for(request, version, self._brokers.settings.client_id)
            connection.templates[key] = template
            return template

    def _records(self, header: Batch) -> memoryview:
        return memoryview(self._batches)[header.pos : header.pos + header.size]

    def _request(self, header: Batch, connection: Connection) -> ProduceRequest:
        records = self._records(header)
        topic, partition = self._name
        timeout_ms = self._brokers.settings.request_timeout_ms
        if connection.is_owner:
            owners = OwnerPartitionProduceData(
                index=partition, records=records, expected_offset=self._expected_offset(header)
            )
            return OwnerProduceRequest(
                acks=_ALL,
                timeout_ms=timeout_ms,
                topic_data=[OwnerTopicProduceData(name=topic, partition_data=[owners])],
                flush=self._options.flush,
            )
        self._appending.check_options(*self._options)  # another peer than before
        partition_data = PartitionProduceData(index=partition, records=records)
        return ProduceRequest(
            acks=_ALL,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name=topic, partition_data=[partition_data])],
        )

    def _expected_offset(self, header: Batch) -> int:
        if self._options.expected_offset is None:
            return ANY_OFFSET
        before = self._headers[: self._headers.index(header)]
        return self._options.expected_offset + sum(batch.last_offset_delta + 1 for batch in before)

    def _result_in(self, response: ProduceResponse) -> PartitionProduceResponse:
        for topic in response.responses:
            for part in topic.partition_responses:
                if topic.name == self._name.topic and part.index == self._name.partition:
                    return part
        raise NotKafka(f"{self._name}: the response to an append lacks the partition")

    def _note_appended(self, header: Batch, base: int, log_append_time_ms: int, durable: bool) -> None:
        time_ms = log_append_time_ms if log_append_time_ms >= 0 else header.max_timestamp_ms
        self._done.append(Appended(base, base + header.last_offset_delta, time_ms, durable))
        self._stamp.next_sequence = _sequence_after(self._stamp.next_sequence, header)

    def _failed(self, part: PartitionProduceResponse, *, sent_before: bool) -> None:
        """Raises Retry if that may help; else _Refused, or an error if it may have been appended."""
        if isinstance(part, OwnerPartitionProduceResponse):
            self._failed_at_owner(part)
        try:
            self._metadata.check_code(
                part.error_code, self._name.topic, f"appending to {self._name}", part.error_message
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

    def _failed_at_owner(self, part: OwnerPartitionProduceResponse) -> None:
        """Raises the owner's own errors, for which Kafka has one code or none."""
        text = part.error_message or ""
        if part.error == UnexpectedOffset.__name__:
            expected = self._options.expected_offset
            assert expected is not None
            raise _Refused(UnexpectedOffset(text, expected=expected, actual=part.log_end_offset))
        if part.error is not None and part.error_code in STORAGE_ERRORS.values():
            error = error_named(part.error, text)
            if isinstance(error, FlushFailed):  # it was appended
                raise error
            raise _Refused(error)


_PERHAPS_APPENDED: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)


def _headers(batches: bytearray) -> list[Batch]:
    headers: list[Batch] = []
    pos = 0
    while pos < len(batches):
        header = read_header(batches, pos)
        headers.append(Batch(pos, header.size, header.last_offset_delta, header.max_timestamp_ms))
        pos += header.size
    return headers


def _sequence_after(sequence: int, header: Batch) -> int:
    """The sequence number after a batch; after 2**31-1 comes 0."""
    return (sequence + header.last_offset_delta + 1) & _SEQUENCES
