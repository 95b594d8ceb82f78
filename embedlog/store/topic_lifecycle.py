"""The directories of topics: created before topics.json lists the topic, removed after it no longer does.

    clicks_0/               a partition of a topic in topics.json
    <topic id>_0-delete/    of a deleted topic: removed after file_delete_delay_ms, or by the next open
    <topic id>_0-found/     unclaimed records, found where a topic was created: kept

The next open for writing completes what a kill interrupted:

    creating a topic     directories that no topic claims, empty but for an empty segment
    deleting a topic     directories that still have its name: topics.json lists it under `deleting`
    replacing a file     its *.tmp

Invariant: a directory with records is removed only if its topic is under `deleting`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from ..config import TopicSettings
from ..errors import CorruptCheckpoint, StorageError, counted
from ..files.filesystem import TEMPORARY, FileSystem
from ..files.names import INDEX, ROOT_FILES, TIME_INDEX, TOPICS_FILE
from ..model import TopicPartition
from ..runtime.locks import Lock
from .catalog import Catalog
from .quota import Quota
from .topic import StoredTopic
from .topics_journal import is_journal

logger = logging.getLogger(__name__)

_DELETED: Final = "-delete"
_FOUND: Final = "-found"


class TopicDirectories:
    """Creates, renames and removes the directories of topics. Callers hold Store.topics_lock."""

    def __init__(self, fs: FileSystem, catalog: Catalog) -> None:
        self._fs = fs
        self._catalog = catalog

    def path(self, name: TopicPartition) -> str:
        return os.path.join(self._catalog.path, self._catalog.layout.partition_directory(*name))

    def missing(self, name: TopicPartition, topic: StoredTopic) -> CorruptCheckpoint:
        """The error for a partition that has no directory."""
        return CorruptCheckpoint(
            f"topic {name.topic!r} has {counted(topic.partitions, 'partition')}, but {self.path(name)} is "
            "missing: put it back, or create an empty directory of that name to start the partition afresh",
            path=self._catalog.file(TOPICS_FILE),
        )

    def make(self, name: TopicPartition, topic_id: str) -> str:
        """Create a partition's directory; its name is not durable yet. Raises OSError."""
        directory = self.path(name)
        if self._catalog.holds_records(os.path.basename(directory)):
            kept_as = self.path(TopicPartition(topic_id, name.partition)) + _FOUND
            logger.warning(
                "%s holds records, and no topic claims them: keeping them as %s", directory, kept_as
            )
            self._fs.rename(directory, kept_as)
            self._fs.sync_dir(self._catalog.path)
        else:
            self.remove(directory)
        self._fs.make_dir(directory)
        return directory

    def retire(self, topic: StoredTopic) -> list[str]:
        """Rename a deleted topic's directories, durably. Returns the new paths.

        They are fewer than the topic's partitions if some could not be renamed yet.
        """
        retired = []
        for name in topic.names():
            # Named by the id: the longest topic name leaves no room for a suffix in a file name.
            path = self.path(TopicPartition(topic.topic_id, name.partition)) + _DELETED
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rename(self.path(name), path)
                retired.append(path)
            except OSError:
                logger.exception("%s stays until the next open, but its topic is deleted", self.path(name))
        try:
            self._fs.sync_dir(self._catalog.path)
        except OSError:
            logger.exception("the next open completes the deletion of topic %s", topic.name)
            return []
        return retired

    def remove(self, directory: str) -> None:
        """Remove a directory and the files in it, if it is there. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            for entry in self._fs.list(directory):
                self._fs.unlink(os.path.join(directory, entry.name))
            self._fs.remove_dir(directory)

    def clear_leftovers(self, topics: Mapping[str, StoredTopic]) -> None:
        """Remove what a kill or a full disk has left of creations, deletions and small files.

        `topics` are those in topics.json, which no journal continues. Raises OSError.
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
        """Whether it holds no more than the creation of a partition leaves."""
        stem = self._catalog.layout.stem(0)
        records = self._catalog.layout.segment(0)
        ours = (records, stem + INDEX, stem + TIME_INDEX)
        return all(
            entry.name.removesuffix(TEMPORARY) in ours and not (entry.name == records and entry.size)
            for entry in self._fs.list(directory)
        )


class TopicDeletions:
    """Completes the deletions of topics, and tells listeners of them."""

    def __init__(
        self,
        catalog: Catalog,
        directories: TopicDirectories,
        quota: Quota,
        settings_of: Callable[[StoredTopic], TopicSettings],
    ) -> None:
        self._catalog = catalog
        self._directories = directories
        self._quota = quota
        self._settings_of = settings_of
        self._listeners: list[Callable[[str], None]] = []  # only grows, without a lock
        self._pending: list[str] = []  # appended to under Store.topics_lock, removed from under _notifying
        self._notifying = Lock()

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the name of each topic deleted from now on, before delete_topic returns.

        If Ctrl-C ends `delete_topic`, it is called before a topic of that name is created again.
        """
        self._listeners.append(listener)

    def finish(self, topic: StoredTopic, topics: Mapping[str, StoredTopic]) -> bool:
        """Rename the topic's directories, to remove them later. False if some could not be renamed yet.

        `topics` are those that exist. The caller holds Store.topics_lock.
        """
        retired = self._directories.retire(topic)
        for path in retired:
            delay_ms = self._settings_of(topic).file_delete_delay_ms
            self._quota.remove_later(path, delay_ms, functools.partial(self._directories.remove, path))
        if len(retired) < topic.partitions:
            return False
        deleting = {**self._catalog.deleting}
        deleting.pop(topic.name, None)
        try:
            self._catalog.replace_topics(topics, topics, deleting)
        except StorageError:
            logger.exception("topic %s is deleted; the next open completes its removal", topic.name)
        return True

    def add(self, name: str) -> None:
        """A topic was deleted: the next `notify` tells of it."""
        self._pending.append(name)

    def is_pending(self, name: str) -> bool:
        """Whether a topic of that name was deleted, and the listeners have not been told."""
        return name in self._pending

    def notify(self) -> None:
        """Tell the listeners. The caller holds no lock that they may need."""
        with self._notifying:
            for name in tuple(self._pending):
                for listener in self._listeners:
                    listener(name)
                self._pending.remove(name)
