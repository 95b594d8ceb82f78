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
from ..runtime.closing import closes
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
        transactional_id: names this writer across restarts. Creating the producer fences earlier producers
            of the id, and aborts the transaction that they left open.
        transaction_timeout_ms: a transaction that is open for longer is aborted.
        options: as for `Producer`. With flush=True the whole commit survives a power cut.

    Raises the errors of `Producer`, and InvalidArgument, ConcurrentTransactions, StorageError.
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
        """The transactional id, by which other processes know this producer."""
        return self._manager.transactional_id

    def begin_transaction(self) -> None:
        """Begin a transaction.

        Raises ConcurrentTransactions if one is open, and ProducerFenced, StorageError, Closed."""
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
        """Send a record in the open transaction, as `Producer.send`.

        Readers that are `read_committed` get it after the commit. Raises InvalidTxnState if none is open.
        """
        self._manager.check_open()
        return super().send(
            topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None, consumer: Consumer[Any, Any]
    ) -> None:
        """Commit a consumer's offsets with the transaction, as `Transaction.commit_offsets`.

        With None, it commits the consumer's positions after all records returned so far.
        """
        check_consumer(consumer)
        self._manager.commit_offsets(consumer, offsets)

    def commit_transaction(self) -> None:
        """Send what is buffered, and commit the transaction.

        Raises InvalidTxnState if none is open, or if a record could not be sent: then abort it. Raises
        TransactionAborted or ProducerFenced if it was aborted. After DiskFull or LogFull it is still open.
        """
        self.flush()
        self._manager.commit(flush=self._flush)

    def abort_transaction(self) -> None:
        """Abort the transaction. Buffered records are not sent: their futures raise TransactionAborted.

        Raises InvalidTxnState if none is open, and ProducerFenced, StorageError.
        """
        self._manager.check_any()
        dropped = TransactionAborted("the transaction was aborted before this was sent")
        uninterruptible(lambda: self._give_up(dropped))
        self.flush()
        self._manager.abort()

    @closes
    def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`. An open transaction is aborted."""
        super().close(timeout)
        self._manager.close()

    def _fail(self, batches: list[ProducerBatch], error: BaseException) -> None:
        self._manager.fail(error)
        super()._fail(batches, error)
