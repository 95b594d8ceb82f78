"""The fast path of a producer's send, compiled by Cython: the classes of `plain_send`, see there.

Invariant: the GIL is held throughout, and from the look at the open batch on no Python code runs.
"""

import os
from functools import wraps

import cython

from ..codec.record_size import RECORD_OVERHEAD
from .limits import RECORD_MEMORY

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_send is its twin")

_OTHER = cython.declare(int64_t, -2)
_LARGEST = cython.declare(int64_t, (1 << 31) - 1)
_HEADER_SIZE = cython.declare(int64_t, 61)
_RECORD_OVERHEAD = cython.declare(int64_t, RECORD_OVERHEAD)
_RECORD_MEMORY = cython.declare(int64_t, RECORD_MEMORY)
_NOTHING = cython.declare(tuple, ())
_forks = cython.declare(int64_t, 0)


@cython.cclass
class FutureFields:
    """See `plain_send`."""


@cython.cclass
class BatchFields:
    """See `plain_send`."""

    def __init__(self, append_time: cython.bint, limit: int64_t):
        self._builder = BatchBuilder(_LARGEST, append_time)
        self.size = _HEADER_SIZE
        self.limit = limit
        self.watched = {}

    @property
    def count(self):
        """See `plain_send`."""
        return self._builder.count

    def build(self, codec, limit, append_time_ms):
        """See `plain_send`."""
        return self._builder.build(codec, limit, append_time_ms)

    def forget(self):
        """See `plain_send`."""
        self._builder = None


@cython.cclass
class TopicFields:
    """See `plain_send`."""

    def __init__(self):
        self.open = {}


@cython.cclass
class Accumulator:
    """See `plain_send`."""

    def __init__(self, future, buffer_bytes: int64_t, sticky, watches: cython.bint):
        self._future = future
        self._sticky = sticky
        self._watches = watches
        self._forks = _forks
        self.buffer_bytes = buffer_bytes
        self.topics = {}

    def add(self, batch: BatchFields, key, value, headers, timestamp_ms: int64_t, size: int64_t):
        """See `plain_send`."""
        future: FutureFields = cython.cast(FutureFields, new_instance(self._future, _NOTHING))
        return future if self._put(future, batch, key, value, headers, timestamp_ms, size) else None

    def release(self, memory: int64_t):
        """See `plain_send`."""
        self.buffered -= memory

    def _send(self, topic, key, value, headers, timestamp_ms, partition):
        if self._sticky is None or self._forks != _forks or not PyUnicode_CheckExact(topic):
            return None
        key_size: int64_t = sized(key)
        value_size: int64_t = sized(value)
        if key_size == _OTHER or value_size == _OTHER:
            return None
        size: int64_t = 1
        pairs: tuple = None
        if headers:
            pairs = _pairs(headers)
            size = headers_size(pairs)
        time: int64_t = 0 if timestamp_ms is None else as_number(timestamp_ms)
        if size < 0 or time < 0:
            return None
        size += _RECORD_OVERHEAD - 1 + max(key_size, 0) + max(value_size, 0)
        # Before anything is looked at: this may collect garbage, so it may run any code.
        future: FutureFields = cython.cast(FutureFields, new_instance(self._future, _NOTHING))
        state: TopicFields = cython.cast(TopicFields, self.topics.get(topic))
        if state is None or not state.is_fresh or self.closed:
            return None
        number = self._chosen(state, topic, key, partition)
        batch: BatchFields = cython.cast(BatchFields, state.open.get(number))
        if batch is None or batch.size + 2 * size > batch.limit:
            return None
        if timestamp_ms is None:
            time = _now_ms()
        return future if self._put(future, batch, key, value, pairs, time, size) else None

    def _chosen(self, state, topic, key, partition):
        """The number of the partition; None if the ordinary path must decide."""
        if partition is None:
            if state.partitions == 1:
                return 0
            if key is not None:
                return _partition_of(key, state.partitions)
            partition = self._sticky.get(topic)
        return partition if 0 <= as_number(partition) < state.partitions else None

    def _put(self, future, batch, key, value, headers, timestamp_ms, size):
        memory: int64_t = size + _RECORD_MEMORY
        count: int64_t = batch._builder.count
        if self.buffered + memory > self.buffer_bytes or (count and batch.size + size > batch.limit):
            return False
        future.batch = batch
        future.index = count
        future.timestamp_ms = timestamp_ms
        if not batch._builder.put(key, value, headers, timestamp_ms):
            return False
        batch.size += size
        batch.memory += memory
        self.buffered += memory
        if self._watches:
            batch.watched[future.index] = future
        return True


def send_on_fast_path(ordinary):
    """See `plain_send`."""

    @wraps(ordinary)
    def send(self, topic, value, *, key=None, headers=(), timestamp_ms=None, partition=None):
        accumulator: Accumulator = cython.cast(Accumulator, self._accumulator)
        future = accumulator._send(topic, key, value, headers, timestamp_ms, partition)
        if future is not None:
            return future
        return ordinary(
            self, topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )

    return send


def _after_fork_in_child():
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)
