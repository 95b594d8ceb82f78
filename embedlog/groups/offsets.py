"""Committed offsets and group metadata: stored in the compacted topic `__consumer_offsets`, read from memory.

A commit is a record in the partition that the group's name hashes to, with Kafka's keys and values
(wire/offsets_topic.py); the last record of a key counts. The first use reads the whole topic. From then on
topic and memory change together, under the coordinator's lock: the append first, then memory. The flush
policy of the topic makes commits durable. (Kafka 2.7 design, "Consumer offset tracking".)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..codec import decode, encode_batch, scan
from ..errors import CorruptRecord
from ..model import NO_TIMESTAMP, CommittedOffset, GroupMetadata, TopicPartition
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
    """The contents of the topic: the offsets of each group, and the metadata of groups that had members."""

    def __init__(self) -> None:
        self.offsets: dict[str, GroupOffsets] = {}
        self.metadata: dict[str, GroupMetadata] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record, in log order. Raises CorruptRecord."""
        decoded = decode_key(key)
        if isinstance(decoded, GroupKey):
            if value is None:
                self.metadata.pop(decoded.group, None)
            else:
                self.metadata[decoded.group] = decode_group_value(value)
        elif isinstance(decoded, OffsetKey):
            name = TopicPartition(decoded.topic, decoded.partition)
            if value is None:
                self.remove_offsets(decoded.group, [name])
            else:
                self.offsets.setdefault(decoded.group, {})[name] = decode_offset_value(value)

    def remove_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove offsets of a group; the group, too, if none is left."""
        offsets = self.offsets.get(group, {})
        for name in partitions:
            offsets.pop(name, None)
        if not offsets:
            self.offsets.pop(group, None)

    def names(self) -> list[str]:
        return sorted(self.offsets.keys() | self.metadata.keys())


def positions(offsets: GroupOffsets) -> GroupOffsets:
    """Without negative offsets: those ask for a reset, as a missing offset does."""
    return {name: offset for name, offset in offsets.items() if offset.offset >= 0}


def load_groups(partitions: Sequence[ReadablePartition]) -> LoadedGroups:
    """Read the whole topic. Records that cannot be decoded are logged and skipped.

    Raises CorruptRecord if a batch is damaged, StorageError.
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
    """The committed offsets of a store. Not thread-safe: the coordinator's lock guards it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: LoadedGroups | None = None

    def load(self) -> LoadedGroups:
        """The contents of the topic; the first call reads it."""
        if self._loaded is None:
            exists = OFFSETS_TOPIC in self._store.topics()
            self._loaded = load_groups(self._store.partitions_of(OFFSETS_TOPIC) if exists else ())
        return self._loaded

    def of(self, group: str, partitions: Iterable[TopicPartition] | None) -> GroupOffsets:
        """A group's offsets, of these partitions or (None) of all."""
        offsets = self.load().offsets.get(group, {})
        if partitions is None:
            return dict(offsets)
        return {name: offsets[name] for name in partitions if name in offsets}

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], now_ms: int) -> None:
        """Store offsets, committed now. Raises StorageError."""
        if not offsets:
            return
        loaded = self._loaded or self.load()
        stamped, pairs = {}, []
        for name, (offset, epoch, metadata, _) in offsets.items():
            stamped[name] = committed = CommittedOffset(offset, epoch, metadata, now_ms)
            pairs.append((encode_offset_key(group, *name), encode_offset_value(committed)))
        self._append(group, pairs, now_ms)
        loaded.offsets.setdefault(group, {}).update(stamped)

    def delete(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Delete some of a group's offsets."""
        if not partitions:
            return
        loaded = self.load()
        tombstones = [(encode_offset_key(group, *name), None) for name in partitions]
        self._append(group, tombstones, self._store.clock_ms())
        loaded.remove_offsets(group, partitions)

    def forget_topic(self, topic: str) -> None:
        """Delete the offsets of all groups for a topic."""
        for group, offsets in list(self.load().offsets.items()):
            self.delete(group, [name for name in offsets if name.topic == topic])

    def forget_group(self, group: str) -> None:
        """Delete a group's offsets and metadata."""
        self.delete(group, list(self.of(group, None)))
        if group in self.load().metadata:
            self.save_metadata(group, None)

    def state_timestamp_ms(self, group: str) -> int:
        """When the group's members last changed; -1 if it never had members."""
        metadata = self.load().metadata.get(group)
        return NO_TIMESTAMP if metadata is None else metadata.state_timestamp_ms

    def has_stored_members(self, group: str) -> bool:
        """Whether the stored metadata lists members."""
        metadata = self.load().metadata.get(group)
        return metadata is not None and bool(metadata.members)

    def save_metadata(self, group: str, metadata: GroupMetadata | None) -> None:
        """Store a group's metadata, with the time of its state set to now; None deletes it."""
        loaded, now = self.load(), self._store.clock_ms()
        if metadata is None:
            self._append(group, [(encode_group_key(group), None)], now)
            loaded.metadata.pop(group, None)
        else:
            metadata = metadata._replace(state_timestamp_ms=now)
            self._append(group, [(encode_group_key(group), encode_group_value(metadata))], now)
            loaded.metadata[group] = metadata

    def _append(self, group: str, pairs: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """Append to the group's partition; the first append creates the topic."""
        partitions = self._store.by_topic.get(OFFSETS_TOPIC)
        if partitions is None:
            settings = self._store.settings
            self._store.create_topic(
                OFFSETS_TOPIC,
                settings.offsets_topic_num_partitions,
                {"cleanup_policy": "compact", "segment_bytes": settings.offsets_topic_segment_bytes},
            )
            partitions = self._store.by_topic[OFFSETS_TOPIC]
        partition = partitions[partition_for(group, len(partitions))]
        if len(pairs) == 1:  # the common commit: a fourth of the time
            partition.append_one(*pairs[0], now_ms)
        else:
            partition.append(encode_batch([(key, value, (), now_ms) for key, value in pairs]))
