"""The producer: `send` adds a record to the open batch of its partition; one thread sends the batches.

    send --partitioner--> open batch of (topic, partition) --full, or linger_ms old--> ready batches
                                                                                          |
    futures, callback <-complete- offsets <--backend.append-- encode <---- sender thread -+

A batch is ready when another record like its last would exceed batch_bytes, linger_ms after its first record,
at `flush` and `close`, and when a send waits for memory (send_queue.py). The sender takes the ready batches
of one partition, and encodes and appends them in one call; then it continues with the next partition. It
sleeps until the next deadline; the first open batch and each ready batch wake it.

Where partitions have several leaders, a courier for each leader waits for it (couriers.py), so that one that
is away delays only its own records. A ready batch that waits for longer than delivery_timeout_ms fails.

Invariants: records of a partition keep the order of their sends; each future is completed exactly once, with
the backend's result; a failure affects only its own partition; buffered records take at most buffer_bytes,
Python objects included; no callback runs under the lock. The settings of a topic are read again after each of
its batches. Ctrl-C may interrupt a method anywhere: the record of an interrupted send is sent once or not at
all, and the producer stays usable.

A forked child has no sender thread, and its locks may be held forever, so every method checks the fork count
first. All open producers are drained when the interpreter exits.

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
from functools import partial
from typing import Any, TypeAlias

from ..backends.port import Appends
from ..codec import HEADER_SIZE, codec_number
from ..codec.record_size import RECORD_OVERHEAD, check_size, headers_size
from ..config import KIB, MAX_INT64, MIB
from ..errors import (
    BufferExhausted,
    Closed,
    ForkedHandle,
    InvalidArgument,
    InvalidType,
    RecordTooLarge,
    counted,
)
from ..fast_append import RECORD_MEMORY, Accumulator, send_on_fast_path
from ..model import Appended, Headers, RecordMetadata
from ..runtime.closing import Closing, closes
from ..runtime.locks import Lock
from ..runtime.uninterruptible import uninterruptible
from ..runtime.wakeups import OneShotEvent, Wakeup
from ..validation import as_seconds, check_flag, check_int, check_positive, check_topic
from .batch import Callback, ProducerBatch, SendFuture, TopicState
from .couriers import Couriers
from .partition_count import partition_count
from .partitioner import Partitioner, StickyPartitioner, choose_partition, notify_new_batch
from .record_input import HeadersInput, as_row, compression_number, now_ms
from .send_queue import SendQueue

Encoder: TypeAlias = Callable[[Any], Any]
"""Turns a value or key into bytes, or None."""

LINGER_MS = 5
BATCH_BYTES = 16 * KIB
BUFFER_BYTES = 32 * MIB
MAX_BLOCK_MS = 60_000
_LOOK_S = 0.1  # at what waits for a leader

_log = logging.getLogger(__name__)
_forks = 0
_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer(Closing):
    """Sends records in the background, in batches.

    Any number of threads may use it. Call `close`, or use `with`.

    Args:
        backend: the log.
        linger_ms: how long a batch waits for more records.
        batch_bytes: the size of a batch, uncompressed. A larger record has a batch of its own.
        compression: a codec's name; by default each topic's `compression_type`.
        partitioner: by default murmur2 of the key, sticky without a key.
        encoder: converts values to bytes. It is not called for None, which is sent as null.
        key_encoder: the same for keys.
        callback: called by the sender thread for each record, as `callback(metadata, None)` or
            `callback(None, error)`. Its sends do not wait for memory. Waiting for a record of this producer
            (`result`, `flush`) raises InvalidArgument there.
        buffer_bytes: the memory for unsent records. When it is full, a send waits up to `max_block_ms`. What
            waits for a broker that is away counts, too, until it has failed after delivery_timeout_ms.
        flush: make records durable before their futures are done.
        clock: returns timestamps, in milliseconds since the epoch.
    """

    def __init__(
        self,
        backend: Appends,
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
        check_positive(batch_bytes=batch_bytes, buffer_bytes=buffer_bytes)
        check_flag("flush", flush)
        linger_s = as_seconds("linger_ms", linger_ms)
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._partitioner = StickyPartitioner(backend.delivery) if partitioner is None else partitioner
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._callback = callback
        self._max_block = as_seconds("max_block_ms", max_block_ms)
        self._flush = flush
        self._clock = clock
        if not callable(clock):
            raise InvalidType(f"clock must be callable, not {type(clock).__name__}")
        check_int("clock()", clock(), low=0)  # later results are not checked
        self._forks = _forks
        self._lock = Lock()
        self._work = Wakeup()  # for the sender: signalled before the change that it waits for
        self._waiting: list[Wakeup] = []  # of sends that wait for memory
        sticky = self._partitioner.current if type(self._partitioner) is StickyPartitioner else None
        self._trusted = sticky is not None
        if encoder is not None or key_encoder is not None or clock is not now_ms:
            sticky = None
        self._accumulator = Accumulator(
            SendFuture, min(buffer_bytes, MAX_INT64), sticky, callback is not None
        )
        self._queue = SendQueue(linger_s, backend.one_batch_per_append, self._work)
        self._delivery = backend.delivery
        self._couriers = Couriers(self._work)
        self._ended = OneShotEvent()
        self._thread = threading.Thread(target=self._run, name="embedlog-producer", daemon=True)
        uninterruptible(self._thread.start)
        _open_producers.add(self)
        # Runs before the backend's own exit handlers, which were registered earlier.
        atexit.unregister(_drain_at_exit)
        atexit.register(_drain_at_exit)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{counted(self.buffered_bytes, 'byte')} buffered"
        topics = ", ".join(map(repr, self._accumulator.topics)) or "no topic yet"
        return f"<embedlog.Producer to {topics}: {state}>"

    # -- public methods -------------------------------------------------------------------------------

    @send_on_fast_path
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

        Arguments are those of `Log.append`. The encoders, if any, convert value and key. When the future has
        a result, the record is in the log, and durable if the metadata says so.

        Raises TopicNotFound, PartitionNotFound, InvalidType, InvalidArgument, RecordTooLarge, Closed. Raises
        BufferExhausted after waiting `max_block_ms` for memory, ForkedHandle in a forked child. In these
        cases the record is not buffered. Later errors are the future's exception.
        """
        if self._forks != _forks:
            raise _forked()
        # 1. Encode and check. No lock is held: the encoders are the program's.
        if value is not None and self._encoder is not None:
            value = self._encoder(value)
        if key is not None and self._key_encoder is not None:
            key = self._key_encoder(key)
        key, value, pairs, timestamp_ms = as_row(value, key, headers, timestamp_ms, self._clock())
        # 2. Measure it against the topic's limit, which may have been raised since it was read.
        state = self._accumulator.topics.get(topic) if type(topic) is str else None
        if state is None or not state.is_fresh:
            state = self._refresh(topic)
        size = RECORD_OVERHEAD
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if pairs:
            size += headers_size(pairs)
        if size + HEADER_SIZE > state.max_message_bytes:
            state = self._refresh(topic)
            check_size(topic, state.max_message_bytes, key, value, pairs)
        # 3. Choose the partition. One that was not there may have been added.
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < state.partitions:
                partition_count(self._backend, topic, partition)
                state = self._refresh(topic)
        elif self._trusted:
            partition = self._partitioner(topic, key, value, state.partitions) if state.partitions > 1 else 0
        else:
            partition = choose_partition(self._partitioner, topic, key, value, state.partitions)
        return self._buffer(state, partition, key, value, pairs, timestamp_ms, size)

    def flush(self) -> None:
        """Send all buffered records and wait until their futures are done.

        Does not raise their errors. Raises InvalidArgument in a callback, where it would wait for itself, and
        ForkedHandle in a forked child.
        """
        if self._forks != _forks:
            raise _forked()
        if threading.get_ident() == self._thread.ident:
            raise InvalidArgument("flush() in a producer's callback would wait for itself")
        with self._lock:
            self._queue.make_all_ready()
            batches = self._queue.unsent()
        for batch in batches:
            batch.released.wait()

    @closes
    def close(self, timeout: float | None = None) -> None:
        """Send all buffered records, wait until their futures are done, and end the sender thread.

        After `timeout` seconds (None: no limit), records that are not being sent yet fail with Closed. Safe
        to call again. It does nothing in a forked child, and does not wait in a callback. Raises InvalidType
        or InvalidArgument for an invalid timeout.
        """
        within = None if timeout is None else as_seconds("timeout", timeout, per_second=1)
        if self._forks != _forks:
            return
        with self._lock:
            self._accumulator.closed = True
            self._work.signal()
            for room in self._waiting:
                room.signal()
        if threading.get_ident() == self._thread.ident:
            return
        if not self._ended.wait(within):
            late = Closed(f"the producer was closed and had not sent this within {timeout} s")
            uninterruptible(lambda: self._give_up(late))
        _open_producers.discard(self)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._accumulator.closed

    @property
    def buffered_bytes(self) -> int:
        """The memory of records that are not sent yet; see buffer_bytes."""
        return self._accumulator.buffered

    # -- buffering -------------------------------------------------------------------------------------

    def _refresh(self, topic: str) -> TopicState:
        """The state of a topic, with its current settings."""
        check_topic(topic)
        settings = self._backend.topic_settings(topic)
        partitions = self._backend.describe_topic(topic).partitions
        state: TopicState = self._accumulator.topics.setdefault(topic, TopicState(topic, self._thread))
        state.partitions = partitions
        state.codec = compression_number(self._compression, settings)
        state.append_time = settings.append_time
        state.max_message_bytes = settings.max_message_bytes
        state.batch_bytes = min(self._batch_bytes, settings.max_message_bytes)
        state.is_fresh = True
        return state

    def _buffer(
        self,
        state: TopicState,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
    ) -> SendFuture:
        """Add a record to the open batch of its partition, as soon as there is memory for it."""
        accumulator = self._accumulator
        memory = size + RECORD_MEMORY
        deadline = None
        while True:
            with self._lock:
                if accumulator.closed:
                    raise Closed("the producer is closed")
                if accumulator.buffered + memory <= accumulator.buffer_bytes:
                    batch = self._queue.open_batch(state, partition, size)
                    future: SendFuture | None
                    future = accumulator.add(batch, key, value, headers, timestamp_ms, size)
                    if future is None:  # a send on the fast path has come between
                        continue
                    full = batch.size + size > batch.limit
                    if full:
                        self._queue.make_ready(batch)
                    break
                deadline, room = self._ask_for_room(memory, deadline)
            room.sleep(deadline - time.monotonic())
        if full and not batch.announced:
            self._announce(batch)
        return future

    def _ask_for_room(self, memory: int, deadline: float | None) -> tuple[float, Wakeup]:
        """The deadline of a wait for memory (None: it begins now), and its wakeup. Lock held."""
        buffered, limit = self._accumulator.buffered, self._accumulator.buffer_bytes
        if memory > limit:
            raise RecordTooLarge(
                f"a record takes {memory:,} bytes of memory: more than the whole buffer of {limit:,} "
                "(buffer_bytes)"
            )
        if threading.get_ident() == self._thread.ident:
            raise BufferExhausted("the buffer is full, and a producer's callback cannot wait for room in it")
        now = time.monotonic()
        if deadline is None:
            deadline = now + self._max_block
        self._queue.make_all_ready()
        if deadline <= now:
            raise BufferExhausted(
                f"{buffered:,} of {limit:,} bytes are buffered, and no room came free within "
                f"{self._max_block * 1000:,.0f} ms (buffer_bytes, max_block_ms)"
            )
        room = Wakeup()
        self._waiting.append(room)
        return deadline, room

    def _announce(self, batch: ProducerBatch) -> None:
        """Call the partitioner's on_new_batch. No lock held: it may be a user's."""
        batch.announced = True
        try:
            notify_new_batch(self._partitioner, batch.topic.name, batch.topic.partitions, batch.partition)
        except Exception:
            _log.exception("partitioner %r failed in on_new_batch", self._partitioner)

    # -- the sender thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while batches := self._take():
                self._deliver(batches)
        except BaseException as error:
            # A bug, or out of memory: threads that wait for these records must not wait for ever.
            _log.critical("a producer's sender thread died", exc_info=True)
            with self._lock:
                self._accumulator.closed = True
            self._fail([batch for batch in self._queue.sending if not batch.released.is_set], error)
            self._give_up(error)
        finally:
            self._couriers.close()
            self._ended.set()

    def _take(self) -> list[ProducerBatch]:
        """Wait for ready batches and take the oldest of one partition; [] once closed and drained."""
        delivery = self._delivery
        while True:
            overdue = []
            for sent, outcome in self._couriers.outcomes():
                if isinstance(outcome, BaseException):
                    self._fail(sent, outcome)
                else:
                    self._complete(sent, outcome)
            with self._lock:
                timeout = self._queue.expire(all_of_them=self._accumulator.closed)
                if delivery is not None and self._queue.has_ready:
                    overdue = self._queue.overdue(delivery.timeout_ms / 1000)
                    timeout = _LOOK_S if timeout is None else min(timeout, _LOOK_S)
                if not overdue:
                    batches = self._queue.take(None if delivery is None else delivery.lane)
                    if batches:
                        return batches
                    if self._accumulator.closed and self._queue.is_empty:
                        return []
            if overdue and delivery is not None:
                self._fail(overdue, delivery.overdue(overdue[0].topic.name, overdue[0].partition))
                continue
            self._work.sleep(timeout)

    def _deliver(self, batches: list[ProducerBatch]) -> None:
        """Append batches of one partition in one call, and complete them; by a courier, if there are several
        leaders."""
        for batch in batches:
            if not batch.announced:
                self._announce(batch)
        topic, partition = batches[0].topic, batches[0].partition
        try:
            now = self._clock()
            encoded = bytearray()
            for batch in batches:
                if batch.count:
                    encoded += batch.build(topic.codec, topic.max_message_bytes, now)
            if encoded:
                append = partial(self._backend.append, topic.name, partition, encoded, flush=self._flush)
                delivery = self._delivery
                if delivery is not None:
                    left_s = batches[0].deadline + delivery.timeout_ms / 1000 - time.monotonic()
                    append.keywords["timeout_ms"] = max(int(left_s * 1000), 1)
                    if delivery.has_lanes or delivery.lane(topic.name, partition) is None:
                        self._couriers.carry(batches, append)
                        return
                appended = append()
            else:  # Ctrl-C has stopped the sends that opened these
                appended = Appended(-1, -1, -1, False)
        except RecordTooLarge as error:
            if len(batches) == 1:
                self._fail(batches, error)
            else:  # max_message_bytes was lowered: fail only the batches that exceed it
                for batch in batches:
                    self._deliver([batch])
            return
        except Exception as error:
            self._fail(batches, error)
            return
        self._complete(batches, appended)

    def _complete(self, batches: list[ProducerBatch], appended: Appended) -> None:
        topic = batches[0].topic
        offset = appended.base_offset
        log_append_ms = appended.timestamp_ms if topic.append_time else None
        for batch in batches:
            count = batch.count
            batch.complete(offset, log_append_ms, appended.durable, self._callback)
            offset += count
        self._release(batches)

    def _fail(self, batches: list[ProducerBatch], error: BaseException) -> None:
        for batch in batches:
            if not batch.done.is_set:
                batch.fail(error, self._callback)
        self._release(batches)

    def _release(self, batches: list[ProducerBatch]) -> None:
        """Give back the memory of batches that are done."""
        with self._lock:
            self._queue.note_sent(batches)
            self._accumulator.release(sum(batch.memory for batch in batches))
            waiting, self._waiting = self._waiting, []
        for batch in batches:
            batch.released.set()
        for room in waiting:
            room.signal()

    def _give_up(self, error: BaseException) -> None:
        """Fail all batches that are not being sent; nothing will send them."""
        with self._lock:
            abandoned = self._queue.give_up()
        self._fail(abandoned, error)


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
