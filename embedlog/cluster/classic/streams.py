"""Message streams: iterators of records, each for one thread, over partitions that the consumer owns.

    fetchers --> put(claim, records) --> chunks, in order of arrival --> next() --> the application
    connector -> stop(claims), wait_for(claims, ...), drop(claims)      before their partitions are released

A stream may carry several partitions, a filter's stream several topics; a partition is in one stream. A
stream's memory is bounded: fetchers ask for more only while fewer than `max_chunks` chunks wait in it.

A record counts as consumed when the thread that got it calls again: for the next record, to commit, or to
shut the connector down. So committed records have been processed, and after a crash a record may be read
again but is never skipped. (Kafka's streams count a record as consumed when they return it.)

Invariants: a partition's records come in order; after `drop` a claim's records are neither delivered nor
accepted; nothing is delivered while the session is in doubt; `Claim.consumed` never passes a record that the
application is still processing.

Source: Kafka 0.7 and 0.10 implementation, "High-level API"; Kafka's KafkaStream and ConsumerIterator.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Self, TypeAlias

from ...errors import ConsumerTimeout, EmbedlogError
from ...model import Record, TopicPartition
from ...runtime.locks import ConditionLock
from ...runtime.thread_guard import ThreadGuard

Decoder: TypeAlias = Callable[[bytes], Any]

_CHECK_S: Final = 0.05  # between checks of a session in doubt


class Claim:
    """A consumer's ownership of a partition, from its claim to its release.

    `fetch_offset` is the next offset to fetch, None if `auto_offset_reset` decides; `consumed` is one past
    the last consumed record, None if it is not known yet.
    """

    __slots__ = ("alive", "consumed", "fetch_offset", "name", "stream")

    def __init__(self, name: TopicPartition, stream: MessageStream, offset: int | None) -> None:
        self.name = name
        self.stream = stream
        self.fetch_offset = offset
        self.consumed = offset
        self.alive = True

    def begin(self, offset: int) -> None:
        """Set the first offset to fetch; it is also the consumed offset if there is none yet."""
        self.fetch_offset = offset
        if self.consumed is None:
            self.consumed = offset

    def __repr__(self) -> str:
        return f"<Claim {self.name} at {self.consumed}>"


class _Chunk:
    """A fetch's undelivered records; then the error that ended it, if any."""

    __slots__ = ("claim", "error", "next", "records")

    def __init__(self, claim: Claim, records: Sequence[Record], error: EmbedlogError | None) -> None:
        self.claim = claim
        self.records = records
        self.error = error
        self.next = 0


class MessageStream:
    """An iterator of records with their topic, partition, offset, key and value. For one thread at a time.

    It ends when the connector is shut down. Raises ConsumerTimeout if no record arrives within
    `consumer_timeout_ms`; iteration may continue. If a partition cannot be fetched (OffsetOutOfRange with
    `auto_offset_reset="error"`, CorruptRecord, RecordTooLarge), its error is raised once. It delivers no more
    records; other partitions do. A decoder's exception is raised, too; the next call continues after that
    record. Raises ConcurrentUse.
    """

    def __init__(
        self,
        *,
        max_chunks: int,
        timeout_ms: int,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
        on_room: Callable[[], None],
        is_current: Callable[[], bool],
    ) -> None:
        self._is_current = is_current
        self._max_chunks = max_chunks
        self._timeout_s = None if timeout_ms < 0 else timeout_ms / 1000
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._on_room = on_room
        self._user = ThreadGuard()
        self._changed = threading.Condition(ConditionLock())
        self._chunks: deque[_Chunk] = deque()
        self._current: tuple[Claim, int] | None = None
        self._current_thread = 0
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        self._user.acquire()
        try:
            record = self._next()
        finally:
            self._user.release()
        key, value = record.key, record.value
        if self._key_decoder is not None and key is not None:
            record = record._replace(key=self._key_decoder(key))
        if self._value_decoder is not None and value is not None:
            record = record._replace(value=self._value_decoder(value))
        return record

    # -- for the connector -----------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether fetchers may fetch more records."""
        return len(self._chunks) < self._max_chunks

    def put(self, claim: Claim, records: Sequence[Record], error: EmbedlogError | None = None) -> bool:
        """Add a fetcher's records. Returns False if the claim has ended."""
        with self._changed:
            if not claim.alive:
                return False
            self._chunks.append(_Chunk(claim, records, error))
            self._changed.notify_all()
            return True

    def acknowledge(self) -> None:
        """Count this thread's record as consumed, because the thread calls the connector."""
        with self._changed:
            if self._current_thread == threading.get_ident():
                self._count_consumed()

    def stop(self, claims: Collection[Claim]) -> None:
        """Stop delivering records of these claims. The application may still finish its current record."""
        with self._changed:
            for claim in claims:
                claim.alive = False
            self._chunks = deque(chunk for chunk in self._chunks if chunk.claim.alive)
            self._changed.notify_all()

    def wait_for(self, claims: Collection[Claim], until: float) -> bool:
        """Wait until the application processes no record of these claims, or until a `time.monotonic()`."""
        with self._changed:
            while self._current is not None and self._current[0] in claims:
                remaining_s = until - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._changed.wait(remaining_s)
            return True

    def drop(self, claims: Collection[Claim]) -> None:
        """Forget lost partitions. The application's current record does not count as consumed."""
        self.stop(claims)
        with self._changed:
            if self._current is not None and self._current[0] in claims:
                self._current = None
                self._changed.notify_all()

    def close(self) -> None:
        """End the iteration."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> Record:
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        with self._changed:
            self._count_consumed()
            while True:
                uncertain = bool(self._chunks) and not self._is_current()
                record = None if uncertain else self._take()
                if record is not None:
                    return record
                if self._closed:
                    raise StopIteration
                remaining_s = None if until is None else until - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    assert self._timeout_s is not None
                    raise ConsumerTimeout(f"no record arrived within {self._timeout_s * 1000:,.0f} ms")
                if uncertain:  # there is no notification when it is certain again
                    remaining_s = _CHECK_S if remaining_s is None else min(remaining_s, _CHECK_S)
                self._changed.wait(remaining_s)

    def _take(self) -> Record | None:
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.next < len(chunk.records):
                record = chunk.records[chunk.next]
                chunk.next += 1
                self._current = chunk.claim, record.offset
                self._current_thread = threading.get_ident()
                return record
            self._chunks.popleft()
            self._on_room()
            if chunk.error is not None:
                raise chunk.error
        return None

    def _count_consumed(self) -> None:
        """Count the delivered record as consumed."""
        if self._current is not None:
            claim, offset = self._current
            claim.consumed = offset + 1
            self._current = None
            self._changed.notify_all()
