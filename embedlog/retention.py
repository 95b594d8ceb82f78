"""Which whole segments may go: delete policies by name, and applying them to a partition.

    oldest                                             newest
    | segment | segment | segment | segment | active |
    '---- expired ----'-'-- kept, even where an older rule would take one of them --'

A policy looks at the segments, oldest first, and says how many of them may go: always the oldest ones,
so that what is left is one stretch of the log. Of several policies any one suffices. Shipped:

    modification_time   the file was changed last more than retention_ms ago (Kafka 0.7 and 0.10 design)
    record_timestamp    the largest timestamp of its records is more than retention_ms ago (Kafka 2.7)
    bytes               without it at least retention_bytes are left (all of them)

Anything else is a function of your own, "package.module:function", of the shape of `DeletePolicy`. It is
imported when the program itself names it (`name_policies`), never because topics.json does: a directory
that came from elsewhere must not choose what code runs.

Invariants: with the default settings (-1) nothing is ever deleted; only a topic whose cleanup_policy has
"delete" loses segments; the active segment goes only by being rolled first, and the log start is durable
before any file is renamed (storage/segment_lifecycle.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from .config import TopicSettings
from .errors import InvalidSetting, shown
from .model import PartitionState
from .partition import Partition
from .segment import Segment
from .synonyms import plain


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What a policy may know of a segment. Sizes in bytes, times in milliseconds.

    `active` is the one that still grows. The times are looked up when they are asked for, in the file's
    inode and its indexes: a policy does well to ask only as many segments as it has to.
    """

    base_offset: int
    next_offset: int
    size: int
    active: bool
    _modified_ms: Callable[[], int]
    _largest_timestamp_ms: Callable[[], int]

    @property
    def modified_ms(self) -> int:
        """When the file was changed last."""
        return self._modified_ms()

    @property
    def largest_timestamp_ms(self) -> int:
        """That of its records; -1 where none has a timestamp."""
        return self._largest_timestamp_ms()


