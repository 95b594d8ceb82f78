"""A transaction's marker: what is written into each of its partitions, by this broker or another one."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..partition import Partition

NO_COORDINATOR_EPOCH: Final = -1
"""On the wire: the partition's own is written."""


class Marker(NamedTuple):
    """It ends a producer's transaction.

    producer_epoch: with transaction_version 2 one more than that of the transaction's batches.
    coordinator_epoch: that of its coordinator; a partition refuses an earlier one than it knows.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    coordinator_epoch: int = 0

    def write(self, partition: Partition, now_ms: int) -> None:
        """Raises as `Partition.end_transaction`."""
        partition.end_transaction(
            self.producer_id,
            self.producer_epoch,
            commit=self.commit,
            transaction_version=self.transaction_version,
            coordinator_epoch=self.coordinator_epoch,
            timestamp_ms=now_ms,
        )
