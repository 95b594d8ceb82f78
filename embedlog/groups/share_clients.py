"""What Kafka's share consumers ask of share groups: records of one partition, by their offsets (KIP-932).

    acquire       ready records -> locks -> the record batches that hold them, as they are in the log
    acknowledge   ranges of offsets, each with a type or one for each record
    watch         call me when there may be something to acquire

The library's queues ask for any record of a topic, and name a delivery by its id. A share consumer asks for a
partition, and names a record by its offset: the lock of that member on that offset is the delivery. Both act
on the same state machines (machines/share_partition.py), so what one has locked the other does not get.

A group's settings hold as long as no queue of the library has given its options to the group since the log
was opened: what those say of dead letters and of the order by key is not to be undone by another client.

Thread-safe: all is done under the coordinator's lock.

Invariant: a lock is stored before `acquire` returns; an acknowledgement of several records is stored whole or
not at all.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..codec.record_batch import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, MAGIC_POS
from ..errors import (
    CorruptRecord,
    EmbedlogError,
    GroupError,
    GroupNotEmpty,
    InvalidArgument,
    LockLost,
    OffsetOutOfRange,
    PartitionNotFound,
    StorageError,
)
from ..model import Acknowledgement, AcknowledgeType
from .machines.share_events import ShareChange
from .machines.share_locks import Held
from .machines.share_partition import SharePartition
from .share_group import Completion, ShareContext, ShareGroup, ShareSettings, ShareWatch
from .share_part import MOST_RECORDS, Part

GAP: Final = 0
"""An acknowledgement's type for an offset at which the client has found no record."""

_TYPES: Final = frozenset((GAP, *AcknowledgeType))
_BASE_AND_LENGTH: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_POS: Final = 23
_MOST_BYTES: Final = 1 << 20

T = TypeVar("T")


class InvalidRecordState(GroupError):
    """A record is not locked by the member that acknowledges it."""


class AcquiredRange(NamedTuple):
    """Records that were locked by one acquire and have been delivered equally often."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acquired(NamedTuple):
    """What an acquire gives: the batches that contain the ranges, whole; perhaps other records beside."""

    data: bytes = b""
    ranges: Sequence[AcquiredRange] = ()


class AcknowledgedRange(NamedTuple):
    """What a member says of a range: one type (GAP or an AcknowledgeType), or one for each offset."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class ShareOffsets(NamedTuple):
    """Where a group is in a partition. lag: how many records it has not finished."""

    start_offset: int
    leader_epoch: int
    lag: int


class _Batch(NamedTuple):
    """A whole record batch in what was read: its offsets, and where it ends."""

    first_offset: int
    last_offset: int
    end: int


