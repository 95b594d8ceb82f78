"""Share sessions of a queue's member: one with each leader of a partition, on a connection of its own.

    epoch 0     the first request of a session: it names all partitions
    epoch n     the next one: partitions that are added or forgotten
    epoch -1    the last one: what is locked is given back, uncounted

A session ends with its connection, and its locks with it. So an error after which it is unknown how the
session goes on ends it here, too; the next fetch begins another one. Requests of a session go one after the
other: an acknowledgement waits for a fetch that waits.

Records of a fetch that are no jobs (gaps that compaction left, control records) are acknowledged as gaps.

Source: KIP-932, KIP-1206 (record limit), KIP-1222 (renewals).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from ...codec.batch_decode import decode, read_batch
from ...config import MAX_INT32
from ...errors import CorruptRecord, EmbedlogError, LockLost
from ...model import AcknowledgeType, Delivery, Record, TopicPartition
from ...runtime.locks import Lock
from ...wire.apis.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from ...wire.apis.share_fetch import (
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ...wire.error_codes import ErrorCode
from ...wire.messages import Request, Response
from ...wire.schema import as_uuid
from ...wire_client.connection import Connection
from ...wire_client.error_mapping import error_of
from ...wire_client.settings import Address
from .brokers import Brokers, Retry
from .metadata import STALE, Metadata

R = TypeVar("R", bound=Response)

_LAST: Final = -1
_NO_MORE_RECORDS: Final = 1  # than asked for: a mode of ShareFetch
_MAX_BYTES: Final = 50 << 20
_NEW_SESSION_WAIT_MS: Final = 1_000  # brokers load a partition's state at its first fetch
_CLOSE_S: Final = 5.0
_GAP: Final = 0
_RENEW: Final = AcknowledgeType.RENEW
_OVER: Final = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
_LOST: Final = frozenset({*STALE, *_OVER, ErrorCode.INVALID_RECORD_STATE})
"""Codes of an acknowledgement whose record is not locked by this session any more."""


class HeldDelivery:
    """A delivery that a session has locked. ask: the member id of the acquire that got it."""

    __slots__ = ("ask", "delivery", "session")

    def __init__(self, delivery: Delivery, session: ShareSession, ask: str) -> None:
        self.delivery = delivery
        self.session = session
        self.ask = ask


class ShareSession:
    """The session of a member with one broker. Thread-safe."""

    _ids = itertools.count(1)

    def __init__(
        self, brokers: Brokers, metadata: Metadata, address: Address, topic: str, group: str, member_id: str
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._address = address
        self._topic = topic
        self._group = group
        self._member_id = member_id
        self._lock = Lock()
        # Guarded by _lock.
        self._connection: Connection | None = None
        self._epoch = 0
        self._topic_id = ""
        self._numbers: set[int] = set()  # of the partitions that it fetches
        self.held: dict[int, HeldDelivery] = {}
        """What is locked, by delivery id."""

    def fetch(
        self, topic_id: str, numbers: Iterable[int], max_records: int, wait_ms: int, ask: str, deadline: float
    ) -> list[Delivery]:
        """Lock records. Raises Retry, BrokerUnavailable, and the errors of the response's codes."""
        with self._lock:
            if topic_id != self._topic_id:  # the topic was made again
                self._end()
                self._topic_id = topic_id
            wanted = set(numbers)
            added, forgotten = sorted(wanted - self._numbers), sorted(self._numbers - wanted)
            if not self._epoch:
                wait_ms = max(wait_ms, _NEW_SESSION_WAIT_MS)
            partitions = [FetchPartition(partition_index=number) for number in added]
            wire_id = as_uuid(topic_id)
            request = ShareFetchRequest(
                group_id=self._group,
                member_id=self._member_id,
                share_session_epoch=self._epoch,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=_MAX_BYTES,
                max_records=max_records,
                batch_size=max_records,
                share_acquire_mode=_NO_MORE_RECORDS,
                topics=[FetchTopic(topic_id=wire_id, partitions=partitions)] if added else [],
                forgotten_topics_data=(
                    [ForgottenTopic(topic_id=wire_id, partitions=forgotten)] if forgotten else []
                ),
            )
            response = self._exchange(request, ShareFetchResponse, deadline, wait_ms)
            self._check(response.error_code, response.error_message, "fetch")
            self._numbers = wanted
            return self._taken(response, ask, deadline)

    def acknowledge(self, acknowledged: Sequence[tuple[HeldDelivery, int]]) -> list[EmbedlogError | None]:
        """Say what becomes of deliveries. Returns an error or None for each.

        Raises BrokerUnavailable: it is unknown whether it was done, and the locks are lost.
        """
        deadline = self._brokers.limit(
            time.monotonic() + self._brokers.settings.default_api_timeout_ms / 1000
        )
        with self._lock:
            held = [(entry, kind) for entry, kind in acknowledged if entry.delivery.delivery_id in self.held]
            errors = self._sent(held, deadline)
            results: list[EmbedlogError | None] = []
            for entry, kind in acknowledged:
                delivery_id = entry.delivery.delivery_id
                error = errors.get(delivery_id, self._lost(entry.delivery))
                if kind != _RENEW and (error is None or isinstance(error, LockLost)):
                    self.held.pop(delivery_id, None)
                results.append(error)
            return results

    def close(self) -> None:
        """End the session: the broker gives back what is locked, uncounted."""
        with self._lock:
            connection, epoch = self._connection, self._epoch
            if connection is None:
                return
            try:
                if epoch:
                    self._epoch = _LAST
                    request = self._acknowledgement({}, renews=False)
                    self._exchange(request, ShareAcknowledgeResponse, time.monotonic() + _CLOSE_S, 0)
            finally:
                self._end()

    # -- with the lock held ------------------------------------------------------------------------------

    def _exchange(self, request: Request, response: type[R], deadline: float, wait_ms: int) -> R:
        limit = self._brokers.limit(deadline) + wait_ms / 1000
        try:
            if self._connection is None:
                self._connection = self._brokers.take(self._address, limit)
            received = self._connection.exchange(request, response, limit)
        except BaseException:
            self._end()
            raise
        self._epoch = self._epoch + 1 if 0 <= self._epoch < MAX_INT32 else 1
        return received

    def _end(self) -> None:
        """The session is over, and its locks are lost."""
        connection, self._connection = self._connection, None
        self._epoch = 0
        self._numbers = set()
        self.held = {}
        if connection is not None:
            self._brokers.drop(connection)

    def _check(self, code: int, message: str | None, what: str) -> None:
        """Raises Retry, or the code's error; then the session is over."""
        if not code:
            return
        self._end()
        subject = f"{self._topic}, group {self._group!r}: {what}"
        if code in _OVER:
            raise Retry(error_of(code, subject, message, {"group": self._group}))
        self._metadata.check_code(code, self._topic, subject, message)

    def _lost(self, delivery: Delivery, reason: str = "its share session is over") -> LockLost:
        place = TopicPartition(self._topic, delivery.partition)
        return LockLost(f"{place}, offset {delivery.offset:,}: this delivery is over: {reason}")

    def _taken(self, response: ShareFetchResponse, ask: str, deadline: float) -> list[Delivery]:
        deliveries: list[Delivery] = []
        gaps: dict[int, list[tuple[int, int]]] = {}
        failures: list[PartitionData] = []
        for topic in response.responses:
            for part in topic.partitions:
                if part.error_code:
                    self._numbers.discard(part.partition_index)
                    failures.append(part)
                    continue
                records, damaged = _records(part, self._topic)
                for acquired in part.acquired_records:
                    for offset in range(acquired.first_offset, acquired.last_offset + 1):
                        record = records.get(offset)
                        if record is None and offset < damaged:
                            gaps.setdefault(part.partition_index, []).append((offset, _GAP))
                            continue
                        delivery_id, count = next(self._ids), acquired.delivery_count
                        delivery = Delivery(part.partition_index, offset, delivery_id, count, record)
                        self.held[delivery_id] = HeldDelivery(delivery, self, ask)
                        deliveries.append(delivery)
        if gaps:
            self._exchange(self._acknowledgement(gaps, renews=False), ShareAcknowledgeResponse, deadline, 0)
        for part in failures:
            subject = f"{TopicPartition(self._topic, part.partition_index)}: fetch of a share group"
            if part.error_code in STALE:
                self._metadata.forget(self._topic)
            if not deliveries:
                self._metadata.check_code(part.error_code, self._topic, subject, part.error_message)
        return deliveries

    def _sent(
        self, held: Sequence[tuple[HeldDelivery, int]], deadline: float
    ) -> dict[int, EmbedlogError | None]:
        """Acknowledge, by delivery id. If a partition refuses all, since one is lost, one by one."""
        if not held or not self._epoch:
            return {}
        by_partition: dict[int, list[tuple[HeldDelivery, int]]] = {}
        for entry, kind in held:
            by_partition.setdefault(entry.delivery.partition, []).append((entry, kind))
        parts = {
            number: sorted((entry.delivery.offset, int(kind)) for entry, kind in of_partition)
            for number, of_partition in by_partition.items()
        }
        request = self._acknowledgement(parts, renews=any(kind == _RENEW for _, kind in held))
        response = self._exchange(request, ShareAcknowledgeResponse, deadline, 0)
        results: dict[int, EmbedlogError | None] = {}
        if response.error_code:
            try:
                self._check(response.error_code, response.error_message, "acknowledgement")
            except Retry as again:
                error: EmbedlogError = again.error
            except EmbedlogError as refusal:
                error = refusal
            reason = str(error)
            return {entry.delivery.delivery_id: self._lost(entry.delivery, reason) for entry, _ in held}
        codes = {
            part.partition_index: (part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
        }
        for number, of_partition in by_partition.items():
            code, message = codes.get(number, (0, None))
            if code == ErrorCode.INVALID_RECORD_STATE and len(of_partition) > 1:
                for entry_and_kind in of_partition:
                    results |= self._sent([entry_and_kind], deadline)
                continue
            if code in STALE:
                self._metadata.forget(self._topic)
            for entry, _ in of_partition:
                subject = f"{TopicPartition(self._topic, number)}: acknowledgement"
                failed = error_of(code, subject, message, {"topic": self._topic}) if code else None
                results[entry.delivery.delivery_id] = (
                    self._lost(entry.delivery, str(failed)) if code in _LOST else failed
                )
        return results

    def _acknowledgement(
        self, parts: Mapping[int, Sequence[tuple[int, int]]], *, renews: bool
    ) -> ShareAcknowledgeRequest:
        """parts: offsets and what becomes of them, by partition."""
        partitions = [
            AcknowledgePartition(
                partition_index=number,
                acknowledgement_batches=[
                    AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[kind])
                    for offset, kind in offsets
                ],
            )
            for number, offsets in parts.items()
        ]
        topic = AcknowledgeTopic(topic_id=as_uuid(self._topic_id), partitions=partitions)
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            is_renew_ack=renews,
            topics=[topic] if parts else [],
        )


def _records(part: PartitionData, topic: str) -> tuple[Mapping[int, Record], int]:
    """The records of a response by offset, and the first offset that is damaged."""
    data = memoryview(part.records or b"")  # type: ignore[arg-type]
    records: dict[int, Record] = {}
    pos = next_offset = 0
    while pos < len(data):
        try:
            header = read_batch(data, pos, len(data))
            if header is None:
                break
            if not header.is_control:
                for record in decode(data, header, topic, part.partition_index):
                    records[record.offset] = record
        except CorruptRecord:
            return records, next_offset
        pos, next_offset = pos + header.size, header.next_offset
    return records, next_offset
