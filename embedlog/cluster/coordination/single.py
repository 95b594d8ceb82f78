"""Coordination of a standalone broker: it leads everything and keeps the next producer id in a file.

Invariant: a producer id is assigned once in the life of a directory. The file holds the first id to assign
after the next start; it is durable before any id below it is assigned. Ids found in the log (the file was
lost, or the log was copied) are not assigned again either.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...errors import PartitionNotFound, StorageError, TopicNotFound
from ...files.names import PRODUCER_IDS_FILE
from ...model import TopicPartition
from ...store.store import Store
from .assignment import check_assignment
from .port import UNKNOWN_PLACEMENT, Assignment, BrokerAddress, Placement

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_LAST_ID: Final = (1 << 63) - 1


class SingleBroker:
    """Implements `port.Coordination` over a store. Thread-safe."""

    is_current = True
    consumer_offsets = None

    def __init__(self, store: Store, address: BrokerAddress) -> None:
        self._store = store
        self._address = address
        self._lock = threading.Lock()
        self._next_id = -1  # not read yet

    @property
    def cluster_id(self) -> str:
        return self._store.catalog.log_id

    @property
    def node_id(self) -> int:
        return self._address.node_id

    def brokers(self) -> list[BrokerAddress]:
        return [self._address]

    def controller_id(self) -> int:
        return self._address.node_id

    def placement(self, partition: TopicPartition) -> Placement:
        own = self._address.node_id
        try:
            epoch = self._store.partition(*partition).log.current_epoch
        except (TopicNotFound, PartitionNotFound):
            return UNKNOWN_PLACEMENT
        return Placement(own, epoch, (own,), (own,))

    def leads(self, partition: TopicPartition) -> bool:
        return True

    def coordinator_of(self, group: str) -> BrokerAddress | None:
        return self._address

    def coordinates(self, group: str) -> bool:
        return True

    def unknown_topics(self, topics: Iterable[str]) -> frozenset[str]:
        return frozenset(topics).difference(self._store.topics())

    def catch_up(self, topics: Iterable[str]) -> None:
        pass  # there is no other broker

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        assignment: Assignment | None = None,
    ) -> None:
        check_assignment(assignment or {}, [self._address.node_id])
        self._store.create_topic(name, partitions, settings)

    def create_partitions(self, name: str, count: int, assignment: Assignment | None = None) -> None:
        check_assignment(assignment or {}, [self._address.node_id])
        self._store.create_partitions(name, count)

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        self._store.alter_topic(name, changes)

    def delete_topic(self, name: str) -> None:
        self._store.delete_topic(name)

    # -- producer ids ----------------------------------------------------------------------------------

    def next_producer_ids(self, count: int) -> range:
        with self._lock:
            if self._next_id < 0:
                in_log = (partition.log.largest_producer_id for partition in self._store.partitions())
                self._next_id = max(self._read_next_id(), max(in_log, default=-1) + 1)
            first, end = self._next_id, self._next_id + count
            if end > _LAST_ID:
                raise StorageError("no producer ids are left", path=self._store.path)
            text = json.dumps({"version": _VERSION, "next_producer_id": end}).encode()
            try:
                self._store.fs.write_file(self._store.catalog.file(PRODUCER_IDS_FILE), text)
            except OSError as error:
                raise StorageError(
                    f"producer ids could not be saved: {error}", path=self._store.path
                ) from error
            self._next_id = end
            return range(first, end)

    def _read_next_id(self) -> int:
        try:
            found = self._store.catalog.read_json(PRODUCER_IDS_FILE)
        except FileNotFoundError:
            return 0
        number = found.get("next_producer_id")
        if found.get("version") != _VERSION or not isinstance(number, int) or not 0 <= number <= _LAST_ID:
            path = self._store.catalog.file(PRODUCER_IDS_FILE)
            raise StorageError(f"{path} is invalid: producer ids might be assigned twice", path=path)
        return number
