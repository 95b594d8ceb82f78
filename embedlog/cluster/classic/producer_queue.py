"""The queue of an asynchronous producer, and its sender thread.

    put -> before_enqueue -> queue -> after_enqueue
           the thread: after_dequeuing, until there are batch_size events or queue_time_ms have passed
                       -> before_sending -> the event handler -> after_sending

Invariants: first in, first out; at most queue_size events are queued; `close` sends the queued events before
it returns; a batch that fails is logged and dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from ...errors import BufferExhausted, Closed
from ...runtime.locks import Lock
from ...validation import as_seconds, check_int
from .producer_data import CallbackHandler, Event

FOREVER: Final = -1  # of queue_enqueue_timeout_ms

logger = logging.getLogger(__name__)


class QueueLimits(NamedTuple):
    """When a batch is sent, and how much waits.

    enqueue_timeout_s: how long `put` waits for room; None: without limit.
    """

    queue_time_s: float
    batch_size: int
    queue_size: int
    enqueue_timeout_s: float | None

    @classmethod
    def checked(
        cls, queue_time_ms: float, batch_size: int, queue_size: int, queue_enqueue_timeout_ms: float
    ) -> Self:
        """The limits of a producer. Raises InvalidArgument, InvalidType."""
        check_int("batch_size", batch_size, low=1)
        check_int("queue_size", queue_size, low=1)
        has_limit = queue_enqueue_timeout_ms != FOREVER
        return cls(
            as_seconds("queue_time_ms", queue_time_ms),
            batch_size,
            queue_size,
            as_seconds("queue_enqueue_timeout_ms", queue_enqueue_timeout_ms) if has_limit else None,
        )


class ProducerQueue:
    """Thread-safe.

    Args:
        send: sends a batch, in the queue's own thread.
    """

    def __init__(
        self, send: Callable[[Sequence[Event]], None], callbacks: CallbackHandler, limits: QueueLimits
    ) -> None:
        self._send = send
        self._callbacks = callbacks
        self._limits = limits
        self._events: deque[Event] = deque()
        self._lock = Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._closed = False
        self.failed_batches = 0
        self._thread = threading.Thread(target=self._run, name="classic producer", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event. Raises BufferExhausted if there is no room in time, Closed."""
        event = self._callbacks.before_enqueue(event)
        with self._lock:
            room = self._not_full.wait_for(self._has_room, self._limits.enqueue_timeout_s)
            if self._closed:
                raise Closed("the producer is closed")
            if room:
                self._events.append(event)
                self._not_empty.notify()
        self._callbacks.after_enqueue(event, room)
        if not room:
            raise BufferExhausted(
                f"the queue is full ({self._limits.queue_size:,} events), and none was sent within "
                f"{self._limits.enqueue_timeout_s:g} s: raise queue_size or queue_enqueue_timeout_ms"
            )

    def close(self) -> None:
        """Send the queued events, and end the thread."""
        with self._lock:
            self._closed = True
            self._not_empty.notify_all()
            self._not_full.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return self._closed or len(self._events) < self._limits.queue_size

    def _run(self) -> None:
        while self._deliver(self._gather):
            pass
        self._deliver(self._gather_last)

    def _gather(self, batch: list[Event]) -> bool:
        """Fill the next batch. Returns whether more events may follow."""
        until = time.monotonic() + self._limits.queue_time_s
        while len(batch) < self._limits.batch_size:
            event, is_last = self._take(until)
            if event is None and is_last:
                return False
            batch += self._callbacks.after_dequeuing(event)
            if event is None:
                return True
        return True

    def _gather_last(self, batch: list[Event]) -> bool:
        batch += self._callbacks.last_batch_before_close()
        return False

    def _take(self, until: float) -> tuple[Event | None, bool]:
        """The next event; None on a timeout or at the end."""
        with self._lock:
            self._not_empty.wait_for(lambda: self._events or self._closed, max(until - time.monotonic(), 0))
            if not self._events:
                return None, self._closed
            event = self._events.popleft()
            self._not_full.notify()
            return event, False

    def _deliver(self, gather: Callable[[list[Event]], bool]) -> bool:
        """Send a batch, if there is one. Errors are reported, and the thread continues."""
        batch: list[Event] = []
        events: Sequence[Event] = batch
        error: Exception | None = None
        has_more = True
        try:
            has_more = gather(batch)
            if batch:
                events = self._callbacks.before_sending(batch)
                self._send(events)
        except Exception as raised:
            error = raised
            self.failed_batches += 1
            logger.error("%d events could not be sent and are dropped: %s", len(events), raised)
        if events or error is not None:
            try:
                self._callbacks.after_sending(events, error)
            except Exception:
                logger.exception("after_sending of the callback handler failed")
        return has_more
