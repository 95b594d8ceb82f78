"""Dead letters: the records that a share group has rejected, in a topic of their own, each exactly once.

A dead letter has its record's key, value and headers, and these headers, in text:

    embedlog.origin_topic, embedlog.origin_partition, embedlog.origin_offset    where the record is
    embedlog.group, embedlog.deliveries, embedlog.error                         who rejected it, and why

It is in the partition of the record's number, modulo the number of partitions, and durable before its record
is archived. Before it is appended, the log end is stored with the rejection: after a crash it is looked for
from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ..codec import encode_batch
from ..codec.fetch_decoder import Records, decode_chunk
from ..model import Header, Headers, Record, ShareRejection, TopicPartition
from ..partition import Partition
from ..store.store import Store

_OURS: Final = "embedlog."
_FETCH_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 1 << 20  # of keys and values: what every client can fetch
_LONGEST_ERROR: Final = 4_000  # characters


def dead_letter_partition(store: Store, topic: str, partition: int) -> Partition:
    """Where the dead letters of a partition go. Creates the topic if there is none. Raises StorageError."""
    partitions = store.by_topic.get(topic)
    if partitions is None:
        store.create_topic(topic, 1, {}, exist_ok=True, makes_room=False)
        partitions = store.partitions_of(topic)
    return partitions[partition % len(partitions)]


def append_dead_letters(
    target: Partition, group: str, rejected: Iterable[tuple[ShareRejection, Record | None]], now_ms: int
) -> None:
    """Append dead letters, durable on return; none for a record that is gone from the log.

    Also past max_bytes: as long as a rejected job has no letter, its segment and all later ones stay.

    Raises StorageError.
    """
    letters: list[tuple[bytes | None, bytes | None, Headers, int]] = []
    size = 0
    for rejection, record in rejected:
        if record is None:
            continue
        headers = dead_letter_headers(group, record, rejection.delivery_count, rejection.error)
        letters.append((record.key, record.value, headers, now_ms))
        size += len(record.key or b"") + len(record.value or b"")
        if size >= _BATCH_BYTES:
            target.appender.append_unchecked(encode_batch(letters), None)
            letters, size = [], 0
    if letters:
        target.appender.append_unchecked(encode_batch(letters), None)
    target.flush()


def dead_letter_headers(group: str, record: Record, deliveries: int, error: str) -> Headers:
    """The headers of a record's dead letter."""
    headers = [header for header in record.headers if not header[0].startswith(_OURS)]
    headers += _origin(group, TopicPartition(record.topic, record.partition), record.offset)
    headers += [
        ("embedlog.deliveries", str(deliveries).encode()),
        ("embedlog.error", error[:_LONGEST_ERROR].encode(errors="replace")),
    ]
    return tuple(headers)


def find_dead_letters(
    target: Partition, group: str, name: TopicPartition, rejections: Iterable[ShareRejection]
) -> set[int]:
    """The offsets, in their partition, of the rejected records that have dead letters already.

    Raises CorruptRecord, StorageError.
    """
    earliest = {rejection.offset: rejection.dead_letter_offset for rejection in rejections}
    if not earliest:
        return set()
    origins = {tuple(_origin(group, name, offset)): offset for offset in earliest}
    offsets = set()
    for record in _records(target, min(earliest.values())):
        offset = origins.get(tuple(header for header in record.headers if header[0] in _ORIGIN_NAMES))
        if offset is not None and record.offset >= earliest[offset]:
            offsets.add(offset)
    return offsets


def _origin(group: str, name: TopicPartition, offset: int) -> list[Header]:
    values = (name.topic, str(name.partition), str(offset), group)
    return [(header, value.encode()) for header, value in zip(_ORIGIN_NAMES, values, strict=True)]


_ORIGIN_NAMES: Final = (
    "embedlog.origin_topic",
    "embedlog.origin_partition",
    "embedlog.origin_offset",
    "embedlog.group",
)


def _records(partition: Partition, start: int) -> Iterator[Record]:
    offset = max(start, partition.offsets().log_start_offset)
    while True:
        fetched = partition.fetch(offset, _FETCH_BYTES)
        if not fetched.data:
            return
        sink = Records(*partition.name)
        offset = decode_chunk(fetched, *partition.name, offset, sink).next_offset
        yield from sink.taken
