"""The state of share groups: stored in `__share_group_state` and `__queue_state`, decided elsewhere.

    write(change)   locks, delays, rejections --> __queue_state         wire/queue_state.py
                    start offset, batches ------> __share_group_state   wire/share_state.py, as Kafka does it
    load()          both topics, from their log start, folded           machines/share_records.py

Each change is at most one record in each topic, the one in `__queue_state` first: a hand-out is one append,
an acceptance another. After 500 updates of a partition, or four times as many as its last snapshot has
entries, its next change is preceded by a snapshot; so snapshots cost each change the same, however many
entries they have. Whenever a topic has grown by some megabytes, all its partitions get new snapshots, and
what lies before these is deleted in the background. Loading reads no more than that.

Appends to the two topics do not count against max_bytes: a log that is full of jobs could not be emptied
otherwise. The flush policy of the topics makes changes durable, or `flush`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from ..config import MAX_INT32, MIB
from ..errors import (
    CorruptRecord,
    DiskFull,
    EmbedlogError,
    GroupNotFound,
    LogFull,
    StorageError,
    TopicNotFound,
)
from ..files.names import QUEUE_STATE_TOPIC, SHARE_STATE_TOPIC
from ..model import PartitionState, StateBatch, TopicPartition
from ..partition import Partition
from ..runtime.background_failures import log_failure
from ..runtime.locks import Lock, ReentrantLock
from ..storage.reader import ReadablePartition
from ..store.store import Store
from ..wire.queue_state import NO_DELIVERY_ID, QueueState, encode_state
from ..wire.share_state import (
    UNCHANGED,
    ShareSnapshot,
    decode_key,
    encode_key,
    encode_snapshot,
    encode_update,
    partition_of,
)
from .machines.share_events import ShareChange, ShareKey, StoredShare
from .machines.share_records import Clocks, History, LoadedShare, LoadedShares
from .topic_records import each_record

logger = logging.getLogger(__name__)

_UPDATES: Final = 500  # Kafka's share.coordinator.snapshot.update.records.per.snapshot
_UPDATES_PER_ENTRY: Final = 4
_PRUNE_BYTES: Final = MIB
_RECORD_BYTES: Final = 70  # of a batch with one record, besides key and value
_PRUNING: Final = "pruning of share groups' state"

# Records stay until they are pruned here, whatever the defaults of the log are.
_TOPIC_SETTINGS: Final = {
    "cleanup_policy": "delete",
    "compression_type": "producer",
    "delete_policy": "record_timestamp,bytes",
    "message_timestamp_type": "CreateTime",
    "retention_bytes": -1,
    "retention_ms": -1,
    "segment_bytes": 4 * MIB,
}


class Snapshot(Protocol):
    """Gives all that is stored of a partition."""

    def __call__(self, *, deliveries: bool = True) -> StoredShare:
        """deliveries: False leaves out what `__queue_state` has."""


class _StatePartition:
    """A partition of one of the two topics, as this process appends to it. Guarded by ShareState.lock."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.append_one = partition.append_one
        self.grown = partition.size  # bytes since all snapshots in it were last written
        self.due = _PRUNE_BYTES  # how many bytes are worth writing them again

    def renewed(self, size: int) -> None:
        """All snapshots have been written again, and took so many bytes."""
        self.grown, self.due = 0, max(_PRUNE_BYTES, 4 * size)


class _Trail:
    """The records of one partition of a group in one of the topics."""

    def __init__(self, place: _StatePartition, updates: int) -> None:
        self.place = place
        self.updates = updates  # since the last snapshot
        self.due = _UPDATES  # how many are worth a snapshot


class _Share:
    """One partition in a share group: what its next records depend on. Guarded by ShareState.lock."""

    def __init__(
        self,
        key: ShareKey,
        jobs: Partition,
        loaded_share: LoadedShare,
        share: _Trail,
        queue: _Trail,
        now_ms: int,
    ) -> None:
        self.key = key
        self.jobs = jobs
        self.log = jobs.log
        self.share = share
        self.queue = queue
        self.start_offset = loaded_share.start_offset or 0
        stored = loaded_share.stored()
        self.snapshot: Snapshot = lambda **_: stored  # the state machine's, from its first change on
        self.snapshot_epoch = loaded_share.snapshot_epoch
        self.create_timestamp_ms = (
            loaded_share.create_timestamp_ms if loaded_share.create_timestamp_ms >= 0 else now_ms
        )
        self.snapshot_key = encode_key(*key, snapshot=True)
        self.update_key = encode_key(*key, snapshot=False)


