"""What a log offers to its administrator: topics, groups, offsets, maintenance. One half of `Log`.

Delegates to the backend. Arguments that the backend does not check are checked here.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Unpack

from .backends.port import Backend
from .errors import TopicNotFound
from .model import (
    Health,
    OffsetAndTimestamp,
    PartitionOffsets,
    PartitionRecovery,
    RecoveryReport,
    TopicDescription,
)
from .retention import name_policies
from .runtime.closing import Closing
from .validation import as_path, check_flag, check_int, check_replication_factor, check_text

if TYPE_CHECKING:
    from .clients.group_admin import ConsumerGroup, ConsumerGroupDescription
    from .clients.options import TopicChanges, TopicOptions
    from .clients.transaction_admin import TransactionDescription


class Administration(Closing):
    """The methods of `Log` for its administrator. Every method may be called from any thread."""

    backend: Backend

    @property
    def path(self) -> str:
        """The directory, or the address of the brokers."""
        return self.backend.path

    @property
    def mode(self) -> str:
        """How the log was opened: "rw" or "r"."""
        return self.backend.mode

    @property
    def recovery(self) -> RecoveryReport:
        """What recovery found when the log was opened. It is `clean` if the last writer closed the log."""
        return self.backend.maintenance.recovery

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        exist_ok: bool = False,
        replication_factor: int | None = None,
        **settings: Unpack[TopicOptions],
    ) -> TopicDescription:
        """Create a topic. Its directories and first segments are durable on return.

        Args:
            name: 1 to 249 characters of a-z A-Z 0-9 . _ - (as in Kafka).
            partitions: the number of partitions.
            exist_ok: do not raise TopicExists: change nothing, and return the existing topic's description.
            replication_factor: on how many brokers each partition is; None: the brokers' default. A directory
                and embedlog's brokers keep one copy, and refuse any other number.
            settings: see `TopicSettings`, e.g. `retention_ms=86_400_000`, `compression_type="zstd"`.

        Raises TopicExists, InvalidTopicName, InvalidArgument, InvalidSetting, UnknownSetting, StorageError,
        ReadOnly.
        """
        admin = self.backend.topic_admin
        check_flag("exist_ok", exist_ok)
        check_replication_factor(replication_factor)
        name_policies(settings)
        return admin.create_topic(
            name, partitions, settings, exist_ok=exist_ok, replication_factor=replication_factor
        )

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of the topics, sorted. With `internal`, include topics like `__consumer_offsets`."""
        check_flag("internal", internal)
        names = self.backend.topics()
        if internal:
            return names
        shown = []
        for name in names:
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                if not self.backend.describe_topic(name).internal:
                    shown.append(name)
        return shown

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic's id, partition count, own settings and number of replicas. Raises TopicNotFound.

        Settings of Kafka's brokers that embedlog does not have are texts.
        """
        description = self.backend.describe_topic(name)
        return description._replace(settings=dict(description.settings))

    def alter_topic(self, name: str, **settings: Unpack[TopicChanges]) -> TopicDescription:
        """Change settings of a topic, durably; None resets a setting to its default.

        Of internal topics (`__consumer_offsets`), only the flush settings may change. Raises TopicNotFound,
        InvalidSetting, UnknownSetting, InvalidTopicName, StorageError, ReadOnly.
        """
        admin = self.backend.topic_admin
        name_policies(settings)
        return admin.alter_topic(name, settings)

    def create_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Raise the number of partitions. From then on keys may map to other partitions.

        Raises TopicNotFound, InvalidArgument, InvalidTopicName (for internal topics), StorageError, ReadOnly.
        """
        return self.backend.topic_admin.create_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, durably. Its files are removed after `file_delete_delay_ms`.

        Raises TopicNotFound, InvalidTopicName (for internal topics), StorageError, ReadOnly.
        """
        self.backend.topic_admin.delete_topic(name)

    # -- groups and offsets -------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of the consumer groups, sorted.

        With mode="r" they are read from the log's files. Raises StorageError, CorruptRecord,
        BrokerUnavailable, Closed.
        """
        return self.backend.group_reader().list_groups()

    def group(self, name: str) -> ConsumerGroup:
        """A consumer group to describe, reset or delete; it need not exist. Raises InvalidGroup."""
        from .clients.group_admin import ConsumerGroup

        return ConsumerGroup(self.backend, name)

    def describe_groups(self) -> list[ConsumerGroupDescription]:
        """All consumer groups with their members and lag, sorted by name. Raises the errors of `groups`."""
        from .clients.group_admin import describe_groups

        return describe_groups(self.backend)

    def transactions(self) -> list[TransactionDescription]:
        """The transactional ids with their last transactions, sorted.

        With mode="r" they are read from the log's files. Raises UnsupportedByBackend, StorageError,
        CorruptRecord, Closed.
        """
        from .clients.transaction_admin import describe_transactions

        return describe_transactions(self.backend)

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id, as an operator. Does nothing if none is open.

        The id's producer gets TransactionAborted, or ProducerFenced if it is a Kafka client. Raises
        TransactionNotFound, ConcurrentTransactions (a partition refuses its marker), StorageError,
        InvalidType, InvalidArgument, ReadOnly, UnsupportedByBackend, Closed.
        """
        check_text("transactional_id", transactional_id)
        self.backend.transactions.abort(transactional_id)

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """Each partition's log start offset, log end offset and flushed offset."""
        return self.backend.offsets(topic)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        """At most `max_offsets` offsets to start reading from, newest first.

        They are the log end offset, and the base offsets of segments last modified at `time_ms` or before.
        A `time_ms` of -1 stands for all of them, -2 for the first. As in Kafka's ListOffsets version 0.
        """
        check_int("partition", partition)
        check_int("time_ms", time_ms)
        check_int("max_offsets", max_offsets, low=0)
        return self.backend.splits.offsets_before(topic, partition, time_ms, max_offsets)

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is `time_ms` or later; None if there is none.

        Brokers look up no time before 1970. If records are before the first one since then, the answer is
        the log start, without a timestamp (-1).
        """
        check_int("partition", partition)
        check_int("time_ms", time_ms)
        return self.backend.offset_for_time(topic, partition, time_ms)

    # -- maintenance -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything appended before the call durable. Raises FlushFailed.

        Records in a producer's buffer are not appended yet: call `producer.flush()` first.
        """
        self.backend.maintenance.flush()

    def reopen(self, topic: str, partition: int) -> PartitionRecovery | None:
        """Recover a partition that refuses appends after a failed write or fsync. Returns what it did."""
        maintenance = self.backend.maintenance
        check_int("partition", partition)
        return maintenance.reopen(topic, partition)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete the records before an offset, durably. Returns the new log start offset."""
        admin = self.backend.topic_admin
        check_int("partition", partition)
        check_int("before_offset", before_offset, low=0)
        return admin.delete_records(topic, partition, before_offset)

    def compact(self, topic: str) -> int:
        """Compact the sealed segments of a topic now. Returns the bytes freed."""
        return self.backend.maintenance.compact(topic)

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Copy the log, including group offsets, while it is in use. The copy is consistent per partition.

        The destination must not exist. It becomes a log directory of its own. Everything appended before the
        call is in the copy, and durable. Sealed segments never change, so they are hard-linked if the
        destination is on the same file system. Active segments are copied. Raises StorageError,
        DirectoryError, InvalidArgument, InvalidType.
        """
        maintenance = self.backend.maintenance
        maintenance.backup(as_path(destination, "destination"))

    def health(self) -> Health:
        """The condition of the log. Cheap enough to call every second."""
        return self.backend.health()