class ShareClients:
    """The share groups of a coordinator, as Kafka's share consumers use them."""

    def __init__(
        self,
        context: ShareContext,
        groups: dict[tuple[str, str], ShareGroup],
        locked: Callable[..., Any],
        get_or_begin: Callable[[str, str, ShareSettings | None], ShareGroup],
        existing: Callable[[str, str], ShareGroup],
        schedule: Callable[[ShareGroup], None],
    ) -> None:
        self._context = context
        self._groups = groups
        self._locked = locked
        self._get_or_begin = get_or_begin
        self._existing = existing
        self._schedule = schedule

    def acquire(
        self,
        group: str,
        topic: str,
        partition: int,
        member_id: str,
        *,
        max_records: int,
        max_bytes: int,
        settings: ShareSettings,
        whole_batches: bool = True,
        batch_size: int = 0,
    ) -> Acquired:
        """Lock ready records of a partition for a member, lowest offsets first. Nothing if none is ready.

        Args:
            max_bytes: of record batches, but at least one.
            whole_batches: the other ready records of the last batch, too, though they exceed max_records.
            batch_size: a range ends with a record batch as soon as it has so many records; 0: it does not.

        Raises TopicNotFound, PartitionNotFound, InvalidGroup, CorruptRecord, StorageError.
        """

        def acquire(_: list[Completion]) -> Acquired | None:
            share_group = self._get_or_begin(group, topic, settings)
            share_group.follow(settings)
            part = _part(share_group, partition, max_records)
            share = part.share
            most = min(max_records, settings.max_locks - share.lock_count)
            taken = share.take(most) if most > 0 else []  # from here on: to be locked, or put back
            if not taken:
                return Acquired()
            try:
                data, batches = _read(part, taken[0], max_bytes)
                if whole_batches:
                    most = settings.max_locks - share.lock_count - len(taken)
                    taken += share.take(most, _last_of(batches, taken[-1]))
                _put_back_after(batches[-1].last_offset, share, taken)
                _archive_compacted(share_group, part, taken, batches)
                if not taken:
                    return None  # look further
                until_ms = self._context.monotonic_ms() + share_group.options.lock_ms
                change = share.lock(taken, member_id, until_ms)
                share_group.make(part, change)
            except OffsetOutOfRange:  # deleted just now
                share.put_back(taken)
                share_group.make(part, share.log_start(part.partition.log.log_start_offset))
                return Acquired()
            except EmbedlogError:
                share.put_back(taken)
                raise
            self._schedule(share_group)
            return _acquired(data, batches, change, batch_size)

        acquired: Acquired | None = None
        while acquired is None:
            acquired = self._locked(acquire)
        return acquired

    def acknowledge(
        self,
        group: str,
        topic: str,
        partition: int,
        member_id: str,
        ranges: Sequence[AcknowledgedRange],
        settings: ShareSettings,
        *,
        may_renew: bool = False,
    ) -> None:
        """Apply what a member says of records that it has locked: all of it or nothing.

        Raises InvalidArgument for what no client says, InvalidRecordState; GroupNotFound, TopicNotFound,
        PartitionNotFound, StorageError.
        """
        _check(ranges, may_renew=may_renew)
        if not settings.may_renew and any(AcknowledgeType.RENEW in types for _, _, types in ranges):
            raise InvalidRecordState(f"group {group!r} renews no locks (share.renew.acknowledge.enable)")

        def acknowledge(completions: list[Completion]) -> None:
            share_group = self._existing(group, topic)
            share_group.follow(settings)
            part = _part(share_group, partition, 0)
            now_ms = self._context.monotonic_ms()
            acknowledgements = list(_acknowledgements(part.share, partition, member_id, ranges, now_ms))
            results = share_group.acknowledge(partition, acknowledgements) if acknowledgements else []
            if share_group.waiters or share_group.watches:
                share_group.serve(completions)
            self._schedule(share_group)
            for error in results:
                if isinstance(error, LockLost):
                    raise InvalidRecordState(str(error))
                if error is not None:
                    raise error

        self._locked(acknowledge)

    def release(self, group: str, topic: str, member_id: str) -> None:
        """Release all that a member has locked of a topic, uncounted. Raises as `acknowledge`."""

        def release(completions: list[Completion]) -> None:
            share_group = self._existing(group, topic)
            for part in list(share_group.parts):
                share_group.make(part, part.share.release_member(member_id, below=False))
            share_group.serve(completions)
            self._schedule(share_group)

        self._locked(release)

    def offsets(self, group: str, topic: str) -> dict[int, ShareOffsets]:
        """Where a group is in each partition of a topic. Raises GroupNotFound, TopicNotFound."""

        def look(_: list[Completion]) -> dict[int, ShareOffsets]:
            share_group = self._existing(group, topic)
            return {part.number: _offsets_of(part) for part in share_group.parts}

        offsets: dict[int, ShareOffsets] = self._locked(look)
        return offsets

    def alter_offsets(
        self, group: str, topic: str, starts: Mapping[int, int], settings: ShareSettings
    ) -> None:
        """Let a group begin anew at these offsets of partitions, or as near as the log has records.

        Raises GroupNotEmpty: somebody waits for records or has locked some; PartitionNotFound, TopicNotFound,
        InvalidGroup, StorageError.
        """

        def alter(completions: list[Completion]) -> None:
            share_group = self._get_or_begin(group, topic, settings)
            _check_idle(share_group)
            for number in starts:
                if not 0 <= number < len(share_group.parts):
                    raise PartitionNotFound(f"topic {topic!r} has no partition {number}")
            try:
                for number, start in starts.items():
                    part = share_group.parts[number]
                    offsets = part.partition.offsets()
                    start = min(max(start, offsets.log_start_offset), offsets.log_end_offset)
                    self._context.state.restart(part.key, start, part.share.next_delivery_id)
            except EmbedlogError:
                self._context.reload()
                raise
            share_group.drop()
            share_group.load()
            share_group.serve(completions)

        self._locked(alter)

    def check_idle(self, group: str, topic: str) -> None:
        """Raises GroupNotEmpty if somebody waits for records of a topic or has locked some; GroupNotFound,
        TopicNotFound."""
        self._locked(lambda _: _check_idle(self._existing(group, topic)))

    def watch(
        self, group: str, topic: str, numbers: Sequence[int], call: Callable[[], None], max_locks: int
    ) -> Callable[[], None]:
        """Call it once, from any thread, when records of some partitions can be locked, or cannot be read.

        Returns what ends that. Raises TopicNotFound, GroupNotFound.
        """
        watch = ShareWatch(numbers, max_locks, call)

        def begin(completions: list[Completion]) -> ShareGroup:
            share_group = self._existing(group, topic)
            share_group.watch(watch, completions)
            self._schedule(share_group)
            return share_group

        share_group: ShareGroup = self._locked(begin)

        def end() -> None:
            with self._context.state.lock:
                share_group.watches.discard(watch)

        return end

    def lock_ms(self, group: str, topic: str) -> int | None:
        """How long a delivery locks a record; None if the group has not begun with the topic."""
        with self._context.state.lock:
            share_group = self._groups.get((group, topic))
            return share_group.options.lock_ms if share_group is not None and share_group.is_known else None


