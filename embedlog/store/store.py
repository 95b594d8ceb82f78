"""A log directory, open for writing by one process: topics, partitions, and the parts that serve them.

    catalog            the small files at the root, and the writer's lock
    by_topic           topic -> its partitions; PartitionOpener opens and recovers them
    host               passes the partitions' events to flusher, checkpointer, cleaner and quota
    background         the threads in which these run
    deletions          deleted topics: their directories, and who wants to know

Opening: take the lock, read the catalog, open each partition (recovering those that were not closed cleanly),
complete an interrupted atomic append, write the recovery points, tell readers. Closing does the reverse, and
leaves a note that lets the next open read nothing but directories.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..config import LogSettings, TopicSettings
from ..errors import (
    Closed,
    ForkedHandle,
    NotALog,
    PartitionNotFound,
    StorageError,
    TopicExists,
    TopicNotFound,
    shown,
)
from ..files.descriptors import Descriptors, default_open_files
from ..files.filesystem import FileSystem, storage_error
from ..files.names import (
    FORGETTING_OFFSETS,
    INTENT_FILE,
    UNBOUNDED_TOPICS,
    WRITER_STATE_FILE,
    check_not_internal,
    check_topic_name,
    colliding_topic,
)
from ..index import IndexCache
from ..model import (
    PartitionOffsets,
    PartitionRecovery,
    Record,
    RecoveryReport,
    TopicDescription,
    TopicPartition,
)
from ..partition import Partition
from ..recovery import CleanEnd, Progress
from ..retention import Holds, name_policies
from ..runtime.locks import ReentrantLock
from ..runtime.parallel import uncollected
from ..runtime.uninterruptible import whole
from ..segment import Files
from ..storage.writer_state import WriterState
from .append_files import AppendFiles
from .background import Background
from .catalog import Catalog, Moved
from .checkpointer import Checkpointer
from .cleaner import Cleaner
from .disk_usage import blocks, counting
from .flusher import Flusher
from .guarded import GuardedFileSystem
from .partition_host import StoreHost
from .partition_opener import LastRun, PartitionOpener
from .quota import Quota
from .topic import StoredTopic, check_more_partitions, check_partition_count, new_id
from .topic_lifecycle import TopicDeletions, TopicDirectories

logger = logging.getLogger(__name__)

_OF_INTERNAL_TOPICS = frozenset({"flush_messages", "flush_ms"})  # any other would lose records
_COLLISION = "%s: topics %s and %s differ only in . and _: a Kafka broker would refuse the first"

_open_stores: set[Store] = set()  # of this process: they share its descriptors


def system_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Store:
    """A log directory, open for writing. All methods are safe between threads; lookups take no lock."""

    def __init__(
        self,
        path: str,
        *,
        layout: str | None = None,
        topic_settings: Mapping[str, Any] | None = None,
        settings: LogSettings | None = None,
        fs: FileSystem | None = None,
        clock_ms: Callable[[], int] = system_clock_ms,
        background: bool = True,
        passing: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Open or create the directory.

        Args:
            layout: "classic" or "kafka" for a new directory; None: that of the directory.
            topic_settings: defaults for every topic while this store is open; a topic's own come first.
            fs, clock_ms: the system's, or a test's.
            background: run flush cycles and cleaning, in threads.
            passing: the store is closed again in a moment; a process that opens it meanwhile waits.
            progress: called while tails are validated after a crash.

        Raises DirectoryError and its children, ReadOnly, CorruptCheckpoint, InvalidSetting, StorageError.
        """
        self.settings = settings or LogSettings()
        self.defaults = TopicSettings().with_changes(topic_settings or {})
        name_policies(topic_settings or {})
        guarded: GuardedFileSystem | None = None  # a test may bring its own system calls
        uncounted = fs or (guarded := GuardedFileSystem(path))
        self.disk = counting(uncounted, path, self.settings.max_bytes)
        self.fs: FileSystem = self.disk or uncounted
        self.clock_ms = clock_ms
        self.topics_lock = ReentrantLock()  # held while topics are created, changed or deleted
        # Guarded by topics_lock; lookups read them without it.
        self._topics: dict[str, StoredTopic] = {}
        self.by_topic: dict[str, tuple[Partition, ...]] = {}
        self._closed = self._forked = False  # set once
        self._lock_fd = -1  # of the writer's lock
        self.recovery = RecoveryReport()
        self._compose(path)
        self.catalog.create(layout)
        self.catalog.load(layout)
        self._lock_fd = self.catalog.writer_lock.acquire()
        if guarded is not None:
            guarded.hold(self._lock_fd)
        _open_stores.add(self)
        try:
            self.catalog.writer_lock.note(self.clock_ms(), passing=passing, max_bytes=self.settings.max_bytes)
            self._open(progress)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise storage_error(f"{path} cannot be opened", error, path) from error
            raise
        if background:
            self.background.start()

    @property
    def path(self) -> str:
        return self.catalog.path

    def _compose(self, path: str) -> None:
        """Create the parts, and connect them. Reads and changes no file."""
        clock_ms, partitions = self.clock_ms, self.partitions
        self.catalog = Catalog(self.fs, path)
        self._directories = TopicDirectories(self.fs, self.catalog)
        self._writer_state = WriterState(self.fs, self.catalog.file(WRITER_STATE_FILE))
        reserved_files = sum(store.max_open_files for store in list(_open_stores))
        limit = self.settings.max_open_files
        self.max_open_files: int = limit if limit > 0 else default_open_files(reserved_files)
        self.descriptors = Descriptors(self.fs, max(self.max_open_files // 8, 8))
        self.background = background = Background()
        self.checkpointer = checkpointer = Checkpointer(self.fs, self.catalog, partitions, background)
        self.flusher = Flusher(partitions, checkpointer, background, clock_ms)
        self.holds = Holds()
        self.quota = Quota(self.fs, self.path, self.disk, self.settings, partitions, self.holds, background)
        self.deletions = TopicDeletions(self.catalog, self._directories, self.quota, self.settings_of)
        self.cleaner = Cleaner(
            partitions, checkpointer, self.quota, self.holds, background, self.settings, clock_ms
        )
        files = AppendFiles(self.descriptors, self.max_open_files)
        self.host = StoreHost(
            self.flusher,
            checkpointer,
            self.cleaner,
            self.quota,
            clock_ms,
            self.check_open,
            files,
            self.reopen,
        )

    # -- opening ---------------------------------------------------------------------------------------

    @uncollected()
    def _open(self, progress: Progress | None) -> None:
        started = time.perf_counter()
        files = Files(self.fs, self.descriptors, IndexCache(), self.catalog.layout)
        self._opener = PartitionOpener(
            self.fs, self.catalog, self._directories, files, self.clock_ms, self.host, progress
        )
        self.quota.measure()
        self._topics = self.catalog.load_topics()
        self.catalog.check_not_moved()
        clean = self.catalog.take_clean_shutdown()
        if not self._topics:
            clean = {}
        self.recovery.clean = clean is not None
        flushed = self._writer_state.take_over() if clean is None else {}
        last = LastRun(clean, *self.checkpointer.load(), flushed)
        for topic in list(self.catalog.deleting.values()):
            self.deletions.finish(topic, self._topics)
        self.catalog.fold_journal(self._topics)
        self._directories.clear_leftovers({**self._topics, **self.catalog.deleting})
        self._note_gaps()
        topics = [(topic, self.settings_of(topic)) for topic in self._topics.values()]
        try:
            opened = self._opener.open_all(topics, last, max(self.max_open_files // 2, 8))
        except NotALog:
            if clean is not None:  # the next open finds the same
                with contextlib.suppress(OSError):
                    self.catalog.note_clean_shutdown(clean)
            raise
        for topic in self._topics.values():
            self.by_topic[topic.name] = tuple(opened[name][0] for name in topic.names())
        self.recovery.partitions += [report for _, report in opened.values() if report is not None]
        self.catalog.writer_lock.keep_manifests()
        self.checkpointer.add(self.partitions())
        if self.fs.exists(self.catalog.file(INTENT_FILE)):
            from .atomic_append import roll_forward

            roll_forward(self)
        for text in self.recovery.damage:
            logger.error("damaged: %s", text)
        self._writer_state.replace(self.partitions())
        self.recovery.duration_ms = (time.perf_counter() - started) * 1000

    def mark_moved(self, to: str) -> None:
        """Mark the log as moved, durably: it is not opened for writing any more. What this store appends
        afterwards would stay behind, so its caller closes it next.

        Raises StorageError.
        """
        self.flush()
        with self.topics_lock:
            self.check_open()
            try:
                self.catalog.mark_moved(self._topics, Moved(to, self.clock_ms()))
            except OSError as error:
                raise storage_error(f"{self.path} cannot be marked as moved", error, self.path) from error

    def _note_gaps(self) -> None:
        """Mark topics that compact by this store's defaults, as readers do not know the defaults."""
        compacting = [t for t in self._topics.values() if not t.gaps and self.settings_of(t).compacts]
        if compacting:
            self._topics.update({topic.name: topic.replaced(gaps=True) for topic in compacting})
            self.catalog.save_topics(self._topics)

    # -- topics ----------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        self.check_open()
        return sorted(self._topics)

    def topic(self, name: str) -> StoredTopic:
        """Raises TopicNotFound, Closed, InvalidTopicName."""
        topic = self._topics.get(name) if isinstance(name, str) else None
        if topic is None:
            self.check_open()
            check_topic_name(name)
            names = ", ".join(sorted(list(self._topics)[:10])) or "none yet"
            raise TopicNotFound(f"no topic {name!r} in {self.path} (topics: {names}); create_topic makes one")
        return topic

    def topic_id(self, name: str) -> str:
        """The id of the topic that has this name now; "" if none has."""
        topic = self._topics.get(name)
        return "" if topic is None else topic.topic_id

    def describe_topic(self, name: str) -> TopicDescription:
        return self.topic(name).description()

    def settings_of(self, topic: StoredTopic) -> TopicSettings:
        return self.defaults.with_changes(topic.settings) if topic.settings else self.defaults

    def topic_settings(self, name: str) -> TopicSettings:
        return self.partitions_of(name)[0].settings

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        exist_ok: bool = False,
        topic_id: str | None = None,
        makes_room: bool = True,
    ) -> TopicDescription:
        """Create a topic, durably; with this id, if it has one elsewhere; past max_bytes without makes_room.

        Raises TopicExists, InvalidTopicName, InvalidSetting, StorageError.
        """
        check_topic_name(name)
        check_partition_count(partitions)
        checked = TopicSettings.parse(settings)
        while not self._create_topic(name, partitions, checked, exist_ok, topic_id, makes_room):
            self.deletions.notify()
        return self.describe_topic(name)

    @whole
    def _create_topic(
        self,
        name: str,
        partitions: int,
        checked: dict[str, Any],
        exist_ok: bool,
        topic_id: str | None,
        makes_room: bool,
    ) -> bool:
        """False if the listeners have not been told yet that a topic of that name was deleted."""
        with self.topics_lock:
            self.check_open()
            if name in self._topics and exist_ok:
                self.cleaner.settings_changed()  # the program may have just registered its delete_policy
                return True
            if name in self._topics:
                raise TopicExists(
                    f"topic {name!r} exists already: exist_ok=True takes it as it is, alter_topic changes it"
                )
            deleted_topic = self.catalog.deleting.get(name)
            if deleted_topic is not None and not self.deletions.finish(deleted_topic, self._topics):
                raise StorageError(
                    f"a topic {name!r} was deleted, but its directories cannot be renamed yet: see the log "
                    "messages, and try again",
                    path=self.path,
                )
            if self.deletions.is_pending(name):
                return False
            compacts = self.defaults.with_changes(checked).compacts
            topic = StoredTopic(name, topic_id or new_id(), partitions, checked, compacts)
            self._add_partitions(topic, 0, makes_room)
            if (colliding_name := colliding_topic(name, self._topics)) is not None:
                logger.warning(_COLLISION, self.path, name, colliding_name)
            return True

    @whole
    def create_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Raise a topic's number of partitions to `partitions`. From then on, keys may map to other ones."""
        check_partition_count(partitions)
        with self.topics_lock:
            topic = self.topic(name)
            check_not_internal(name, "with more partitions groups would not find their offsets")
            check_more_partitions(name, topic.partitions, partitions)
            self._add_partitions(topic.replaced(partitions=partitions), topic.partitions, makes_room=True)
        return self.describe_topic(name)

    def _add_partitions(self, topic: StoredTopic, first: int, makes_room: bool) -> None:
        if makes_room and topic.name not in UNBOUNDED_TOPICS:
            self.quota.make_room(blocks(1) * (topic.partitions - first))  # of their directories
        try:
            self.checkpointer.purge(topic.names()[first:])
            with self._opener.created(topic, first, self.settings_of(topic)) as added:
                self.catalog.replace_topics(self._topics, {**self._topics, topic.name: topic})
        except OSError as error:
            message = f"{self.path}: topic {topic.name!r} could not be created"
            raise storage_error(message, error, self.path) from error
        self.by_topic[topic.name] = (*self.by_topic.get(topic.name, ()), *added)
        self._topics[topic.name] = topic
        self.checkpointer.add(added)
        self._writer_state.replace(self.partitions())

    @whole
    def alter_topic(self, name: str, settings: Mapping[str, Any]) -> TopicDescription:
        """Change a topic's settings; a value of None returns one to its default."""
        changes, resets = TopicSettings.parse_changes(settings)
        with self.topics_lock:
            topic = self.topic(name)
            if not {*changes, *resets} <= _OF_INTERNAL_TOPICS:
                check_not_internal(name, f"only {' and '.join(sorted(_OF_INTERNAL_TOPICS))} can be altered")
            unchanged = {key: value for key, value in topic.settings.items() if key not in resets}
            altered = topic.replaced(settings={**unchanged, **changes})
            compacts = self.settings_of(altered).compacts
            self._replace_topic(altered.replaced(gaps=topic.gaps or compacts))
        self.cleaner.settings_changed()
        return self.describe_topic(name)

    @whole
    def mark_gaps(self, name: str, gaps: bool = True) -> None:
        """From now on, gaps between a topic's offsets are no damage (repair, import); if False, they are."""
        with self.topics_lock:
            self._replace_topic(self.topic(name).replaced(gaps=gaps))

    def _replace_topic(self, topic: StoredTopic) -> None:
        """Save a topic's changed settings or gaps, then apply them to its partitions."""
        self.catalog.replace_topics(self._topics, {**self._topics, topic.name: topic})
        self._topics[topic.name] = topic
        settings = self.settings_of(topic)
        for partition in self.by_topic[topic.name]:
            partition.settings = settings
            partition.may_have_gaps = topic.gaps or settings.compacts

    def delete_topic(self, name: str) -> None:
        """Delete a topic, durably; its files are removed after file_delete_delay_ms."""
        self._delete_topic(name)
        self.deletions.notify()

    @whole
    def _delete_topic(self, name: str) -> None:
        with self.topics_lock:
            topic = self.topic(name)
            check_not_internal(name, FORGETTING_OFFSETS)
            remaining = {key: value for key, value in self._topics.items() if key != name}
            deleting = {**self.catalog.deleting, name: topic}
            self.catalog.replace_topics(self._topics, remaining, deleting)
            self._topics = remaining
            for partition in self.by_topic.pop(name):
                partition.publish_through(None)  # their slots are about to be unmapped
                partition.close()
                self.host.forget(partition)
                self.checkpointer.remove(partition.name)
                self.background.failures.forget(partition.name)
            self._writer_state.replace(self.partitions())
            self.deletions.finish(topic, self._topics)
            self.deletions.add(name)

    # -- partitions ------------------------------------------------------------------------------------

    def partition(self, topic: str, number: int) -> Partition:
        """Raises TopicNotFound, PartitionNotFound, Closed."""
        try:
            if number >= 0:
                return self.by_topic[topic][number]
        except (KeyError, IndexError, TypeError, ValueError):
            pass
        catalog_topic = self.topic(topic)
        raise PartitionNotFound(
            f"topic {topic!r} has partitions 0 to {catalog_topic.partitions - 1}, not {shown(number)}"
        )

    def record_at(self, topic: str, number: int, offset: int) -> Record | None:
        """See `LogReader.record_at`. Raises as `partition`."""
        return self.partition(topic, number).record_at(offset)

    def partitions(self) -> list[Partition]:
        return [partition for group in list(self.by_topic.values()) for partition in group]

    def partitions_of(self, topic: str) -> tuple[Partition, ...]:
        try:
            return self.by_topic[topic]
        except (KeyError, TypeError, ValueError):  # deleted just now, or not a topic: `topic` tells
            return self.partitions_of(self.topic(topic).name)

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        return {p.name.partition: p.offsets() for p in self.partitions_of(topic)}

    def directory(self, name: TopicPartition) -> str:
        return self._directories.path(name)

    def reopen(self, topic: str, number: int) -> PartitionRecovery | None:
        """Recover a partition whose write or fsync failed, or whose append was interrupted.

        Raises StorageError.
        """
        partition = self.partition(topic, number)
        report = self._opener.reopen(partition)
        self.background.failures.forget(partition.name)
        self.host.forget(partition)
        self.checkpointer.set_recovery_point(partition.name, partition.recovery_point)
        return report

    # -- the store -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything appended before the call durable. Raises the first partition's FlushFailed."""
        self.check_open()
        self.flusher.flush()

    def check_open(self) -> None:
        if self._forked:
            raise ForkedHandle(
                f"{self.path} was opened before this process was forked: the handle is the parent's. "
                'Open the directory again here: with mode="r", or with shared=True in both'
            )
        if self._closed:
            raise Closed(f"the log {self.path} is closed")

    def close(self) -> None:
        """Flush, note the clean shutdown, release the lock. Safe to call twice."""
        with self.topics_lock:
            if self._closed:
                return
            self.cleaner.interrupt()
            self.background.stop()
            with contextlib.suppress(StorageError):  # closing the partition fails likewise
                self.flusher.flush()
            self._closed = True
            closed = [partition for partition in self.partitions() if partition.close()]
            ends = {partition.name: CleanEnd.of(partition.log) for partition in closed}
            try:
                self.checkpointer.save_at_close()
                self.catalog.fold_journal(self._topics)
                self.catalog.note_clean_shutdown(ends)
            except OSError:
                logger.exception("%s: closing; the next open will validate the tails", self.path)
            for partition in self.partitions():
                partition.publish_through(None)
            self._topics, self.by_topic = {}, {}  # a lookup now says that the log is closed
            self._release()

    def _release(self) -> None:
        _open_stores.discard(self)
        self._writer_state.close()
        self.descriptors.close()
        fd, self._lock_fd = self._lock_fd, -1
        with contextlib.suppress(OSError):  # nothing was written to it; it is closed even so
            self.fs.close(fd)

    def abandon(self) -> None:
        """In a forked child: close our copies of descriptors; the parent keeps the lock."""
        self._closed = self._forked = True
        _open_stores.discard(self)
        self.topics_lock = ReentrantLock()
        for partition in self.partitions():
            partition.abandon()
        self.by_topic, self._topics = {}, {}
        self.descriptors.abandon()
        self._writer_state.abandon()
        if self._lock_fd >= 0:  # once closed, the number may be another file's
            os.close(self._lock_fd)

    def failed_partitions(self) -> dict[TopicPartition, str]:
        """The partitions that refuse appends, with the reason."""
        reasons = {partition.name: partition.log.failure_reason for partition in self.partitions()}
        return {name: reason for name, reason in reasons.items() if reason is not None}
