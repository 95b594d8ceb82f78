"""Committed offsets: kept in the compacted topic `__consumer_offsets`, answered from memory.

A commit is a record in the partition that the group's name hashes to (Kafka's own keys and values, see
wire/offsets_topic.py); the last one for a (group, topic, partition) counts. At the first use the topic is
read once; from then on memory and topic change together, under one lock: first the append, then memory. A
commit is durable as its topic's flush policy says. (Kafka 2.7 design, "Consumer offset tracking".)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..codec import decode, encode_batch, scan
from ..errors import CorruptRecord
from ..model import NO_TIMESTAMP, CommittedOffset, GroupMetadata, TopicPartition
from ..partition import Partition
from ..storage.reader import ReadablePartition
from ..store.store import Store
from ..wire.offsets_topic import (
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    partition_for,
)

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
_FETCH_BYTES: Final = 4 << 20

GroupOffsets = dict[TopicPartition, CommittedOffset]


class LoadedGroups:
    """What the topic says: the offsets of each group, and the metadata of those that had members."""

    def __init__(self) -> None:
        self.offsets: dict[str, GroupOffsets] = {}
        self.metadata: dict[str, GroupMetadata] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in one record, in the order of the log. Raises CorruptRecord."""
        decoded = decode_key(key)
        if isinstance(decoded, GroupKey):
            if value is None:
                self.metadata.pop(decoded.group, None)
            else:
                self.metadata[decoded.group] = decode_group_value(value)
        elif isinstance(decoded, OffsetKey):
            name = TopicPartition(decoded.topic, decoded.partition)
            if value is None:
                group = self.offsets.get(decoded.group, {})
                group.pop(name, None)
                if not group:
                    self.offsets.pop(decoded.group, None)
            else:
                self.offsets.setdefault(decoded.group, {})[name] = decode_offset_value(value)

    def names(self) -> list[str]:
        return sorted(self.offsets.keys() | self.metadata.keys())


def positions(offsets: GroupOffsets) -> GroupOffsets:
    """Without negative offsets: these ask for a reset, which is the same as having none."""
    return {name: offset for name, offset in offsets.items() if offset.offset >= 0}


def load_groups(partitions: Sequence[ReadablePartition]) -> LoadedGroups:
    """Read the whole topic. A record that cannot be understood is passed over, and logged.

    Raises CorruptRecord where a batch is damaged, StorageError.
    """
    loaded = LoadedGroups()
    for partition in partitions:
        offset = partition.offsets().log_start_offset
        while True:
            fetched = partition.fetch(offset, _FETCH_BYTES)
            if not fetched.data:
                break
            found = scan(fetched.data)
            for header in found.headers:
                if not header.is_control:
                    for record in decode(fetched.data, header, *partition.name):
                        try:
                            loaded.apply(record.key, record.value)
                        except CorruptRecord as error:
                            logger.warning("%s offset %d: %s", partition.name, record.offset, error)
                offset = header.next_offset
            if found.error is not None:
                raise found.error.at(path=fetched.path, offset=offset)
    return loaded


class Offsets:
    """The committed offsets of a store. Not safe between threads: the coordinator's lock guards it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: LoadedGroups | None = None

    def load(self) -> LoadedGroups:
        """What is committed; reads the topic the first time."""
        if self._loaded is None:
            exists = OFFSETS_TOPIC in self._store.topics()
            self._loaded = load_groups(self._store.partitions_of(OFFSETS_TOPIC) if exists else ())
        return self._loaded

    def of(self, group: str, partitions: Iterable[TopicPartition] | None) -> GroupOffsets:
        """A group's offsets, of some partitions or (None) of all."""
        offsets = self.load().offsets.get(group, {})
        if partitions is None:
            return dict(offsets)
        return {name: offsets[name] for name in partitions if name in offsets}

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Append, then remember. The timestamps of the offsets are set here. Raises StorageError."""
        now = self._store.clock_ms()
        stamped = {name: offset._replace(commit_timestamp_ms=now) for name, offset in offsets.items()}
        self._write(
            group,
            [
                (encode_offset_key(group, *name), encode_offset_value(offset))
                for name, offset in stamped.items()
            ],
        )

    def delete(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget some of a group's offsets."""
        self._write(group, [(encode_offset_key(group, *name), None) for name in partitions])

    def forget_topic(self, topic: str) -> None:
        """Forget what all groups have committed for a topic."""
        for group, offsets in list(self.load().offsets.items()):
            self.delete(group, [name for name in offsets if name.topic == topic])

    def forget_group(self, group: str) -> None:
        """Forget all about a group."""
        self.delete(group, list(self.of(group, None)))
        if group in self.load().metadata:
            self.save_metadata(group, None)

    def state_timestamp_ms(self, group: str) -> int:
        """When the group's members changed last; -1 for one that never had any."""
        metadata = self.load().metadata.get(group)
        return NO_TIMESTAMP if metadata is None else metadata.state_timestamp_ms

    def says_members(self, group: str) -> bool:
        """Does the topic say that the group has members?"""
        metadata = self.load().metadata.get(group)
        return metadata is not None and bool(metadata.members)

    def save_metadata(self, group: str, metadata: GroupMetadata | None) -> None:
        """Keep a group's metadata; None when it is deleted."""
        if metadata is None:
            self._write(group, [(encode_group_key(group), None)])
        else:
            stamped = metadata._replace(state_timestamp_ms=self._store.clock_ms())
            self._write(group, [(encode_group_key(group), encode_group_value(stamped))])

    def _write(self, group: str, entries: list[tuple[bytes, bytes | None]]) -> None:
        if not entries:
            return
        loaded = self.load()
        now = self._store.clock_ms()
        batch = encode_batch([(key, value, (), now) for key, value in entries])
        self._partition(group).append(batch)
        for key, value in entries:
            loaded.apply(key, value)

    def _partition(self, group: str) -> Partition:
        if OFFSETS_TOPIC not in self._store.topics():
            settings = self._store.settings
            self._store.create_topic(
                OFFSETS_TOPIC,
                settings.offsets_topic_num_partitions,
                {"cleanup_policy": "compact", "segment_bytes": settings.offsets_topic_segment_bytes},
            )
        partitions = self._store.partitions_of(OFFSETS_TOPIC)
        return partitions[partition_for(group, len(partitions))]