def _offsets_of(part: Part) -> ShareOffsets:
    edges = part.partition.offsets()
    start = part.share.start_in(edges.log_start_offset)
    finished, _, _ = part.share.counts(start)
    return ShareOffsets(start, part.partition.log.leader_epoch, max(edges.lag_at(start) - finished, 0))


def _check_idle(share_group: ShareGroup) -> None:
    if share_group.waiters or any(part.share.lock_count for part in share_group.parts):
        raise GroupNotEmpty(
            f"records of {share_group.topic!r} are locked in group {share_group.group!r}, or waited for"
        )


def _part(share_group: ShareGroup, number: int, min_ready: int) -> Part:
    part = share_group.fill_part(number, min_ready)
    if part is None:
        raise PartitionNotFound(f"topic {share_group.topic!r} has no partition {number}")
    return part


def _read(part: Part, offset: int, max_bytes: int) -> tuple[bytes, list[_Batch]]:
    """Whole batches from the one that contains an offset on, at least one. Raises as `acquire`."""
    limit = min(max(max_bytes, 0), _MOST_BYTES)
    file_range = part.partition.reader.file_range(offset, limit, read_committed=part.reading.read_committed)
    if file_range.segment is None:
        raise OffsetOutOfRange(
            f"{part.partition.name} has no records at offset {offset:,}",
            log_start_offset=file_range.log_start_offset,
            log_end_offset=file_range.log_end_offset,
        )
    try:
        data = file_range.segment.pread(file_range.size, file_range.pos)
    except OSError as error:
        raise StorageError(f"{part.partition.name}: reading offset {offset:,} failed: {error}") from error
    batches = list(_batches(data))
    if not batches:
        raise CorruptRecord("no record batch here", path=file_range.segment.path, pos=file_range.pos)
    return data, batches


def _batches(data: bytes) -> Iterator[_Batch]:
    """The whole batches in a range of a segment."""
    pos = 0
    while pos + HEADER_SIZE <= len(data) and data[pos + MAGIC_POS] == MAGIC:
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, pos)
        (delta,) = _LAST_DELTA.unpack_from(data, pos + _LAST_DELTA_POS)
        end = pos + length + LENGTH_OVERHEAD
        if length < HEADER_SIZE - LENGTH_OVERHEAD or end > len(data):
            return
        yield _Batch(base_offset, base_offset + delta, end)
        pos = end


def _put_back_after(last_offset: int, share: SharePartition, taken: list[int]) -> None:
    """Put back what was taken past the last batch that was read."""
    share.put_back(offset for offset in taken if offset > last_offset)
    taken[:] = [offset for offset in taken if offset <= last_offset]


def _archive_compacted(
    share_group: ShareGroup, part: Part, taken: list[int], batches: Sequence[_Batch]
) -> None:
    """Archive the records that were taken and are in no batch: they were compacted since they were looked at.

    So was what else is ready before the first batch. Raises StorageError, with all of it in `taken`.
    """
    gone = _outside(taken, batches)
    if gone:
        kept = sorted(set(taken).difference(gone))
        before = part.share.take(MOST_RECORDS, batches[0].first_offset - 1)
        taken += before
        share_group.make(part, part.share.lose(sorted({*gone, *before})))
        taken[:] = kept


