"""Retention: deletes segments, oldest first, by named policies.

    oldest                                             newest
    | segment | segment | segment | segment | active |
    '---- expired -----'----------- kept -----------'

A policy gets the segments, oldest first, and returns how many of the oldest are expired, so the log stays
contiguous. A segment is deleted if any of the topic's policies says so. Built in:

    modification_time   the file was last modified more than retention_ms ago (Kafka 0.7 and 0.10 design)
    record_timestamp    the largest timestamp of its records is more than retention_ms ago (Kafka 2.7); if
                        none is after 1970, as modification_time
    bytes               at least retention_bytes are left without it
    finished            every share group has finished all its records: for a topic of jobs

Any other policy is your own function, "package.module:function", with the signature of `DeletePolicy`. It is
imported only if the program names it (`name_policies`), never because topics.json does: a directory from
elsewhere must not choose the code to run.

Invariants: with the default settings (-1) nothing is ever deleted; only topics with "delete" in their
cleanup_policy lose segments; of a topic with the policy "finished", no policy deletes a record that a share
group has not finished; the active segment is rolled before it is deleted; the log start is durable before any
file is renamed (storage/segment_lifecycle.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from .config import FINISHED, HOUR_MS, MAX_INT64, TopicSettings
from .errors import InvalidSetting, shown
from .model import PartitionState, TopicPartition
from .partition import Partition
from .segment import Segment
from .synonyms import plain

_CLOCKS_DIFFER_MS: Final = HOUR_MS  # a time ahead by less may be that of another clock


class Holds:
    """Asks the share groups of a store what they have finished. All methods are safe between threads."""

    def __init__(self) -> None:
        self._ask: Callable[[TopicPartition], int] | None = None  # set once, before the first job

    def ask(self, hold_offset: Callable[[TopicPartition], int]) -> None:
        """From now on this function gives the first offset of a partition that a group has not finished.

        It is called from the background, and from appends that must make room: it may read, and wait for
        nothing that an append may hold.
        """
        self._ask = hold_offset

    def finished_offset(self, partition: Partition) -> int:
        """Every group has finished the records before this offset; 0 of a topic that is not one of jobs.

        Raises CorruptRecord, StorageError if the groups' state cannot be read.
        """
        if self._ask is None or not partition.settings.keeps_unfinished:
            return 0
        return self._ask(partition.name)


@dataclass(frozen=True)
class SegmentInfo:
    """A segment as delete policies see it. Sizes in bytes, times in milliseconds.

    `active`: it still grows. `finished`: every share group of the topic has finished all its records, and
    there is a group; known only of topics whose delete_policy names "finished". Reading a time costs a system
    call or an index lookup: ask no more segments than necessary.
    """

    base_offset: int
    next_offset: int
    size: int
    active: bool
    finished: bool
    _modified_ms: Callable[[], int]
    _largest_timestamp_ms: Callable[[], int]

    @property
    def modified_ms(self) -> int:
        """When the file was last modified."""
        return self._modified_ms()

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest timestamp of its records; -1 if none is above 0 (see `Segment.youngest_ms`)."""
        return self._largest_timestamp_ms()


