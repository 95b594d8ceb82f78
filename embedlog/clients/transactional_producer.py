"""A producer with a transactional id, as Kafka's clients have it: from `log.producer(transactional_id=...)`.

It sends in the background as any producer; its batches go through a `TransactionManager`, as those of
`log.transaction` do.

Invariant: a transaction of which a record could not be sent is never committed.

Source: KafkaProducer's transactional methods (KIP-98).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Unpack

from ..backends.port import Backend
from ..errors import TransactionAborted
from ..model import CommittedOffset, RecordMetadata, TopicPartition
from ..runtime.uninterruptible import uninterruptible
from .batch import ProducerBatch
from .consumer import Consumer
from .options import ProducerOptions
from .producer import Producer
from .record_input import HeadersInput
from .transaction import check_consumer, check_transaction
from .transaction_manager import TransactionManager


class TransactionalProducer(Producer):
    """A producer whose sends belong to transactions, one after the other.

    Args:
        backend: the log.
        transactional_id: names this writer over restarts. An earlier producer of the id is fenced at once,
            and what it left open is aborted.
        transaction_timeout_ms: a transaction that is open for longer is aborted.
        options: as for `Producer`. With flush=True a commit survives a power cut, whole.

    Raises as `Producer`; InvalidArgument, ConcurrentTransactions, StorageError.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        transactional_id: str,
        transaction_timeout_ms: int = 60_000,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_transaction(transactional_id, transaction_timeout_ms)
        self._timeout_ms = transaction_timeout_ms
        self._manager = TransactionManager(backend, transactional_id)
        self._manager.begin_producer(transaction_timeout_ms)
        super().__init__(self._manager, **options)

    def __repr__(self) -> str:
        return f"<embedlog.TransactionalProducer {self._manager!r}>"

    @property
    def transactional_id(self) -> str:
        """The name under which it is known to other processes."""
        return self._manager.transactional_id

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises ConcurrentTransactions: one is open. ProducerFenced, StorageError,
        Closed."""
        self._manager.begin(self._timeout_ms)

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """As `Producer.send`, within a transaction: else InvalidTxnState.

        Readers that are read_committed get the record after the commit.
        """
        self._manager.check_open()
        return super().send(
            topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None, consumer: Consumer[Any, Any]
    ) -> None:
        """Commit a consumer's offsets with the transaction; None: its positions after all records returned.

        As `Transaction.commit_offsets`.
        """
        check_consumer(consumer)
        self._manager.commit_offsets(consumer, offsets)

    def commit_transaction(self) -> None:
        """Send what is buffered, and commit.

        Raises InvalidTxnState: no transaction is open, or a record could not be sent; then abort it.
        TransactionAborted, ProducerFenced: it was aborted. DiskFull: it is open as before.
        """
        self.flush()
        self._manager.commit(flush=self._flush)

    def abort_transaction(self) -> None:
        """Abort. What is buffered is not sent: its futures raise TransactionAborted.

        Raises InvalidTxnState: no transaction is open. ProducerFenced, StorageError.
        """
        self._manager.check_any()
        dropped = TransactionAborted("the transaction was aborted before this was sent")
        uninterruptible(lambda: self._give_up(dropped))
        self.flush()
        self._manager.abort()

    def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`. An open transaction is aborted."""
        super().close(timeout)
        self._manager.close()

    def _fail(self, batches: list[ProducerBatch], error: BaseException) -> None:
        self._manager.fail(error)
        super()._fail(batches, error)
