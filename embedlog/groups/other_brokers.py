"""What a coordinator of transactions asks of a cluster whose other brokers lead some of the partitions.

In a log of its own, or on a standalone broker, all partitions are here, and there is none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from ..model import TopicPartition
from .marker import Marker


class Place(Enum):
    """Where a partition is."""

    HERE = "here"
    ELSEWHERE = "elsewhere"  # on another broker, which may be away
    NOWHERE = "nowhere"  # its topic was deleted


class End(NamedTuple):
    """Which end of a transaction a marker is of. Before transaction.version 2 the markers of an id's
    transactions may be equal, and one that was sent twice would end the next transaction, too."""

    transactional_id: str
    number: int


class OtherBrokers(Protocol):
    """Thread-safe."""

    def place(self, name: TopicPartition) -> Place:
        """Where a partition is."""

    def new_producer_id(self) -> int:
        """One that no broker has assigned. Raises ZooKeeperError, StorageError."""

    def send(self, end: End, name: TopicPartition, marker: Marker, written: Callable[[], None]) -> bool:
        """Have a marker written by the broker that leads the partition, however long that takes.

        `written` is called once it is, or once the topic has been deleted, in another thread and without
        locks. A marker of this end that is being sent to the partition already is not sent twice. Returns
        False if too many are being sent, or if it is not known where the partition is: then nothing is done.
        """


def is_here(other_brokers: OtherBrokers | None, name: TopicPartition) -> bool:
    """Whether a partition is on this broker. Without other brokers each is."""
    return other_brokers is None or other_brokers.place(name) is Place.HERE
