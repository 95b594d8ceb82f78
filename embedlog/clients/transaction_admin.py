"""Administration of transactions: what `log.transactions()` returns. The command line prints the same.

Source of the idea: Kafka's kafka-transactions.sh and its Admin client (KIP-664).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..backends.port import Backend
from ..files.names import OFFSETS_TOPIC
from ..model import TopicPartition
from ..wire.offsets_topic import partition_for
from ..wire.transaction_state import TransactionMetadata, TransactionState

_STATES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}


class TransactionDescription(NamedTuple):
    """A transactional id and its last transaction.

    `state` has Kafka's names. "Empty": the producer has not begun a transaction. "Ongoing": one is open.
    "PrepareCommit", "PrepareAbort": it is being ended, which lasts only if a partition has failed.
    "CompleteCommit", "CompleteAbort": it has ended. `partitions` are those of a transaction that has not
    ended, including those of `__consumer_offsets`. `start_ms` is -1 before the first transaction.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    last_update_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether readers that are `read_committed` wait for it."""
        return self.state in ("Ongoing", "PrepareCommit", "PrepareAbort")


def describe_transactions(backend: Backend) -> list[TransactionDescription]:
    """All transactional ids, sorted. Raises UnsupportedByBackend, StorageError, CorruptRecord, Closed."""
    return [_described(*stored) for stored in sorted(backend.stored_transactions().items())]


def held_back_by(backend: Backend, partitions: list[TopicPartition]) -> dict[TopicPartition, list[str]]:
    """The ids of the open transactions of these partitions; only partitions that have some."""
    ids_by_partition: dict[TopicPartition, list[str]] = {}
    for transaction in describe_transactions(backend):
        if transaction.is_open:
            for name in partitions:
                if name in transaction.partitions:
                    ids_by_partition.setdefault(name, []).append(transaction.transactional_id)
    return ids_by_partition


def pending_offsets_by(
    backend: Backend, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[str]]:
    """For each of these partitions, the open transactions that may change the group's committed offset."""
    count = backend.describe_topic(OFFSETS_TOPIC).partitions
    stored = TopicPartition(OFFSETS_TOPIC, partition_for(group, count))
    ids = [
        transaction.transactional_id
        for transaction in describe_transactions(backend)
        if transaction.is_open and stored in transaction.partitions
    ]
    return {name: list(ids) for name in sorted(partitions)} if ids else {}


def _described(transactional_id: str, metadata: TransactionMetadata) -> TransactionDescription:
    return TransactionDescription(
        transactional_id,
        _STATES[metadata.state],
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.timeout_ms,
        metadata.start_ms,
        metadata.last_update_ms,
        tuple(sorted(metadata.partitions)),
    )
