"""Ends transactions in their partitions: markers, and what a start finds open.

A marker may be written more than once, and one that comes late changes nothing: the partition knows a later
epoch then. So each step here may be repeated until it succeeds. The coordinator calls it with its lock held.

In a cluster other brokers write the markers of the partitions that they lead (other_brokers.py); this one
hears of it later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TypeAlias

from ..errors import (
    BrokerUnavailable,
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
from .machines.transaction import RAISES_EPOCHS, ProducerIdAndEpoch, Transaction
from .marker import Marker
from .offsets import OFFSETS_TOPIC
from .other_brokers import End, OtherBrokers, Place, is_here
from .transaction_log import TransactionLog

logger = logging.getLogger(__name__)

Written: TypeAlias = Callable[[End, TopicPartition], None]
"""Called when another broker has written the marker of a prepared end."""


class TransactionMarkers:
    """Writes the markers of a store's transactions.

    Args:
        other_brokers: the other brokers; None if all partitions are here.
        written: called in another thread, without locks.
    """

    def __init__(
        self,
        store: Store,
        groups: GroupCoordinator,
        log: TransactionLog,
        other_brokers: OtherBrokers | None,
        written: Written,
    ) -> None:
        self._store = store
        self._groups = groups
        self._log = log
        self._other_brokers = other_brokers
        self._written = written

    def partitions(self, transaction: Transaction) -> list[Partition]:
        """The partitions of a transaction that are here, without those that were deleted."""
        here = [name for name in transaction.metadata.partitions if is_here(self._other_brokers, name)]
        return [partition for partition in map(self._partition, here) if partition is not None]

    def write_missing(self, transaction: Transaction, end: End) -> EmbedlogError | None:
        """Write the markers of a prepared end that may be missing, or have them written. Returns an error if
        that has to be tried again."""
        failed: EmbedlogError | None = None
        marker = self._marker(transaction, transaction.producer, transaction.commits)
        for name in sorted(transaction.unmarked):
            if self._other_brokers is not None and self._other_brokers.place(name) is Place.ELSEWHERE:
                if not self._other_brokers.send(end, name, marker, partial(self._written, end, name)):
                    why = "its broker is not known, or too many markers wait for it"
                    failed = BrokerUnavailable(f"{name}: {why}")
                continue
            try:
                self._write(name, marker)
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
        could be ended. Of partitions of other brokers nothing is known. Raises StorageError.
        """
        by_producer = {transaction.metadata.previous_producer_id: transaction for transaction in transactions}
        by_producer |= {transaction.metadata.producer_id: transaction for transaction in transactions}
        outcomes: dict[ProducerIdAndEpoch, bool] | None = None
        all_ended = True
        for partition in self._store.partitions():
            for transaction, opened in _ended_elsewhere(partition, by_producer):
                if outcomes is None:
                    outcomes = self._log.outcomes()
                raises_epoch = transaction.metadata.client_version >= RAISES_EPOCHS
                ended = ProducerIdAndEpoch(opened.producer_id, opened.producer_epoch + raises_epoch)
                commit = outcomes.get(ended, False)
                logger.warning(
                    "%s: a transaction of %r is open that has ended elsewhere: %s",
                    partition.name,
                    transaction.transactional_id,
                    "committed" if commit else "aborted",
                )
                try:
                    self._write(partition.name, self._marker(transaction, ended, commit))
                except (StorageError, Closed) as error:
                    logger.warning("%s: it is ended later: %s", partition.name, error)
                    all_ended = False
            for producer_id, producer_state in partition.log.known_producers().items():
                if producer_id in by_producer:
                    by_producer[producer_id].raise_epoch(
                        ProducerIdAndEpoch(producer_id, producer_state.epoch)
                    )
        return all_ended

    def _marker(self, transaction: Transaction, producer: ProducerIdAndEpoch, commit: bool) -> Marker:
        epoch = 0 if self._other_brokers is None else self._log.leader_epoch(transaction.transactional_id)
        return Marker(*producer, commit, transaction.metadata.client_version, epoch)

    def _partition(self, name: TopicPartition) -> Partition | None:
        """None if it was deleted."""
        if self._other_brokers is not None and self._other_brokers.place(name) is Place.NOWHERE:
            return None
        try:
            return self._store.partition(*name)
        except (TopicNotFound, PartitionNotFound):
            return None

    def _write(self, name: TopicPartition, marker: Marker) -> None:
        """Write a marker here. Raises StorageError, Closed."""
        partition = self._partition(name)
        if partition is None:
            return
        try:
            self._append(partition, marker)
        except TransactionCoordinatorFenced:
            # By an administrator's marker, say: a later coordinator than this one there is not.
            coordinator_epoch = partition.log.known_producers()[marker.producer_id].coordinator_epoch
            self._write(name, marker._replace(coordinator_epoch=coordinator_epoch))
        except InvalidProducerEpoch as error:
            # The partition is ahead: a later marker has ended the transaction there.
            logger.info("%s needs no marker of producer %d: %s", name, marker.producer_id, error)

    def _append(self, partition: Partition, marker: Marker) -> None:
        if partition.name.topic == OFFSETS_TOPIC:
            self._groups.end_transaction(partition.name.partition, marker)
        else:
            marker.write(partition, self._store.clock_ms())


def _ended_elsewhere(
    partition: Partition, by_producer: dict[int, Transaction]
) -> Iterator[tuple[Transaction, ProducerIdAndEpoch]]:
    """What is open in a partition, though its transaction has ended."""
    for open_transaction in partition.open_transactions():
        transaction = by_producer.get(open_transaction.producer_id)
        opened = ProducerIdAndEpoch(open_transaction.producer_id, open_transaction.producer_epoch)
        if transaction is None or partition.name in transaction.unmarked:
            continue
        goes_on = transaction.is_ongoing and opened == transaction.producer
        if not (goes_on and partition.name in transaction.metadata.partitions):
            yield transaction, opened
