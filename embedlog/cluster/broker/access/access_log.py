"""What was denied: a line in the log `embedlog.authorizer`, and a record in a topic if one is set.

    Principal = User:bob is Denied Operation = Read from host = 10.0.0.7 on resource = Topic:LITERAL:pay
    for request = Fetch                                                                     as Kafka's

    {"timestamp_ms": ..., "principal": "User:bob", "host": "10.0.0.7", "operation": "Read",
     "resource_type": "Topic", "resource_name": "pay", "request": "Fetch", "left_out": 0}

Clients choose what is written here: names are cut and escaped, lines and records are limited in number, and
a queue of bounded length leads to the topic. What is left out is counted, and the next one says how many.
A request never waits. The broker's own appends to the topic are no requests, and so are not in it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ....errors import EmbedlogError
from ....runtime.closing import Closing
from ....runtime.locks import Lock
from ....runtime.log_throttle import LogThrottle
from ....security.acls import Operation, ResourceType
from ....security.principal import Principal

logger = logging.getLogger("embedlog.authorizer")
_own_logger = logging.getLogger(__name__)

_LINES_PER_S: Final = 20.0
_LINES_AT_ONCE: Final = 100.0
_RECORDS_PER_S: Final = 100.0  # so that nobody fills the disk by asking for what is denied
_RECORDS_AT_ONCE: Final = 1_000.0
_QUEUED: Final = 1_000
_SHOWN_CHARS: Final = 249

Append = Callable[[bytes], None]
"""Appends a record to the topic. Raises EmbedlogError."""


class _Share:
    """So many a second on average, so many at once. Not thread-safe."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s = per_s
        self._at_once = self._left = at_once
        self._at = time.monotonic()
        self._refused = 0

    def take(self) -> int | None:
        """How many were refused before this one; None if this one is, too."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_s, self._at_once)
        self._at = now
        if self._left < 1:
            self._refused += 1
            return None
        self._left -= 1
        refused, self._refused = self._refused, 0
        return refused


class AccessLog(Closing):
    """Writes denials. Thread-safe.

    append: to the topic; None without one. It is called in a thread of its own.
    """

    def __init__(self, append: Append | None = None) -> None:
        self._append = append
        self._lock = Lock()
        self._lines = _Share(_LINES_PER_S, _LINES_AT_ONCE)
        self._records = _Share(_RECORDS_PER_S, _RECORDS_AT_ONCE)
        self._queue: deque[dict[str, Any]] = deque()
        self._left_out = 0
        self._filled = threading.Event()
        self._closed = False
        self._failed_log = LogThrottle()
        self._thread: threading.Thread | None = None
        if append is not None:
            self._thread = threading.Thread(target=self._run, name="embedlog-audit", daemon=True)
            self._thread.start()

    def denied(
        self, principal: Principal, host: str, operation: Operation, type: ResourceType, name: str, api: str
    ) -> None:
        """Note what was denied. From any thread."""
        with self._lock:
            unlogged = self._lines.take()
        if unlogged is not None:
            logger.warning(
                "Principal = %s is Denied Operation = %s from host = %s on resource = %s:LITERAL:%s "
                "for request = %s%s",
                _shown(str(principal)),
                operation.spelling,
                host,
                type.spelling,
                _shown(name),
                api,
                f" ({unlogged:,} more were denied since the last line)" if unlogged else "",
            )
        if self._thread is None:
            return
        with self._lock:
            refused = self._records.take()
            if refused is None:
                return
            self._left_out += refused
            if len(self._queue) >= _QUEUED:
                self._left_out += 1
                return
            self._queue.append(
                {
                    "timestamp_ms": time.time_ns() // 1_000_000,
                    "principal": str(principal)[:_SHOWN_CHARS],
                    "host": host,
                    "operation": operation.spelling,
                    "resource_type": type.spelling,
                    "resource_name": name[:_SHOWN_CHARS],
                    "request": api,
                    "left_out": self._left_out,
                }
            )
            self._left_out = 0
        self._filled.set()

    def close(self) -> None:
        """Write what is queued, up to the first failure. Idempotent."""
        self._closed = True
        self._filled.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._append is not None
        while not self._closed or self._queue:
            self._filled.wait()
            self._filled.clear()
            while self._queue:
                with self._lock:
                    record = self._queue.popleft()
                try:
                    self._append(json.dumps(record).encode())
                except EmbedlogError as error:
                    with self._lock:
                        self._left_out += 1 + record["left_out"]
                    if count := self._failed_log.count():
                        _own_logger.warning("%d denials are not in their topic: %s", count, error)
                    if self._closed:  # each of the others might wait as long
                        return
            if self._closed:
                return


def _shown(text: str) -> str:
    """Put a text on one line, without control characters."""
    return text[:_SHOWN_CHARS].encode("unicode_escape").decode()
