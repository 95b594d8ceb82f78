"""A log directory as a process sees it that does not write it: everything is readable, nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..config import TopicSettings
from ..errors import (
    Closed,
    ForkedHandle,
    PartitionNotFound,
    StorageError,
    TopicNotFound,
    TopicRecreated,
    shown,
)
from ..files.descriptors import Descriptors
from ..files.filesystem import FileSystem
from ..files.names import TOPICS_FILE, check_topic_name
from ..index import IndexCache
from ..model import PartitionOffsets, Record, TopicDescription, TopicPartition
from ..runtime.locks import Lock
from ..segment import Files
from .catalog import Catalog
from .read_only_partition import ReadOnlyPartition, Stamp, WriterView, stamp_of
from .topic import StoredTopic

_OPEN_FILES: Final = 64


class ReadOnlyStore:
    """A log directory, open for reading. All methods are safe between threads."""

    def __init__(
        self,
        path: str,
        *,
        layout: str | None = None,
        topic_settings: Mapping[str, Any] | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        """Raises DirectoryError and its children, CorruptCheckpoint, InvalidSetting."""
        self.fs = fs or FileSystem()
        self.catalog = Catalog(self.fs, path)
        self.catalog.load(layout)
        self.defaults = TopicSettings().with_changes(topic_settings or {})
        self.descriptors = Descriptors(self.fs, _OPEN_FILES)
        self.files = Files(self.fs, self.descriptors, IndexCache(), self.catalog.layout, writable=False)
        self.writer = WriterView(self.fs, self.catalog)
        self._closed = self._forked = False  # set once, without a lock
        self._lock = Lock()
        # All below are guarded by _lock.
        self._topics: dict[str, StoredTopic] = {}
        self._topics_file: tuple[Stamp | None, Stamp | None] = None, None  # and that of its journal
        self._topics_fd = -1
        self._partitions: dict[TopicPartition, ReadOnlyPartition] = {}

    @property
    def path(self) -> str:
        return self.catalog.path

    def topics(self) -> list[str]:
        with self._lock:
            return sorted(self._refreshed())

    def topic(self, name: str) -> StoredTopic:
        """Raises TopicNotFound, Closed, InvalidTopicName."""
        with self._lock:
            return self._topic(name)

    def topic_id(self, name: str) -> str:
        """The id of the topic that has this name now; "" if none has."""
        with self._lock:
            topic = self._refreshed().get(name)
        return "" if topic is None else topic.topic_id

    def describe_topic(self, name: str) -> TopicDescription:
        return self.topic(name).description()

    def topic_settings(self, name: str) -> TopicSettings:
        return self._settings_of(self.topic(name))

    def _settings_of(self, topic: StoredTopic) -> TopicSettings:
        return self.defaults.with_changes(topic.settings)

    def partition(self, topic: str, number: int) -> ReadOnlyPartition:
        """Raises TopicNotFound, PartitionNotFound, Closed."""
        with self._lock:
            catalog_topic = self._topic(topic)
            if not isinstance(number, int) or not 0 <= number < catalog_topic.partitions:
                raise PartitionNotFound(
                    f"topic {topic!r} has partitions 0 to {catalog_topic.partitions - 1}, not {shown(number)}"
                )
            name = TopicPartition(topic, number)
            partition = self._partitions.get(name)
            if partition is None:
                directory, settings = self.directory(name), self._settings_of(catalog_topic)
                gaps = catalog_topic.gaps or settings.compacts
                partition = self._partitions[name] = ReadOnlyPartition(
                    name, directory, self.writer, self.files, self.check_current, settings, gaps
                )
            return partition

    def record_at(self, topic: str, number: int, offset: int) -> Record | None:
        """See `LogReader.record_at`. Raises as `partition`, or returns None, if the topic is gone."""
        partition = self._partitions.get((topic, number))  # type: ignore[call-overload]  # equal to the name
        return (partition or self.partition(topic, number)).record_at(offset)

    def partitions_of(self, topic: str) -> list[ReadOnlyPartition]:
        return [self.partition(topic, number) for number in range(self.topic(topic).partitions)]

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        return {p.name.partition: p.offsets() for p in self.partitions_of(topic)}

    def directory(self, name: TopicPartition) -> str:
        return os.path.join(self.path, self.catalog.layout.partition_directory(*name))

    def check_current(self, partition: ReadOnlyPartition) -> None:
        """Raise TopicNotFound or TopicRecreated if the topic was deleted, Closed if the log is closed."""
        try:
            current = self.partition(*partition.name)
        except PartitionNotFound:  # the new topic has fewer partitions
            current = None
        if current is not partition:
            raise TopicRecreated(f"{partition.name}: the topic was deleted, and another one has its name now")

    def check_open(self) -> None:
        if self._forked:
            raise ForkedHandle(f"{self.path} was opened before this process was forked: open it again here")
        if self._closed:
            raise Closed(f"the log {self.path} is closed")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.descriptors.close()
            self.writer.close()
            if self._topics_fd >= 0:
                self.fs.close(self._topics_fd)
                self._topics_fd = -1

    def abandon(self) -> None:
        """In a forked child: wait for no inherited lock."""
        self._closed = self._forked = True
        self._lock = Lock()
        self.writer.abandon()
        self._partitions = {}
        self.descriptors.abandon()

    def _topic(self, name: str) -> StoredTopic:
        """The caller holds the lock."""
        topic = self._refreshed().get(name) if isinstance(name, str) else None
        if topic is None:
            check_topic_name(name)
            raise TopicNotFound(f"no topic {name!r} in {self.path}; the process that writes it can make one")
        return topic

    def _refreshed(self) -> dict[str, StoredTopic]:
        """The topics as the file has them now. The caller holds the lock."""
        self.check_open()
        journal = self.catalog.journal_name
        stamp = self._stamp(TOPICS_FILE), None if journal is None else self._stamp(journal)
        if stamp[0] is not None and stamp == self._topics_file:
            return self._topics
        old_fd = self._topics_fd
        try:
            # Kept open, so that the next topics.json cannot get the same inode.
            self._topics_fd = self.fs.open_read(self.catalog.file(TOPICS_FILE))
        except FileNotFoundError:
            self._topics_fd = -1
        except OSError as error:
            raise self._unreadable(error) from error
        if old_fd >= 0:
            self.fs.close(old_fd)
        before = self._topics
        try:
            self._topics = self.catalog.load_topics()
        except OSError as error:
            raise self._unreadable(error) from error
        self._topics_file = stamp
        for name, partition in list(self._partitions.items()):
            topic = self._topics.get(name.topic)
            if topic is None or topic.topic_id != before[name.topic].topic_id:
                self._partitions.pop(name).close_files()
            else:
                settings = self._settings_of(topic)
                partition.set_settings(settings, topic.gaps or settings.compacts)
        return self._topics

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(f"{self.path}: the topics cannot be read: {error}", path=self.path)

    def _stamp(self, file: str) -> Stamp | None:
        return stamp_of(self.fs, self.catalog, file)
