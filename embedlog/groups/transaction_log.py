"""What transactional ids have done last: stored in the compacted topic `__transaction_state`.

The last record of an id counts (wire/transaction_state.py). The topic has one partition; in a cluster it is
made with more, which its brokers share. The ids are hashed as in Kafka. Appends to the topic do not count
against max_bytes: a full log must let transactions end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ..errors import CorruptRecord, InvalidArgument, shown
from ..files.names import TRANSACTION_STATE_TOPIC
from ..model import Headers, PartitionState, Record, TopicPartition
from ..partition import Partition
from ..storage.reader import ReadablePartition
from ..store.store import Store
from ..wire.offsets_topic import partition_for
from ..wire.transaction_state import (
    TransactionMetadata,
    TransactionState,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from .machines.transaction import ProducerIdAndEpoch
from .other_brokers import OtherBrokers, is_here
from .producer_processes import HEADER as PROCESS_HEADER
from .topic_records import each_record

logger = logging.getLogger(__name__)

TOPIC_SETTINGS: Final = {
    "cleanup_policy": "compact",
    "compression_type": "producer",
    "segment_bytes": 16 << 20,  # compaction spares the last segment: little is left to read
}
"""Those of the topic, when it is created."""


class TransactionLog:
    """The topic in a store. Safe between threads.

    Args:
        other_brokers: those of a cluster, which have some of the partitions; None if all are here.
    """

    def __init__(self, store: Store, other_brokers: OtherBrokers | None) -> None:
        self._store = store
        self._other_brokers = other_brokers
        self._places: dict[str, tuple[bytes, Partition]] = {}  # id -> its key and its partition

    def append(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Store what an id has come to; None: it is forgotten. The first use creates the topic, but for a
        cluster's.

        Raises InvalidArgument for an id above 32,767 bytes, and for one that another broker coordinates;
        otherwise as `Partition.append`.
        """
        place = self._places.get(transactional_id)
        if place is None:
            place = self._places[transactional_id] = (
                encode_key(transactional_id),
                self._partition_of(transactional_id),
            )
        key, partition = place
        value = None if metadata is None else encode_value(metadata)
        headers: Headers = ()
        if metadata is not None and metadata.process:
            headers = ((PROCESS_HEADER, metadata.process.encode()),)
        partition.append_one(key, value, self._store.clock_ms(), headers=headers)
        if metadata is None:
            self._places.pop(transactional_id, None)

    def flush(self, transactional_id: str) -> None:
        """Make what is stored of an id durable. Callers share fsyncs. Raises FlushFailed."""
        self._partition_of(transactional_id).flush()

    def leader_epoch(self, transactional_id: str) -> int:
        """The leader epoch of an id's partition: that of its coordinator."""
        return self._partition_of(transactional_id).log.current_epoch

    def read(self) -> dict[str, TransactionMetadata]:
        """The last record of each id. What cannot be decoded is logged and skipped.

        Raises PartitionFailed: a flush has failed, so that the last records are hidden until the partition is
        reopened, and may come back then. CorruptRecord if a batch is damaged, StorageError.
        """
        partitions = self._partitions_here()
        for partition in partitions:
            _check_online(partition)
        transactions = read_transactions(partitions)
        for partition in partitions:
            _check_online(partition)
        return transactions

    def outcomes(self) -> dict[ProducerIdAndEpoch, bool]:
        """Whether transactions were committed, by the epoch of their markers. The topic forgets
        the older ones. Raises as `read`.
        """
        outcomes = {}
        for partition in self._partitions_here():
            for record in each_record(partition):
                try:
                    metadata = decode_value(record.value or b"")
                except CorruptRecord:  # a tombstone, or `read` has told
                    continue
                if metadata.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
                    ended = ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)
                    outcomes[ended] = metadata.state is TransactionState.PREPARE_COMMIT
        return outcomes

    def _partitions(self) -> tuple[Partition, ...]:
        return self._store.by_topic.get(TRANSACTION_STATE_TOPIC, ())

    def _partitions_here(self) -> list[Partition]:
        return [partition for partition in self._partitions() if is_here(self._other_brokers, partition.name)]

    def _partition_of(self, transactional_id: str) -> Partition:
        if not self._partitions() and self._other_brokers is None:
            self._store.create_topic(TRANSACTION_STATE_TOPIC, 1, TOPIC_SETTINGS, exist_ok=True)
        partitions = self._partitions()
        if partitions:
            partition = partitions[partition_for(transactional_id, len(partitions))]
            if is_here(self._other_brokers, partition.name):
                return partition
        raise InvalidArgument(f"another broker coordinates transactional id {shown(transactional_id)}")


def read_transactions(partitions: Sequence[ReadablePartition]) -> dict[str, TransactionMetadata]:
    """The last record of each id in these partitions of the topic. What cannot be decoded is logged and
    skipped. Raises CorruptRecord if a batch is damaged, StorageError."""
    last: dict[bytes | None, Record] = {}
    for partition in partitions:
        for record in each_record(partition):
            last[record.key] = record
    transactions = {}
    for key, record in last.items():
        try:
            if record.value is not None:
                process = (dict(record.headers).get(PROCESS_HEADER) or b"").decode(errors="replace")
                transactions[decode_key(key)] = decode_value(record.value)._replace(process=process)
        except CorruptRecord as error:
            name = TopicPartition(record.topic, record.partition)
            logger.warning("%s offset %d: %s", name, record.offset, error)
    return transactions


def _check_online(partition: Partition) -> None:
    if partition.state is not PartitionState.ONLINE:
        raise partition.log.refusal()
