"""Committed offsets and group metadata: stored in the compacted topic `__consumer_offsets`, read from memory.

A commit is a record in the partition that the group's name hashes to, with Kafka's keys and values
(wire/offsets_topic.py); the last record of a key counts. The first use reads the whole topic. From then on
topic and memory change together, under the coordinator's lock: the append first, then memory. The flush
policy of the topic makes commits durable. (Kafka 2.7 design, "Consumer offset tracking".)

Offsets of a transaction are batches of that transaction. They are pending until its marker comes to the same
partition: a commit makes them the group's, an abort drops them. A record of the same key that comes between
the two is the later one, and counts: it drops what is pending. (KIP-98.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ..codec import COMMIT, control_type, encode_batch
from ..errors import CorruptRecord, UnstableOffsetCommit
from ..files.names import OFFSETS_TOPIC as OFFSETS_TOPIC
from ..files.names import check_topic_name
from ..model import NO_TIMESTAMP, CommittedOffset, GroupMetadata, TopicPartition
from ..partition import Partition
from ..storage.reader import ReadablePartition
from ..store.store import Store
from ..validation import as_topic_partition, check_committed
from ..wire.modern_group_state import SHARE, StateKey, Value, decode_value, encode_key, encode_value
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
from .machines.events import GroupType
from .marker import Marker
from .topic_records import each_batch

logger = logging.getLogger(__name__)

_LEAST_OFFSET: Final = -1 << 63

GroupOffsets = dict[TopicPartition, CommittedOffset]

_Place = tuple[int, int]
"""Where a transaction has offsets: the partition of the topic, and the producer id."""

_Pair = tuple[bytes, bytes | None]
"""The key and the value of a record."""

State = dict[StateKey, Value]
"""What there is of a modern group, by its keys."""


class LoadedGroups:
    """The contents of the topic: the offsets of each group, and the metadata of groups that had members."""

    def __init__(self) -> None:
        self.offsets: dict[str, GroupOffsets] = {}
        self.metadata: dict[str, GroupMetadata] = {}
        self.modern_groups: dict[GroupType, dict[str, State]] = {GroupType.CONSUMER: {}, GroupType.SHARE: {}}
        """What there is of modern groups, by their type and name."""
        self._pending: dict[_Place, dict[tuple[str, TopicPartition], CommittedOffset]] = {}

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
            self.drop_pending(decoded.group, [name])
            if value is None:
                self.remove_offsets(decoded.group, [name])
            else:
                self.offsets.setdefault(decoded.group, {})[name] = decode_offset_value(value)
        else:
            self.apply_state(decoded, None if value is None else decode_value(decoded.version, value))

    def apply_state(self, key: StateKey, value: Value | None) -> None:
        """Apply a record of a modern group."""
        groups = self.modern_groups[GroupType.SHARE if key.version in SHARE else GroupType.CONSUMER]
        if value is not None:
            groups.setdefault(key.group, {})[key] = value
        elif key.group in groups:
            groups[key.group].pop(key, None)
            if not groups[key.group]:
                del groups[key.group]

    # -- offsets of open transactions ------------------------------------------------------------------

    def apply_in_transaction(self, place: _Place, key: bytes | None, value: bytes | None) -> None:
        """Apply one record of a transaction. Raises CorruptRecord."""
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey) and value is not None:
            name = TopicPartition(decoded.topic, decoded.partition)
            self.add_pending(place, decoded.group, {name: decode_offset_value(value)})

    def add_pending(self, place: _Place, group: str, offsets: GroupOffsets) -> None:
        pending = self._pending.setdefault(place, {})
        pending.update({(group, name): offset for name, offset in offsets.items()})

    def end_transaction(self, place: _Place, *, commit: bool) -> None:
        """Apply the marker of a transaction."""
        for (group, name), offset in self._pending.pop(place, {}).items():
            if commit:
                self.offsets.setdefault(group, {})[name] = offset

    def drop_pending(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        for pending in self._pending.values():
            for name in partitions:
                pending.pop((group, name), None)

    def pending(self) -> set[tuple[str, TopicPartition]]:
        """The groups and the partitions for which a transaction may change the offset."""
        return {key for pending in self._pending.values() for key in pending}

    def remove_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove offsets of a group; the group, too, if none is left."""
        offsets = self.offsets.get(group, {})
        for name in partitions:
            offsets.pop(name, None)
        if not offsets:
            self.offsets.pop(group, None)

    def names(self) -> list[str]:
        """The groups besides share groups."""
        pending = {group for group, _ in self.pending()}
        consumer_groups = self.modern_groups[GroupType.CONSUMER]
        return sorted(self.offsets.keys() | self.metadata.keys() | consumer_groups.keys() | pending)