class _Loaded:
    """The share groups of a store, in memory."""

    def __init__(self) -> None:
        self.shares: dict[ShareKey, _Share] = {}
        self.of_jobs: dict[TopicPartition, tuple[_Share, ...]] = {}  # values are replaced, never changed
        self.places: dict[TopicPartition, _StatePartition] = {}

    def add(self, share: _Share) -> None:
        self.shares[share.key] = share
        name = share.jobs.name
        self.of_jobs[name] = (*self.of_jobs.get(name, ()), share)

    def remove(self, share: _Share) -> None:
        del self.shares[share.key]
        name = share.jobs.name
        self.of_jobs[name] = tuple(kept for kept in self.of_jobs[name] if kept is not share)


class ShareState:
    """What is stored of the share groups of a store. All methods are safe between threads, but for
    `write` and `write_states`: these are for who holds `lock`.

    Args:
        monotonic_ms: the system's monotonic clock in milliseconds, or a test's.
    """

    def __init__(
        self, store: Store, *, monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    ) -> None:
        self._store = store
        self._monotonic_ms = monotonic_ms
        self._clock_ms = store.clock_ms
        self._boot_id = store.fs.boot_id()
        # While a change is decided, stored and applied. Outside all locks of partitions, and outside
        # Store.topics_lock.
        self.lock = ReentrantLock()
        # While the topics are read: inside lock, and alone where retention asks, which may hold the quota's.
        self._load_lock = Lock()
        self._loaded: _Loaded | None = None  # replaced under both locks
        self._prunable: dict[TopicPartition, int] = {}  # up to which offset; by lock
        store.background.cleaner.add(_PRUNING, self._prune)

    # -- reading ---------------------------------------------------------------------------------------

    def keys(self) -> list[ShareKey]:
        """The partitions of the share groups, sorted. The first use reads both topics.

        Raises CorruptRecord, StorageError, Closed.
        """
        with self.lock:
            return sorted(self._load().shares)

    def load(self, key: ShareKey) -> StoredShare | None:
        """What is stored of a partition in a group; None if the group has not begun there. Raises as `keys`.

        Locks end on the monotonic clock of this boot. After a power loss, what was stored of records that are
        lost is not among it.
        """
        with self.lock:
            share = self._load().shares.get(key)
            return None if share is None else share.snapshot()

    def hold_offset(self, name: TopicPartition) -> int:
        """The offset of a partition's first record that a share group has not finished; 0 without groups.

        Retention asks, from any thread. It takes none of the locks under which records are appended.
        Raises as `keys`.
        """
        loaded = self._loaded or self._load()
        shares = loaded.of_jobs.get(name, ())
        return min((share.start_offset for share in shares), default=0)

    def _load(self) -> _Loaded:
        self._store.check_open()
        with self._load_lock:
            if self._loaded is None:
                self._loaded = self._read()
            return self._loaded

    def _read(self) -> _Loaded:
        store = self._store
        names = {store.topic(name).topic_id: name for name in store.topics()}
        jobs: dict[ShareKey, Partition] = {}

        def history(key: ShareKey) -> History | None:
            partitions = store.by_topic.get(names.get(key.topic_id, ""), ())
            if not 0 <= key.partition < len(partitions):
                return None
            jobs[key] = partitions[key.partition]
            snapshot = jobs[key].log.snapshot()
            return History(snapshot.epochs, snapshot.log_end_offset)

        shares = read_shares(
            self._partitions(SHARE_STATE_TOPIC), self._partitions(QUEUE_STATE_TOPIC), history, self._clocks()
        )
        loaded = _Loaded()
        for key, share in shares.items():
            loaded.add(self._restored(loaded, key, jobs[key], share))
        return loaded

    def _restored(self, loaded: _Loaded, key: ShareKey, jobs: Partition, loaded_share: LoadedShare) -> _Share:
        share = _Trail(self._place(loaded, SHARE_STATE_TOPIC, key), loaded_share.share_updates)
        queue = _Trail(self._place(loaded, QUEUE_STATE_TOPIC, key), loaded_share.queue_updates)
        return _Share(key, jobs, loaded_share, share, queue, self._clock_ms())

    def _place(self, loaded: _Loaded, topic: str, key: ShareKey) -> _StatePartition:
        """The partition that holds the records of a key; the first use creates the topic."""
        if topic not in self._store.by_topic:
            self._store.create_topic(topic, 1, _TOPIC_SETTINGS, exist_ok=True)
        partitions = self._store.partitions_of(topic)
        partition = partitions[partition_of(*key, len(partitions))]
        if partition.name not in loaded.places:
            loaded.places[partition.name] = _StatePartition(partition)
        return loaded.places[partition.name]

    # -- writing ---------------------------------------------------------------------------------------

    def begin(self, key: ShareKey, start_offset: int, delivery_id: int = 1) -> None:
        """A group begins with a partition: every record before start_offset counts as finished.

        delivery_id: that of its first hand-out.

        Does nothing if it has begun. The first use creates the topics. Raises TopicNotFound and
        PartitionNotFound if there is no such partition, InvalidArgument for a group name above 32,767 bytes,
        StorageError.
        """
        with self.lock:
            loaded = self._load()
            if key in loaded.shares:
                return
            loaded_share = LoadedShare()
            loaded_share.start_offset = start_offset
            loaded_share.next_delivery_id = delivery_id
            share = self._restored(loaded, key, self._jobs(key), loaded_share)
            self._append_snapshot(share, share.queue)
            self._append_snapshot(share, share.share)
            loaded.add(share)

    def restart(self, key: ShareKey, start_offset: int, delivery_id: int) -> None:
        """A group that has begun with a partition begins again: nothing is locked, delayed or counted.

        Raises GroupNotFound, StorageError: `reload`, and the next use tells what was stored.
        """
        with self.lock:
            loaded = self._load()
            before = loaded.shares.get(key)
            if before is None:
                raise GroupNotFound(f"the share group {key.group!r} has not begun with this topic")
            loaded_share = LoadedShare()
            loaded_share.start_offset = start_offset
            loaded_share.next_delivery_id = delivery_id
            loaded_share.snapshot_epoch = before.snapshot_epoch
            loaded_share.create_timestamp_ms = before.create_timestamp_ms
            share = self._restored(loaded, key, before.jobs, loaded_share)
            self._append_snapshot(share, share.queue)
            self._append_snapshot(share, share.share)
            loaded.remove(before)
            loaded.add(share)

    def write(self, key: ShareKey, change: ShareChange, snapshot: Snapshot) -> None:
        """Store what a step changes, before it takes effect. The caller holds `lock`.

        Args:
            snapshot: gives all that the earlier changes of this partition have led to, without this one. It
                is kept, and called in later writes, also of other partitions.

        Raises GroupNotFound if the group has not begun there; StorageError. After DiskFull and LogFull
        nothing was stored; after another error `reload`, and the next use tells what was.
        """
        start_offset, batches, locks, delays, rejections = change
        in_queue = locks or delays or rejections
        if in_queue:
            share = self._written(key, snapshot)
            self._append_due_snapshots(share, share.queue)
            self._append(share.queue, share.update_key, self._encoded(share, change, NO_DELIVERY_ID))
        if batches or start_offset != UNCHANGED:
            try:
                self.write_states(key, start_offset, batches, snapshot)
            except (DiskFull, LogFull) as error:
                if in_queue:
                    raise StorageError(f"stored by half: {error}", path=error.path) from error
                raise

    def write_states(
        self, key: ShareKey, start_offset: int, batches: Sequence[StateBatch], snapshot: Snapshot
    ) -> None:
        """As `write`, of a change that has no more than these: so an accept is one append."""
        share = self._written(key, snapshot)
        self._append_due_snapshots(share, share.share)
        value = encode_update(share.snapshot_epoch, share.log.leader_epoch, start_offset, batches)
        self._append(share.share, share.update_key, value)
        if start_offset != UNCHANGED:
            share.start_offset = start_offset
            if len(share.log.segments) > 1:
                self._finished_segments(share)

    def _written(self, key: ShareKey, snapshot: Snapshot) -> _Share:
        share = (self._loaded or self._load()).shares.get(key)
        if share is None:
            raise GroupNotFound(f"the share group {key.group!r} has not begun with this topic")
        share.snapshot = snapshot
        return share

    def flush(self) -> None:
        """Make everything stored before the call durable. Callers share fsyncs. Raises FlushFailed."""
        for topic in (QUEUE_STATE_TOPIC, SHARE_STATE_TOPIC):
            for partition in self._partitions(topic):
                partition.flush()

    def delete(self, key: ShareKey) -> None:
        """Forget a partition of a group; nothing if there is none. Raises StorageError."""
        with self.lock:
            loaded = self._load()
            share = loaded.shares.get(key)
            if share is not None:
                for trail in (share.share, share.queue):
                    self._append(trail, share.snapshot_key, None)
                loaded.remove(share)

    def forget_topic(self, topic: str) -> None:
        """Forget what the groups have done of a topic that was deleted. An error is logged.

        What the topics have of it is ignored from now on, as its id is no topic's; tombstones tell others.
        """
        try:
            with self.lock:
                for share in [] if self._loaded is None else list(self._loaded.shares.values()):
                    if share.jobs.name.topic == topic and share.jobs.state is PartitionState.CLOSED:
                        self.delete(share.key)
        except EmbedlogError as error:
            consequence = f"what share groups have done of the deleted topic {topic} is still there"
            log_failure(logger, consequence, error)

    def reload(self) -> None:
        """Forget what is in memory: the next use reads the topics again. For after an error."""
        with self.lock, self._load_lock:
            self._loaded = None

    def abandon(self) -> None:
        """In a forked child: replace the inherited locks, which may be held forever."""
        self.lock, self._load_lock = ReentrantLock(), Lock()

    # -- inside ----------------------------------------------------------------------------------------

    def _partitions(self, topic: str) -> Sequence[Partition]:
        return self._store.by_topic.get(topic, ())

    def _jobs(self, key: ShareKey) -> Partition:
        store = self._store
        for name in store.topics():
            if store.topic(name).topic_id == key.topic_id:
                return store.partition(name, key.partition)
        raise TopicNotFound(f"no topic has the id {key.topic_id!r}")

    def _clocks(self) -> Clocks:
        return Clocks(self._boot_id, self._monotonic_ms(), self._clock_ms())

    def _encoded(self, share: _Share, what: ShareChange | StoredShare, next_delivery_id: int) -> bytes:
        """A value for `__queue_state`."""
        leader_epoch, deliveries = share.log.leader_epoch, (what.locks, what.delays, what.rejections)
        return encode_state(QueueState(leader_epoch, next_delivery_id, *self._clocks(), *deliveries))

    def _append_due_snapshots(self, share: _Share, trail: _Trail) -> None:
        """Before an update: a snapshot, if there were many updates; all of them, if the topic has grown."""
        place = trail.place
        if place.grown >= place.due:
            self._renew(self._load(), place)
        elif trail.updates >= trail.due:
            self._append_snapshot(share, trail)

    def _append_snapshot(self, share: _Share, trail: _Trail) -> tuple[int, int]:
        """Returns its offset, and its size in bytes."""
        if trail is share.queue:
            whole = share.snapshot()
            value = self._encoded(share, whole, whole.next_delivery_id)
            entries = len(whole.locks) + len(whole.delays) + len(whole.rejections)
        else:
            whole = share.snapshot(deliveries=False)
            epoch, entries = (share.snapshot_epoch + 1) & MAX_INT32, len(whole.batches)
            value = encode_snapshot(
                ShareSnapshot(
                    epoch,
                    share.log.leader_epoch,
                    whole.start_offset,
                    whole.batches,
                    create_timestamp_ms=share.create_timestamp_ms,
                    write_timestamp_ms=self._clock_ms(),
                )
            )
            share.snapshot_epoch = epoch
        offset = self._append(trail, share.snapshot_key, value)
        trail.updates, trail.due = 0, max(_UPDATES, _UPDATES_PER_ENTRY * entries)
        return offset, len(value)

    def _append(self, trail: _Trail, key: bytes, value: bytes | None) -> int:
        place = trail.place
        offset = place.append_one(key, value, self._clock_ms()).offset
        place.grown += _RECORD_BYTES + len(key) + len(value or b"")
        trail.updates += 1
        return offset

    def _renew(self, loaded: _Loaded, place: _StatePartition) -> None:
        """Write new snapshots of all that is in a partition: what lies before them may go."""
        first, size = None, 0
        for share in list(loaded.shares.values()):
            for trail in (share.share, share.queue):
                if trail.place is place:
                    offset, added = self._append_snapshot(share, trail)
                    first = offset if first is None else first
                    size += added
        place.renewed(size)
        if first is not None:
            self._prunable[place.partition.name] = first
            self._store.background.cleaner.wake(_PRUNING)

    def _prune(self) -> None:
        """Delete what lies before the snapshots of all partitions in a topic. Runs in the background."""
        with self.lock:
            prunable = dict(self._prunable)
        for name, offset in prunable.items():
            partition = self._store.partition(*name)
            partition.flush()  # the snapshots must not be lost after what they replace
            with partition.lifecycle.lifecycle_lock:
                partition.lifecycle.advance_log_start(offset)
            with self.lock:
                if self._prunable[name] == offset:
                    del self._prunable[name]

    def _finished_segments(self, share: _Share) -> None:
        """Let retention look if all groups have finished a segment now."""
        if self.hold_offset(share.jobs.name) >= share.log.segments[1].base_offset:
            self._store.cleaner.segment_sealed()


def read_shares(
    share_partitions: Iterable[ReadablePartition],
    queue_partitions: Iterable[ReadablePartition],
    history: Callable[[ShareKey], History | None],
    clocks: Clocks,
) -> dict[ShareKey, LoadedShare]:
    """Read both topics. Records that cannot be decoded are logged and skipped. See `LoadedShares`.

    Raises CorruptRecord if a batch is damaged, StorageError.
    """
    records = LoadedShares(history, clocks)
    for partitions, apply in (
        (share_partitions, records.apply_share),
        (queue_partitions, records.apply_queue),
    ):
        for partition in partitions:
            for record in each_record(partition):
                try:
                    key = decode_key(record.key, partition.name.topic)
                    apply(ShareKey(*key[:3]), record.value, snapshot=key.is_snapshot)
                except CorruptRecord as error:
                    logger.warning("%s offset %d: %s", partition.name, record.offset, error)
    return records.shares()
