"""Consumer groups as the files of a directory tell, for a process that only reads.

Offsets and members are in the topic `__consumer_offsets`, which is read once, without a lock. Members live in
the process that writes the log: without it groups are empty, whatever the topic says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from ..errors import EmbedlogError, GroupNotFound
from ..files.names import WRITER_FILE
from ..groups.machines.consumer_group import ConsumerGroup
from ..groups.machines.events import GroupDescription, GroupState, GroupType, MemberDescription
from ..groups.modern_groups import like_classic, stored_group
from ..groups.offsets import OFFSETS_TOPIC, current, load_groups, positions
from ..model import CommittedOffset, GroupMemberMetadata, TopicPartition
from ..store.read_only_store import ReadOnlyStore
from ..wire.consumer_protocol import PROTOCOL_TYPE


class StoredGroups:
    """Implements `coordinators.GroupReader`: the groups at the time of its creation.

    Raises StorageError, CorruptRecord, Closed.
    """

    def __init__(self, store: ReadOnlyStore) -> None:
        store.check_open()
        self._store = store
        exists = OFFSETS_TOPIC in store.topics()
        self._loaded = load_groups(store.partitions_of(OFFSETS_TOPIC) if exists else ())
        self._members_live = _has_writer(store)

    def list_groups(self) -> list[str]:
        return self._loaded.names()

    def describe_group(self, group: str) -> GroupDescription:
        metadata = self._loaded.metadata.get(group)
        if metadata is None:
            if group in self._loaded.modern_groups[GroupType.CONSUMER]:
                return self._describe_consumer_group(group)
            if group not in self._loaded.offsets:
                raise GroupNotFound(f"no group {group!r}")
            return GroupDescription(
                group, GroupType.CLASSIC, GroupState.EMPTY, PROTOCOL_TYPE, None, 0, None, ()
            )
        live = self._members_live and bool(metadata.members)
        return GroupDescription(
            group,
            GroupType.CLASSIC,
            GroupState.STABLE if live else GroupState.EMPTY,
            metadata.protocol_type,
            metadata.protocol,
            metadata.generation,
            metadata.leader_id if live else None,
            tuple(map(_described, metadata.members)) if live else (),
        )

    def _describe_consumer_group(self, name: str) -> GroupDescription:
        group = ConsumerGroup(name)
        if self._members_live:
            state = self._loaded.modern_groups[GroupType.CONSUMER][name]
            group.restore(stored_group(state), 0, 0)
        topics = {self._store.topic(topic).uuid: topic for topic in self._store.topics()}
        return like_classic(group, topics)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        offsets = positions(current(self._loaded.offsets.get(group, {}), self._store.topic_id))
        if partitions is None:
            return offsets
        return {name: offsets[name] for name in partitions if name in offsets}


def _described(member: GroupMemberMetadata) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.subscription,
        member.assignment,
    )


def _has_writer(store: ReadOnlyStore) -> bool:
    """Whether a process has the log open for writing, as far as can be told without touching its lock."""
    try:
        pid = json.loads(store.fs.read_file(store.catalog.file(WRITER_FILE)))["pid"]
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, KeyError, TypeError, ValueError, OverflowError, EmbedlogError):
        return False
    return True
