"""The coordinator of a log's transactions: stores what they come to, writes markers, keeps time.

    add_partitions    a record in __transaction_state: Ongoing   --> each partition permits the producer
    append            Partition.append, of whom the partition permits
    end               a record: PrepareCommit or PrepareAbort    --> a marker in each partition
                      a record: CompleteCommit or CompleteAbort  --> the next transaction may begin

What is decided is decided in machines/transaction.py. Each step is stored before it counts, and the first use
after a start goes on where the last process stopped: it writes the markers of what was prepared, and lets go
on what is open, until its time is over or its process has ended (producer_processes.py). A marker that cannot
be written (its partition failed, the disk is full) is written later; until then its producer gets
ConcurrentTransactions.

A partition permits a producer to open a transaction until its marker, in memory. Permission and marker meet
under the partition's lock, so nothing that is late opens a transaction after its end (KIP-890).

In a cluster each broker coordinates the ids whose partition of `__transaction_state` it leads. It sends the
markers of other brokers' partitions (other_brokers.py) and hears later that they are written; until then the
end is prepared. Those brokers ask for permission before they append
(cluster/broker/peers/transaction_permission.py).

Power cuts. A transaction survives them whole if it ends with flush=True: its records are durable before the
prepared end, and that before the first marker. Then markers may be lost where the completion is not, so the
first use looks for transactions that are open in a partition and not in `__transaction_state`, and ends them
as the records of the topic say. Without flush each partition may lose what it has not flushed yet. Epochs
that partitions know are never given again. That a producer has begun is always durable.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from ..errors import (
    Closed,
    DiskFull,
    EmbedlogError,
    InvalidArgument,
    LogFull,
    StorageError,
    TransactionNotFound,
    shown,
)
from ..model import CommittedOffset, TopicPartition
from ..partition import Partition
from ..runtime.locks import ReentrantLock
from ..store.producer_ids import producer_ids_of
from ..store.store import Store
from ..validation import check_int
from ..wire.transaction_state import TransactionMetadata
from .coordinator import GroupCoordinator
from .machines.transaction import RAISES_EPOCHS, Change, ProducerIdAndEpoch, Transaction
from .other_brokers import End, OtherBrokers, is_here
from .producer_processes import UNKNOWN, has_ended, look_ms, owner
from .transaction_ends import RETRY_MS, Ended, TransactionEnds
from .transaction_log import TransactionLog
from .transaction_markers import TransactionMarkers

logger = logging.getLogger(__name__)

_NEVER: Final = 1 << 62

T = TypeVar("T")


class TransactionCoordinator:
    """Coordinates the transactions of a store. Thread-safe.

    Args:
        groups: keeps the offsets that transactions commit.
        other_brokers: the other brokers of a cluster; None if all partitions are here.
    """

    def __init__(
        self, store: Store, groups: GroupCoordinator, other_brokers: OtherBrokers | None = None
    ) -> None:
        self._store = store
        self._other_brokers = other_brokers
        self._log = TransactionLog(store, other_brokers)
        self._groups = groups
        self._markers = TransactionMarkers(store, groups, self._log, other_brokers, self._marked)
        self._expiration_ms = store.settings.transactional_id_expiration_ms
        # Outside all locks of groups and of partitions. Held while markers are written, not during fsyncs.
        self._lock = ReentrantLock()
        # Guarded by _lock.
        self._transactions: dict[str, Transaction] | None = None  # None: to be read
        self._resumed = False  # whether they have been read, and gone on with
        self._has_unknown = False  # whether something is open in a partition that could not be ended yet
        self._next_tick_ms = _NEVER
        self._closed = False
        self._ends = TransactionEnds(store, self._markers, self._make, self._schedule)
        # In a cluster it may be another broker later.
        self._owner = owner() if other_brokers is None else UNKNOWN
        self._wake_timer = store.background.add_timer("transactions", self.look)

    # -- producers -------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
        process: str | None = None,
    ) -> ProducerIdAndEpoch:
        """A producer begins: earlier ones of this id are fenced, an open transaction is aborted.

        Durable on return.

        Args:
            timeout_ms: a transaction that is open for longer is aborted.
            expected: the producer, if it goes on after an error; None: it is a new one.
            process: the producer's (producer_processes.py); None: this one.

        Raises InvalidArgument; ProducerFenced; ConcurrentTransactions if the last transaction cannot be ended
        now; StorageError.
        """
        if not transactional_id:
            raise InvalidArgument("a transactional id cannot be empty")
        check_int("timeout_ms", timeout_ms, low=1, high=self._store.settings.transaction_max_timeout_ms)

        def work() -> ProducerIdAndEpoch:
            transactions = self._loaded()
            transaction = transactions.get(transactional_id) or Transaction(transactional_id)
            transaction.check_initialize(expected)
            now_ms = self._store.clock_ms()
            if transaction.is_ongoing:
                self._make(transaction, transaction.abort_for(expected, now_ms, self._new_producer_id))
            self._ends.finish_first(transaction)
            change = transaction.initialize(
                timeout_ms=timeout_ms,
                expected=expected,
                now_ms=now_ms,
                new_producer_id=self._new_producer_id,
            )
            metadata = change.metadata._replace(process=self._owner if process is None else process)
            self._make(transaction, change._replace(metadata=metadata))
            transactions[transactional_id] = transaction
            self._schedule(now_ms + self._expiration_ms)
            return transaction.producer

        producer = self._locked(work)
        self._flush(transactional_id)
        return producer

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        client_version: int = RAISES_EPOCHS,
    ) -> None:
        """The producer is about to write to partitions, which permit it then if they are here.

        Raises TopicNotFound, PartitionNotFound (then none is added); ProducerFenced,
        InvalidProducerIdMapping, ConcurrentTransactions; StorageError.
        """

        def work() -> None:
            transaction = self._get_or_new(transactional_id)
            targets = [self._store.partition(*name) for name in partitions]
            now_ms = self._store.clock_ms()
            if self._other_brokers is None:  # else markers may be on their way
                self._ends.finish_first(transaction)
            change = transaction.add_partitions(
                producer, partitions, client_version=client_version, now_ms=now_ms
            )
            if change is not None:
                self._make(transaction, change)
                self._schedule(look_ms(change.metadata, now_ms, self._owner))
            for partition in targets:
                if is_here(self._other_brokers, partition.name):
                    with contextlib.suppress(StorageError):  # its appends fail for the same reason
                        partition.allow_transaction(*producer, transaction_version=client_version)

        self._locked(work)

    def add_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        group: str,
        *,
        client_version: int = RAISES_EPOCHS,
    ) -> None:
        """The producer is about to commit a group's offsets. Raises as `add_partitions`."""
        name = self._groups.offsets_partition(group)
        self.add_partitions(transactional_id, producer, [name], client_version=client_version)

    def check_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """Check that partitions are part of the producer's open transaction.

        Raises ProducerFenced, InvalidProducerIdMapping, ConcurrentTransactions, InvalidTxnState.
        """
        self._locked(lambda: self._get_or_new(transactional_id).check_in_transaction(producer, partitions))

    def commit_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
        client_version: int = RAISES_EPOCHS,
    ) -> None:
        """Commit a group's offsets with the transaction.

        Before transaction.version 2 `add_offsets` comes first; else InvalidTxnState. Raises as
        `add_partitions`, and as `GroupCoordinator.commit_in_transaction`.
        """
        if client_version >= RAISES_EPOCHS:
            self.add_offsets(transactional_id, producer, group)
        else:
            self.check_partitions(transactional_id, producer, [self._groups.offsets_partition(group)])
        self._groups.commit_in_transaction(
            group,
            offsets,
            *producer,
            member_id=member_id,
            generation=generation,
            group_instance_id=group_instance_id,
        )

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: int = RAISES_EPOCHS,
        flush: bool = False,
    ) -> ProducerIdAndEpoch:
        """Commit or abort the open transaction. Returns what the producer goes on with.

        It is decided on return. Markers may be missing still: see `when_over`.

        flush: a commit survives a power cut, whole. Raises as `Transaction.end`; FlushFailed: whether it is
        committed is told by the next open; StorageError.
        """
        flush = flush and commit  # nothing of an abort has to be kept
        if flush:
            for partition in self._locked(lambda: self._written(transactional_id, producer)):
                partition.flush()

        def prepare() -> None:
            transaction = self._get_or_new(transactional_id)
            change = transaction.end(
                producer,
                commit=commit,
                client_version=client_version,
                now_ms=self._store.clock_ms(),
                new_producer_id=self._new_producer_id,
            )
            if change is not None:
                self._make(transaction, change)
                if flush:
                    self._ends.flushing.add(transactional_id)

        def finish() -> ProducerIdAndEpoch:
            self._ends.flushing.discard(transactional_id)
            transaction = self._get_or_new(transactional_id)
            self._ends.finish(transaction)
            return transaction.next_producer

        def prepare_and_finish() -> ProducerIdAndEpoch:
            prepare()
            return finish()

        if not flush:
            return self._locked(prepare_and_finish)
        self._locked(prepare)
        self._flush(transactional_id)
        return self._locked(finish)

    def when_over(self, transactional_id: str) -> Future[None]:
        """A future that completes when no end of the id is being carried out: the next transaction may
        begin. It also completes if that becomes unknown."""
        with self._lock:
            transaction = (self._transactions or {}).get(transactional_id)
            over = self._ends.wait(transactional_id)
            if self._closed or transaction is None or not transaction.is_prepared:
                self._ends.over(transactional_id)
        self._ends.complete_waits()
        return over

    # -- administration --------------------------------------------------------------------------------

    def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, whose producer is fenced; nothing if none is open.

        Raises TransactionNotFound; ConcurrentTransactions if it cannot be ended now; StorageError.
        """

        def work() -> None:
            transaction = self._existing(transactional_id)
            if transaction.is_ongoing:
                self._make(transaction, transaction.fence(self._store.clock_ms()))
            self._ends.finish(transaction)

        self._locked(work)

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """The last state of an id. Raises TransactionNotFound."""
        return self._locked(lambda: self._existing(transactional_id).metadata)

    def describe_all(self) -> dict[str, TransactionMetadata]:
        """The last state of each id."""
        return self._locked(
            lambda: {name: transaction.metadata for name, transaction in self._loaded().items()}
        )

    def transactional_ids(self) -> list[str]:
        """All that have not expired, sorted."""
        return self._locked(lambda: sorted(self._loaded()))

    # -- life ------------------------------------------------------------------------------------------

    @property
    def ended(self) -> Ended:
        """How the transactions since the open have ended."""
        return self._ends.ended

    @property
    def is_loaded(self) -> bool:
        """Whether the topic has been read. If not, the next call reads it first. Takes no lock."""
        return self._resumed

    def load(self) -> None:
        """Read the topic now, and go on with what it tells. Raises CorruptRecord, StorageError."""
        self._locked(self._loaded)

    def close(self) -> None:
        """Refuse further requests. Open transactions stay open."""
        with self._lock:
            self._closed = True
            self._ends.forget()
        self._ends.complete_waits()

    def abandon(self) -> None:
        """In a forked child: replace the inherited lock, which may be held forever."""
        self._lock = ReentrantLock()
        self._closed = True

    # -- inside ----------------------------------------------------------------------------------------

    def _locked(self, work: Callable[[], T]) -> T:
        """Do some work with the lock held. After Ctrl-C, which may come between storing and applying, all is
        read again. No context manager of ours: Ctrl-C as it is entered would leave the lock acquired."""
        try:
            with self._lock:
                self._store.check_open()
                if self._closed:
                    raise Closed("the log is closed")
                try:
                    return work()
                except Exception:
                    raise
                except BaseException:
                    self._forget()
                    raise
        finally:
            self._ends.complete_waits()

    def _flush(self, transactional_id: str) -> None:
        """Make what is stored of an id durable; callers share fsyncs. Raises FlushFailed."""
        try:
            self._log.flush(transactional_id)
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """After an error, something else may be stored than is in memory: the next use reads it."""
        with self._lock:
            self._transactions = None
            self._resumed = False
            self._ends.forget()

    def _get_or_new(self, transactional_id: str) -> Transaction:
        return self._loaded().get(transactional_id) or Transaction(transactional_id)

    def _existing(self, transactional_id: str) -> Transaction:
        transaction = self._loaded().get(transactional_id)
        if transaction is None:
            raise TransactionNotFound(f"there is no transactional id {shown(transactional_id)}")
        return transaction

    def _new_producer_id(self) -> int:
        if self._other_brokers is not None:
            return self._other_brokers.new_producer_id()
        return producer_ids_of(self._store).next(1)[0]

    def _written(self, transactional_id: str, producer: ProducerIdAndEpoch) -> list[Partition]:
        """The partitions of the producer's open transaction."""
        transaction = self._loaded().get(transactional_id)
        if transaction is None or not transaction.is_ongoing or transaction.producer != producer:
            return []
        return self._markers.partitions(transaction)

    def _make(self, transaction: Transaction, change: Change) -> None:
        """Store a change, then apply it."""
        self._store_record(transaction, change.metadata)
        transaction.apply(change)
        self._ends.prepared[transaction.transactional_id] += transaction.is_prepared

    def _store_record(self, transaction: Transaction, metadata: TransactionMetadata | None) -> None:
        try:
            self._log.append(transaction.transactional_id, metadata)
        except (DiskFull, LogFull):
            raise  # nothing was stored
        except EmbedlogError:
            self._forget()
            raise

    def _marked(self, end: End, name: TopicPartition) -> None:
        """Another broker has written the marker of a prepared end. Called by what has sent it."""
        with self._lock:
            transaction = (self._transactions or {}).get(end.transactional_id)
            if self._closed:
                return
            if transaction is None:  # to be read again, which sends the markers again
                self._schedule(self._store.clock_ms() + RETRY_MS)
            else:
                self._ends.marked(transaction, end, name)
        self._ends.complete_waits()

    # -- loading ---------------------------------------------------------------------------------------

    def _loaded(self) -> dict[str, Transaction]:
        if self._transactions is not None:
            return self._transactions
        stored = self._log.read()
        loaded = {
            transactional_id: Transaction(transactional_id, metadata)
            for transactional_id, metadata in stored.items()
        }
        self._transactions = loaded
        for transaction in loaded.values():
            if transaction.is_ongoing:
                self._markers.permit_again(transaction)
            self._ends.finish(transaction)
        self._end_unknown(loaded)
        self._resumed = True
        return loaded

    def _end_unknown(self, transactions: Mapping[str, Transaction]) -> None:
        self._has_unknown = not self._markers.end_unknown(transactions.values())
        now_ms = self._store.clock_ms()
        self._schedule(now_ms + RETRY_MS if self._has_unknown else now_ms)

    # -- time ------------------------------------------------------------------------------------------

    def _schedule(self, due_ms: int) -> None:
        """Tick at that time, at the latest."""
        if due_ms < self._next_tick_ms:
            self._next_tick_ms = due_ms
            self._wake_timer(max(due_ms - self._store.clock_ms(), 0))

    def look(self) -> int | None:
        """What the timer does; returns in how many ms again. Raises CorruptRecord, StorageError.

        Fences what has been open for too long, or whose process has ended; ends what could not be ended;
        forgets unused ids.
        """
        with self._lock:
            if self._closed:
                return None
            self._next_tick_ms = _NEVER
            transactions = self._loaded()
            if self._has_unknown:
                self._end_unknown(transactions)
            for transaction in list(transactions.values()):
                subject = f"transactional id {transaction.transactional_id!r}"
                with self._store.background.failures.tolerated("ending", subject, EmbedlogError):
                    self._look_after(transactions, transaction)
                if self._transactions is not transactions:
                    self._schedule(self._store.clock_ms() + RETRY_MS)
                    break
            next_ms = self._next_tick_ms
        self._ends.complete_waits()
        return None if next_ms == _NEVER else max(next_ms - self._store.clock_ms(), 1)

    def _look_after(self, transactions: dict[str, Transaction], transaction: Transaction) -> None:
        now_ms = self._store.clock_ms()
        deadline_ms = transaction.deadline_ms()
        if deadline_ms is not None:
            ended = has_ended(transaction.metadata.process)
            if ended:
                logger.info("%r: aborted, since its process has ended", transaction.transactional_id)
            if ended or deadline_ms <= now_ms:
                self._make(transaction, transaction.fence(now_ms))
        self._ends.finish(transaction)
        expiry_ms = transaction.expires_ms(self._expiration_ms)
        if expiry_ms is not None and expiry_ms <= now_ms:
            self._store_record(transaction, None)
            del transactions[transaction.transactional_id]
            del self._ends.prepared[transaction.transactional_id]
            return
        if expiry_ms is not None:
            self._schedule(expiry_ms)
        elif transaction.is_ongoing:
            self._schedule(look_ms(transaction.metadata, now_ms, self._owner))
