"""Implements `Log.append` and `Log.append_many`: validate, choose partitions, encode, append.

    records --record_input--> rows --partitioner--> rows of each partition --BatchBuilder--> record batches
            --backend.append, once per partition--> AppendedMany

This is the reference, in plain Python, and the fallback of the compiled fast path (`fast_append.FastPath`).
That takes the same steps, and leaves to `append_batches` the partitions that need a decision.

A batch has at most BATCH_BYTES, or the topic's max_message_bytes if that is less; a larger record is alone in
its batch. Sizes are before compression, so everything written can be read within the same limits. A batch
that compression enlarges beyond max_message_bytes is written uncompressed.

Invariants: all input is validated before anything is appended; the batches of one partition go to the backend
in one call, which is all or nothing; partitions are independent of each other, in the order of their first
records; records without a key go to one partition per call.

Source of the idea: Kafka 2.7 design, sections 4.1 (load balancing) and 4.2 (asynchronous send: batches).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..backends.port import Appends, PartitionAppender
from ..codec import HEADER_SIZE, BatchBuilder
from ..codec.plain_encoding import Row
from ..codec.record_size import BATCH_BYTES, RECORD_OVERHEAD, check_size, headers_size
from ..errors import InvalidArgument, PartialAppend, PartitionNotFound, RecordTooLarge
from ..model import Appended, RecordMetadata
from ..runtime.locks import calls_out
from ..validation import check_int, check_partition, check_topic
from .partition_count import partition_count
from .partitioner import Partitioner, StickyPartitioner, choose_partition, notify_new_batch
from .record_input import Bytes, HeadersInput, RecordInput, as_row, as_rows, compression_number, now_ms
from .results import AppendedMany, Places

_ALONE = HEADER_SIZE + RECORD_OVERHEAD


def append(
    backend: Appends,
    partitioner: Partitioner,
    topic: str,
    value: Bytes | None,
    key: Bytes | None = None,
    headers: HeadersInput | None = (),
    timestamp_ms: int | None = None,
    partition: int | None = None,
    flush: bool = False,
    expected_offset: int | None = None,
    compression: str | int | None = None,
) -> RecordMetadata:
    """See `Log.append`. Nothing below validates the input again. expected_offset needs a partition or a key,
    unless the topic has only one partition. compression is a codec's name, by default the topic's."""
    # 1. Validate all input before a partition is chosen: the program's partitioner sees only valid records.
    if type(topic) is not str:
        check_topic(topic)
    appenders = backend.appenders(topic)
    settings = appenders[0].settings
    now = time.time_ns() // 1_000_000
    row = as_row(value, key, headers, None if settings.append_time else timestamp_ms, now)
    key, value, pairs, timestamp_ms = row
    if expected_offset is not None:
        check_int("expected_offset", expected_offset)
    limit = settings.max_message_bytes
    if _ALONE + len(key or b"") + len(value or b"") + (headers_size(pairs) if pairs else 0) > limit:
        check_size(topic, limit, key, value, pairs)

    # 2. Choose the partition. One of the caller's that is not there is looked up again before it is refused.
    count = len(appenders)
    is_chosen = partition is None
    drawn = is_chosen and key is None and count > 1
    if partition is not None:
        if type(partition) is not int or not 0 <= partition < count:
            backend.forget_metadata(topic)
            appenders = backend.appenders(topic)
            check_partition(topic, partition, len(appenders))
    elif count == 1 and type(partitioner) is StickyPartitioner:
        partition = 0
    elif drawn and expected_offset is not None:
        raise InvalidArgument("expected_offset needs a partition or a key, to say which log end it means")
    else:
        partition = choose_partition(partitioner, topic, key, value, count)

    # 3. Append. The topic may have been made again with fewer partitions: then choose among those.
    #    Records without a key go to the next partition after that: this one has got its batch, or failed.
    try:
        metadata = _append_row(
            backend, appenders, topic, partition, row, flush, expected_offset, compression, now
        )
    except PartitionNotFound:
        if not is_chosen or len(backend.appenders(topic)) >= count:
            raise
        options = flush, expected_offset, compression
        return append(backend, partitioner, topic, value, key, pairs, timestamp_ms, None, *options)
    finally:
        if drawn:
            notify_new_batch(partitioner, topic, count, partition)
    return metadata


def _append_row(
    backend: Appends,
    appenders: Sequence[PartitionAppender],
    topic: str,
    partition: int,
    row: Row,
    flush: bool,
    expected_offset: int | None,
    compression: str | int | None,
    now: int,
) -> RecordMetadata:
    """Encode a valid record, and append it to a partition."""
    settings = appenders[0].settings
    key, value, pairs, timestamp_ms = row
    if compression is not None or settings.compresses:
        [builder] = batches_of([row], settings.max_message_bytes, settings.append_time)
        batch = builder.build(compression_number(compression, settings), settings.max_message_bytes, now)
        appended = backend.append(topic, partition, batch, flush=flush, expected_offset=expected_offset)
        return RecordMetadata(topic, partition, appended.base_offset, timestamp_ms, appended.durable)
    return appenders[partition].append_one(key, value, timestamp_ms, flush, expected_offset, pairs)


def append_many(
    backend: Appends,
    partitioner: Partitioner,
    topic: str,
    records: Iterable[RecordInput],
    *,
    partition: int | None = None,
    compression: str | int | None = None,
    flush: bool = False,
    expect: Callable[[str, Iterable[int]], object] | None = None,
) -> AppendedMany:
    """See `Log.append_many`. `expect` is called with the topic and the partitions before any is appended to.

    A partition whose flush failed (FlushFailed) counts as failed, though its records may have been appended.
    Input errors are raised before anything is appended. After that: if all partitions fail, the first error
    is raised; if some fail, PartialAppend. Within a partition the records of two calls do not interleave.
    """
    check_topic(topic)
    settings = backend.topic_settings(topic)
    if partition is None:
        count = backend.describe_topic(topic).partitions
    else:
        count = partition_count(backend, topic, partition)
    codec = compression_number(compression, settings)
    limit = settings.max_message_bytes
    now = now_ms()
    rows, given_times = as_rows(records, now, settings.append_time)
    if not rows:
        return AppendedMany(topic, {}, now)

    drawn: set[int] = set()
    places = None
    if partition is None and count == 1 and type(partitioner) is StickyPartitioner:
        partition = 0
    if partition is not None:
        rows_of: Mapping[int, Sequence[Row]] = {partition: rows}
    else:
        numbers = _chosen(partitioner, topic, rows, count)
        drawn = {number for number, row in zip(numbers, rows, strict=True) if row[0] is None}
        rows_of, places = _divided(rows, numbers)
    room = min(limit, BATCH_BYTES)
    batches = {
        number: batches_of(partition_rows, room, settings.append_time)
        for number, partition_rows in rows_of.items()
    }
    if any(batch.size > limit for partition_batches in batches.values() for batch in partition_batches):
        _refuse_large(topic, rows, limit)

    times = None if settings.append_time else given_times
    if expect is not None:
        expect(topic, batches)
    try:
        return append_batches(backend, topic, batches, {}, codec, limit, flush, now, times, places)
    finally:
        for number in drawn:
            notify_new_batch(partitioner, topic, count, number)


def append_batches(
    backend: Appends,
    topic: str,
    batches: Mapping[int, Sequence[BatchBuilder]],
    appended: dict[int, Appended],
    codec: int,
    limit: int,
    flush: bool,
    now: int,
    times: int | array[int] | None,
    places: Places | None,
) -> AppendedMany:
    """Append each partition's batches in one call, and make the result of append_many.

    Args:
        appended: the partitions whose batches have been appended already; the others are added.
        codec, limit, now: see `BatchBuilder.build`.
        times, places: see `AppendedMany`.

    Partitions whose leaders cannot be reached come last, and have what is left of the time together. Raises
    the first error if no partition was appended, PartialAppend if only some were.
    """
    failed: dict[int, Exception] = {}
    delivery = backend.delivery
    numbers: Iterable[int] = batches
    timeout_ms = None
    if delivery is not None:
        deadline = time.monotonic() + delivery.timeout_ms / 1000
        if len(batches) > 1:
            numbers = sorted(batches, key=lambda number: not delivery.can_reach(topic, number))
    for number in numbers:
        builders = batches[number]
        try:
            encoded = builders[0].build(codec, limit, now)
            for builder in builders[1:]:
                encoded += builder.build(codec, limit, now)
            if delivery is not None:
                timeout_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            appended[number] = backend.append(topic, number, encoded, flush=flush, timeout_ms=timeout_ms)
        except Exception as error:
            failed[number] = error
    if not failed:
        return AppendedMany(topic, appended, times, places)
    first = next(iter(failed.values()))
    if not appended or places is None:
        raise first
    raise _partial(topic, appended, failed, times, places) from first


@calls_out
def _chosen(partitioner: Partitioner, topic: str, rows: Sequence[Row], count: int) -> list[int]:
    """The partition of each row."""
    if type(partitioner) is not StickyPartitioner:
        return [choose_partition(partitioner, topic, key, value, count) for key, value, _, _ in rows]
    # The value does not matter, so each key needs one call.
    by_key = {key: partitioner(topic, key, None, count) for key in {row[0] for row in rows}}
    return [by_key[row[0]] for row in rows]


def _divided(rows: Sequence[Row], numbers: list[int]) -> tuple[Mapping[int, Sequence[Row]], Places | None]:
    """The rows of each partition, and their places, if they go to several."""
    if len(set(numbers)) == 1:
        return {numbers[0]: rows}, None
    rows_of: dict[int, list[Row]] = {}
    ranks = []
    for row, number in zip(rows, numbers, strict=True):
        partition_rows = rows_of.setdefault(number, [])
        ranks.append(len(partition_rows))
        partition_rows.append(row)
    return rows_of, (array("i", numbers), array("q", ranks))


def batches_of(rows: Sequence[Row], room: int, append_time: bool) -> list[BatchBuilder]:
    """Valid rows in batches of at most `room` bytes, except single records."""
    batches = []
    start = 0
    while start < len(rows):
        batch = BatchBuilder(room, append_time)
        start = batch.extend(rows, start)
        batches.append(batch)
    return batches


def _refuse_large(topic: str, rows: Sequence[Row], limit: int) -> None:
    """Raises RecordTooLarge for the first record that is too large, with its index."""
    for number, (key, value, headers, _) in enumerate(rows):
        try:
            check_size(topic, limit, key, value, headers)
        except RecordTooLarge as error:
            raise RecordTooLarge(f"record {number:,}: {error}") from None


def _partial(
    topic: str,
    appended: dict[int, Appended],
    failed: dict[int, Exception],
    times: int | array[int] | None,
    places: Places,
) -> PartialAppend:
    """The error that tells what was appended."""
    partitions, ranks = places
    landed = [i for i, number in enumerate(partitions) if number in appended]
    if isinstance(times, array):
        times = array("q", [times[i] for i in landed])
    places = (array("i", [partitions[i] for i in landed]), array("q", [ranks[i] for i in landed]))
    names = ", ".join(str(number) for number in sorted(failed))
    return PartialAppend(
        f"{len(partitions) - len(landed):,} of {len(partitions):,} records were not appended to {topic!r}: "
        f"partition {names} failed ({next(iter(failed.values()))})",
        landed=AppendedMany(topic, appended, times, places),
        failed=failed,
        not_landed=[i for i, number in enumerate(partitions) if number in failed],
    )
