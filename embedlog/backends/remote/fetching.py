"""Reading over the wire: fetches of one partition, and what long polls of several have brought.

The records of a long poll (long_polls.py) are cached briefly for the waiter's next fetches, so that they
cross the wire once. A cached result is used only if it is fresh, for the same offset, and of the leader epoch
that the reader knows (any other is for the broker to judge).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from ...codec import loops
from ...codec.rules import ANY_OFFSET
from ...config import MAX_INT32, MAX_INT64
from ...errors import LogTruncated, OffsetOutOfRange, TopicRecreated
from ...model import NO_EPOCH, AbortedTransaction, Fetched, TopicPartition
from ...runtime.locks import Lock
from ...wire.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ...wire.error_codes import ErrorCode
from ...wire.schema import as_uuid
from ...wire_client.connection import NotKafka
from ..port import Interrupt
from .brokers import Brokers, check_code
from .long_polls import LongPolls
from .lookups import Lookups
from .metadata import STALE, Metadata
from .turns import Turns

_CACHE_S: Final = 1.0
_CACHE_BYTES: Final = 16 << 20
EMPTY_S: Final = 0.05
_WAIT_BYTES: Final = 1 << 20
_GONE: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
_EPOCH_POS: Final = 12


class _Cached(NamedTuple):
    """The cached result of a long poll."""

    fetched: Fetched
    topic_id: str
    at: float


class Fetching:
    """Fetches from all partitions of a cluster. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata, lookups: Lookups) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._lookups = lookups
        self._lock = Lock()
        self._cached: dict[tuple[TopicPartition, int, bool], _Cached] = {}
        self._empty: dict[tuple[TopicPartition, bool], tuple[int, float]] = {}
        self.appends = 0  # changes with each append through this handle

    def fetch(
        self,
        name: TopicPartition,
        topic_id: str,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        read_committed: bool,
    ) -> Fetched:
        """See `Backend.fetch`."""
        cached = self._take_cached(name, topic_id, offset, leader_epoch, read_committed)
        if cached is not None:
            return cached
        fetched = self._brokers.retried(
            lambda deadline: self._attempt(
                name, topic_id, offset, max_bytes, leader_epoch, read_committed, deadline
            )
        )
        if not fetched.data:
            self._empty[name, read_committed] = offset, time.monotonic()
        return fetched

    def may_have_data(self, name: TopicPartition, offset: int, read_committed: bool) -> bool:
        """False for a moment after a fetch at this offset returned nothing."""
        empty = self._empty.get((name, read_committed))
        return empty is None or empty[0] != offset or time.monotonic() - empty[1] > EMPTY_S

    def note_append(self, name: TopicPartition) -> None:
        """Note an append through this handle."""
        self.appends += 1
        self.expect_error(name)

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: float,
        read_committed: bool,
        interrupt: Interrupt | None,
    ) -> bool:
        """See `Backend.wait`."""
        polls = self.long_polls()
        try:
            return polls.wait(positions, timeout_ms, read_committed, interrupt or Interrupt())
        finally:
            polls.close()

    def long_polls(self, turns: Turns | None = None) -> LongPolls:
        """For one waiter. turns: its other requests."""
        return LongPolls(self._brokers, self._metadata, self, turns)

    def expect_error(self, name: TopicPartition) -> None:
        self._empty.pop((name, False), None)
        self._empty.pop((name, True), None)

    # -- one partition -----------------------------------------------------------------------------------

    def _attempt(
        self,
        name: TopicPartition,
        topic_id: str,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        read_committed: bool,
        deadline: float,
    ) -> Fetched:
        leader = self._metadata.leader(name, deadline)
        now = self._metadata.topic_id(name.topic, deadline)
        if topic_id and now and topic_id != now:
            raise TopicRecreated(f"{name}: the topic was deleted, and another one has its name now")
        size = min(max_bytes, MAX_INT32)
        request = _request({name: offset}, {name.topic: now}, 0, size, size, read_committed, leader_epoch)
        with self._metadata.asking([name]):
            response = self._brokers.ask(leader, request, FetchResponse, deadline)
        check_code(response.error_code, f"{name}: fetch")
        part = _parts(response, {name.topic: now}).get(name)
        if part is None:
            raise NotKafka(f"{name}: the response to a fetch lacks the partition")
        return self._fetched(name, offset, part, read_committed)

    def _fetched(
        self, name: TopicPartition, offset: int, part: PartitionData, read_committed: bool
    ) -> Fetched:
        """Raises Retry, OffsetOutOfRange, LogTruncated, or another error of the code."""
        code = part.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._out_of_range(name, offset)
        self._metadata.check_code(code, name.topic, f"{name}: fetch at offset {offset:,}")
        diverging = part.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            raise LogTruncated(
                f"{name}: the log was truncated at {diverging.end_offset:,}, before offset {offset:,}: the "
                "records between are lost, and others may have these offsets now",
                offset=offset,
                surviving_offset=diverging.end_offset,
            )
        records = memoryview(part.records or b"")  # type: ignore[arg-type]
        stop, next_offset = loops.whole_batches(records, 0, len(records), MAX_INT64)
        aborted = part.aborted_transactions or ()
        return Fetched(
            records[:stop] if stop else records,
            max(part.log_start_offset, 0),
            # The high watermark may be older than the records.
            max(part.high_watermark, next_offset),
            part.last_stable_offset if read_committed else -1,
            aborted=tuple(
                AbortedTransaction(
                    transaction.producer_id, transaction.first_offset, ANY_OFFSET, part.last_stable_offset
                )
                for transaction in aborted
            ),
            may_have_gaps=True,  # the brokers may compact at any time
        )

    def _out_of_range(self, name: TopicPartition, offset: int) -> OffsetOutOfRange:
        edges = self._lookups.offsets(*name)[name.partition]
        reason = (
            "the records before were deleted"
            if offset < edges.log_start_offset
            else 'nothing has been appended there yet; start="latest" begins at the log end'
        )
        return OffsetOutOfRange(
            f"{name}: offset {offset:,} is outside {edges.log_start_offset:,}..{edges.log_end_offset:,} "
            f"({reason})",
            offset=offset,
            log_start_offset=edges.log_start_offset,
            log_end_offset=edges.log_end_offset,
        )

    # -- waiting -----------------------------------------------------------------------------------------

    def poll_request(
        self,
        positions: Mapping[TopicPartition, int],
        ids: Mapping[str, str],
        wait_ms: int,
        read_committed: bool,
    ) -> FetchRequest:
        return _request(positions, ids, wait_ms, _WAIT_BYTES, _WAIT_BYTES, read_committed)

    def cache(
        self,
        response: FetchResponse,
        ids: Mapping[str, str],
        positions: Mapping[TopicPartition, int],
        read_committed: bool,
        *,
        is_old: bool,
    ) -> bool:
        now = time.monotonic()
        has_records = False
        check_code(response.error_code, "fetch")
        for name, part in _parts(response, ids).items():
            if name not in positions:
                raise NotKafka(f"the response to a fetch has {name}, which was not requested")
            offset = positions[name]
            if part.error_code in STALE:
                self._metadata.forget(name.topic)
            if part.error_code in _GONE:
                self._metadata.view(name.topic)
            if part.error_code or part.diverging_epoch is not None:
                has_records = True  # the next fetch raises its error
                self.expect_error(name)
                continue
            fetched = self._fetched(name, offset, part, read_committed)
            if fetched.data:
                has_records = True
                self._put_cached(name, offset, read_committed, _Cached(fetched, ids[name.topic], now))
                self._empty.pop((name, read_committed), None)
            elif not is_old:
                self._empty[name, read_committed] = offset, now
        return has_records

    def _put_cached(self, name: TopicPartition, offset: int, read_committed: bool, cached: _Cached) -> None:
        with self._lock:
            self._cached[name, offset, read_committed] = cached
            cached_bytes = sum(len(older.fetched.data) for older in self._cached.values())
            for key in list(self._cached):
                older = self._cached[key]
                if cached_bytes <= _CACHE_BYTES and cached.at - older.at <= _CACHE_S:
                    break  # entries are in order of arrival
                cached_bytes -= len(older.fetched.data)
                del self._cached[key]

    def _take_cached(
        self, name: TopicPartition, topic_id: str, offset: int, leader_epoch: int, read_committed: bool
    ) -> Fetched | None:
        if not self._cached:
            return None
        with self._lock:
            cached = self._cached.pop((name, offset, read_committed), None)
        if cached is None or time.monotonic() - cached.at > _CACHE_S:
            return None
        if topic_id not in ("", cached.topic_id):
            return None
        records = cached.fetched.data
        epoch = int.from_bytes(records[_EPOCH_POS : _EPOCH_POS + 4], "big", signed=True)
        return cached.fetched if leader_epoch in (NO_EPOCH, epoch) else None


def _request(
    positions: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
    wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    read_committed: bool,
    last_epoch: int = NO_EPOCH,
) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for name, offset in positions.items():
        topic = topics.setdefault(name.topic, FetchTopic(topic=name.topic, topic_id=as_uuid(ids[name.topic])))
        topic.partitions.append(
            FetchPartition(
                partition=name.partition,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                partition_max_bytes=partition_max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=list(topics.values()),
    )


def _parts(response: FetchResponse, ids: Mapping[str, str]) -> dict[TopicPartition, PartitionData]:
    """The partitions of a response, by name.

    ids: of the topics that were requested, since a response may have nothing else.
    """
    names = {as_uuid(topic_id): topic for topic, topic_id in ids.items()}
    return {
        TopicPartition(topic.topic or names.get(topic.topic_id, ""), part.partition_index): part
        for topic in response.responses
        for part in topic.partitions
    }
