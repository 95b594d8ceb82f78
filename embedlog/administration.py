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
from .validation import as_path, check_flag, check_int, check_text

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
        """ "rw" or "r"."""
        return self.backend.mode

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found after a crash; `clean` if the last writer closed the log."""
        return self.backend.maintenance.recovery

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicOptions]
    ) -> TopicDescription:
        """Create a topic. Its directories and first segments are durable on return.

        Args:
            name: 1 to 249 characters of a-z A-Z 0-9 . _ - (as in Kafka).
            partitions: the number of partitions.
            exist_ok: return the description of an existing topic, unchanged, instead of raising TopicExists.
            settings: see config.TopicSettings, e.g. retention_ms=86_400_000, compression_type="zstd".

        Raises TopicExists, InvalidTopicName, InvalidSetting, UnknownSetting, StorageError, ReadOnly.
        """
        admin = self.backend.topic_admin
        check_flag("exist_ok", exist_ok)
        name_policies(settings)
        return admin.create_topic(name, partitions, settings, exist_ok=exist_ok)

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of the topics, sorted; with `internal` also `__consumer_offsets`."""
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
        """A topic's id, partition count and own settings. Raises TopicNotFound."""
        description = self.backend.describe_topic(name)
        return description._replace(settings=dict(description.settings))

    def alter_topic(self, name: str, **settings: Unpack[TopicChanges]) -> TopicDescription:
        """Change settings of a topic, durably; None resets a setting to its default.

        Of `__consumer_offsets` only the flush settings may change. Raises TopicNotFound, InvalidSetting,
        UnknownSetting, InvalidTopicName, StorageError, ReadOnly.
        """
        admin = self.backend.topic_admin
        name_policies(settings)
        return admin.alter_topic(name, settings)

    def create_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Raise the number of partitions. From then on keys may map to other partitions.

        Raises TopicNotFound, InvalidArgument (InvalidTopicName for `__consumer_offsets`), StorageError,
        ReadOnly.
        """
        return self.backend.topic_admin.create_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, durably. Its files are removed after file_delete_delay_ms.

        Raises TopicNotFound, InvalidTopicName (`__consumer_offsets`), StorageError, ReadOnly.
        """
        self.backend.topic_admin.delete_topic(name)

    # -- groups and offsets -------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of the consumer groups, sorted. A process that only reads looks at the log's files.

        Raises StorageError, CorruptRecord, BrokerUnavailable, Closed.
        """
        return self.backend.group_reader().list_groups()

    def group(self, name: str) -> ConsumerGroup:
        """A consumer group to describe, reset or delete; it need not exist. Raises InvalidGroup."""
        from .clients.group_admin import ConsumerGroup

        return ConsumerGroup(self.backend, name)

    def describe_groups(self) -> list[ConsumerGroupDescription]:
        """All consumer groups with their members and lag, sorted by name. Raises as `groups`."""
        from .clients.group_admin import describe_groups

        return describe_groups(self.backend)

    def transactions(self) -> list[TransactionDescription]:
        """The transactional ids with their last transactions, sorted. A process that only reads looks at the
        log's files.

        Raises UnsupportedByBackend, StorageError, CorruptRecord, Closed.
        """
        from .clients.transaction_admin import describe_transactions

        return describe_transactions(self.backend)

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id; nothing if none is open. For an operator: its producer gets
        TransactionAborted, or ProducerFenced if it is one of Kafka's.

        Raises TransactionNotFound; ConcurrentTransactions: a partition refuses its marker; StorageError,
        InvalidType, InvalidArgument, ReadOnly, UnsupportedByBackend, Closed.
        """
        check_text("transactional_id", transactional_id)
        self.backend.transactions.abort(transactional_id)

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """Each partition's edges: log_start_offset, log_end_offset, flushed_offset."""
        return self.backend.offsets(topic)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        """At most max_offsets offsets, newest first: the log end and the segments' base offsets.

        Of segments last modified at time_ms or before; -1 stands for all, -2 for the first one. As Kafka's
        ListOffsets version 0.
        """
        check_int("partition", partition)
        check_int("time_ms", time_ms)
        check_int("max_offsets", max_offsets, low=0)
        return self.backend.splits.offsets_before(topic, partition, time_ms, max_offsets)

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is time_ms or later; None if there is none."""
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
        """Recover a partition that refuses appends after a failed write or fsync; returns what was done."""
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
        """Copy the log, group offsets included, while it is in use. The copy is consistent per partition.

        Everything appended before the call is in the copy, and durable. Sealed segments are hard-linked if
        the destination is on the same file system (they never change), active ones copied. The destination
        must not exist; it becomes a log directory of its own. Raises StorageError, DirectoryError,
        InvalidArgument, InvalidType.
        """
        maintenance = self.backend.maintenance
        maintenance.backup(as_path(destination, "destination"))

    def health(self) -> Health:
        """The condition of the log; cheap enough to call every second."""
        return self.backend.health()
