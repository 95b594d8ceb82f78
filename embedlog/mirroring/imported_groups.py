"""The groups of a Kafka data directory: its `__consumer_offsets`, for a log that imports its topics.

Reads segments as Kafka's coordinator loads them:

    commits, tombstones   the newest record of a (group, topic, partition) or group counts
    transactions          commits of a transaction count once a marker commits it, in the order of their own
                          offsets; those of aborted and open transactions do not count
    other records         such as those of newer group protocols are skipped and counted

The source partition of a record does not matter: the target's coordinator hashes groups itself, since its own
`__consumer_offsets` may have another number of partitions.

A commit is imported unless the target has one for the same group and partition that is as new or newer. So
running an import again only adds what was committed in Kafka since, and never moves a group back that has
committed in the target.

Source: Kafka's GroupMetadataManager (loading of groups and offsets, pending transactional commits).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from ..codec import COMMIT, control_type, decode
from ..errors import CorruptRecord, GroupError
from ..groups.coordinator import GroupCoordinator
from ..groups.offsets import LoadedGroups
from ..model import CommittedOffset, Record, TopicPartition
from ..wire.modern_group_state import StateKey
from ..wire.offsets_topic import GroupKey, OffsetKey, decode_key
from .legacy_files import Batch, Problem, read_source


class GroupsImport(NamedTuple):
    """What an import did with the source's groups.

    groups: with offsets of imported partitions. offsets: committed by this import. offsets_present: already
    there, as new or newer. offsets_left_out: of partitions that are not imported. in_use: groups that have
    members in the target and keep what they have. not_understood: number of records skipped.
    """

    groups: int
    offsets: int
    offsets_present: int
    offsets_left_out: int
    in_use: tuple[str, ...]
    not_understood: int
    problems: tuple[Problem, ...]


class GroupsSource:
    """Reads the partitions of `__consumer_offsets`, one after the other."""

    def __init__(self) -> None:
        self.loaded = LoadedGroups()
        self.not_understood = 0
        self.problems: list[Problem] = []

    def read(self, files: Iterable[str], *, skips_damage: bool) -> None:
        """Read one partition's segments, in order. Raises CorruptRecord, OSError."""
        newest: dict[OffsetKey | GroupKey, int] = {}
        open_: dict[int, list[Record]] = {}
        for path in files:
            for item in read_source(path):
                if isinstance(item, Problem):
                    self._damaged(item, skips_damage)
                elif not isinstance(item, Batch):
                    self._apply(item.records, newest)
                elif item.header.is_control:
                    kinds = [control_type(record.key) for record in decode(item.data, item.header, "", -1)]
                    ended = open_.pop(item.header.producer_id, [])
                    if COMMIT in kinds:
                        self._apply(ended, newest)
                elif item.header.is_transactional:
                    records = decode(item.data, item.header, "", -1)
                    open_.setdefault(item.header.producer_id, []).extend(records)
                else:
                    self._apply(decode(item.data, item.header, "", -1), newest)

    def _apply(self, records: Iterable[Record], newest: dict[OffsetKey | GroupKey, int]) -> None:
        for record in records:
            try:
                key = decode_key(record.key)
                if isinstance(key, StateKey):  # of members, which join again
                    continue
                if newest.get(key, -1) < record.offset:
                    self.loaded.apply(record.key, record.value)
                    newest[key] = record.offset
            except CorruptRecord:
                self.not_understood += 1

    def _damaged(self, problem: Problem, skips_damage: bool) -> None:
        self.problems.append(problem)
        if not (problem.ends_file or skips_damage):
            raise CorruptRecord(
                f"{problem.reason}; nothing is imported (groups=False leaves groups out, "
                'on_damage="skip" continues after the damage)',
                path=problem.path,
                pos=problem.pos,
            )


def import_groups(
    source: GroupsSource,
    coordinator: GroupCoordinator,
    imported: Container[TopicPartition],
    renamed: Mapping[str, str],
) -> GroupsImport:
    """Commit the groups of a source.

    Args:
        imported: the partitions here whose offsets are the source's.
        renamed: topics that have another name here than in the source.

    Raises StorageError and what else a commit raises, but for groups with members.
    """
    groups = committed = present = left_out = 0
    in_use = []
    for group in source.loaded.names():
        offsets = {
            # The topic has another id here.
            name._replace(topic=renamed.get(name.topic, name.topic)): offset._replace(topic_id="")
            for name, offset in source.loaded.offsets.get(group, {}).items()
            if offset.offset >= 0
        }
        imported_offsets = {name: offset for name, offset in offsets.items() if name in imported}
        left_out += len(offsets) - len(imported_offsets)
        if not imported_offsets:
            continue
        groups += 1
        newer = _newer(imported_offsets, coordinator.committed_offsets(group))
        try:
            if group in source.loaded.metadata:
                coordinator.adopt_group(group, source.loaded.metadata[group])
            if newer:
                coordinator.commit_offsets(group, newer)
        except GroupError:
            in_use.append(group)
            continue
        committed += len(newer)
        present += len(imported_offsets) - len(newer)
    return GroupsImport(
        groups, committed, present, left_out, tuple(in_use), source.not_understood, tuple(source.problems)
    )


def _newer(
    offsets: Mapping[TopicPartition, CommittedOffset], committed: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, CommittedOffset]:
    """Those that were committed after what is there."""
    return {
        name: offset
        for name, offset in offsets.items()
        if name not in committed or committed[name].commit_timestamp_ms < offset.commit_timestamp_ms
    }
