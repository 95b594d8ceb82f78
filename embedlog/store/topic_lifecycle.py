"""The directories of topics: made before a topic stands in topics.json, gone after it stands there no more.

    clicks_0/               a partition's, of a topic that stands in topics.json
    <topic id>_0-delete/    a deleted topic's: removed after file_delete_delay_ms, or at the next open
    <topic id>_0-found/     records that belonged to no topic where one was made: kept

A kill leaves behind, and the next open for writing removes:

    while a topic is made       directories that no topic claims, with nothing in them but an empty segment
    while a topic is deleted    directories that still have its name: topics.json has it under `deleting`
    while a file is replaced    its *.tmp

Invariant: no directory with records is removed but that of a topic under `deleting`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import CorruptCheckpoint, counted
from ..files.filesystem import TEMPORARY, FileSystem
from ..files.names import INDEX, ROOT_FILES, TIME_INDEX, TOPICS_FILE
from ..model import TopicPartition
from .catalog import Catalog
from .topic import Topic
from .topics_journal import is_journal

logger = logging.getLogger(__name__)

_DELETED: Final = "-delete"
_FOUND: Final = "-found"


class TopicDeletions:
    """Tells listeners which topics were deleted."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []  # only grows, without a lock
        self._pending: list[str] = []  # appended to under Store.topics_lock, removed from under _notifying
        self._notifying = threading.Lock()

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the name of each topic deleted from now on, before delete_topic returns.

        If Ctrl-C ends `delete_topic`, it is called before a topic of that name is created again.
        """
        self._listeners.append(listener)

    def add(self, name: str) -> None:
        """A topic was deleted: the next `notify` tells of it."""
        self._pending.append(name)

    def is_pending(self, name: str) -> bool:
        """Was a topic of that name deleted, and the listeners have not been told?"""
        return name in self._pending

    def notify(self) -> None:
        """Tell the listeners. The caller holds no lock that they may need."""
        with self._notifying:
            for name in tuple(self._pending):
                for listener in self._listeners:
                    listener(name)
                self._pending.remove(name)


class TopicDirectories:
    """What one store does with the directories of its topics. Callers take turns."""

    def __init__(self, fs: FileSystem, catalog: Catalog) -> None:
        self._fs = fs
        self._catalog = catalog

    def path(self, name: TopicPartition) -> str:
        return os.path.join(self._catalog.path, self._catalog.layout.partition_directory(*name))

    def missing(self, name: TopicPartition, topic: Topic) -> CorruptCheckpoint:
        """The error for a partition that has no directory."""
        return CorruptCheckpoint(
            f"topic {name.topic!r} is to have {counted(topic.partitions, 'partition')}, but "
            f"{self.path(name)} is missing: put it back, or make an empty directory of that name to begin "
            "the partition anew",
            path=self._catalog.file(TOPICS_FILE),
        )

    def make(self, name: TopicPartition, topic_id: str) -> str:
        """An empty directory for a partition; its name is not durable yet. Raises OSError."""
        directory = self.path(name)
        if self._catalog.holds_records(os.path.basename(directory)):
            aside = self.path(TopicPartition(topic_id, name.partition)) + _FOUND
            logger.warning("%s holds records that belong to no topic: they are kept as %s", directory, aside)
            self._fs.rename(directory, aside)
            self._fs.sync_dir(self._catalog.path)
        else:
            self.remove(directory)
        self._fs.make_dir(directory)
        return directory

    def retire(self, topic: Topic) -> list[str]:
        """Take a deleted topic's directories out of the way, durably: what is to be removed later.

        Fewer than it has partitions where some keep their names for now.
        """
        retired = []
        for name in topic.names():
            # Named by the id, as the longest of topic names leaves no room in a file name for more.
            path = self.path(TopicPartition(topic.topic_id, name.partition)) + _DELETED
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rename(self.path(name), path)
                retired.append(path)
            except OSError:
                logger.exception("%s stays until the next open, though its topic is deleted", self.path(name))
        try:
            self._fs.sync_dir(self._catalog.path)
        except OSError:
            logger.exception("the deletion of topic %s is completed at the next open", topic.name)
            return []
        return retired

    def remove(self, directory: str) -> None:
        """Remove a directory and the files in it, if it is there. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            for entry in self._fs.list(directory):
                self._fs.unlink(os.path.join(directory, entry.name))
            self._fs.remove_dir(directory)

    def clear_leftovers(self, topics: Mapping[str, Topic]) -> None:
        """Remove what a kill, or a disk without room, has left of creations, deletions and small files.

        `topics` are those that stand in topics.json, which no journal may continue. Raises OSError.
        """
        for name in self._fs.names(self._catalog.path):
            path = os.path.join(self._catalog.path, name)
            if is_journal(name) or (name.endswith(TEMPORARY) and name.startswith(ROOT_FILES)):
                self._fs.unlink(path)
                continue
            partition = self._catalog.layout.parse_partition_directory(name)
            unclaimed = partition is not None and not self._catalog.claimed(partition, topics)
            with contextlib.suppress(NotADirectoryError):
                if name.endswith(_DELETED) or (unclaimed and self._is_unfinished(path)):
                    self.remove(path)

    def _is_unfinished(self, directory: str) -> bool:
        """Is it as the making of a partition leaves it at most?"""
        stem = self._catalog.layout.stem(0)
        records = self._catalog.layout.segment(0)
        ours = (records, stem + INDEX, stem + TIME_INDEX)
        return all(
            entry.name.removesuffix(TEMPORARY) in ours and not (entry.name == records and entry.size)
            for entry in self._fs.list(directory)
        )
