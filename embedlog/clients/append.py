"""What `Log.append` and `Log.append_many` do: check, choose partitions, encode, and hand over to a backend.

    records --check--> columns --partitioner--> the records of each partition --cut--> record batches
            --encode--> bytes --backend.append, once a partition--> AppendedMany

A batch is cut at BATCH_BYTES, or at the topic's max_message_bytes where that is less; a record that fills
more is alone in its batch. Sizes are those before compression, so that whatever is written can be read
within the same bounds. A batch that compression makes larger than is allowed is written uncompressed.

Invariants: everything is checked before anything is appended; the batches of one partition go to the
backend in one call, which is all or nothing; several partitions are independent of one another, in the
order of their first record; records without a key go to one partition a call.

Source of the idea: Kafka 2.7 design, sections 4.1 (load balancing) and 4.2 (asynchronous send: batches).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from ..backends.port import Backend
from ..codec import HEADER_SIZE, NONE, encode_batch, encode_pairs, encode_values, loops
from ..codec.record_size import BATCH_BYTES, PLAIN_OVERHEAD, RECORD_OVERHEAD, check_size, headers_size
from ..errors import InvalidArgument, InvalidType, PartialAppend, RecordTooLarge, shown
from ..model import Appended, Headers, Record, RecordMetadata
from ..validation import check_int, check_partition, check_topic
from .partitioner import Partitioner, StickyPartitioner, choose_partition, notify_new_batch
from .record_input import Bytes, HeadersInput, as_bytes, as_headers, as_timestamp, compression_number, now_ms
from .results import AppendedMany

_Row: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
Given: TypeAlias = Bytes | tuple[Bytes | None, Bytes | None] | Record | None

_ALONE = HEADER_SIZE + RECORD_OVERHEAD


def append(
    backend: Backend,
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
    """Append one record and say where it landed.

    Args:
        value, key: bytes, bytearray, memoryview or None. A null value with a key is a tombstone.
        headers: (name, value) pairs or a dict.
        timestamp_ms: milliseconds since the epoch, now by default.
        partition: by default the partitioner's choice.
        flush: return only when it is durable.
        expected_offset: append only if the record gets this offset. Needs a partition or a key, unless the
            topic has but one partition.
        compression: a codec's name, by default the topic's.

    Raises TopicNotFound, PartitionNotFound, InvalidType, InvalidArgument, RecordTooLarge, UnexpectedOffset,
    or what else the backend raises (Closed, ReadOnly, DiskFull, PartitionFailed); nothing was appended
    then. Only after FlushFailed it may have been.

    The record is readable and survives this process once it is returned; `durable` tells whether it also
    survives power. Any thread may call.
    """
    # The usual call passes by each question here at the cost of one comparison.
    if type(topic) is not str:
        check_topic(topic)
    appenders = backend.appenders(topic)
    settings = appenders[0].settings
    size = _ALONE
    if value is not None:
        if type(value) is not bytes:
            value = as_bytes(value, "value") or b""
        size += len(value)
    if key is not None:
        if type(key) is not bytes:
            key = as_bytes(key, "key") or b""
        size += len(key)
    pairs = as_headers(headers) if headers else ()
    if timestamp_ms is None or settings.append_time:
        timestamp_ms = now_ms()
    else:
        timestamp_ms = as_timestamp(timestamp_ms, now_ms())
    if expected_offset is not None:
        check_int("expected_offset", expected_offset)
    limit = settings.max_message_bytes
    if size > limit or (pairs and size + headers_size(pairs) > limit):
        check_size(topic, limit, key, value, pairs)

    count = len(appenders)
    drawn = False
    if partition is not None:
        check_partition(topic, partition, count)
    elif count == 1 and type(partitioner) is StickyPartitioner:
        partition = 0
    else:
        drawn = key is None and count > 1
        if drawn and expected_offset is not None:
            raise InvalidArgument("expected_offset needs a partition or a key: which log's end is meant?")
        partition = choose_partition(partitioner, topic, key, value, count)

    if pairs or compression is not None or settings.compresses:
        codec = compression_number(compression, settings)
        append_time = settings.append_time
        row = (key, value, pairs, timestamp_ms)
        batch = encode_batch([row], compression=codec, timestamp_type=append_time)
        if codec and len(batch) > limit:
            batch = encode_batch([row], timestamp_type=append_time)
        appended = backend.append(topic, partition, batch, flush=flush, expected_offset=expected_offset)
        metadata = RecordMetadata(topic, partition, appended.base_offset, timestamp_ms, appended.durable)
    else:
        metadata = appenders[partition].append_one(key, value, timestamp_ms, flush, expected_offset)
    if drawn:
        notify_new_batch(partitioner, topic, count, partition)
    return metadata


class _Checked(NamedTuple):
    """Records as `encode` takes them, with what else is to be known of them.

    `size` is what all of them take in one batch at most, `sizes` tells it of each; `timestamps` is one for
    all, or one each. A record's key is the first field of an item, where `keyed`; its value the second.
    """

    items: Sequence[Any]
    keyed: bool
    size: int
    sizes: Callable[[Sequence[Any]], list[int]]
    timestamps: int | list[int]
    encode: Callable[..., bytearray]

    def keys(self) -> list[bytes | None]:
        return [item[0] for item in self.items] if self.keyed else [None] * len(self.items)

    def values(self) -> Sequence[bytes | None]:
        return [item[1] for item in self.items] if self.keyed else self.items


class _Placed(NamedTuple):
    """The records' numbers by partition; each one's partition and rank in it, if there are several
    partitions; the partitions that were drawn for records without a key."""

    members: Mapping[int, Sequence[int]]
    places: tuple[list[int], list[int]] | None
    drawn: set[int]


def append_many(
    backend: Backend,
    partitioner: Partitioner,
    topic: str,
    records: Iterable[Given],
    *,
    partition: int | None = None,
    compression: str | int | None = None,
    flush: bool = False,
) -> AppendedMany:
    """Append many records, by the hundred thousand a second, and say where they landed.

    Args:
        records: values (bytes, bytearray, memoryview, None), (key, value) tuples, or Records, of which key,
            value, headers and timestamp_ms count. Kinds may be mixed.
        partition: for all of them; by default the partitioner's choice for each. The default partitioner
            gives one partition a call to those without a key.
        compression: a codec's name, by default the topic's.
        flush: return only when they are durable.

    Returns a sequence of RecordMetadata in the order of the records.

    All or nothing for each partition; one whose flush failed (FlushFailed) counts as failed, though its
    records may be there. Raises TopicNotFound, PartitionNotFound, InvalidType, InvalidArgument
    and RecordTooLarge before anything is appended. If then no partition takes its records, the first error
    is raised; if some do and some do not, PartialAppend, which tells what landed and what did not.

    Any thread may call; the records of two calls do not mix within a partition.
    """
    check_topic(topic)
    settings = backend.topic_settings(topic)
    count = backend.describe_topic(topic).partitions
    if partition is not None:
        check_partition(topic, partition, count)
    codec = compression_number(compression, settings)
    limit = settings.max_message_bytes
    now = now_ms()
    checked = _checked(records, now, settings.append_time)
    total = len(checked.items)
    if not total:
        return AppendedMany(topic, {}, now)
    room = min(limit, BATCH_BYTES) - HEADER_SIZE
    sizes = None if checked.size <= room else checked.sizes(checked.items)
    if sizes is not None and max(sizes) > limit - HEADER_SIZE:
        _refuse_large(topic, checked, sizes, limit)

    members, places, drawn = _placed(partitioner, topic, checked, count, partition)
    appended: dict[int, Appended] = {}
    failed: dict[int, Exception] = {}
    for number, indexes in members.items():
        items = checked.items
        if len(indexes) < total:
            items = [items[i] for i in indexes]
        try:
            if sizes is None:
                batches = _encoded(checked.encode, items, codec, limit)
            else:
                batches = bytearray()
                for start, stop in _cuts([sizes[i] for i in indexes], room):
                    batches += _encoded(checked.encode, items[start:stop], codec, limit)
            appended[number] = backend.append(topic, number, batches, flush=flush)
        except Exception as error:
            failed[number] = error
    for number in drawn:
        notify_new_batch(partitioner, topic, count, number)

    times = None if settings.append_time else checked.timestamps
    if not failed:
        return AppendedMany(topic, appended, times, places)
    first = next(iter(failed.values()))
    if not appended or places is None:
        raise first
    raise _partial(topic, appended, failed, times, places) from first


# -- checking and placing many -----------------------------------------------------------------------


def _checked(records: Iterable[Given], now: int, append_time: bool) -> _Checked:
    """The records, read to their end and checked, in the form whose encoding is fastest."""
    if type(records) is not list:
        _check_iterable(records)
    given: list[Any] = list(records)
    size = loops.values_size(given)
    if size >= 0:
        size += len(given) * PLAIN_OVERHEAD
        encode = partial(encode_values, timestamp_ms=now, timestamp_type=append_time)
        return _Checked(given, False, size, _value_sizes, now, encode)
    size = loops.pairs_size(given)
    if size >= 0:
        size += len(given) * PLAIN_OVERHEAD
        encode = partial(encode_pairs, timestamp_ms=now, timestamp_type=append_time)
        return _Checked(given, True, size, _pair_sizes, now, encode)
    rows = _rows(given, now, append_time)
    encode = partial(encode_batch, timestamp_type=append_time)
    return _Checked(rows, True, sum(_row_sizes(rows)), _row_sizes, [row[3] for row in rows], encode)


def _check_iterable(records: object) -> None:
    if isinstance(records, str | bytes | bytearray | memoryview | Mapping | Record):
        raise InvalidType(
            f"records must be an iterable of records, not one {type(records).__name__}: append() appends one"
            " (a dict's items() are (key, value) pairs)"
        )
    if not isinstance(records, Iterable) and not hasattr(records, "__getitem__"):
        raise InvalidType(f"records must be an iterable, not {type(records).__name__}")


def _value_sizes(values: Sequence[bytes | None]) -> list[int]:
    return [len(value or b"") + PLAIN_OVERHEAD for value in values]


def _pair_sizes(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> list[int]:
    return [len(key or b"") + len(value or b"") + PLAIN_OVERHEAD for key, value in pairs]


def _row_sizes(rows: Sequence[_Row]) -> list[int]:
    return [
        len(key or b"") + len(value or b"") + headers_size(headers) + RECORD_OVERHEAD
        for key, value, headers, _ in rows
    ]


def _rows(given: list[Any], now: int, append_time: bool) -> list[_Row]:
    """For all kinds, one by one. Raises for the first that is none of them and says which."""
    rows = []
    for number, each in enumerate(given):
        try:
            rows.append(_row(each, now, append_time))
        except (InvalidType, InvalidArgument) as error:
            raise type(error)(f"record {number:,}: {error}") from None
    return rows


def _row(given: object, now: int, append_time: bool) -> _Row:
    if isinstance(given, Record):
        timestamp_ms = as_timestamp(None if append_time else given.timestamp_ms, now)
        key, value, headers = given.key, given.value, as_headers(given.headers)
        return as_bytes(key, "key"), as_bytes(value, "value"), headers, timestamp_ms
    if isinstance(given, tuple):
        if len(given) != 2:
            raise InvalidType(f"a tuple must be (key, value), not {shown(given)}")
        return as_bytes(given[0], "key"), as_bytes(given[1], "value"), (), now
    return None, as_bytes(given, "value"), (), now


def _refuse_large(topic: str, checked: _Checked, sizes: list[int], limit: int) -> None:
    """Raises RecordTooLarge for the first record that is, and says which."""
    headers = [item[2] for item in checked.items] if isinstance(checked.timestamps, list) else None
    for number, (size, key, value) in enumerate(zip(sizes, checked.keys(), checked.values(), strict=True)):
        if size > limit - HEADER_SIZE:
            try:
                check_size(topic, limit, key, value, headers[number] if headers else ())
            except RecordTooLarge as error:
                raise RecordTooLarge(f"record {number:,}: {error}") from None


def _placed(
    partitioner: Partitioner, topic: str, checked: _Checked, count: int, partition: int | None
) -> _Placed:
    """Where each record goes."""
    total = len(checked.items)
    if partition is not None:
        return _Placed({partition: range(total)}, None, set())
    if type(partitioner) is StickyPartitioner:
        # The value does not matter, so a key is asked for once.
        keys = checked.keys() if checked.keyed and count > 1 else [None]
        by_key = {key: partitioner(topic, key, None, count) for key in set(keys)}
        drawn = {by_key[None]} if None in by_key else set()
        if len(set(by_key.values())) == 1:
            return _Placed({by_key.popitem()[1]: range(total)}, None, drawn)
        chosen = [by_key[key] for key in keys]
    else:
        keys = checked.keys()
        chosen = [
            choose_partition(partitioner, topic, key, value, count)
            for key, value in zip(keys, checked.values(), strict=True)
        ]
        drawn = {number for key, number in zip(keys, chosen, strict=True) if key is None}
    members: defaultdict[int, list[int]] = defaultdict(list)
    ranks = []
    for number, chosen_partition in enumerate(chosen):
        indexes = members[chosen_partition]
        ranks.append(len(indexes))
        indexes.append(number)
    return _Placed(members, (chosen, ranks) if len(members) > 1 else None, drawn)


def _encoded(encode: Callable[..., bytearray], items: Sequence[Any], codec: int, limit: int) -> bytearray:
    """One batch of them, uncompressed where compression makes it larger than is allowed."""
    batch = encode(items, compression=codec)
    return encode(items, compression=NONE) if codec and len(batch) > limit else batch


def _cuts(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of batches whose sizes together do not exceed the room, except one record alone."""
    ends = list(accumulate(sizes))
    start = before = 0
    while start < len(ends):
        stop = max(bisect_right(ends, before + room, lo=start), start + 1)
        yield start, stop
        start, before = stop, ends[stop - 1]


def _partial(
    topic: str,
    appended: dict[int, Appended],
    failed: dict[int, Exception],
    times: int | list[int] | None,
    places: tuple[list[int], list[int]],
) -> PartialAppend:
    """The error that tells what landed."""
    partitions, ranks = places
    landed = [i for i, number in enumerate(partitions) if number in appended]
    if isinstance(times, list):
        times = [times[i] for i in landed]
    places = ([partitions[i] for i in landed], [ranks[i] for i in landed])
    names = ", ".join(str(number) for number in sorted(failed))
    return PartialAppend(
        f"{len(partitions) - len(landed):,} of {len(partitions):,} records were not appended to {topic!r}: "
        f"partition {names} failed ({next(iter(failed.values()))})",
        landed=AppendedMany(topic, appended, times, places),
        failed=failed,
        not_landed=[i for i, number in enumerate(partitions) if number in failed],
    )
