"""Ends transactions in their partitions: markers, and what a start finds open.

A marker may be written more than once, and one that comes late changes nothing: the partition knows a later
epoch then. So each step here may be repeated until it succeeds. The coordinator calls it with its lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from ..errors import (
    Closed,
    EmbedlogError,
    InvalidProducerEpoch,
    PartitionNotFound,
    StorageError,
    TopicNotFound,
    TransactionCoordinatorFenced,
)
from ..model import TopicPartition
from ..partition import Partition
from ..store.store import Store
from .coordinator import GroupCoordinator
from .offsets import OFFSETS_TOPIC
from .transaction import RAISES_EPOCHS, ProducerIdAndEpoch, Transaction
from .transaction_log import TransactionLog

logger = logging.getLogger(__name__)


class TransactionMarkers:
    """Writes the markers of a store's transactions."""

    def __init__(self, store: Store, groups: GroupCoordinator, log: TransactionLog) -> None:
        self._store = store
        self._groups = groups
        self._log = log

    def partitions(self, transaction: Transaction) -> list[Partition]:
        """The partitions of a transaction, without those that were deleted."""
        found = map(self._partition, transaction.metadata.partitions)
        return [partition for partition in found if partition is not None]

    def write_missing(self, transaction: Transaction) -> EmbedlogError | None:
        """Write the markers of a prepared end that may be missing. Returns an error if some still are."""
        failed: EmbedlogError | None = None
        version = transaction.metadata.client_version
        for name in sorted(transaction.unmarked):
            try:
                self._write(name, transaction.producer, transaction.commits, version)
                transaction.unmarked.discard(name)
            except (StorageError, Closed) as error:
                failed = error
        return failed

    def permit_again(self, transaction: Transaction) -> None:
        """After a start: the producer of an open transaction may write to its partitions."""
        version = transaction.metadata.client_version
        for partition in self.partitions(transaction):
            try:
                partition.allow_transaction(*transaction.producer, transaction_version=version)
            except (InvalidProducerEpoch, StorageError) as error:
                logger.info("%s does not go on with a transaction: %s", partition.name, error)

    def end_unknown(self, transactions: Collection[Transaction]) -> bool:
        """End what is open in a partition, and in no transaction: something was lost with the power.

        The records of the topic say how. And take over epochs that only partitions know. Returns whether all
        could be ended. Raises StorageError.
        """
        by_producer: dict[int, Transaction] = {}
        for each in transactions:
            by_producer[each.metadata.previous_producer_id] = each
        for each in transactions:
            by_producer[each.metadata.producer_id] = each
        outcomes: dict[ProducerIdAndEpoch, bool] | None = None
        all_ended = True
        for partition in self._store.partitions():
            for transaction, opened in _ended_elsewhere(partition, by_producer):
                if outcomes is None:
                    outcomes = self._log.outcomes()
                version = transaction.metadata.client_version
                epoch = opened.producer_epoch + (version >= RAISES_EPOCHS)
                ended = ProducerIdAndEpoch(opened.producer_id, epoch)
                commit = outcomes.get(ended, False)
                logger.warning(
                    "%s: a transaction of %r is open that has ended elsewhere: %s",
                    partition.name,
                    transaction.transactional_id,
                    "committed" if commit else "aborted",
                )
                try:
                    self._write(partition.name, ended, commit, version)
                except (StorageError, Closed) as error:
                    logger.warning("%s: it is ended later: %s", partition.name, error)
                    all_ended = False
            for producer_id, known in partition.log.known_producers().items():
                if producer_id in by_producer:
                    by_producer[producer_id].raise_epoch(ProducerIdAndEpoch(producer_id, known.epoch))
        return all_ended

    def _partition(self, name: TopicPartition) -> Partition | None:
        """None if it was deleted."""
        try:
            return self._store.partition(*name)
        except (TopicNotFound, PartitionNotFound):
            return None

    def _write(
        self, name: TopicPartition, producer: ProducerIdAndEpoch, commit: bool, transaction_version: int
    ) -> None:
        """Write a marker. Raises StorageError, Closed."""
        partition = self._partition(name)
        if partition is None:
            return
        try:
            if name.topic == OFFSETS_TOPIC:
                self._groups.end_transaction(
                    name.partition, *producer, commit=commit, transaction_version=transaction_version
                )
            else:
                partition.end_transaction(
                    *producer,
                    commit=commit,
                    transaction_version=transaction_version,
                    timestamp_ms=self._store.clock_ms(),
                )
        except (InvalidProducerEpoch, TransactionCoordinatorFenced) as error:
            # The partition is ahead: a later marker has ended the transaction there.
            logger.info("%s needs no marker of producer %d: %s", name, producer.producer_id, error)


def _ended_elsewhere(
    partition: Partition, by_producer: dict[int, Transaction]
) -> Iterator[tuple[Transaction, ProducerIdAndEpoch]]:
    """What is open in a partition, though its transaction has ended."""
    for found in partition.open_transactions():
        transaction = by_producer.get(found.producer_id)
        opened = ProducerIdAndEpoch(found.producer_id, found.producer_epoch)
        if transaction is None or partition.name in transaction.unmarked:
            continue
        goes_on = transaction.is_ongoing and opened == transaction.producer
        if not (goes_on and partition.name in transaction.metadata.partitions):
            yield transaction, opened