class DeletePolicy(Protocol):
    """How many of the oldest segments may go. Called from a background thread; must not change anything."""

    def __call__(self, segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int: ...


def by_modification_time(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments whose file was modified more than retention_ms ago (Kafka 0.7 design, "Deletes")."""
    if settings.retention_ms < 0:
        return 0
    return _leading(now_ms - info.modified_ms > settings.retention_ms for info in segments)


def by_record_timestamp(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments whose youngest record is older than retention_ms (Kafka 2.7 design, section 5.4, "Deletes").

    One without timestamps is judged by its file's, as Kafka does.
    """
    if settings.retention_ms < 0:
        return 0
    return _leading(now_ms - _youngest_ms(info) > settings.retention_ms for info in segments)


def by_bytes(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    """Segments without which retention_bytes are still left. Never the active one."""
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


POLICIES: Final[dict[str, DeletePolicy]] = {
    "modification_time": by_modification_time,
    "record_timestamp": by_record_timestamp,
    "bytes": by_bytes,
}

_named: Final[dict[str, DeletePolicy]] = {}  # by the program, in this process


def name_policies(settings: Mapping[str, Any]) -> None:
    """Import the delete policies among settings that the program gives: from now on logs may use them.

    Raises InvalidSetting for an unknown name, or a "package.module:function" that cannot be had; InvalidType.
    """
    for typed, value in settings.items():
        if plain(typed) == "delete_policy" and value is not None:
            for name in _split(TopicSettings.parse({typed: value})["delete_policy"]):
                if name not in POLICIES:
                    _named[name] = _guarded(name, _imported(name))


def policy_by_name(names: str) -> DeletePolicy:
    """The policy that a `delete_policy` setting names; several, separated by commas: any of them suffices.

    Imports nothing. Raises InvalidSetting for a name that is neither shipped nor named by the program.
    """
    policies = [_known(name) for name in _split(names)]

    def any_of(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
        return max(policy(segments, settings, now_ms) for policy in policies)

    return policies[0] if len(policies) == 1 else any_of


def apply_retention(partition: Partition, now_ms: int) -> int:
    """Delete the segments that the topic's delete_policy lets go; returns the bytes freed.

    Does nothing for a topic that is only compacted, and for a partition that has failed. Takes the
    upkeep lock. Raises StorageError, OSError, InvalidSetting.
    """
    settings = partition.settings
    if not settings.deletes or _never_deletes(settings):
        return 0
    policy = policy_by_name(settings.delete_policy)
    with partition.lifecycle.upkeep_lock:
        if partition.state is not PartitionState.ONLINE:
            return 0
        segments = partition.segments()
        count = _expired(policy, partition, segments, now_ms)
        if count == len(segments) and segments[-1].size and partition.roll():
            # Records that were appended since the policy looked are in the rolled segment: look again.
            segments = partition.segments()
            count = _expired(policy, partition, segments, now_ms)
        count = min(count, len(segments) - 1)
        return partition.lifecycle.advance_log_start(segments[count].base_offset) if count > 0 else 0


def _expired(policy: DeletePolicy, partition: Partition, segments: Sequence[Segment], now_ms: int) -> int:
    infos = [_info(partition, segment, active=False) for segment in segments[:-1]]
    active = segments[-1]
    if active.size:
        infos.append(_info(partition, active, active=True))
    return policy(infos, partition.settings, now_ms)


def _info(partition: Partition, segment: Segment, *, active: bool) -> SegmentInfo:
    def modified_ms() -> int:
        # segment.modified_ms of an active segment, or of one just rolled, says nothing of its last append
        return partition.files.fs.stat(segment.path).st_mtime_ns // 1_000_000

    def largest_timestamp_ms() -> int:
        return segment.largest_timestamp_ms

    return SegmentInfo(
        segment.base_offset, segment.next_offset, segment.size, active, modified_ms, largest_timestamp_ms
    )


def _never_deletes(settings: TopicSettings) -> bool:
    """Spares reading a thousand partitions' indexes for nothing: the shipped policies need a limit."""
    limited = settings.retention_ms >= 0 or settings.retention_bytes >= 0
    return not limited and all(name in POLICIES for name in _split(settings.delete_policy))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _known(name: str) -> DeletePolicy:
    policy = POLICIES.get(name) or _named.get(name)
    if policy is None:
        raise InvalidSetting(
            f"delete_policy {shown(name)} stands in topics.json, and this program has not named it: nothing "
            "is deleted. To use it, give it to embedlog.open, create_topic or alter_topic; to be rid of it, "
            "alter_topic(..., delete_policy=None)"
        )
    return policy


def _guarded(name: str, policy: DeletePolicy) -> DeletePolicy:
    """A policy of the program's own, whose every failure is an InvalidSetting that names it."""

    def guarded(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
        try:
            count = policy(segments, settings, now_ms)
        except Exception as error:  # whatever the function does
            raise InvalidSetting(
                f"delete_policy {shown(name)} raised {type(error).__name__}: {error}; none was deleted"
            ) from error
        if not isinstance(count, int) or not 0 <= count <= len(segments):
            raise InvalidSetting(
                f"delete_policy {shown(name)} must return how many of {len(segments)} segments may go, not "
                f"{shown(count)}; none was deleted"
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
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever the module does when it is imported
        raise InvalidSetting(f"delete_policy {shown(name)} cannot be loaded: {error}") from error
    if not callable(found):
        raise InvalidSetting(f"delete_policy {shown(name)} is {type(found).__name__}, not a function")
    return cast(DeletePolicy, found)


def _youngest_ms(info: SegmentInfo) -> int:
    largest_timestamp_ms = info.largest_timestamp_ms
    return largest_timestamp_ms if largest_timestamp_ms >= 0 else info.modified_ms


def _leading(expired: Iterable[bool]) -> int:
    """How many come before the first that has not expired."""
    count = 0
    for each in expired:
        if not each:
            break
        count += 1
    return count
