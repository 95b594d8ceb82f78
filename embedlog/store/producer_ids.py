"""Assigns the producer ids of a directory; the next one is in a file.

Invariant: a producer id is assigned once in the life of a directory. The file holds the first id to assign
after the next start; it is durable before any id below it is assigned. Ids found in the log (the file was
lost, or the log was copied) are not assigned again either.
"""

from __future__ import annotations

import json
import weakref
from typing import Final

from ..errors import StorageError
from ..files.filesystem import storage_error
from ..files.names import PRODUCER_IDS_FILE
from ..runtime.locks import Lock
from .store import Store

_VERSION: Final = 1
_LAST_ID: Final = (1 << 63) - 1


class ProducerIds:
    """Assigns the producer ids of a directory. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.proxy(store)
        self._lock = Lock()
        self._next_id = -1  # not read yet; guarded by _lock

    def next(self, count: int) -> range:
        """Unused ids. Raises StorageError."""
        with self._lock:
            if self._next_id < 0:
                largest_ids = (partition.log.largest_producer_id for partition in self._store.partitions())
                self._next_id = max(self._read_next_id(), max(largest_ids, default=-1) + 1)
            first, end = self._next_id, self._next_id + count
            if end > _LAST_ID:
                raise StorageError("no producer ids are left", path=self._store.path)
            text = json.dumps({"version": _VERSION, "next_producer_id": end}).encode()
            try:
                self._store.fs.write_file(self._store.catalog.file(PRODUCER_IDS_FILE), text)
            except OSError as error:
                raise storage_error("producer ids could not be saved", error, self._store.path) from error
            self._next_id = end
            return range(first, end)

    def _read_next_id(self) -> int:
        try:
            ids_json = self._store.catalog.read_json(PRODUCER_IDS_FILE)
        except FileNotFoundError:
            return 0
        number = ids_json.get("next_producer_id")
        if ids_json.get("version") != _VERSION or not isinstance(number, int) or not 0 <= number <= _LAST_ID:
            path = self._store.catalog.file(PRODUCER_IDS_FILE)
            raise StorageError(f"{path} is invalid: producer ids might be assigned twice", path=path)
        return number


# A log is served on a port and on its owner's socket, and has transactions of its own: all assign from here.
_producer_ids: Final[weakref.WeakKeyDictionary[Store, ProducerIds]] = weakref.WeakKeyDictionary()
_creating: Final = Lock()


def producer_ids_of(store: Store) -> ProducerIds:
    """Those of an open store."""
    with _creating:
        producer_ids = _producer_ids.get(store)
        if producer_ids is None:
            producer_ids = _producer_ids[store] = ProducerIds(store)
        return producer_ids
