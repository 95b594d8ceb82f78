"""Fences off a log that has moved: a durable mark in topics.json that keeps every writer out (catalog.py).

The mark is set under the writer's lock, and all that was appended before is durable by then. So no append is
acknowledged here after it. Readers go on.
"""

from __future__ import annotations

import contextlib
import os

from ..files.filesystem import FileSystem, storage_error
from ..validation import as_path
from .catalog import Catalog, Moved
from .store import Store


def fence(path: str | os.PathLike[str], to: str) -> None:
    """Mark the log as moved to an address, durably.

    Raises DirectoryLocked while a process has it open for writing, LogMoved if it has moved already, and what
    opening a log raises.
    """
    with contextlib.closing(Store(as_path(path), background=False, passing=True)) as store:
        store.mark_moved(to)


def moved(path: str | os.PathLike[str]) -> Moved | None:
    """Where the log has moved; None if it is here. Takes no lock.

    Raises DirectoryError, CorruptCheckpoint, StorageError.
    """
    catalog = Catalog(FileSystem(), as_path(path))
    catalog.load(None)
    catalog.load_topics()
    return catalog.moved


def unfence(path: str | os.PathLike[str]) -> Moved | None:
    """Take the mark away, durably; returns what it said.

    Raises DirectoryLocked and other DirectoryErrors, CorruptCheckpoint, StorageError.
    """
    fs = FileSystem()
    catalog = Catalog(fs, as_path(path))
    catalog.load(None)
    lock = catalog.writer_lock.acquire()
    try:
        topics = catalog.load_topics()
        mark = catalog.moved
        if mark is not None:
            catalog.mark_moved(topics, None)
        return mark
    except OSError as error:
        raise storage_error(
            f"the mark of {catalog.path} cannot be taken away", error, catalog.path
        ) from error
    finally:
        fs.close(lock)
