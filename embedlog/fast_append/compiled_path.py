"""The way from a log's `append` and `append_many` to its partitions, compiled by Cython: see `plain`.

What clients/append.py does for any backend, this does for the local one: it validates records, chooses their
partitions, and encodes them. It accepts only records that have the exact types that clients/record_input.py
returns; the ordinary path gets any others, whole, before anything is appended.

Invariant: no Python code runs while records are divided, except the partitioner's choice for those without a
key.
"""

from functools import wraps

import cython

from ..codec.record_size import BATCH_BYTES
from ..model import Record

if not cython.compiled:
    raise ImportError("this module works only compiled: plain is its twin")

_RECORD = cython.declare(type, Record)
_BATCH_BYTES = cython.declare(int64_t, BATCH_BYTES)
_ANY = cython.declare(int64_t, -1)  # expected offset
_OTHER = cython.declare(int64_t, -2)  # what is left to Python
_INTS = cython.declare(array, array("i"))
_LONGS = cython.declare(array, array("q"))


@cython.cclass
class FastPath:
    """See `plain`."""

    def __init__(self, topics: dict, partitioner, result, append_batches):
        self._topics = topics
        self._partitioner = partitioner
        self._result = result
        self._append_batches = append_batches

    def _partitions(self, topic):
        partitions = self._topics.get(topic) if PyUnicode_CheckExact(topic) else None
        return partitions if type(partitions) is tuple else None

    def one(self, topic, value, key, headers, timestamp_ms, partition, expected_offset):
        """Append one record. None, with no side effects, if the ordinary path must decide."""
        partitions: tuple = self._partitions(topic)
        if partitions is None or sized(key) == _OTHER or sized(value) == _OTHER:
            return None
        count: int64_t = len(partitions)
        log: LogFields = _fast_append(partitions, 0)._log
        drawn: cython.bint = False
        number: int64_t = 0
        if partition is not None:
            number = as_number(partition)
            if not 0 <= number < count:
                return None
        elif count > 1:
            drawn = key is None
            if drawn and expected_offset is not None:
                return None
            number = self._partitioner(topic, None, None, count) if drawn else _partition_of(key, count)
        time: int64_t = _now_ms()
        if timestamp_ms is not None and not log.append_time:
            time = as_number(timestamp_ms)
        expected: int64_t = as_expected(expected_offset)
        size: int64_t = 1
        pairs: tuple = None
        if headers:
            pairs = _pairs(headers)
            size = headers_size(pairs)
        if time < 0 or expected == _OTHER or size < 0:
            return None
        metadata = _fast_append(partitions, number).append_record(key, value, pairs, size, time, expected)
        if drawn and metadata is not None:
            self._partitioner.on_new_batch(topic, count, number)
        return metadata

    def many(self, topic, records, partition, flush):
        """Append many records. None, with no side effects, if the ordinary path must decide."""
        split: Split = self._split(topic, records, partition, self._partitioner)
        if split is None:
            return None
        partitions: tuple = split.partitions
        number: int64_t
        codec: cython.int = split.log.codec
        limit: int64_t = split.log.max_message_bytes
        appended: dict = {}
        unappended: dict = None
        for number in split.order:
            batches: list = split.batches[number if split.count > 1 else 0]
            builder: BatchBuilder = batches[len(batches) - 1]
            base: int64_t = -1
            if not flush:
                base = _fast_append(partitions, number).append_built(batches, codec, split.now, _ANY)
            if base < 0:
                unappended = unappended or {}
                unappended[number] = batches
            else:
                last: int64_t = split.now if builder.append_time else builder.max_timestamp_ms
                appended[number] = appended_at(base, builder.before + builder.count, last)
                for builder in batches:
                    recycle(builder)
        if split.keyless >= 0:
            self._partitioner.on_new_batch(topic, split.count, split.keyless)
        times = split.times  # without any, those of the appends
        if unappended is None:
            return self._result(topic, appended, times, split.places())
        return self._append_batches(
            topic, unappended, appended, codec, limit, flush, split.now, times, split.places()
        )

    def divide(self, topic, records, partition, partitioner):
        """See `plain`."""
        if type(records) is not list:
            return None
        split: Split = self._split(topic, records, partition, partitioner)
        if split is None:
            return None
        if split.keyless >= 0:
            partitioner.on_new_batch(topic, split.count, split.keyless)
        batches: dict = {}
        number: int64_t
        for number in split.order:
            batches[number] = split.batches[number if split.count > 1 else 0]
        limit: int64_t = split.log.max_message_bytes
        return batches, split.log.codec, limit, split.now, split.times, split.places()

    def _split(self, topic, records, partition, partitioner):
        """The records in batches. None, with no side effects, if the ordinary path must decide."""
        partitions: tuple = self._partitions(topic)
        if partitions is None:
            return None
        number: int64_t = as_number(partition) if partition is not None else 0
        if not 0 <= number < len(partitions):
            return None
        split: Split = Split()
        split.partitions = partitions
        split.log = _fast_append(partitions, 0)._log
        split.count = 1 if partition is not None else len(partitions)
        split.only = number
        split.now = _now_ms()
        return split if split.divide(topic, records, partitioner) else None


