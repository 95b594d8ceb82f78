"""The port over the store in this process, and what it has in common with a read-only store (read_only.py).

Nothing is decided here: each method finds the partition and calls it. Waiting is by listeners on partitions.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, Self, TypeVar

from ..codec.time_range import TimeRange
from ..config import TopicSettings
from ..errors import (
    Closed,
    EmbedlogError,
    InvalidArgument,
    StorageError,
    TopicNotFound,
    TopicRecreated,
)
from ..files.names import (
    FORGETTING_OFFSETS,
    STAGING_DIRECTORY,
    TRANSACTION_STATE_TOPIC,
    check_not_internal,
)
from ..model import (
    Appended,
    Fetched,
    Health,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionOffsets,
    ProducerDescription,
    Record,
    RecoveryReport,
    TopicDescription,
    TopicPartition,
)
from ..runtime.locks import Lock
from ..storage.reader import ReadablePartition
from ..store.store import Store
from .owner_socket import OwnerSocket
from .port import Interrupt

if TYPE_CHECKING:
    from ..groups.coordinator import GroupCoordinator
    from ..groups.other_brokers import OtherBrokers
    from ..groups.share_coordinator import ShareGroupCoordinator
    from ..groups.share_state import ShareState
    from ..groups.transaction_coordinator import TransactionCoordinator
    from ..store.read_only_store import ReadOnlyStore
    from ..wire.transaction_state import TransactionMetadata
    from .listening import ListeningArrivals
    from .owned_log import LoadServer, LogServer
    from .stored_shares import StoredShares

_READ_ERRORS: Final = (StorageError, OSError)

T = TypeVar("T")


class EngineBackend:
    """What both kinds of engine share: reading. Implements `port.Splits` too."""

    mode: ClassVar[str]
    one_batch_per_append = False
    reads_times = True

    def __init__(self, engine: Store | ReadOnlyStore) -> None:
        self._engine = engine

    @property
    def path(self) -> str:
        return self._engine.path

    @property
    def log_id(self) -> str:
        return self._engine.catalog.log_id

    @property
    def splits(self) -> Self:
        return self

    def topics(self) -> list[str]:
        return self._engine.topics()

    def describe_topic(self, topic: str) -> TopicDescription:
        return self._engine.describe_topic(topic)

    def forget_metadata(self, topic: str) -> None: ...

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._engine.topic_settings(topic)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        readable = self._engine.partition(topic, partition)
        # After the partition is found: then it is this topic's. No id comes back.
        if topic_id and self._engine.topic_id(topic) != topic_id:
            self._engine.topic(topic)
            raise recreated(TopicPartition(topic, partition))
        try:
            return readable.fetch(
                offset, max_bytes, leader_epoch=leader_epoch, read_committed=read_committed, buffer=buffer
            )
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        return self._engine.record_at(topic, partition, offset)

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        return self._engine.partition(topic, partition).has_data(offset, read_committed=read_committed)

    def offsets(self, topic: str, partition: int | None = None) -> dict[int, PartitionOffsets]:
        if partition is None:
            return self._engine.offsets(topic)
        return {partition: self._engine.partition(topic, partition).offsets()}

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.offset_for_time(time_ms)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def offsets_in_time(self, topic: str, partition: int, offset: int, times: TimeRange) -> OffsetRange:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.offsets_in_time(offset, times)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        return self._engine.partition(topic, partition).offsets_before(time_ms, max_offsets)

    def split(
        self, topic: str, partition: int, start: int, end: int, split_bytes: int, not_before_ms: int | None
    ) -> list[OffsetRange]:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.split(start, end, split_bytes, not_before_ms)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def next_valid_offset(self, topic: str, partition: int, offset: int, path: str, pos: int) -> int:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.offset_after_damage(offset, path, pos)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def check_open(self) -> None:
        self._engine.check_open()

    def health(self) -> Health:
        """See `Log.health`."""
        topics = self._of_each_topic(self._engine.offsets)
        edges = [offsets for topic in topics for offsets in topic.values()]
        refusing, damage, failing = self._trouble()
        disk_bytes, used_fraction, full = self._disk()
        try:
            free_bytes = self._engine.fs.free_bytes(self.path)
        except OSError as error:  # the directory was moved or removed
            raise StorageError(f"{self.path} cannot be read: {error}", path=self.path) from error
        return Health(
            "degraded" if refusing or damage else "full" if full else "degraded" if failing else "ok",
            self.path,
            self.mode,
            len(topics),
            len(edges),
            self._bytes(),
            free_bytes,
            sum(edge.log_end_offset - edge.flushed_offset for edge in edges),
            refusing,
            damage,
            failing,
            disk_bytes,
            used_fraction,
            full,
        )

    def _trouble(self) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
        """Which partitions refuse appends and why; what is damaged; what fails in the background."""
        return {}, [], []

    def _disk(self) -> tuple[int, float, str]:
        """Bytes on disk, their fraction of max_bytes, and which bound leaves no room, if one does."""
        return -1, 0.0, ""

    def share_reader(self) -> StoredShares:
        from .stored_shares import StoredShares

        return StoredShares(self._engine)

    def stored_transactions(self) -> dict[str, TransactionMetadata]:
        from ..groups.transaction_log import read_transactions

        exists = TRANSACTION_STATE_TOPIC in self._engine.topics()
        return read_transactions(self._engine.partitions_of(TRANSACTION_STATE_TOPIC) if exists else ())

    def producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        return {
            name: [
                producer.described(producer_id)
                for producer_id, producer in self._engine.partition(*name).known_producers().items()
            ]
            for name in partitions
        }

    def _bytes(self) -> int:
        """Bytes of all segments."""
        return sum(sum(sizes.values()) for sizes in self._of_each_topic(self.sizes))

    def sizes(self, topic: str) -> dict[int, int]:
        return {
            partition.name.partition: sum(size for _, size in partition.readable_segments())
            for partition in self._engine.partitions_of(topic)
        }

    def _of_each_topic(self, ask: Callable[[str], T]) -> list[T]:
        """The answers for all topics, without those that are deleted in the meantime."""
        answers = []
        for topic in self._engine.topics():
            with contextlib.suppress(TopicNotFound):
                answers.append(ask(topic))
        return answers

    def _read_failed(self, partition: ReadablePartition, error: StorageError | OSError) -> NoReturn:
        """Raise the error; TopicNotFound if the topic was deleted in the meantime."""
        if self._engine.partition(*partition.name) is not partition:
            raise TopicNotFound(f"{partition.name}: the topic was deleted meanwhile") from error
        if isinstance(error, OSError):
            raise StorageError(f"{partition.name}: {error}", path=self._engine.path) from error
        raise error


def recreated(name: TopicPartition) -> TopicRecreated:
    """The error of a position in a topic that has gone."""
    return TopicRecreated(f"{name}: the topic was deleted, and another one has its name now")


class WriterBackend(EngineBackend):
    """Over a store: the whole port. Implements `port.TopicAdmin` and `Maintenance` too."""

    mode = "rw"

    def __init__(
        self,
        store: Store,
        load_server: LoadServer | None = None,
        *,
        shared: bool = False,
        in_cluster: bool = False,
    ) -> None:
        """Begin to work on an open store, which is closed with the backend.

        Args:
            load_server: called when the first other process connects; None: no other process can.
            shared: whether other processes may use the log, or only tools such as a Spark job.
            in_cluster: other brokers have some of the partitions. Then there are no transactions until
                `join_cluster`.
        """
        super().__init__(store)
        self.store = store
        self.appenders = store.partitions_of
        self.create_topic = store.create_topic
        self.alter_topic = store.alter_topic
        self.create_partitions = store.create_partitions
        self.delete_topic = store.delete_topic
        self.flush = store.flush
        self.reopen = store.reopen
        self._lock = Lock()
        # All are guarded by _lock.
        self._coordinator: GroupCoordinator | None = None
        self._closed = False
        self._share_state: ShareState | None = None
        self._share_coordinator: ShareGroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        store.deletions.listen(self._forget_topic)
        store.holds.ask(lambda name: self.share_state.hold_offset(name))
        self._in_cluster = in_cluster
        if TRANSACTION_STATE_TOPIC in store.by_topic and not in_cluster:
            store.background.add_timer("opening transactions", self._open_transactions)
            if any(partition.open_transactions() for partition in store.partitions()):
                with contextlib.suppress(EmbedlogError):  # the timer tells of it
                    self.transactions.look()
        self._load_server = load_server
        self._shared = shared
        self._socket = OwnerSocket(self.path, self._tidy, self._serve)
        if load_server is not None and store.background.started:
            self._socket.start()
            store.background.add_timer("looking for the socket", self._socket.restore)

    def _tidy(self) -> None:
        """Remove what jobs that were killed long ago have staged."""
        if self.store.fs.exists(self.store.catalog.file(STAGING_DIRECTORY)):
            from ..store.atomic_append import tidy_staging

            tidy_staging(self.store)

    def _serve(self, listening: socket.socket, path: str) -> LogServer:
        assert self._load_server is not None
        return self._load_server()(listening, path, self, shared=self._shared)

    @property
    def unreachable(self) -> OSError | None:
        """Why other processes cannot connect to the directory's socket; None if they can."""
        return self._socket.failure

    @property
    def coordinator(self) -> GroupCoordinator:
        """Created when it is first used: a program without groups need not import them."""
        with self._lock:
            if self._coordinator is None:
                from ..groups.coordinator import GroupCoordinator

                self._coordinator = GroupCoordinator(self.store)
                if self._closed:
                    self._coordinator.close()
            return self._coordinator

    @property
    def share_state(self) -> ShareState:
        """Created when it is first used."""
        with self._lock:
            if self._share_state is None:
                from ..groups.share_state import ShareState

                self._share_state = ShareState(self.store)
            return self._share_state

    def _forget_topic(self, topic: str) -> None:
        self.coordinator.forget_topic(topic)
        with self._lock:
            share_state, share_coordinator = self._share_state, self._share_coordinator
        if share_coordinator is not None:
            share_coordinator.forget_topic(topic)
        if share_state is not None:
            share_state.forget_topic(topic)

    def group_reader(self) -> GroupCoordinator:
        return self.coordinator

    @property
    def share_coordinator(self) -> ShareGroupCoordinator:
        """Created when it is first used."""
        state = self.share_state
        with self._lock:
            if self._share_coordinator is None:
                from ..groups.share_coordinator import ShareGroupCoordinator

                if self._closed:
                    raise Closed("the log is closed")
                self._share_coordinator = ShareGroupCoordinator(self.store, state)
            return self._share_coordinator

    @property
    def transactions(self) -> TransactionCoordinator:
        """Created when it is first used, and soon after the open of a log that has had transactions."""
        groups = self.coordinator
        with self._lock:
            if self._transactions is None:
                if self._in_cluster:
                    raise Closed("the broker has not joined its cluster yet: it has no transactions")
                self._transactions = self._coordinate(groups, None)
            return self._transactions

    def join_cluster(self, others: OtherBrokers) -> TransactionCoordinator:
        """Begin to coordinate transactions with the other brokers of a cluster."""
        groups = self.coordinator
        with self._lock:
            self._transactions = self._coordinate(groups, others)
            return self._transactions

    def _coordinate(self, groups: GroupCoordinator, others: OtherBrokers | None) -> TransactionCoordinator:
        from ..groups.transaction_coordinator import TransactionCoordinator

        transactions = TransactionCoordinator(self.store, groups, others)
        if self._closed:
            transactions.close()
        return transactions

    def stored_transactions(self) -> dict[str, TransactionMetadata]:
        if TRANSACTION_STATE_TOPIC not in self.store.by_topic:
            self.check_open()
            return {}
        return self.transactions.describe_all()

    def _open_transactions(self) -> None:
        """In the background: open transactions time out, and prepared ends are finished, also if they are
        not used. The coordinator's own timer loads it."""
        _ = self.transactions

    @property
    def topic_admin(self) -> WriterBackend:
        return self

    @property
    def maintenance(self) -> WriterBackend:
        return self

    @property
    def recovery(self) -> RecoveryReport:
        return self.store.recovery

    def check_append(self, *, flush: bool = False) -> None:
        self.store.check_open()

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
        transactional_id: str | None = None,
    ) -> Appended:
        writable = self.store.partition(topic, partition)
        return writable.append(batches, flush=flush, expected_offset=expected_offset)

    def arrivals(self, *, read_committed: bool, interrupt: Interrupt) -> ListeningArrivals:
        from .listening import ListeningArrivals

        return ListeningArrivals(self.store, read_committed, interrupt)

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_ms / 1000
        interrupt = Interrupt() if interrupt is None else interrupt
        with contextlib.closing(
            self.arrivals(read_committed=read_committed, interrupt=interrupt)
        ) as arrivals:
            if any(arrivals.expect(*position) for position in positions.items()):
                return True
            while not arrivals.ready():
                self.store.check_open()
                left_ms = (deadline - time.monotonic()) * 1000
                if left_ms <= 0 or interrupt.is_set:
                    return False
                arrivals.wait(left_ms)
            return True

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        writable = self.store.partition(topic, partition)
        check_not_internal(topic, FORGETTING_OFFSETS)
        with writable.lifecycle.lifecycle_lock:
            writable.lifecycle.advance_log_start(before_offset)
        return writable.offsets().log_start_offset

    def compact(self, topic: str) -> int:
        store = self.store
        settings = store.topic_settings(topic)
        if not settings.compacts:
            raise InvalidArgument(
                f"topic {topic!r} is not compacted (cleanup_policy={settings.cleanup_policy!r}): "
                'alter_topic(..., cleanup_policy="compact") first'
            )
        pace = store.cleaner.pace()
        return sum(
            store.cleaner.compact_partition(partition, None, pace, force=True)
            for partition in store.partitions_of(topic)
        )

    def backup(self, destination: str) -> None:
        from ..store.backup import backup

        backup(self.store, destination)

    def close(self) -> None:
        try:
            self._socket.stop()
            with self._lock:
                self._closed = True
                coordinators = self._transactions, self._coordinator, self._share_coordinator
            for coordinator in coordinators:
                if coordinator is not None:
                    coordinator.close()
        finally:
            self.store.close()

    def abandon(self) -> None:
        self._lock, self._closed = Lock(), True
        if self._transactions is not None:
            self._transactions.abandon()
        if self._coordinator is not None:
            self._coordinator.abandon()
        if self._share_coordinator is not None:
            self._share_coordinator.abandon()
        if self._share_state is not None:
            self._share_state.abandon()
        try:
            self.store.abandon()
        finally:
            self._socket.abandon()

    def _trouble(self) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
        return (
            self.store.failed_partitions(),
            self.store.recovery.damage,
            [*self.store.background.failures.reasons(), *self.store.cleaner.blocked()],
        )

    def _disk(self) -> tuple[int, float, str]:
        quota = self.store.quota
        return quota.used(), quota.used_fraction, quota.full()

    def _bytes(self) -> int:
        return sum(partition.size for partition in self.store.partitions())