def _last_of(batches: Sequence[_Batch], offset: int) -> int:
    """The last offset of the batch that contains an offset; of all, if it lies past them."""
    return next(
        (batch.last_offset for batch in batches if batch.last_offset >= offset), batches[-1].last_offset
    )


def _outside(offsets: Sequence[int], batches: Sequence[_Batch]) -> list[int]:
    """The offsets, ascending as the batches are, that no batch contains."""
    outside, following = [], iter(batches)
    batch = next(following)
    for offset in offsets:
        while batch.last_offset < offset:
            batch = next(following)
        if offset < batch.first_offset:
            outside.append(offset)
    return outside


def _acquired(data: bytes, batches: Sequence[_Batch], change: ShareChange, batch_size: int) -> Acquired:
    """The locks of a change as ranges, and of what was read the batches up to the last lock."""
    last = change.locks[-1].last_offset
    used = [batch for batch in batches if batch.first_offset <= last]
    return Acquired(data[: used[-1].end], list(_ranges(change, used, batch_size)))


def _ranges(change: ShareChange, batches: Sequence[_Batch], batch_size: int) -> Iterator[AcquiredRange]:
    """The locks of a change, divided where batches end."""
    ends = iter(batches)
    batch = next(ends)
    for first, last, _, count, _, _ in change.locks:
        at = first
        while batch_size > 0 and last - at + 1 > batch_size:
            while batch.last_offset < at + batch_size - 1 and batch.last_offset < last:
                batch = next(ends)
            if batch.last_offset >= last:
                break
            yield AcquiredRange(at, batch.last_offset, count)
            at = batch.last_offset + 1
        yield AcquiredRange(at, last, count)


def _check(ranges: Sequence[AcknowledgedRange], *, may_renew: bool) -> None:
    """Raises InvalidArgument for ranges that no client sends."""
    following = 0
    for first, last, types in ranges:
        if not following <= first <= last:
            raise InvalidArgument(f"the acknowledged offsets {first:,} to {last:,} are not in order")
        following = last + 1
        if len(types) not in (1, last - first + 1):
            raise InvalidArgument(
                f"{len(types):,} acknowledgements of {last - first + 1:,} records: one for all, or one each"
            )
        for kind in types:
            if kind not in _TYPES or (kind == AcknowledgeType.RENEW and not may_renew):
                raise InvalidArgument(f"an acknowledgement of type {kind} has no meaning here")


def _acknowledgements(
    share: SharePartition,
    partition: int,
    member_id: str,
    ranges: Sequence[AcknowledgedRange],
    now_ms: int,
) -> Iterator[Acknowledgement]:
    """In the terms of deliveries. A gap of which the member has a lock is done. Raises InvalidRecordState."""
    locked: list[tuple[int, int, int]] | None = None  # looked up once: there may be very many gaps
    for first, last, types in ranges:
        if len(types) == 1 and types[0] == GAP:
            if locked is None:
                locked = share.held_by(member_id, now_ms)
            of_gap = slice(bisect_left(locked, (first,)), bisect_left(locked, (last + 1,)))
            for offset, delivery_id, _ in locked[of_gap]:
                yield Acknowledgement(partition, offset, delivery_id, AcknowledgeType.ACCEPT)
            continue
        if len(types) == 1 and last - first + 1 > share.lock_count:
            raise InvalidRecordState(f"the offsets {first:,} to {last:,} are not all locked")
        for offset in range(first, last + 1):
            kind = types[0] if len(types) == 1 else types[offset - first]
            lock = share.lock_of(offset, member_id, now_ms)
            if lock is not None:
                yield _acknowledgement(partition, offset, lock, kind)
            elif kind != GAP:
                raise InvalidRecordState(f"offset {offset:,} is not locked by member {member_id!r}")


def _acknowledgement(partition: int, offset: int, lock: Held, kind: int) -> Acknowledgement:
    acknowledge_type = AcknowledgeType.ACCEPT if kind == GAP else AcknowledgeType(kind)
    return Acknowledgement(partition, offset, lock.delivery_id, acknowledge_type)