class DeletePolicy(Protocol):
    """Returns how many of the oldest segments to delete. Runs in a background thread; changes nothing."""

    def __call__(self, segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int: ...


def by_modification_time(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments whose file was modified more than retention_ms ago (Kafka 0.7 design, "Deletes")."""
    if settings.retention_ms < 0:
        return 0
    return _leading(now_ms - info.modified_ms > settings.retention_ms for info in segments)


def by_record_timestamp(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments whose youngest record is older than retention_ms (Kafka 2.7 design, section 5.4, "Deletes").

    A segment without timestamps counts by its file's modification time, as in Kafka.
    """
    if settings.retention_ms < 0:
        return 0
    return _leading(now_ms - _youngest_ms(info) > settings.retention_ms for info in segments)


def by_bytes(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments without which at least retention_bytes are left. Never the active one."""
    if settings.retention_bytes < 0:
        return 0
    surplus = sum(info.size for info in segments) - settings.retention_bytes
    count = 0
    for info in segments:
        surplus -= info.size
        if surplus < 0 or info.active:
            break
        count += 1
    return count


def by_finished(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments whose records every share group has finished."""
    return _leading(info.finished for info in segments)


POLICIES: Final[dict[str, DeletePolicy]] = {
    "modification_time": by_modification_time,
    "record_timestamp": by_record_timestamp,
    "bytes": by_bytes,
    FINISHED: by_finished,
}

_named: Final[dict[str, DeletePolicy]] = {}  # by this program; entries are only added, each in one step


def name_policies(settings: Mapping[str, Any]) -> None:
    """Import the delete policies that the program's settings name, so that its logs may use them.

    Raises InvalidSetting for an unknown name, or a "package.module:function" that cannot be loaded;
    InvalidType.
    """
    for typed, value in settings.items():
        if plain(typed) == "delete_policy" and value is not None:
            for name in TopicSettings().with_changes({typed: value}).delete_policies:
                if name not in POLICIES:
                    _named[name] = _guarded(name, _imported(name))


def policy_of(settings: TopicSettings) -> DeletePolicy:
    """The policy that the delete_policy of a topic names; of several, separated by commas, any one suffices.

    Imports nothing. Raises InvalidSetting for a name that is neither built in nor named by the program.
    """
    policies = [_known(name) for name in settings.delete_policies]

    def any_of(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
        return max(policy(segments, settings, now_ms) for policy in policies)

    return policies[0] if len(policies) == 1 else any_of


def apply_retention(partition: Partition, now_ms: int, finished_offset: int) -> int:
    """Delete the segments that the topic's delete_policy says are expired. Returns the bytes freed.

    Does nothing if the topic is only compacted, or the partition has failed. Takes the lifecycle lock.

    Args:
        finished_offset: every share group has finished the records before it. Of a topic with the policy
            "finished", only these are deleted.

    Raises StorageError, OSError, InvalidSetting.
    """
    settings = partition.settings
    if not settings.deletes or _never_deletes(settings):
        return 0
    return _delete(partition, policy_of(settings), now_ms, finished_offset)


def blocked_retention(partition: Partition, now_ms: int) -> str | None:
    """What keeps retention by time from a partition's oldest segment, or will, for longer than retention_ms.

    That is a record with a time of the future. None if there is none, or retention does not go by records'
    times. Raises StorageError, OSError.
    """
    settings = partition.settings
    if (
        settings.retention_ms < 0
        or not settings.deletes
        or "record_timestamp" not in settings.delete_policies
    ):
        return None
    segments = partition.segments()
    for segment in {segments[0]: None, segments[-1]: None}:
        has_records = segment.next_offset > partition.log.log_start_offset  # its file may outlive its records
        latest = segment.largest_timestamp_ms if has_records else -1
        if latest > now_ms + _CLOCKS_DIFFER_MS:
            from .units import iso  # a first append does without

            return (
                f"retention of {partition.name} keeps everything from offset {segment.base_offset:,} on "
                f"until {iso(min(latest + settings.retention_ms, MAX_INT64))}: a record has a time of the "
                f"future, {iso(latest)}. delete_records deletes such records, message_timestamp_after_max_ms "
                "refuses them"
            )
    return None


def delete_finished(partition: Partition, finished_offset: int) -> int:
    """Delete the finished segments of a topic of jobs, and nothing of other topics. As `apply_retention`."""
    settings = partition.settings
    if not settings.deletes or not settings.keeps_unfinished:
        return 0
    return _delete(partition, by_finished, 0, finished_offset)


def _delete(partition: Partition, policy: DeletePolicy, now_ms: int, finished_offset: int) -> int:
    with partition.lifecycle.lifecycle_lock:
        if partition.state is not PartitionState.ONLINE:
            return 0
        segments = partition.segments()
        count = _expired(policy, partition, segments, now_ms, finished_offset)
        if count == len(segments) and segments[-1].size and partition.roll():
            # The rolled segment may have got records since the policy saw it: ask again.
            segments = partition.segments()
            count = _expired(policy, partition, segments, now_ms, finished_offset)
        count = min(count, len(segments) - 1)
        return partition.lifecycle.advance_log_start(segments[count].base_offset) if count > 0 else 0


def _expired(
    policy: DeletePolicy,
    partition: Partition,
    segments: Sequence[Segment],
    now_ms: int,
    finished_offset: int,
) -> int:
    infos = [_info(partition, segment, finished_offset, active=False) for segment in segments[:-1]]
    active = segments[-1]
    if active.size:
        infos.append(_info(partition, active, finished_offset, active=True))
    count = policy(infos, partition.settings, now_ms)
    if partition.settings.keeps_unfinished:
        count = min(count, by_finished(infos, partition.settings, now_ms))
    return count


def _info(partition: Partition, segment: Segment, finished_offset: int, *, active: bool) -> SegmentInfo:
    def modified_ms() -> int:
        # segment.modified_ms does not cover the last appends to an active or just rolled segment
        return partition.files.fs.stat(segment.path).st_mtime_ns // 1_000_000

    def largest_timestamp_ms() -> int:
        largest = segment.largest_timestamp_ms
        return largest if largest > 0 else -1

    next_offset = segment.next_offset
    return SegmentInfo(
        segment.base_offset,
        next_offset,
        segment.size,
        active,
        next_offset <= finished_offset,
        modified_ms,
        largest_timestamp_ms,
    )


def _never_deletes(settings: TopicSettings) -> bool:
    """The built-in policies need a limit: without one, do not read a thousand partitions' indexes."""
    limited = settings.retention_ms >= 0 or settings.retention_bytes >= 0 or settings.keeps_unfinished
    return not limited and all(name in POLICIES for name in settings.delete_policies)


def _known(name: str) -> DeletePolicy:
    policy = POLICIES.get(name) or _named.get(name)
    if policy is None:
        raise InvalidSetting(
            f"delete_policy {shown(name)} is set in topics.json, but this program has not named it: nothing "
            "is deleted. To use it, pass it to embedlog.open, create_topic or alter_topic; to remove it, "
            "alter_topic(..., delete_policy=None)"
        )
    return policy


def _guarded(name: str, policy: DeletePolicy) -> DeletePolicy:
    """Wrap a policy of the program: each of its failures becomes an InvalidSetting that names it."""

    def guarded(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
        try:
            count = policy(segments, settings, now_ms)
        except Exception as error:  # the function may raise anything
            raise InvalidSetting(
                f"delete_policy {shown(name)} raised {type(error).__name__}: {error}; nothing was deleted"
            ) from error
        if not isinstance(count, int) or not 0 <= count <= len(segments):
            raise InvalidSetting(
                f"delete_policy {shown(name)} must return how many of {len(segments)} segments to delete, "
                f"not {shown(count)}; nothing was deleted"
            )
        return count

    return guarded


def _imported(name: str) -> DeletePolicy:
    module, _, function = name.partition(":")
    if not module or not function:
        raise InvalidSetting(
            f"unknown delete_policy {shown(name)}: the policies are {', '.join(POLICIES)}, "
            'or one of your own as "package.module:function"'
        )
    try:
        policy = getattr(importlib.import_module(module), function)
    except Exception as error:  # importing a module may raise anything
        raise InvalidSetting(f"delete_policy {shown(name)} cannot be loaded: {error}") from error
    if not callable(policy):
        raise InvalidSetting(f"delete_policy {shown(name)} is {type(policy).__name__}, not a function")
    return cast(DeletePolicy, policy)


def _youngest_ms(info: SegmentInfo) -> int:
    largest_timestamp_ms = info.largest_timestamp_ms
    return largest_timestamp_ms if largest_timestamp_ms >= 0 else info.modified_ms


def _leading(expired: Iterable[bool]) -> int:
    """The number of segments that are expired before the first that is not."""
    count = 0
    for is_expired in expired:
        if not is_expired:
            break
        count += 1
    return count