@cython.cclass
class Split:
    """The records of one append_many, in the batches of their partitions.

    `batches` has a list for each partition that has records, and `order` their numbers, in the order of their
    first records. `chosen` and `ranks` tell each record's partition, and how many came before it there, if
    there are several; `times` their timestamps, if they brought any.
    """

    def divide(self, topic, records, partitioner):
        """Encode all records into batches. False if one is not of the exact types, or too large."""
        total: cython.Py_ssize_t = len(records)
        limit: int64_t = self.log.max_message_bytes
        several: cython.bint = self.count > 1
        number: int64_t = 0
        current: int64_t = -1
        builder: BatchBuilder = None
        self._begin(total)
        i: cython.Py_ssize_t = 0
        while i < total:
            # 1  Without a choice, the batch takes plain values and pairs by itself, until one is unusual.
            if not several and builder is not None and self.times is None:
                i = builder.put_items(records, i, self.now)
                if i == total:
                    break
            # 2  Take the record apart. Keys and values are encoded as they are: only bytes and None pass.
            if i >= len(records):  # the partitioner, the only Python code here, has shortened the list
                return False
            item = records[i]
            key, value, pairs = None, None, None
            size: int64_t = 1
            time: int64_t = self.now
            if type(item) is tuple:
                if len(cython.cast(tuple, item)) != 2:
                    return False
                key, value = cython.cast(tuple, item)
            elif type(item) is _RECORD:
                record: tuple = cython.cast(tuple, item)
                key, value, headers = record[5], record[6], record[7]
                if headers:
                    pairs = _pairs(headers)
                    size = headers_size(pairs)
                if record[3] != -1:
                    time = self._time(record[3], i, total)
            else:
                value = item
            if sized(key) == _OTHER or sized(value) == _OTHER or size < 0 or time < 0:
                return False
            # 3  Find its partition's batch, which is mostly that of the record before.
            if several:
                number = _choose(self, topic, key, partitioner)
            if number != current:
                current = number
                builder = self._latest_batch(number, key, value, total)
            # 4  Encode it. After a full batch comes another, which takes any first record.
            if not builder.put_measured(key, value, pairs, size, time):
                builder = self._next_batch(number, key, value, total - i)
                builder.put_measured(key, value, pairs, size, time)
            if builder.size > limit:
                return False
            # 5  Note where it went, and when, for the caller's results.
            if several:
                self.chosen.data.as_ints[i] = cython.cast(cython.int, number)
                self.ranks.data.as_longlongs[i] = builder.before + builder.count - 1
            if self.times is not None:
                self.times.data.as_longlongs[i] = time
            i += 1
        return total > 0

    def _begin(self, total):
        self.batches = [None] * self.count
        self.order = []
        self.keyless = -1
        if self.count > 1:
            self.chosen, self.ranks = clone(_INTS, total, False), clone(_LONGS, total, False)
        return 0

    def _time(self, timestamp_ms, i, total):
        """The time of record `i`, which brought one. From the first that is not now, all times are noted."""
        if self.log.append_time:
            return self.now
        time: int64_t = as_number(timestamp_ms)
        if time != self.now and self.times is None:
            self.times = clone(_LONGS, total, False)
            for k in range(i):
                self.times.data.as_longlongs[k] = self.now
        return time

    def _latest_batch(self, number, key, value, total):
        """A partition's open batch; its first one, if this is its first record."""
        batches: list = self.batches[number]
        if batches is None:
            batches = self.batches[number] = []
            self.order.append(number if self.count > 1 else self.only)
            batches.append(self._new_batch(key, value, total))
        return batches[len(batches) - 1]

    def _next_batch(self, number, key, value, remaining):
        """A new batch, after the full one."""
        batches: list = self.batches[number]
        full: BatchBuilder = batches[len(batches) - 1]
        builder: BatchBuilder = self._new_batch(key, value, remaining)
        builder.before = full.before + full.count
        batches.append(builder)
        return builder

    def _new_batch(self, key, value, records):
        """A batch with room for a partition's share of so many records like this one."""
        share: int64_t = 1 + records // self.count
        size: int64_t = 128 + (16 + max(sized(key), 0) + max(sized(value), 0)) * share
        room: int64_t = min(self.log.max_message_bytes, _BATCH_BYTES)
        return new_builder(room, self.log.append_time, size)

    def places(self):
        """The partitions and ranks of the records; None if there is one partition."""
        return (self.chosen, self.ranks) if len(self.order) > 1 else None


