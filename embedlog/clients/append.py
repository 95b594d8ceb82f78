"""Implements `Log.append` and `Log.append_many`: validate, choose partitions, encode, append.

    records --validate--> rows --partitioner--> rows of each partition --split--> record batches
            --encode--> bytes --backend.append, once per partition--> AppendedMany

A batch has at most BATCH_BYTES, or the topic's max_message_bytes if that is less; a larger record is alone in
its batch. Sizes are before compression, so everything written can be read within the same limits. A batch
that compression enlarges beyond max_message_bytes is written uncompressed.

Invariants: all input is validated before anything is appended; the batches of one partition go to the backend
in one call, which is all or nothing; partitions are independent of each other, in the order of their first
records; records without a key go to one partition per call.

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
    """See `Log.append`. This is the gate for the input of one append: nothing below validates it again.

    expected_offset needs a partition or a key, unless the topic has only one partition. compression is a
    codec's name, by default the topic's.
    """
    # The common call pays one comparison for each check.
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
            raise InvalidArgument("expected_offset needs a partition or a key, to say which log end it means")
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
    """Validated records, in the form that `encode` takes.

    `size` is the most bytes that all of them take in one batch, `sizes` returns that of each; `timestamps`
    is one for all, or one for each. If `keyed`, an item's first two fields are key and value; else it is
    the value.
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
    """Records assigned to partitions.

    indexes: the indexes of each partition's records. places: with several partitions, the partition of each
    record and its rank there. drawn: the partitions chosen for records without a key.
    """

    indexes: Mapping[int, Sequence[int]]
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
    """See `Log.append_many`.

    A partition whose flush failed (FlushFailed) counts as failed, though its records may have been appended.
    Input errors are raised before anything is appended. After that: if all partitions fail, the first error
    is raised; if some fail, PartialAppend. Within a partition the records of two calls do not interleave.
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

    indexes_of, places, drawn = _placed(partitioner, topic, checked, count, partition)
    appended: dict[int, Appended] = {}
    failed: dict[int, Exception] = {}
    for number, indexes in indexes_of.items():
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


# -- validation and partitions -----------------------------------------------------------------------


def _checked(records: Iterable[Given], now: int, append_time: bool) -> _Checked:
    """Read and validate the records; choose the form that encodes fastest."""
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
    """Records of any kind, one by one. Raises for the first invalid one, with its index."""
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
    """Raises RecordTooLarge for the first record that is too large, with its index."""
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
    """Choose the partition of each record."""
    total = len(checked.items)
    if partition is not None:
        return _Placed({partition: range(total)}, None, set())
    if type(partitioner) is StickyPartitioner:
        # The value does not matter, so each key needs one call.
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
    indexes_of: defaultdict[int, list[int]] = defaultdict(list)
    ranks = []
    for number, chosen_partition in enumerate(chosen):
        indexes = indexes_of[chosen_partition]
        ranks.append(len(indexes))
        indexes.append(number)
    return _Placed(indexes_of, (chosen, ranks) if len(indexes_of) > 1 else None, drawn)


def _encoded(encode: Callable[..., bytearray], items: Sequence[Any], codec: int, limit: int) -> bytearray:
    """One batch of the items; uncompressed if compression enlarges it beyond the limit."""
    batch = encode(items, compression=codec)
    return encode(items, compression=NONE) if codec and len(batch) > limit else batch


def _cuts(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of batches that do not exceed `room`, except single records."""
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
    """The error that tells what was appended."""
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
