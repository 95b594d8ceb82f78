"""The port over the store in this process; engine.py has the reading.

Nothing is decided here: each method finds the partition and calls it. Waiting is by listeners on partitions.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config import as_texts
from ..errors import Closed, EmbedlogError, InvalidArgument
from ..files.names import (
    FORGETTING_OFFSETS,
    STAGING_DIRECTORY,
    TRANSACTION_STATE_TOPIC,
    check_not_internal,
    check_topic_name,
)
from ..model import Appended, RecoveryReport, TopicDescription, TopicPartition
from ..runtime.locks import Lock
from ..store.store import Store
from ..store.topic import check_one_replica, check_partition_count
from .engine import EngineBackend
from .owner_socket import OwnerSocket
from .port import Interrupt, TopicConfigs

if TYPE_CHECKING:
    from ..groups.coordinator import GroupCoordinator
    from ..groups.other_brokers import OtherBrokers
    from ..groups.share_coordinator import ShareGroupCoordinator
    from ..groups.share_state import ShareState
    from ..groups.transaction_coordinator import TransactionCoordinator
    from ..wire.transaction_state import TransactionMetadata
    from .listening import ListeningArrivals
    from .owned_log import LoadServer, LogServer


class WriterBackend(EngineBackend):
    """The whole port over a store. Implements `port.TopicAdmin` and `Maintenance` too."""

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
        """Create the coordinator, also if no client uses transactions: its own timer loads it, times open
        transactions out and finishes prepared ends."""
        _ = self.transactions

    @property
    def topic_admin(self) -> WriterBackend:
        return self

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        exist_ok: bool = False,
        replication_factor: int | None = None,
    ) -> TopicDescription:
        check_one_replica(replication_factor)
        return self.store.create_topic(name, partitions, settings, exist_ok=exist_ok)

    def validate_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        replication_factor: int | None = None,
    ) -> TopicConfigs:
        check_one_replica(replication_factor)
        check_topic_name(name)
        check_partition_count(partitions)
        return TopicConfigs(as_texts(self.store.defaults.with_changes(settings).as_dict()))

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
        timeout_ms: int | None = None,
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
