"""Transactions of a log: `with log.transaction("loader-1") as tx`.

    records and offsets of the block --append, pending--> partitions
    the block ends      --> commit: all of them count, at once for each reader that is read_committed
    the block raises    --> abort: none of them ever does

A log has one `TransactionManager` for each transactional id that it has used; transactions of the id go on
with its producer, one after the other.

Source: KIP-98; the form is that of Python's databases, whose `with connection` commits or aborts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..backends.port import Backend
from ..config import MAX_INT32
from ..errors import Closed, EmbedlogError, InvalidArgument, InvalidTxnState, InvalidType, shown
from ..fast_append import FastPath
from ..model import CommittedOffset, RecordMetadata, TopicPartition
from ..runtime.closing import Closing, OfOneProcess
from ..validation import check_flag, check_int, check_text
from .append import append, append_batches, append_many
from .partitioner import StickyPartitioner
from .record_input import Bytes, HeadersInput, RecordInput, as_list
from .results import AppendedMany
from .transaction_manager import TransactionManager

if TYPE_CHECKING:
    from .consumer import Consumer


def check_transaction(transactional_id: object, timeout_ms: object) -> None:
    """Raises InvalidType, InvalidArgument."""
    check_text("transactional_id", transactional_id)
    if not transactional_id:
        raise InvalidArgument("a transactional id cannot be empty")
    check_int("timeout_ms", timeout_ms, low=1, high=MAX_INT32)


def check_consumer(consumer: object) -> None:
    """Raises InvalidType unless it is a consumer."""
    from .consumer import Consumer

    if not isinstance(consumer, Consumer):
        raise InvalidType(f"a transaction commits offsets of an embedlog.Consumer, not of {shown(consumer)}")


def new_transaction(
    backend: Backend,
    fast_path: FastPath,
    managers: dict[str, TransactionManager],
    clients: weakref.WeakSet[Closing],
    transactional_id: str,
    timeout_ms: int,
    flush: bool,
) -> Transaction:
    """See `Log.transaction`. managers: of the log, by transactional id. `clients` are closed with the log."""
    check_transaction(transactional_id, timeout_ms)
    check_flag("flush", flush)
    _ = backend.transactions  # raises at once if there are none
    manager = managers.get(transactional_id)
    if manager is None:
        manager = managers.setdefault(transactional_id, TransactionManager(backend, transactional_id))
        clients.add(manager)
    return Transaction(manager, fast_path, timeout_ms, flush)


class Transaction(OfOneProcess):
    """Appends and offset commits that take effect together or not at all; from `Log.transaction`.

    Use it once, as a context manager. Leaving the block commits. An exception, including Ctrl-C, aborts and
    propagates. Any thread may append to the transaction while the block runs.

    If the commit itself fails, the transaction is aborted, and the error is raised. In two cases it may be
    committed all the same. After Ctrl-C during the commit, a note of the KeyboardInterrupt gives the outcome.
    After a disk failure (FlushFailed, PartitionFailed), the id's next transaction or the next open finds it.
    """

    def __init__(
        self, manager: TransactionManager, fast_path: FastPath, timeout_ms: int, flush: bool
    ) -> None:
        self._manager = manager
        self._fast_path = fast_path
        self._partitioner = StickyPartitioner(manager.delivery)
        self._timeout_ms = timeout_ms
        self._flush = flush
        self._state = "not begun"

    def __repr__(self) -> str:
        return f"<embedlog.Transaction {self.transactional_id!r}: {self._state}>"

    @property
    def transactional_id(self) -> str:
        """The transactional id, by which other processes know this writer."""
        return self._manager.transactional_id

    def __enter__(self) -> Self:
        """Raises ConcurrentTransactions if another one of this id is open here, ProducerFenced if another
        producer has begun with the id. Raises InvalidArgument if timeout_ms exceeds
        transaction_max_timeout_ms. Raises StorageError, Closed."""
        with self._manager.lock:
            if self._state != "not begun":
                raise InvalidTxnState(f"{self!r} is for one use: call log.transaction again")
            self._manager.begin(self._timeout_ms)
            self._state = "open"
            return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._manager.lock:  # what comes late from another thread finds it ended
            self._state = "aborted"
            if error is not None:
                self._abort(error)
                return
            try:
                self._manager.commit(flush=self._flush)
            except BaseException as failed:
                self._abort(failed)
                raise
            self._state = "committed"

    def _abort(self, error: BaseException) -> None:
        """Abort for an error, which is raised; what fails here is a note of it."""
        try:
            self._manager.abort()
        except (Closed, InvalidTxnState):
            pass  # it has ended: a close aborts it
        except EmbedlogError as second:
            self._manager.leave()
            error.add_note(
                f"{self!r} could not be aborted: it is when the next one of its id begins, or when its time "
                f"is over ({second})"
            )

    def append(
        self,
        topic: str,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Append one record. Readers that are `read_committed` get it after the commit, others now.

        Arguments, result and errors are those of `Log.append`. Records without a key all go to one partition
        of their topic. Each call writes a batch of its own, so use `append_many` for many records. Raises
        TransactionAborted or ProducerFenced if the transaction was aborted. Raises InvalidTxnState if it has
        ended, or has not begun.
        """
        one_partition = self._partitioner.__call__  # without its on_new_batch
        with self._manager.lock:
            self._check_open()
            return append(self._manager, one_partition, topic, value, key, headers, timestamp_ms, partition)

    def append_many(
        self,
        topic: str,
        records: Iterable[RecordInput],
        *,
        partition: int | None = None,
        compression: str | int | None = None,
    ) -> AppendedMany:
        """Append many records in batches.

        Arguments, result and errors are those of `Log.append_many`. Also raises the errors of `append`."""
        records = as_list(records)  # before the lock: what yields them may use this transaction
        with self._manager.lock:
            self._check_open()
            if compression is None:
                divided = self._fast_path.divide(topic, records, partition, self._partitioner)
                if divided is not None:
                    batches, codec, limit, now, times, places = divided
                    self._manager.expect(topic, batches)
                    return append_batches(
                        self._manager, topic, batches, {}, codec, limit, False, now, times, places
                    )
            return append_many(
                self._manager,
                self._partitioner,
                topic,
                records,
                partition=partition,
                compression=compression,
                expect=self._manager.expect,
            )

    def commit_offsets(
        self,
        consumer: Consumer[Any, Any],
        offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None,
    ) -> None:
        """Commit a consumer's positions after all records returned so far, or `offsets`, in the transaction.

        They become the group's offsets when the transaction commits. The consumer must be in a group, with
        auto_commit=False. After an abort, call `consumer.seek_to_committed()` to read the records again.

        Raises CommitFailed if the group has reassigned the partitions: then the transaction can only be
        aborted. Raises InvalidArgument if the consumer has no group, an `offset_store` or auto-commit. Raises
        ConcurrentUse, and the errors of `append`.
        """
        check_consumer(consumer)
        with self._manager.lock:
            self._check_open()
            self._manager.commit_offsets(consumer, offsets)

    def _check_open(self) -> None:
        if self._state == "not begun":
            raise InvalidTxnState(f"{self!r} begins with its block: with log.transaction(...) as tx: ...")
        if self._state != "open":
            raise InvalidTxnState(f"{self!r} has ended: call log.transaction again")