def check_offsets(offsets: Mapping[TopicPartition, CommittedOffset], *, negative: bool) -> None:
    """Raises InvalidCommit, InvalidType, InvalidTopicName unless these can be committed."""
    for name, committed in offsets.items():
        check_topic_name(as_topic_partition(name).topic)
        check_committed(name, committed, low=_LEAST_OFFSET if negative else 0)


def positions(offsets: GroupOffsets) -> GroupOffsets:
    """As clients see them: without topic ids, and without negative offsets, which ask for a reset, as a
    missing offset does."""
    return {
        name: committed._replace(topic_id="") for name, committed in offsets.items() if committed.offset >= 0
    }


def current(offsets: GroupOffsets, topic_id: Callable[[str], str]) -> GroupOffsets:
    """Without the offsets of topics that were deleted, and whose names other ones have now.

    A deletion deletes them, unless a kill comes between; an offset without an id counts (KIP-516, and Kafka's
    OffsetFetch). topic_id: the id of the topic of a name, "" if there is none.
    """
    return {
        name: committed
        for name, committed in offsets.items()
        if not committed.topic_id or topic_id(name.topic) in ("", committed.topic_id)
    }


def load_groups(partitions: Sequence[ReadablePartition]) -> LoadedGroups:
    """Read the whole topic. Records that cannot be decoded are logged and skipped.

    Raises CorruptRecord if a batch is damaged, StorageError.
    """
    loaded = LoadedGroups()
    for partition in partitions:
        for header, records in each_batch(partition):
            place = partition.name.partition, header.producer_id
            if header.is_control:
                # Compaction empties the markers of transactions of which nothing is left.
                commit = bool(records) and control_type(records[0].key) == COMMIT
                loaded.end_transaction(place, commit=commit)
                continue
            for record in records:
                try:
                    if header.is_transactional:
                        loaded.apply_in_transaction(place, record.key, record.value)
                    else:
                        loaded.apply(record.key, record.value)
                except CorruptRecord as error:
                    logger.warning("%s offset %d: %s", partition.name, record.offset, error)
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
        if partitions is not None:
            offsets = {name: offsets[name] for name in partitions if name in offsets}
        return current(offsets, self._store.topic_id)

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], now_ms: int) -> None:
        """Store offsets, committed now. Raises StorageError."""
        if not offsets:
            return
        loaded = self._loaded or self.load()
        stamped, pairs = self._encoded(group, offsets, now_ms)
        if not pairs:
            return
        self._append(group, pairs, now_ms)
        loaded.drop_pending(group, stamped)
        loaded.offsets.setdefault(group, {}).update(stamped)

    def commit_in_transaction(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
    ) -> None:
        """Store offsets, pending until the transaction's marker. Raises as `Partition.append`."""
        if not offsets:
            return
        loaded = self._loaded or self.load()
        stamped, pairs = self._encoded(group, offsets, now_ms)
        if not pairs:
            return
        partition = self.partition_of(group)
        records = [(key, value, (), now_ms) for key, value in pairs]
        partition.append(
            encode_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True)
        )
        loaded.add_pending((partition.name.partition, producer_id), group, stamped)

    def end_transaction(self, number: int, marker: Marker, now_ms: int) -> None:
        """Append a transaction's marker to a partition. Raises as `Partition.end_transaction`."""
        loaded = self._loaded or self.load()
        marker.write(self._store.partition(OFFSETS_TOPIC, number), now_ms)
        loaded.end_transaction((number, marker.producer_id), commit=marker.commit)

    def pending(self, group: str) -> set[TopicPartition]:
        """The partitions for which an open transaction may change a group's offset."""
        return {name for committing, name in self.load().pending() if committing == group}

    def check_stable(self, group: str, partitions: Iterable[TopicPartition] | None) -> None:
        """Raises UnstableOffsetCommit if an open transaction may change one of these offsets (None: any)."""
        pending = self.pending(group)
        unstable = pending if partitions is None else pending.intersection(partitions)
        if unstable:
            raise UnstableOffsetCommit.of(group, unstable)

    def delete(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Delete some of a group's offsets."""
        if not partitions:
            return
        loaded = self.load()
        tombstones = [(encode_offset_key(group, *name), None) for name in partitions]
        self._append(group, tombstones, self._store.clock_ms())
        loaded.drop_pending(group, partitions)
        loaded.remove_offsets(group, partitions)

    def forget_topic(self, topic: str) -> None:
        """Delete the offsets of all groups for a topic."""
        loaded = self.load()
        stored = {(group, name) for group, offsets in loaded.offsets.items() for name in offsets}
        for group, name in sorted(stored | loaded.pending()):
            if name.topic == topic:
                self.delete(group, [name])

    def forget_group(self, group: str) -> None:
        """Delete a group's offsets and metadata."""
        self.delete(group, [*{*self.of(group, None), *self.pending(group)}])
        if group in self.load().metadata:
            self.save_metadata(group, None)
        self.forget_state(group)

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

    def save_state(self, group: str, records: Mapping[StateKey, Value | None]) -> None:
        """Store what has changed of a modern group, all of it or nothing.

        Raises StorageError.
        """
        if not records:
            return
        loaded = self.load()
        self._append(group, _state_pairs(records), self._store.clock_ms())
        for key, value in records.items():
            loaded.apply_state(key, value)

    def save_upgrade(self, group: str, records: Mapping[StateKey, Value | None]) -> None:
        """A classic group has become one of KIP-848: all of it or nothing. Raises StorageError."""
        loaded = self.load()
        pairs: list[_Pair] = [(encode_group_key(group), None)] if group in loaded.metadata else []
        self._append(group, [*pairs, *_state_pairs(records)], self._store.clock_ms())
        loaded.metadata.pop(group, None)
        for key, value in records.items():
            loaded.apply_state(key, value)

    def save_downgrade(self, group: str, metadata: GroupMetadata) -> None:
        """A group of KIP-848 has become a classic one: all of it or nothing. Raises StorageError."""
        loaded, now = self.load(), self._store.clock_ms()
        consumer_groups = loaded.modern_groups[GroupType.CONSUMER]
        stored = dict.fromkeys(consumer_groups.get(group, ()))
        metadata = metadata._replace(state_timestamp_ms=now)
        pair = encode_group_key(group), encode_group_value(metadata)
        self._append(group, [*_state_pairs(stored), pair], now)
        consumer_groups.pop(group, None)
        loaded.metadata[group] = metadata

    def forget_state(self, group: str) -> None:
        """Delete what there is of a modern group besides its offsets."""
        keys = [key for groups in self.load().modern_groups.values() for key in groups.get(group, ())]
        self.save_state(group, dict.fromkeys(keys))

    def partition_of(self, group: str) -> Partition:
        """The group's partition of the topic, which the first call creates."""
        partitions = self._store.by_topic.get(OFFSETS_TOPIC)
        if partitions is None:
            settings = self._store.settings
            self._store.create_topic(
                OFFSETS_TOPIC,
                settings.offsets_topic_num_partitions,
                {"cleanup_policy": "compact", "segment_bytes": settings.offsets_topic_segment_bytes},
            )
            partitions = self._store.by_topic[OFFSETS_TOPIC]
        return partitions[partition_for(group, len(partitions))]

    def _encoded(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], now_ms: int
    ) -> tuple[GroupOffsets, list[_Pair]]:
        """The offsets as they are stored, committed now, and their records.

        Without those of topics that were deleted meanwhile: there is nothing left to commit. An offset
        without an id belongs to the topic that has the name now.
        """
        stamped: GroupOffsets = {}
        pairs: list[_Pair] = []
        for name, (offset, epoch, metadata, _, topic_id) in offsets.items():
            now = self._store.topic_id(name.topic)
            if topic_id and topic_id != now:
                continue
            stamped[name] = committed = CommittedOffset(offset, epoch, metadata, now_ms, now)
            pairs.append((encode_offset_key(group, *name), encode_offset_value(committed)))
        return stamped, pairs

    def _append(self, group: str, pairs: Sequence[_Pair], now_ms: int) -> None:
        """Append to the group's partition."""
        partition = self.partition_of(group)
        if len(pairs) == 1:  # the common commit: a fourth of the time
            partition.append_one(*pairs[0], now_ms)
        else:
            partition.append(encode_batch([(key, value, (), now_ms) for key, value in pairs]))


def _state_pairs(records: Mapping[StateKey, Value | None]) -> list[_Pair]:
    return [
        (encode_key(key), None if value is None else encode_value(key.version, value))
        for key, value in records.items()
    ]
