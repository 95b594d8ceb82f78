"""Administration of work queues: what waits, what is being worked on, what has failed for good.

    jobs        a topic from which share groups take jobs; each group finishes all of them
    dlq.jobs    its dead letters; their headers say where they come from (groups/dead_letters.py)

A share group of the dead letters' topic, `REDRIVE_GROUP`, finishes those that are sent again: what it has
not finished is dead. So sending again has the rules of any job: two who do it at once share the work, and a
kill in between sends at most some of them twice. What a process had locked that was killed is waited for.
Looking on asks what is stored, and changes nothing.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from ..backends.port import Backend
from ..backends.port.coordinators import ShareCoordinator, ShareReader
from ..errors import EmbedlogError, GroupNotFound, InvalidArgument, LockLost
from ..model import (
    NO_EPOCH,
    NO_TIMESTAMP,
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    Headers,
    Record,
    ShareGroupDescription,
    ShareGroupOptions,
    TopicPartition,
    UnfinishedRecords,
)
from ..validation import check_topic
from .partition_reader import PartitionReader
from .reader import read_at

REDRIVE_GROUP: Final = "embedlog.redrive"
"""The share group of a topic of dead letters that has finished what was sent again."""

_OURS: Final = "embedlog."
_ORIGIN_TOPIC: Final = "embedlog.origin_topic"
_ORIGIN_PARTITION: Final = "embedlog.origin_partition"
_TOGETHER: Final = 500
_LOCK_MS: Final = 10_000
_LONGEST_WAIT_MS: Final = 1_000
_MOST_DELIVERIES: Final = 32_000


class QueueDescription(NamedTuple):
    """A work queue: a share group of a topic. dead: the dead letters that were not sent again, of all groups
    of the topic; None if it has no topic of dead letters."""

    group: ShareGroupDescription
    dead: int | None

    @property
    def waiting(self) -> int:
        return sum(partition.waiting for partition in self.group.partitions)

    @property
    def locked(self) -> int:
        return sum(partition.locked for partition in self.group.partitions)

    @property
    def delayed(self) -> int:
        return sum(partition.delayed for partition in self.group.partitions)

    @property
    def oldest_timestamp_ms(self) -> int | None:
        """The timestamp of the oldest job that is not finished; None if there is none."""
        timestamps = (partition.oldest_timestamp_ms for partition in self.group.partitions)
        return min((timestamp for timestamp in timestamps if timestamp != NO_TIMESTAMP), default=None)


class UnfinishedJob(NamedTuple):
    """A job that a group has not finished: its record, and what is known of it."""

    record: Record
    state: str
    delivery_count: int
    until_ms: int
    member_id: str


class Redriven(NamedTuple):
    """A dead letter that was sent again: where it was, and the record it is now."""

    partition: int
    offset: int
    topic: str
    new_partition: int
    new_offset: int


def describe_queues(
    backend: Backend,
    topic: str | None = None,
    group: str | None = None,
    *,
    reader: ShareReader | ShareCoordinator | None = None,
) -> list[QueueDescription]:
    """The work queues of a log, of a topic, of a group; sorted by topic and group.

    Args:
        reader: who knows the share groups; by default `backend.share_reader()`, which reads what is stored.

    Raises GroupNotFound if a group is named that the topic has not; TopicNotFound; StorageError,
    CorruptRecord, Closed.
    """
    if reader is None:
        reader = backend.share_reader()
    if topic is not None:
        check_topic(topic)
        backend.describe_topic(topic)
    queues = [
        (queue_topic, name)
        for name, queue_topic in reader.list_share_groups()
        if name != REDRIVE_GROUP and topic in (None, queue_topic) and group in (None, name)
    ]
    if group is not None and not queues:
        raise GroupNotFound(f"no share group {group!r}" + (f" of topic {topic!r}" if topic else ""))
    dead_counts = {
        queue_topic: _dead(backend, reader, dead_letter_topic(queue_topic)) for queue_topic, _ in queues
    }
    return [
        QueueDescription(reader.describe_share_group(name, queue_topic), dead_counts[queue_topic])
        for queue_topic, name in sorted(queues)
    ]


def dead_letter_topic(topic: str) -> str:
    """The topic of dead letters that a queue has if it names none."""
    return f"dlq.{topic}"


def dead_letters(backend: Backend, topic: str) -> int:
    """How many dead letters of a topic were not sent again; 0 if it has no topic of dead letters."""
    return _dead(backend, backend.share_reader(), dead_letter_topic(topic)) or 0


def _dead(backend: Backend, reader: ShareReader | ShareCoordinator, topic: str) -> int | None:
    if topic not in backend.topics():
        return None
    try:
        description = reader.describe_share_group(REDRIVE_GROUP, topic)
    except GroupNotFound:
        edges = backend.offsets(topic).values()
        return sum(span.log_end_offset - span.log_start_offset for span in edges)
    return sum(
        partition.waiting + partition.locked + partition.delayed for partition in description.partitions
    )


def unfinished_jobs(backend: Backend, topic: str, group: str) -> Iterator[UnfinishedJob]:
    """The jobs that a group has not finished, by partition and offset, with their records. Takes none.

    Raises GroupNotFound, TopicNotFound, StorageError, CorruptRecord, Closed.
    """
    return _jobs(backend, topic, backend.share_reader().unfinished(group, topic))


def _jobs(
    backend: Backend, topic: str, unfinished: dict[int, list[UnfinishedRecords]]
) -> Iterator[UnfinishedJob]:
    for partition, ranges in unfinished.items():
        if not ranges:
            continue
        tp = TopicPartition(topic, partition)
        reader = PartitionReader(
            backend, tp, ranges[0].first_offset, end=ranges[-1].last_offset + 1, read_committed=True
        )
        records: deque[Record] = deque()  # read, and not passed yet
        for span in ranges:
            while True:
                while records and records[0].offset < span.first_offset:
                    records.popleft()
                if records and records[0].offset <= span.last_offset:
                    yield UnfinishedJob(records.popleft(), *span[2:])
                    continue
                if records or reader.position > span.last_offset:
                    break
                if reader.position < span.first_offset:
                    reader.mark = span.first_offset, NO_EPOCH, False
                records.extend(reader.read())
                if not records:  # compaction has removed the rest
                    break


def redrive(
    backend: Backend,
    topic: str,
    *,
    chosen: Collection[tuple[int, int]] | None = None,
    to: str | None = None,
) -> Iterator[Redriven]:
    """Send dead letters again, each to the partition that it came from. Yields each one that is stored.

    A dead letter that was sent again is not sent a third time by a later call. If the process is killed, or
    the caller stops, at most the one under way may be: at least once, as any job. While another process
    has some of them locked, or was killed less than 10 s ago, it waits for these at the end.

    Args:
        topic: of the dead letters.
        chosen: (partition, offset) of the letters to send; by default all.
        to: the topic to send to; by default that of each letter's origin.

    Raises TopicNotFound if a topic is gone, InvalidArgument for a letter without an origin; LogFull and other
    StorageErrors, ReadOnly, UnsupportedByBackend, Closed. What was yielded before has been sent.
    """
    for name in (topic,) if to is None else (topic, to):
        check_topic(name)
        backend.describe_topic(name)
    coordinator, member_id = backend.share_coordinator, f"redrive-{uuid.uuid4()}"
    passed_over: set[tuple[int, int]] = set()
    try:
        while True:
            locked_at = time.monotonic()
            deliveries = _locked(coordinator, topic, member_id, passed_over)
            if not deliveries:
                return
            for index, delivery in enumerate(deliveries):
                place = delivery.partition, delivery.offset
                if chosen is not None and place not in chosen:
                    passed_over.add(place)
                    continue
                if time.monotonic() - locked_at > _LOCK_MS / 3000:  # the caller takes its time
                    locked_at = time.monotonic()
                    if not _renewed(coordinator, topic, deliveries[index:]):
                        break  # the next round has what it still may send
                yield _sent_again(backend, coordinator, topic, delivery, to)
    finally:
        with contextlib.suppress(EmbedlogError):  # their locks run out
            coordinator.release_member(REDRIVE_GROUP, topic, member_id)


def _locked(
    coordinator: ShareCoordinator, topic: str, member_id: str, passed_over: Collection[object]
) -> list[Delivery]:
    """The next dead letters, locked. None if all are sent, or `passed_over`, which this member has locked:
    the more these are, the longer, since it takes a while to pass over the others.

    Waits for those that others have locked: they may be gone.
    """
    options = ShareGroupOptions(_LOCK_MS + len(passed_over) // 10, _MOST_DELIVERIES)
    wait_ms = 0
    while True:
        deliveries = coordinator.acquire(
            REDRIVE_GROUP, topic, member_id, max_records=_TOGETHER, max_wait_ms=wait_ms, options=options
        ).result()
        if deliveries:
            return deliveries
        described = coordinator.describe_share_group(REDRIVE_GROUP, topic)
        if sum(partition.locked for partition in described.partitions) <= len(passed_over):
            return []
        wait_ms = _LONGEST_WAIT_MS


def _renewed(coordinator: ShareCoordinator, topic: str, deliveries: Sequence[Delivery]) -> bool:
    """Whether all of them are locked for as long again."""
    renew = [Acknowledgement(*delivery[:3], AcknowledgeType.RENEW) for delivery in deliveries]
    return not any(coordinator.acknowledge(REDRIVE_GROUP, topic, renew))


def _sent_again(
    backend: Backend, coordinator: ShareCoordinator, topic: str, delivery: Delivery, to: str | None
) -> Redriven:
    record = delivery.record or read_at(
        backend, topic, delivery.partition, delivery.offset, "read_uncommitted"
    )
    assert record is not None, "a record that is locked is there"
    headers = dict(record.headers)
    target = to or _text(headers, _ORIGIN_TOPIC)
    if target is None:
        raise InvalidArgument(
            f"{topic} {delivery.partition}, offset {delivery.offset:,}, does not say where it comes from, as "
            "a dead letter does: name the topic to send it to"
        )
    appenders = backend.appenders(target)
    partition = int(_text(headers, _ORIGIN_PARTITION) or delivery.partition) % len(appenders)
    user_headers: Headers = tuple(header for header in record.headers if not header[0].startswith(_OURS))
    sent = appenders[partition].append_one(
        record.key, record.value, time.time_ns() // 1_000_000, False, None, user_headers
    )
    accept = Acknowledgement(
        delivery.partition, delivery.offset, delivery.delivery_id, AcknowledgeType.ACCEPT
    )
    (error,) = coordinator.acknowledge(REDRIVE_GROUP, topic, [accept])
    if error is not None and not isinstance(error, LockLost):  # else it may be sent once more
        raise error
    return Redriven(delivery.partition, delivery.offset, target, partition, sent.offset)


def purge(backend: Backend, topic: str) -> dict[int, tuple[int, int]]:
    """Delete all jobs of a topic that are there now, for all groups: also those that are being worked on,
    whose workers find their locks lost. Returns each partition's first offset before and after.

    Raises TopicNotFound, StorageError, ReadOnly, UnsupportedByBackend, Closed.
    """
    admin = backend.topic_admin
    purged = {}
    check_topic(topic)
    for partition, edges in backend.offsets(topic).items():
        new_start = admin.delete_records(topic, partition, edges.log_end_offset)
        purged[partition] = (edges.log_start_offset, new_start)
    return purged


def _text(headers: dict[str, bytes | None], name: str) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode(errors="replace")
