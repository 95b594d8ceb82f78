"""The producer: `send` puts a record into the open batch of its partition, one thread sends the batches.

    send --partitioner--> open batch of (topic, partition) --full, or linger_ms old--> ready batches
                                                                                          |
    futures, callback <--settle-- offsets <--backend.append-- encode <---- sender thread -+

A batch is ready as soon as another record like its last would not fit batch_bytes, linger_ms after its first
record, at `flush` and `close`, and when a send waits for room. The sender takes the ready batches of one
partition, oldest first, encodes them and appends them in one call; then it goes on with the next partition.
It sleeps until the next deadline, and is woken for the first open batch and each ready one.

Invariants: the order in a partition is the order of the sends; each future is settled exactly once, with
what the backend said; a failure touches no partition but its own; what is buffered stays within
buffer_bytes (the Python objects around a record counted in); nothing is called back under the lock. Topics
are asked for their settings anew after each of their batches. Ctrl-C may strike a method anywhere: the
record of a send that did not return is sent once or not at all, and everything else goes on.

After a fork the child has no sender thread, and its locks may be held by nobody: there every method looks
at the count of forks before it touches anything. At the interpreter's exit all open producers are drained.

Source of the idea: Kafka 2.7 design, section 4.4 (asynchronous send); KIP-480 (when batches are sent).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from ..backends.port import Backend
from ..codec import HEADER_SIZE, NONE, codec_number, encode_batch
from ..codec.record_size import RECORD_OVERHEAD, check_size, headers_size
from ..config import KIB, MIB
from ..errors import BufferExhausted, Closed, ForkedHandle, InvalidArgument, InvalidType, RecordTooLarge
from ..model import Headers, RecordMetadata
from ..runtime.closing import Closing
from ..runtime.uninterruptible import uninterruptible
from ..runtime.wakeups import OneShotEvent, Wakeup
from ..validation import as_seconds, check_flag, check_int, check_partition, check_positive, check_topic
from .partitioner import Partitioner, StickyPartitioner, choose_partition, notify_new_batch
from .record_input import HeadersInput, as_bytes, as_headers, as_timestamp, compression_number, now_ms
from .send_future import BatchResult, SendFuture, settle

Callback: TypeAlias = Callable[[RecordMetadata | None, BaseException | None], object]
Encoder: TypeAlias = Callable[[Any], Any]
"""Turns a value or key into bytes, or None."""

_Row: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]

LINGER_MS = 5
BATCH_BYTES = 16 * KIB
BUFFER_BYTES = 32 * MIB
MAX_BLOCK_MS = 60_000

RECORD_MEMORY = 512
"""Bytes of Python objects around a buffered record: its tuple, its numbers, its future."""

# As much of one partition as the sender appends in one call.
_APPEND_BYTES = MIB

_log = logging.getLogger(__name__)
_new = tuple.__new__
_forks = 0
_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


class _Topic(NamedTuple):
    """What a send must know of its topic."""

    partitions: int
    codec: int
    append_time: bool
    max_message_bytes: int
    batch_bytes: int


class _Batch:
    """Records of one partition that will be sent together, and their futures."""

    __slots__ = (
        "_entries", "about", "announced", "deadline", "done", "memory", "partition", "settlement", "size",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, about: _Topic, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.about = about
        self.deadline = deadline
        self.settlement = BatchResult()
        self._entries: list[Any] = []  # a record, its future, a record, its future, ...
        self.size = HEADER_SIZE
        self.memory = 0
        self.announced = False
        self.done = OneShotEvent()  # its callbacks have been called, its memory is free

    def add(self, row: _Row) -> SendFuture:
        """Take in a record and its future: both at once, or neither where Ctrl-C strikes."""
        future = SendFuture(self.settlement)
        self._entries += (row, future)
        return future

    @property
    def records(self) -> list[_Row]:
        return self._entries[::2]

    @property
    def futures(self) -> list[SendFuture]:
        return self._entries[1::2]

    def encode(self, now: int) -> bytearray:
        """Its bytes; compressed, unless that makes it larger than is allowed."""
        return _encoded(self.about, self.records, now)


class Producer(Closing):
    """Sends records in the background, in batches. Any number of threads may use one; `close` it, or use
    `with`.

    Args:
        backend: the log.
        linger_ms: how long a batch waits for more records.
        batch_bytes: size of a batch, uncompressed. A larger record is alone in its batch.
        compression: a codec's name; by default each topic's compression_type.
        partitioner: by default StickyPartitioner: murmur2 of the key, or sticky.
        encoder, key_encoder: turn the values and keys that are sent into bytes. None stays None: a null.
        callback: called as callback(metadata, None) or callback(None, error) for each record, by the
            sender thread. It may send (never waiting for room), it may not flush.
        buffer_bytes: memory that unsent records may take; a send waits for room up to max_block_ms.
        flush: whether every append is made durable before its futures are done.
        clock: gives timestamps, in milliseconds since the epoch.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        compression: str | int | None = None,
        partitioner: Partitioner | None = None,
        encoder: Encoder | None = None,
        key_encoder: Encoder | None = None,
        callback: Callback | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_block_ms: float = MAX_BLOCK_MS,
        flush: bool = False,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        if compression not in (None, "producer"):
            codec_number(compression)
        self._backend = backend
        self._merges = backend.one_batch_per_append
        check_positive(batch_bytes=batch_bytes, buffer_bytes=buffer_bytes)
        check_flag("flush", flush)
        self._linger = as_seconds("linger_ms", linger_ms)
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._partitioner = StickyPartitioner() if partitioner is None else partitioner
        self._trusted = type(self._partitioner) is StickyPartitioner
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._callback = callback
        self._buffer_bytes = buffer_bytes
        self._max_block = as_seconds("max_block_ms", max_block_ms)
        self._flush = flush
        self._clock = clock
        if not callable(clock):
            raise InvalidType(f"clock must be callable, not {type(clock).__name__}")
        check_int("clock()", clock(), low=0)  # later ones are not looked at
        self._forks = _forks
        self._lock = threading.Lock()
        self._work = Wakeup()  # for the sender: rung before what it is to see is changed
        self._waiting: list[Wakeup] = []  # those who wait for room
        self._topics: dict[str, _Topic] = {}
        # In the order of their first records, which is that of their deadlines.
        self._open: dict[tuple[str, int], _Batch] = {}
        self._ready: dict[tuple[str, int], dict[_Batch, None]] = {}
        self._sending: list[_Batch] = []
        self._buffered = 0
        self._closed = False
        self._ended = OneShotEvent()
        self._thread = threading.Thread(target=self._run, name="embedlog-producer", daemon=True)
        uninterruptible(self._thread.start)
        _open_producers.add(self)
        # Last in, first out: behind whatever the backend has registered to close itself.
        atexit.unregister(_drain_at_exit)
        atexit.register(_drain_at_exit)

    # -- what users call -------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Buffer a record and return the future of its RecordMetadata.

        value, key, headers, timestamp_ms and partition are those of `Log.append`; value and key go through
        the encoders first, if there are any.

        Raises at once TopicNotFound, PartitionNotFound, InvalidType, InvalidArgument, RecordTooLarge (all
        without buffering anything), BufferExhausted after waiting max_block_ms for room, Closed, and
        ForkedHandle in a forked child. What goes wrong later is the future's exception.

        The record is in the log once its future is done, and durable if the metadata says so.
        """
        if self._forks != _forks:
            raise _forked()
        if value is not None:
            if self._encoder is not None:
                value = self._encoder(value)
            if type(value) is not bytes:
                value = as_bytes(value, "value")
        if key is not None:
            if self._key_encoder is not None:
                key = self._key_encoder(key)
            if type(key) is not bytes:
                key = as_bytes(key, "key")
        pairs = as_headers(headers) if headers else ()
        if timestamp_ms is None:
            timestamp_ms = self._clock()
        else:
            timestamp_ms = as_timestamp(timestamp_ms, self._clock())

        try:
            about = self._topics[topic]
        except (KeyError, TypeError, ValueError):
            about = self._ask(topic)
        size = RECORD_OVERHEAD
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if pairs:
            size += headers_size(pairs)
        if size + HEADER_SIZE > about.max_message_bytes:
            about = self._ask(topic)
            check_size(topic, about.max_message_bytes, key, value, pairs)
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < about.partitions:
                about = self._ask(topic)
                check_partition(topic, partition, about.partitions)
        elif self._trusted:
            partition = self._partitioner(topic, key, value, about.partitions) if about.partitions > 1 else 0
        else:
            partition = choose_partition(self._partitioner, topic, key, value, about.partitions)

        memory = size + RECORD_MEMORY
        where = (topic, partition)
        deadline = None
        while True:
            with self._lock:
                if self._closed:
                    raise Closed("the producer is closed")
                if self._buffered + memory <= self._buffer_bytes:
                    batch = self._open.get(where)
                    if batch is not None and batch.size + size > about.batch_bytes:
                        self._make_ready(where)
                        batch = None
                    begins = batch is None
                    if batch is None:
                        batch = _Batch(topic, partition, about, time.monotonic() + self._linger)
                    future = batch.add((key, value, pairs, timestamp_ms))
                    batch.size += size
                    batch.memory += memory
                    if begins:
                        self._open_batch(where, batch)
                    self._buffered += memory
                    full = batch.size + size > about.batch_bytes
                    if full:
                        self._make_ready(where)
                    break
                deadline, room = self._ask_for_room(memory, deadline)
            room.sleep(deadline - time.monotonic())
        if full:
            self._announce(batch)
        return future

    def flush(self) -> None:
        """Send all that is buffered now and wait until it is done: every future of an earlier send is.

        Raises nothing of what went wrong (the futures and the callback tell); InvalidArgument in a
        callback, where it would wait for itself; ForkedHandle in a forked child.
        """
        if self._forks != _forks:
            raise _forked()
        if threading.current_thread() is self._thread:
            raise InvalidArgument("flush() in a producer's callback would wait for itself")
        with self._lock:
            self._make_all_ready()
            batches = [batch for queue in self._ready.values() for batch in queue] + self._sending
        for batch in batches:
            batch.done.wait()

    def close(self, timeout: float | None = None) -> None:
        """Send all that is buffered, wait until it is done, and end the sender thread.

        After `timeout` seconds (None: however long it takes) what was not yet being sent fails with Closed.
        May be called again; does nothing in a forked child, and does not wait in a callback. Raises
        InvalidType or InvalidArgument for a timeout that is none.
        """
        within = None if timeout is None else as_seconds("timeout", timeout, per_second=1)
        if self._forks != _forks:
            return
        with self._lock:
            self._closed = True
            self._work.signal()
            for room in self._waiting:
                room.signal()
        if threading.current_thread() is self._thread:
            return
        if not self._ended.wait(within):
            late = Closed(f"the producer was closed and had not sent this within {timeout} s")
            uninterruptible(lambda: self._give_up(late))
        _open_producers.discard(self)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    # -- buffering -------------------------------------------------------------------------------------

    def _ask(self, topic: str) -> _Topic:
        """The topic as it is now, remembered until a batch of it is sent."""
        check_topic(topic)
        settings = self._backend.topic_settings(topic)
        about = self._topics[topic] = _Topic(
            self._backend.describe_topic(topic).partitions,
            compression_number(self._compression, settings),
            settings.append_time,
            settings.max_message_bytes,
            min(self._batch_bytes, settings.max_message_bytes),
        )
        return about

    def _open_batch(self, where: tuple[str, int], batch: _Batch) -> None:
        """Lock held. It has its first record."""
        if not self._open:
            self._work.signal()
        self._open[where] = batch

    def _make_ready(self, where: tuple[str, int]) -> None:
        """Lock held. The open batch of a partition waits no longer."""
        batch = self._open[where]
        queue = self._ready.get(where, {})
        self._work.signal()
        # No calls from here on: between these Ctrl-C cannot strike.
        queue[batch] = None
        self._ready[where] = queue
        del self._open[where]

    def _make_all_ready(self) -> None:
        """Lock held."""
        for where in list(self._open):
            self._make_ready(where)

    def _ask_for_room(self, memory: int, deadline: float | None) -> tuple[float, Wakeup]:
        """Lock held. Until when to wait for room (None: from now on), and what rings when there is some."""
        if memory > self._buffer_bytes:
            raise RecordTooLarge(
                f"a record takes {memory:,} bytes of memory: more than the whole buffer of "
                f"{self._buffer_bytes:,} (buffer_bytes)"
            )
        if threading.current_thread() is self._thread:
            raise BufferExhausted("the buffer is full, and a producer's callback cannot wait for room in it")
        now = time.monotonic()
        if deadline is None:
            deadline = now + self._max_block
        self._make_all_ready()
        if deadline <= now:
            raise BufferExhausted(
                f"{self._buffered:,} of {self._buffer_bytes:,} bytes are buffered, and no room came free "
                f"within {self._max_block * 1000:,.0f} ms (buffer_bytes, max_block_ms)"
            )
        room = Wakeup()
        self._waiting.append(room)
        return deadline, room

    def _announce(self, batch: _Batch) -> None:
        """Tell the partitioner that a batch goes. No lock held: it may be a user's."""
        batch.announced = True
        try:
            notify_new_batch(self._partitioner, batch.topic, batch.about.partitions, batch.partition)
        except Exception:
            _log.exception("partitioner %r failed in on_new_batch", self._partitioner)

    # -- the sender thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while batches := self._take():
                self._deliver(batches)
        except BaseException as error:
            # A bug, or memory is out: whoever waits for these records must not wait for ever.
            _log.critical("a producer's sender thread died", exc_info=True)
            with self._lock:
                self._closed = True
                self._make_all_ready()
            for batch in self._sending:
                if not batch.done.is_set:
                    self._finish(batch, error)
            self._give_up(error)
        finally:
            self._ended.set()

    def _take(self) -> list[_Batch]:
        """Wait for batches and take the oldest of one partition. Empty once closed and drained."""
        while True:
            with self._lock:
                self._sending = []
                timeout = self._expire()
                if self._ready:
                    return self._take_ready()
                if self._closed:
                    return []
            self._work.sleep(timeout)

    def _take_ready(self) -> list[_Batch]:
        """Lock held."""
        where, queue = next(iter(self._ready.items()))
        del self._ready[where]
        size = 0
        for batch in queue:
            limit = _APPEND_BYTES
            if self._merges:
                limit = min(limit, batch.about.max_message_bytes)
            if size and size + batch.size > limit:
                break
            size += batch.size
            self._sending.append(batch)
        for batch in self._sending:
            del queue[batch]
        if queue:
            # Behind the others: every partition gets its turn.
            self._ready[where] = queue
        self._topics.pop(where[0], None)
        return self._sending

    def _expire(self) -> float | None:
        """Lock held. Make ready what has lingered enough, or all once closed; seconds until there is more,
        None: nothing open."""
        now = time.monotonic()
        while self._open:
            where, batch = next(iter(self._open.items()))
            if batch.deadline > now and not self._closed:
                return batch.deadline - now
            self._make_ready(where)
        return None

    def _deliver(self, batches: list[_Batch]) -> None:
        """Append batches of one partition, in one call, and settle their futures."""
        for batch in batches:
            if not batch.announced:
                self._announce(batch)
        topic, partition, about = batches[0].topic, batches[0].partition, batches[0].about
        try:
            now = self._clock()
            if self._merges:
                encoded = _encoded(about, [row for batch in batches for row in batch.records], now)
            else:
                encoded = batches[0].encode(now)
                for batch in batches[1:]:
                    encoded += batch.encode(now)
            appended = self._backend.append(topic, partition, encoded, flush=self._flush)
        except Exception as error:
            if isinstance(error, RecordTooLarge) and len(batches) > 1:
                # The topic takes less than it did: the others need not fail with the one.
                for batch in batches:
                    self._deliver([batch])
                return
            for batch in batches:
                self._finish(batch, error)
            return
        offset, durable = appended.base_offset, appended.durable
        for batch in batches:
            times = [row[3] for row in batch.records]
            if about.append_time:
                times = [appended.timestamp_ms] * len(times)
            self._finish(
                batch,
                [
                    _new(RecordMetadata, (topic, partition, number, timestamp_ms, durable))
                    for number, timestamp_ms in enumerate(times, offset)
                ],
            )
            offset += len(times)

    def _finish(self, batch: _Batch, outcome: list[RecordMetadata] | BaseException) -> None:
        settle(batch.settlement, batch.futures, outcome, self._callback)
        with self._lock:
            self._buffered -= batch.memory
            waiting, self._waiting = self._waiting, []
        batch.done.set()
        for room in waiting:
            room.signal()

    def _give_up(self, error: BaseException) -> None:
        """Closed, and nobody will send what is ready now."""
        with self._lock:
            abandoned = [batch for queue in self._ready.values() for batch in queue]
            self._ready = {}
        for batch in abandoned:
            self._finish(batch, error)


def _encoded(about: _Topic, records: list[_Row], now: int) -> bytearray:
    """One batch of these records; compressed, unless that makes it larger than is allowed."""
    _, codec, append_time, limit, _ = about
    if append_time:
        records = [(key, value, headers, now) for key, value, headers, _ in records]
    batch = encode_batch(records, compression=codec, timestamp_type=append_time)
    if codec and len(batch) > limit:
        batch = encode_batch(records, compression=NONE, timestamp_type=append_time)
    return batch


def _forked() -> ForkedHandle:
    return ForkedHandle(
        f"process {os.getpid()} was forked with this producer open: open the log and make a producer in the "
        "process that sends"
    )


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


def _drain_at_exit() -> None:
    for producer in list(_open_producers):
        producer.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
