"""What a request uses of its client's quotas, and how long the client has to wait for it.

    frame -> Usage -> handler, in this thread and in others -> finish: the answer says throttle_time_ms

The answer leaves at once; its connection then rests for that time (`Connection.rest_s`), so a client that
does not wait by itself is slowed, too (KIP-219). Under request_percentage counts the time of threads: of the
processor, and of those that a handler's work runs in, which learn by `current` for whom they work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ...runtime.locks import Lock
from ...security.quota_rules import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from ...security.quotas import Limits, Quotas
from ...wire.error_codes import ErrorCode
from ..network.connection import Connection
from .api_errors import ApiError

_T = TypeVar("_T")

_PRODUCE: Final = 0
_ADD_PARTITIONS_TO_TXN: Final = 24
_FIRST_OF_BROKERS: Final = 4  # AddPartitionsToTxn
_NOT_COUNTED: Final = frozenset({17, 27, 36})  # SaslHandshake, WriteTxnMarkers, SaslAuthenticate

_working = threading.local()


def current() -> Usage | None:
    """What the request uses that this thread works on; None if no quota applies to it."""
    return getattr(_working, "usage", None)


def usage_of(quotas: Quotas, connection: Connection, client_id: str, key: int, version: int) -> Usage | None:
    """What a request uses; None if no quota applies to it. Brokers ask each other without one."""
    if key in _NOT_COUNTED or (key == _ADD_PARTITIONS_TO_TXN and version >= _FIRST_OF_BROKERS):
        return None
    limits = quotas.limits(connection.principal.name, client_id)
    return Usage(quotas, limits, connection, key) if limits else None


class Usage:
    """What one request uses. Several threads may work on it, one after the other or together."""

    def __init__(self, quotas: Quotas, limits: Limits, connection: Connection, api_key: int) -> None:
        self._quotas = quotas
        self._limits = limits
        self._connection = connection
        self._api_key = api_key
        self._lock = Lock()
        self._spent_s = 0.0
        self._throttle_ms = 0
        self._by = REQUEST_PERCENTAGE  # the quota that it is longest for

    def run(self, work: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Do the work in this thread; its time counts."""
        _working.usage, _working.since = self, time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            self._note_time()
            _working.usage = None

    def most_fetched(self, max_bytes: int) -> int:
        """The bytes that a response may have, of so many that were asked for."""
        return int(min(max_bytes, self._quotas.most_fetched(self._limits)))

    def fetches(self, size: int) -> bool:
        """Count a response of this many bytes. Returns False if it has to be empty instead."""
        self._throttle(CONSUMER_BYTE_RATE, self._record(CONSUMER_BYTE_RATE, size))
        self._count_time()
        return not self._throttle_ms

    def mutates(self, partitions: int, *, strict: bool) -> None:
        """Count partitions that will be created or deleted.

        Raises ApiError if `strict`, and the client has to wait first.
        """
        may, throttle_ms = self._quotas.mutate(self._limits, partitions, time.monotonic(), strict=strict)
        self._throttle(CONTROLLER_MUTATION_RATE, throttle_ms)
        if not may:
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"the client's quota is used up: wait {throttle_ms:,} ms ({CONTROLLER_MUTATION_RATE})",
            )

    def finish(self, frame_bytes: int, response: Any) -> None:
        """Tell the client how long to wait, and let its connection rest for that long."""
        if self._api_key == _PRODUCE:
            self._throttle(PRODUCER_BYTE_RATE, self._record(PRODUCER_BYTE_RATE, frame_bytes))
        self._count_time()
        if not self._throttle_ms:
            return
        self._quotas.note(self._by, self._throttle_ms)
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = self._throttle_ms
        self._connection.rest_s = self._throttle_ms / 1000

    def _note_time(self) -> None:
        """Note this thread's time since the last call."""
        now = time.perf_counter()
        with self._lock:
            self._spent_s += now - _working.since
        _working.since = now

    def _count_time(self) -> None:
        if current() is self:
            self._note_time()
        with self._lock:
            spent_s, self._spent_s = self._spent_s, 0.0
        self._throttle(REQUEST_PERCENTAGE, self._record(REQUEST_PERCENTAGE, spent_s))

    def _record(self, key: str, value: float) -> int:
        return self._quotas.record(self._limits, key, value, time.monotonic())

    def _throttle(self, by: str, throttle_ms: int) -> None:
        if throttle_ms > self._throttle_ms:
            self._throttle_ms, self._by = throttle_ms, by


def mutates(usage: Usage | None, partitions: int, *, strict: bool) -> None:
    """Count as `Usage.mutates`, if a quota applies."""
    if usage is not None:
        usage.mutates(partitions, strict=strict)