def one_on_fast_path(ordinary):
    """See `plain`."""

    @wraps(ordinary)
    def append(
        self,
        topic,
        value,
        *,
        key=None,
        headers=(),
        timestamp_ms=None,
        partition=None,
        flush=False,
        expected_offset=None,
    ):
        if flush is False:
            fast: FastPath = cython.cast(FastPath, self._fast_path)
            metadata = fast.one(topic, value, key, headers, timestamp_ms, partition, expected_offset)
            if metadata is not None:
                return metadata
        return ordinary(
            self,
            topic,
            value,
            key=key,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
            flush=flush,
            expected_offset=expected_offset,
        )

    return append


def many_on_fast_path(ordinary):
    """See `plain`."""

    @wraps(ordinary)
    def append_many(self, topic, records, *, partition=None, compression=None, flush=False):
        if compression is None and type(records) is list and type(flush) is bool:
            appended = cython.cast(FastPath, self._fast_path).many(topic, records, partition, flush)
            if appended is not None:
                return appended
        return ordinary(self, topic, records, partition=partition, compression=compression, flush=flush)

    return append_many


def _fast_append(partitions, number):
    return cython.cast(PartitionFields, partitions[number]).fast_append


def _pairs(headers):
    """Headers as a tuple, which `headers_size` measures; None for what is left to clients/record_input.py."""
    if type(headers) is tuple:
        return headers
    if type(headers) is dict:
        return tuple(cython.cast(dict, headers).items())
    return tuple(cython.cast(list, headers)) if type(headers) is list else None


def _choose(split, topic, key, partitioner):
    """The number of a record's partition; one for all records without a key."""
    if key is not None:
        return _partition_of(key, split.count)
    if split.keyless < 0:
        split.keyless = partitioner(topic, None, None, split.count)
    return split.keyless


def _partition_of(key, count):
    hashed: uint32_t = murmur2(cython.cast(Reading, PyBytes_AS_STRING(key)), PyBytes_GET_SIZE(key))
    return (hashed & 0x7FFFFFFF) % count
